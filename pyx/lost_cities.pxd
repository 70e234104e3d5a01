"""Lost Cities: the flat state, for the game itself and for its bots.

A card is its kind: colour * (ranks + 1) + rank, where rank 0 is a wager and rank r >= 1 the number r + 1.
"""
cimport cython

from pyx.game cimport Game
from pyx.types cimport uint8_t, uint16_t, uint64_t

cdef enum:
    MAX_COLOURS = 6
    MAX_RANKS = 9
    MAX_WAGERS = 3
    MAX_KINDS = MAX_COLOURS * (MAX_RANKS + 1)
    MAX_PILE = MAX_RANKS + MAX_WAGERS
    MAX_CARDS = MAX_COLOURS * MAX_PILE
    MAX_HAND = 35                            # two hands leave the deck at least one card
    MAX_ACTIONS = 2 * MAX_KINDS + 1 + MAX_COLOURS

# What happens next.
cdef enum Phase:
    DEAL = 0        # chance deals a hand card
    CARD = 1        # the player to act plays or discards
    DRAW = 2        # the player to act draws
    DECK = 3        # chance says which card came off the deck
    OVER = 4

ctypedef struct Position:
    uint16_t ply                             # actions played so far (chance is no action); stays at its largest value
    uint8_t phase
    uint8_t to_act
    uint8_t barred                           # colour discarded to in this turn + 1; 0 for none
    uint8_t dealt                            # hand cards dealt so far
    uint8_t deck_left
    uint8_t hand[2][MAX_KINDS]               # copies of each kind
    uint8_t known[2][MAX_KINDS]              # copies that the other player is sure are in that hand
    uint16_t hand_ranks[2][MAX_COLOURS]      # bit r: a card of rank r is in `hand`
    uint16_t known_ranks[2][MAX_COLOURS]     # bit r: a card of rank r is in `known`
    uint16_t column[2][MAX_COLOURS]          # bit r: number of rank r (1 ..) was played; bit 0 unused
    uint8_t wagers[2][MAX_COLOURS]           # wagers played
    uint8_t pile[MAX_COLOURS][MAX_PILE]      # ranks, bottom to top
    uint8_t pile_size[MAX_COLOURS]
    uint8_t deck[MAX_CARDS]                  # kinds left in the deck, in no order: chance draws one


@cython.final
cdef class LostCities(Game):
    cdef readonly int colours, ranks, wagers, hand_size, deck_only_after, cost, bonus_cards, bonus
    cdef readonly int kinds                  # colours * (ranks + 1)
    cdef int rank_of[MAX_KINDS]
    cdef int colour_of[MAX_KINDS]
    # Actions: [0, kinds) play a kind, [kinds, 2 kinds) discard it, 2 kinds draws from the deck,
    # 2 kinds + 1 + colour draws that pile's top.
    cdef int colour_of_action[MAX_ACTIONS]   # -1 for the deck
    cdef Position opening                    # what start() copies
    cdef uint64_t hands_from[MAX_KINDS + 1][MAX_HAND + 1]   # [k][n]: hands of n cards of kinds k and above
    cdef uint64_t wager_bits[MAX_WAGERS + 1]                # a thermometer of that many wagers, above the ranks
    cdef int depth_bits                      # of a card's depth in a pile
    cdef int block_bits                      # of a colour's block
    cdef int deck_bits                       # cards in the deck after the deal
    cdef int ply_bits                        # of the plies left before only the deck may be drawn from
    cdef int column_value(self, const Position* position, int player, int colour) noexcept nogil
    cdef int score(self, const Position* position, int player) noexcept nogil
