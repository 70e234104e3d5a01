"""The interface a game implements: nogil methods over a flat state.

A two-player zero-sum game with explicit chance. A state is `state_bytes` bytes without pointers, so
that memcpy clones it. A Game is immutable once made: any number of threads may call it, each on states
of its own. Every method below is total only on the states named in its comment; callers check, games
do not.
"""
from pyx.rng cimport Rng
from pyx.types cimport Output, uint8_t, uint64_t


cdef class Game:
    # Set by the subclass's __cinit__ and never changed after.
    cdef readonly str name
    cdef readonly dict parameters        # keyword -> value, every default written out
    cdef readonly int n_actions          # distinct actions; also the width of a network's output
    cdef readonly int n_features         # bits of a row
    cdef readonly int row_bytes          # n_features padded to whole 8-byte words
    cdef readonly int max_legal          # most legal actions at one decision, at most MAX_LEGAL
    cdef readonly int max_chance         # most outcomes of one chance node
    cdef readonly int max_length         # most decisions of one game; 0 where a game may last for ever
    cdef readonly size_t state_bytes     # a multiple of 8
    cdef readonly double max_payoff      # no |payoff| is larger
    cdef readonly double payoff_scale    # the size of an ordinary payoff: networks see payoffs divided by it

    # The state before anything happened.
    cdef void start(self, void* state) noexcept nogil                       # OUT
    # Who decides: 0, 1, CHANCE or TERMINAL.
    cdef int player(self, const void* state) noexcept nogil
    # Legal actions, ascending; at a chance node its possible outcomes. Returns how many. Not at the end.
    cdef int legal(self, const void* state, int* actions) noexcept nogil     # OUT max(max_legal, max_chance)
    # Chance nodes: the probabilities of legal()'s outcomes, in its order.
    cdef void chance(self, const void* state, double* probabilities) noexcept nogil   # OUT max_chance
    # Chance nodes: draw an outcome, apply it and return it.
    cdef int sample_chance(self, void* state, Rng* rng) noexcept nogil
    # Any node but the end: play a legal action, or a possible chance outcome.
    cdef void apply(self, void* state, int action) noexcept nogil
    # The end: what player 0 wins (player 1 wins the negative), in the game's units.
    cdef double payoff(self, const void* state) noexcept nogil
    # Any state: the row of `player`, and for the player to act where each legal action's value stands in
    # a network's output, in legal()'s order (untouched when another is to act).
    cdef void observe(self, const void* state, int player, uint8_t* row, Output* outputs) noexcept nogil  # OUT row_bytes, max_legal
    # Any node but the end, before `action` is applied: what `player` sees of it. The sequence of what a
    # player saw is its information set (perfect recall): two histories are one information set exactly
    # if their sequences of non-zero sights are equal. 0 means that the player sees nothing.
    cdef uint64_t sight(self, const void* state, int action, int player) noexcept nogil


cdef class State:
    cdef readonly Game game
    cdef void* data                      # state_bytes, owned
    cdef list actions                    # history: actions and chance outcomes since the start
    cdef list sights                     # per player: the non-zero sights since the start
    cdef object dealer                   # what answers at chance nodes; None: they appear
    cdef int _player(self) noexcept nogil
