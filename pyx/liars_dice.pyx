"""Liar's Dice with one die each, rule for rule as OpenSpiel's liars_dice(players=2, numdice=1).

Both roll a die of six faces in secret; player 0 bids first. A bid says how many of the two dice show a
face at least; the 6 is wild and counts as every face. Bids rise: more dice, or as many of a higher face.
Who calls "liar" wins 1 if the last bid is wrong and loses 1 if it is right.

Actions are OpenSpiel's: 0 to 5 bid one die of face 1 to 6, 6 to 11 two dice of face 1 to 6, 12 calls.
"""
from libc.string cimport memset

from pyx.game cimport Game
from pyx.rng cimport Rng, rng_below
from pyx.types cimport CHANCE, TERMINAL, Output, int32_t, uint8_t, uint32_t, uint64_t

cdef enum:
    FACES = 6
    LIAR = 2 * FACES
    NO_BID = -1

ctypedef struct Table:
    int32_t rolled          # dice rolled, 0 to 2
    int32_t dice[2]         # 0 to 5; a face is one more
    int32_t last_bid        # NO_BID before the first
    int32_t moves           # bids and calls so far
    uint32_t seen           # bit a: action a was played


cdef class LiarsDice(Game):
    """Liar's Dice with one die each; no parameters."""

    def __cinit__(self):
        self.name = "liars_dice"
        self.parameters = {}
        self.n_actions = LIAR + 1
        self.n_features = 2 + FACES + LIAR + 1
        self.row_bytes = 8
        self.max_legal = LIAR
        self.max_chance = FACES
        self.max_length = LIAR + 1
        self.state_bytes = sizeof(Table)
        self.max_payoff = 1.0
        self.payoff_scale = 1.0

    cdef void start(self, void* state) noexcept nogil:
        memset(state, 0, sizeof(Table))
        (<Table*>state).last_bid = NO_BID

    cdef int player(self, const void* state) noexcept nogil:
        cdef const Table* table = <const Table*>state
        if table.rolled < 2:
            return CHANCE
        if table.seen >> LIAR:
            return TERMINAL
        return table.moves & 1

    cdef int legal(self, const void* state, int* actions) noexcept nogil:
        cdef const Table* table = <const Table*>state
        cdef int k, n = 0
        if table.rolled < 2:
            for k in range(FACES):
                actions[k] = k
            return FACES
        for k in range(table.last_bid + 1, LIAR):
            actions[n] = k
            n += 1
        if table.last_bid != NO_BID:
            actions[n] = LIAR
            n += 1
        return n

    cdef void chance(self, const void* state, double* probabilities) noexcept nogil:
        cdef int k
        for k in range(FACES):
            probabilities[k] = 1.0 / FACES

    cdef int sample_chance(self, void* state, Rng* rng) noexcept nogil:
        cdef int die = rng_below(rng, FACES)
        self.apply(state, die)
        return die

    cdef void apply(self, void* state, int action) noexcept nogil:
        cdef Table* table = <Table*>state
        if table.rolled < 2:
            table.dice[table.rolled] = action
            table.rolled += 1
            return
        table.seen |= <uint32_t>1 << action
        table.moves += 1
        if action != LIAR:
            table.last_bid = action

    cdef double payoff(self, const void* state) noexcept nogil:
        cdef const Table* table = <const Table*>state
        cdef int face = table.last_bid % FACES, needed = table.last_bid // FACES + 1
        cdef int i, shown = 0, winner = (table.moves - 1) & 1       # the caller, unless the bid is right
        for i in range(2):
            shown += table.dice[i] == face or table.dice[i] == FACES - 1
        if shown >= needed:
            winner ^= 1
        return 1.0 if winner == 0 else -1.0

    cdef void observe(self, const void* state, int player, uint8_t* row, Output* outputs) noexcept nogil:
        """Bits as in OpenSpiel: player (2), own die (6), actions played (13)."""
        cdef const Table* table = <const Table*>state
        cdef int actions[LIAR]
        cdef uint64_t bits = <uint64_t>1 << player
        cdef int k, n
        if table.rolled > player:
            bits |= <uint64_t>1 << (2 + table.dice[player])
        bits |= <uint64_t>table.seen << (2 + FACES)
        (<uint64_t*>row)[0] = bits
        if self.player(state) == player:
            n = self.legal(state, actions)
            for k in range(n):
                outputs[k] = Output(actions[k], actions[k], 1, 0)

    cdef uint64_t sight(self, const void* state, int action, int player) noexcept nogil:
        """Own die + 1; actions 16 to 28."""
        cdef const Table* table = <const Table*>state
        if table.rolled < 2:
            return action + 1 if table.rolled == player else 0
        return 16 + action

    def action_to_string(self, player, action):
        if player == CHANCE:
            return f"roll {action + 1}"
        return "liar" if action == LIAR else f"{action // FACES + 1}x{action % FACES + 1}"
