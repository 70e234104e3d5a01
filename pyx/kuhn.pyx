"""Kuhn poker (Kuhn 1950): three cards, one each, ante 1, one bet of 1.

Actions are OpenSpiel's: 0 passes (checks or folds), 1 bets (or calls).
"""
from libc.string cimport memset

from pyx.game cimport Game
from pyx.rng cimport Rng, rng_below
from pyx.types cimport CHANCE, TERMINAL, Output, int32_t, uint8_t, uint64_t

ctypedef struct Hand:
    int32_t dealt           # cards dealt, 0 to 2
    int32_t cards[2]        # 0 to 2, the higher wins
    int32_t n_bets          # actions played, 0 to 3
    int32_t bets[3]
    int32_t padding


cdef inline int folded(const Hand* hand) noexcept nogil:
    """Who gave up against a bet: 0, 1, or -1 for nobody."""
    if hand.n_bets >= 2 and hand.bets[hand.n_bets - 1] == 0 and hand.bets[hand.n_bets - 2] == 1:
        return (hand.n_bets - 1) & 1
    return -1


cdef class Kuhn(Game):
    """Kuhn poker; no parameters."""

    def __cinit__(self):
        self.name = "kuhn"
        self.parameters = {}
        self.n_actions = 2
        self.n_features = 11
        self.row_bytes = 8
        self.max_legal = 2
        self.max_chance = 3
        self.max_length = 3
        self.state_bytes = sizeof(Hand)
        self.max_payoff = 2.0
        self.payoff_scale = 1.0

    cdef void start(self, void* state) noexcept nogil:
        memset(state, 0, sizeof(Hand))

    cdef int player(self, const void* state) noexcept nogil:
        cdef const Hand* hand = <const Hand*>state
        if hand.dealt < 2:
            return CHANCE
        if hand.n_bets == 3 or (hand.n_bets == 2 and not (hand.bets[0] == 0 and hand.bets[1] == 1)):
            return TERMINAL
        return hand.n_bets & 1

    cdef int legal(self, const void* state, int* actions) noexcept nogil:
        cdef const Hand* hand = <const Hand*>state
        cdef int card, n = 0
        if hand.dealt == 2:
            actions[0] = 0
            actions[1] = 1
            return 2
        for card in range(3):
            if hand.dealt == 0 or card != hand.cards[0]:
                actions[n] = card
                n += 1
        return n

    cdef void chance(self, const void* state, double* probabilities) noexcept nogil:
        cdef int k, n = 3 - (<const Hand*>state).dealt
        for k in range(n):
            probabilities[k] = 1.0 / n

    cdef int sample_chance(self, void* state, Rng* rng) noexcept nogil:
        cdef int cards[3]
        cdef int card = cards[rng_below(rng, self.legal(state, cards))]
        self.apply(state, card)
        return card

    cdef void apply(self, void* state, int action) noexcept nogil:
        cdef Hand* hand = <Hand*>state
        if hand.dealt < 2:
            hand.cards[hand.dealt] = action
            hand.dealt += 1
        else:
            hand.bets[hand.n_bets] = action
            hand.n_bets += 1

    cdef double payoff(self, const void* state) noexcept nogil:
        cdef const Hand* hand = <const Hand*>state
        cdef int loser = folded(hand)
        cdef double won
        if loser >= 0:
            return -1.0 if loser == 0 else 1.0
        won = 2.0 if hand.bets[hand.n_bets - 1] == 1 else 1.0
        return won if hand.cards[0] > hand.cards[1] else -won

    cdef void observe(self, const void* state, int player, uint8_t* row, Output* outputs) noexcept nogil:
        """Bits as in OpenSpiel: player (2), own card (3), then (pass, bet) of each action (6)."""
        cdef const Hand* hand = <const Hand*>state
        cdef uint64_t bits = <uint64_t>1 << player
        cdef int i
        if hand.dealt > player:
            bits |= <uint64_t>1 << (2 + hand.cards[player])
        for i in range(hand.n_bets):
            bits |= <uint64_t>1 << (5 + 2 * i + hand.bets[i])
        (<uint64_t*>row)[0] = bits
        if self.player(state) == player:
            for i in range(2):
                outputs[i] = Output(i, i, 1, 0)

    cdef uint64_t sight(self, const void* state, int action, int player) noexcept nogil:
        """Own card + 1; actions 16 and 17."""
        cdef const Hand* hand = <const Hand*>state
        if hand.dealt < 2:
            return action + 1 if hand.dealt == player else 0
        return 16 + action

    def action_to_string(self, player, action):
        if player == CHANCE:
            return f"deal {action}"
        return "bet" if action else "pass"
