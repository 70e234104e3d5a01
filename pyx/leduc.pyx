"""Leduc poker (Southey et al., "Bayes' bluff", UAI 2005), rule for rule as OpenSpiel's leduc_poker.

Six cards: card c has rank c // 2 and suit c % 2. Ante 1, one private card each, a betting round with
raises of 2, one public card, a betting round with raises of 4; at most 2 raises a round, and player 0
opens both. A pair with the public card wins, else the higher rank; equal ranks split. Suits change no
payoff but are seen, so they tell information sets apart.

Actions are OpenSpiel's: 0 fold (legal only against a raise), 1 call (or check), 2 raise.
"""
from libc.string cimport memset

from pyx.game cimport Game
from pyx.rng cimport Rng, rng_below
from pyx.types cimport CHANCE, TERMINAL, Output, int32_t, uint8_t, uint64_t

cdef enum:
    CARDS = 6
    ROUND_LENGTH = 4        # check, raise, raise, call

# The actions.
cdef enum:
    FOLD = 0
    CALL = 1
    RAISE = 2

ctypedef struct Hand:
    int32_t dealt                       # cards dealt, private ones first: 0 to 3
    int32_t cards[3]                    # player 0's, player 1's, the public one
    int32_t betting_round               # 0 before the public card, 1 from then on
    int32_t folder                      # who folded; -1 for nobody
    int32_t raises                      # in this round
    int32_t paid[2]                     # into the pot, antes included
    int32_t n_bets[2]                   # actions of each round
    int32_t bets[2][ROUND_LENGTH]
    int32_t padding


cdef inline bint round_over(const Hand* hand) noexcept nogil:
    """Both have acted in this round and nobody has a raise to answer."""
    cdef int n = hand.n_bets[hand.betting_round]
    return n >= 2 and hand.bets[hand.betting_round][n - 1] == CALL


cdef inline int strength(int card, int public) noexcept nogil:
    """What a showdown compares: a pair beats every rank."""
    return 3 if card // 2 == public // 2 else card // 2


cdef class Leduc(Game):
    """Leduc poker; no parameters."""

    def __cinit__(self):
        self.name = "leduc"
        self.parameters = {}
        self.n_actions = 3
        self.n_features = 30
        self.row_bytes = 8
        self.max_legal = 3
        self.max_chance = CARDS
        self.max_length = 2 * ROUND_LENGTH
        self.state_bytes = sizeof(Hand)
        self.max_payoff = 13.0
        self.payoff_scale = 4.0

    cdef void start(self, void* state) noexcept nogil:
        cdef Hand* hand = <Hand*>state
        memset(hand, 0, sizeof(Hand))
        hand.folder = -1
        hand.paid[0] = 1
        hand.paid[1] = 1

    cdef int player(self, const void* state) noexcept nogil:
        cdef const Hand* hand = <const Hand*>state
        if hand.folder >= 0:
            return TERMINAL
        if hand.dealt < 2 + hand.betting_round:
            return CHANCE
        if round_over(hand):
            return TERMINAL
        return hand.n_bets[hand.betting_round] & 1

    cdef int legal(self, const void* state, int* actions) noexcept nogil:
        cdef const Hand* hand = <const Hand*>state
        cdef int card, i, n = 0
        cdef bint gone
        if hand.dealt < 2 + hand.betting_round:
            for card in range(CARDS):
                gone = False
                for i in range(hand.dealt):
                    if hand.cards[i] == card:
                        gone = True
                if not gone:
                    actions[n] = card
                    n += 1
            return n
        if hand.paid[0] != hand.paid[1]:
            actions[n] = FOLD
            n += 1
        actions[n] = CALL
        n += 1
        if hand.raises < 2:
            actions[n] = RAISE
            n += 1
        return n

    cdef void chance(self, const void* state, double* probabilities) noexcept nogil:
        cdef int k, n = CARDS - (<const Hand*>state).dealt
        for k in range(n):
            probabilities[k] = 1.0 / n

    cdef int sample_chance(self, void* state, Rng* rng) noexcept nogil:
        cdef int cards[CARDS]
        cdef int card = cards[rng_below(rng, self.legal(state, cards))]
        self.apply(state, card)
        return card

    cdef void apply(self, void* state, int action) noexcept nogil:
        cdef Hand* hand = <Hand*>state
        cdef int actor, part = hand.betting_round
        if hand.dealt < 2 + part:
            hand.cards[hand.dealt] = action
            hand.dealt += 1
            return
        actor = hand.n_bets[part] & 1
        hand.bets[part][hand.n_bets[part]] = action
        hand.n_bets[part] += 1
        if action == FOLD:
            hand.folder = actor
            return
        hand.paid[actor] = hand.paid[1 - actor]
        if action == RAISE:
            hand.paid[actor] += 4 if part else 2
            hand.raises += 1
        elif part == 0 and round_over(hand):
            hand.betting_round = 1
            hand.raises = 0

    cdef double payoff(self, const void* state) noexcept nogil:
        cdef const Hand* hand = <const Hand*>state
        cdef int mine, yours
        if hand.folder >= 0:
            return -hand.paid[0] if hand.folder == 0 else hand.paid[1]
        mine = strength(hand.cards[0], hand.cards[2])
        yours = strength(hand.cards[1], hand.cards[2])
        if mine == yours:
            return 0.0
        return hand.paid[1] if mine > yours else -hand.paid[0]

    cdef void observe(self, const void* state, int player, uint8_t* row, Output* outputs) noexcept nogil:
        """Bits as in OpenSpiel: player (2), own card (6), public card (6), then per round (call, raise) of
        each of 4 actions (16). A fold sets no bit.
        """
        cdef const Hand* hand = <const Hand*>state
        cdef int actions[CARDS]
        cdef uint64_t bits = <uint64_t>1 << player
        cdef int part, i, n
        if hand.dealt > player:
            bits |= <uint64_t>1 << (2 + hand.cards[player])
        if hand.dealt > 2:
            bits |= <uint64_t>1 << (8 + hand.cards[2])
        for part in range(2):
            for i in range(hand.n_bets[part]):
                if hand.bets[part][i] != FOLD:
                    bits |= <uint64_t>1 << (14 + 2 * (ROUND_LENGTH * part + i) + hand.bets[part][i] - CALL)
        (<uint64_t*>row)[0] = bits
        if self.player(state) == player:
            n = self.legal(state, actions)
            for i in range(n):
                outputs[i] = Output(actions[i], actions[i], 1, 0)

    cdef uint64_t sight(self, const void* state, int action, int player) noexcept nogil:
        """Own card + 1 or public card + 1; actions 16 to 18."""
        cdef const Hand* hand = <const Hand*>state
        if hand.dealt < 2 + hand.betting_round:
            return action + 1 if hand.dealt == player or hand.dealt == 2 else 0
        return 16 + action

    def action_to_string(self, player, action):
        if player == CHANCE:
            return f"deal {action}"
        return ("fold", "call", "raise")[action]
