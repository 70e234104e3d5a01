"""Scripted opponents: what a bot is, for those who hold one."""
from pyx.game cimport Game
from pyx.rng cimport Rng


cdef class Bot:
    cdef readonly str name
    # The action taken at a decision of `game`; `legal` is game.legal(state). Reads of the state only what
    # the player to act may see. Draws from `rng` only where the bot is random.
    cdef int act(self, Game game, const void* state, const int* legal, int n_legal, Rng* rng) noexcept nogil
