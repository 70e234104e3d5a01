"""Lost Cities (Knizia 1999): one round for two players, by the official rules.

A turn is two actions: a card is played onto the own column of its colour or discarded onto that colour's
pile, then a card is drawn from the deck or from the top of a pile. Equal cards are one action. The game
ends when the last card of the deck is drawn. Beyond the rules, from ply `deck_only_after` on only the
deck may be drawn from, so that every game ends.

A player's row is one block of bits a colour and then bits of the whole table:

    block   own column, opponent's column, own hand, cards known to be in the opponent's hand, own cards
            the opponent knows of: each `ranks` bits, then a thermometer of wagers;
            the pile: the depth of each card from the top, counted from 1, 0 when it is not there, numbers
            first and then wagers from the top down; a bit for each number in it; the rank on top; barred
    table   own turn, draw phase, cards left in the deck (thermometer), plies left before only the deck
            may be drawn from (binary, and in eighths as a thermometer)

Blocks hold all that a player knows of a colour and are written in descending order, so that positions
which differ in the names of colours only are one row. An action's place in a network's output moves with
its colour; colours with equal blocks share the mean of theirs. A row is a function of the information
state at chance nodes too: what a player was not told of yet is not in it.
"""
import difflib
import json
from numbers import Integral

cimport cython
from libc.string cimport memcpy, memset

from pyx.game cimport Game, State
from pyx.game import _Given
from pyx.rng cimport Rng, rng_below
from pyx.types cimport CHANCE, MAX_LEGAL, TERMINAL, Output, uint8_t, uint16_t, uint64_t

cdef extern from *:
    """
    typedef unsigned __int128 lost_cities_bits128;
    """
    ctypedef unsigned long long bits128 "lost_cities_bits128"   # 128 bits wide
    int lowest_bit "__builtin_ctz"(unsigned int) noexcept nogil
    int leading_zeros "__builtin_clz"(unsigned int) noexcept nogil
    int count_bits "__builtin_popcount"(unsigned int) noexcept nogil

cdef enum:
    LAST_PLY = 0xFFFF
    EIGHTHS = 8
    ROW_WORDS = 16          # 6 blocks of 128 bits and a table of at most 128, with room for a block's shift

# Sights: actions from 1, cards drawn from SIGHT_DRAW; an opening hand has the top bit set.
cdef enum:
    SIGHT_ACTION = 1
    SIGHT_DRAW = 256

COLOUR_LETTERS = "RGWBYP"
NUMBERS = tuple(str(number) for number in range(2, MAX_RANKS + 2))
PHASES = ("DEAL", "CARD", "DRAW", "DECK", "CARD")     # as positions write them; a game that is over stands at CARD
READ_KEYS = ("player_to_act", "phase", "hands", "boards", "piles", "deck_bottom_to_top",
             "discarded_this_turn", "ply", "known")
UNREAD_KEYS = ("id", "note", "legal", "legal_after", "transitions", "terminal", "scores", "deck_left", "action",
               "result")


# ---- what follows from a game's parameters


cdef int copies_of(LostCities game, int kind) noexcept nogil:
    """How many cards of a kind the game has."""
    return 1 if kind % (game.ranks + 1) else game.wagers


# nogil-audit: ignore[py-op] once a game, in its __cinit__
cdef set_cards(LostCities game):
    cdef int kind, copies, cards, total = game.colours * (game.ranks + game.wagers)
    if 2 * game.hand_size >= total:
        raise ValueError(f"hand_size {game.hand_size}: two hands must leave a card in the deck and the game has "
                         f"{total}; give at most {(total - 1) // 2} or add colours, ranks or wagers")
    game.kinds = game.colours * (game.ranks + 1)
    memset(&game.opening, 0, sizeof(Position))
    for kind in range(game.kinds):
        game.colour_of[kind] = kind // (game.ranks + 1)
        game.rank_of[kind] = kind % (game.ranks + 1)
        for copies in range(copies_of(game, kind)):
            game.opening.deck[game.opening.deck_left] = kind
            game.opening.deck_left += 1
    for kind in range(game.kinds):
        game.colour_of_action[kind] = game.colour_of[kind]
        game.colour_of_action[game.kinds + kind] = game.colour_of[kind]
    game.colour_of_action[2 * game.kinds] = -1
    for kind in range(game.colours):
        game.colour_of_action[2 * game.kinds + 1 + kind] = kind
    for cards in range(game.hand_size + 1):
        game.hands_from[game.kinds][cards] = cards == 0
        for kind in range(game.kinds - 1, -1, -1):
            game.hands_from[kind][cards] = 0
            for copies in range(min(cards, copies_of(game, kind)) + 1):
                game.hands_from[kind][cards] += game.hands_from[kind + 1][cards - copies]


# nogil-audit: ignore[py-op] once a game, in its __cinit__
cdef set_sizes(LostCities game):
    cdef int distinct = game.colours * (game.ranks + (1 if game.wagers else 0))
    cdef int highest = game.ranks * (game.ranks + 3) // 2 - game.cost
    best = max(0, highest * (1 + game.wagers if highest > 0 else 1)) + game.bonus
    worst = min(0, -game.cost) * (1 + game.wagers)
    game.n_actions = 2 * game.kinds + 1 + game.colours
    game.max_legal = max(2 * min(game.hand_size, distinct), 1 + game.colours)
    game.max_chance = distinct
    if game.max_legal > MAX_LEGAL:
        raise ValueError(f"hand_size {game.hand_size}: a hand offers up to {game.max_legal} actions and "
                         f"{MAX_LEGAL} is the most; give at most {MAX_LEGAL // 2}")
    game.deck_bits = game.opening.deck_left - 2 * game.hand_size
    # Until that ply nobody may have touched the deck; from then on each turn takes one of its cards.
    game.max_length = game.deck_only_after - (game.deck_only_after & 1) + 2 * game.deck_bits \
        if game.deck_only_after else 0
    game.state_bytes = (sizeof(Position) + 7) // 8 * 8
    game.max_payoff = game.colours * (best - worst)
    game.payoff_scale = max(1.0, game.colours * game.cost / 2)


# nogil-audit: ignore[py-op] once a game, in its __cinit__
cdef set_features(LostCities game):
    cdef int width = game.ranks + game.wagers
    cdef int wagers
    for wagers in range(MAX_WAGERS + 1):
        game.wager_bits[wagers] = <uint64_t>((1 << wagers) - 1) << game.ranks
    game.depth_bits = width.bit_length()
    game.block_bits = 5 * width + width * game.depth_bits + game.ranks + (game.ranks + 1) + 1
    game.ply_bits = game.deck_only_after.bit_length()
    game.n_features = game.colours * game.block_bits + 2 + game.deck_bits
    if game.deck_only_after:
        game.n_features += game.ply_bits + EIGHTHS
    game.row_bytes = (game.n_features + 63) // 64 * 8


# ---- the rules, one position at a time


cdef inline void gain(Position* position, int player, int kind, int colour, int rank) noexcept nogil:
    position.hand[player][kind] += 1
    position.hand_ranks[player][colour] |= 1 << rank


cdef inline void lose(Position* position, int player, int kind, int colour, int rank) noexcept nogil:
    """Take a card out of a hand: where a copy of it was known, that copy may be the one that went."""
    position.hand[player][kind] -= 1
    if position.hand[player][kind] == 0:
        position.hand_ranks[player][colour] &= ~(1 << rank)
    if position.known[player][kind] > 0:
        position.known[player][kind] -= 1
        if position.known[player][kind] == 0:
            position.known_ranks[player][colour] &= ~(1 << rank)


cdef inline unsigned int playable_ranks(unsigned int column) noexcept nogil:
    """Bits of the ranks a column still takes: all while it has no number, then only higher numbers."""
    if column == 0:
        return 0xFFFFu
    return 0xFFFFu & (<unsigned int>0xFFFFFFFEu << (31 - leading_zeros(column)))


cdef inline int list_bits(unsigned int bits, int base, int* actions) noexcept nogil:
    """Write base + b for each set bit b, ascending; returns how many."""
    cdef int n = 0
    while bits:
        actions[n] = base + lowest_bit(bits)
        n += 1
        bits &= bits - 1
    return n


cdef inline void end_turn(Position* position) noexcept nogil:
    position.to_act ^= 1
    position.phase = CARD if position.deck_left else OVER


cdef inline int card_actions(LostCities game, const Position* position, int* actions) noexcept nogil:
    cdef const uint16_t* hand = position.hand_ranks[position.to_act]
    cdef const uint16_t* column = position.column[position.to_act]
    cdef int colour, base = 0, n = 0
    for colour in range(game.colours):
        n += list_bits(hand[colour] & playable_ranks(column[colour]), base, actions + n)
        base += game.ranks + 1
    for colour in range(game.colours):
        n += list_bits(hand[colour], base, actions + n)
        base += game.ranks + 1
    return n


cdef inline int draw_actions(LostCities game, const Position* position, int* actions) noexcept nogil:
    cdef int colour, n = 1
    actions[0] = 2 * game.kinds
    if game.deck_only_after and position.ply >= game.deck_only_after:
        return 1
    for colour in range(game.colours):
        if position.pile_size[colour] and position.barred != colour + 1:
            actions[n] = 2 * game.kinds + 1 + colour
            n += 1
    return n


cdef int deck_kinds(LostCities game, const Position* position, int* kinds, int* copies) noexcept nogil:
    """The kinds left in the deck, ascending, and how many of each; returns how many kinds."""
    cdef int count[MAX_KINDS]
    cdef int i, kind, n = 0
    memset(count, 0, sizeof(count))
    for i in range(position.deck_left):
        count[position.deck[i]] += 1
    for kind in range(game.kinds):
        if count[kind]:
            kinds[n] = kind
            copies[n] = count[kind]
            n += 1
    return n


cdef inline void play_card(LostCities game, Position* position, int action) noexcept nogil:
    cdef int player = position.to_act
    cdef int kind = action if action < game.kinds else action - game.kinds
    cdef int colour = game.colour_of[kind], rank = game.rank_of[kind]
    lose(position, player, kind, colour, rank)
    if action >= game.kinds:
        position.pile[colour][position.pile_size[colour]] = rank
        position.pile_size[colour] += 1
        position.barred = colour + 1
    elif rank == 0:
        position.wagers[player][colour] += 1
    else:
        position.column[player][colour] |= 1 << rank
    position.phase = DRAW
    position.ply += position.ply != LAST_PLY


cdef inline void draw_card(LostCities game, Position* position, int action) noexcept nogil:
    cdef int player = position.to_act
    cdef int colour = action - 2 * game.kinds - 1
    cdef int rank, kind
    position.ply += position.ply != LAST_PLY
    position.barred = 0
    if colour < 0:
        position.phase = DECK
        return
    position.pile_size[colour] -= 1
    rank = position.pile[colour][position.pile_size[colour]]
    kind = colour * (game.ranks + 1) + rank
    gain(position, player, kind, colour, rank)
    position.known[player][kind] += 1
    position.known_ranks[player][colour] |= 1 << rank
    end_turn(position)


cdef inline void take_from_deck(LostCities game, Position* position, int index) noexcept nogil:
    """Chance: the deck's card at `index` goes to whom it is dealt, or who draws."""
    cdef int kind = position.deck[index]
    cdef int player = position.to_act
    position.deck_left -= 1
    position.deck[index] = position.deck[position.deck_left]
    if position.phase == DECK:
        gain(position, player, kind, game.colour_of[kind], game.rank_of[kind])
        end_turn(position)
        return
    gain(position, position.dealt & 1, kind, game.colour_of[kind], game.rank_of[kind])
    position.dealt += 1
    if position.dealt == 2 * game.hand_size:
        position.phase = CARD


# ---- what a player knows


cdef inline uint64_t opening_hand(LostCities game, const Position* position, int player, int last) noexcept nogil:
    """The number of a full hand, `last` being its card not yet dealt, among all hands of that size.

    Below 2**63 in every game: with 6 colours, 9 ranks and 3 wagers no size has more than 6.4e18 hands.
    """
    cdef uint64_t number = 0
    cdef int kind, copies, fewer, cards = game.hand_size
    for kind in range(game.kinds):
        copies = position.hand[player][kind] + (kind == last)
        for fewer in range(copies):
            number += game.hands_from[kind + 1][cards - fewer]
        cards -= copies
    return number


cdef inline bits128 thermometer(int count) noexcept nogil:
    """The lowest `count` bits, fewer than 128."""
    return ((<bits128>1) << count) - 1


cdef inline uint64_t bits_of(LostCities game, unsigned int cards, int wagers) noexcept nogil:
    """A bit for each number of `cards` (bits by rank), then a thermometer of wagers."""
    return cards >> 1 | game.wager_bits[wagers]


cdef inline void put(uint64_t* words, int at, bits128 bits) noexcept nogil:
    """Or `bits` into `words` from bit `at` on; may touch three words."""
    cdef uint64_t* word = words + (at >> 6)
    cdef int shift = at & 63
    if shift == 0:                   # all blocks of the full game
        word[0] |= <uint64_t>bits
        word[1] |= <uint64_t>(bits >> 64)
        return
    word[0] |= <uint64_t>(bits << shift)
    word[1] |= <uint64_t>(bits >> 64 - shift)
    word[2] |= <uint64_t>(bits >> 64) >> 64 - shift


cdef inline bits128 block(LostCities game, const Position* position, int player, int colour,
                          bint holds) noexcept nogil:
    """All that `player` knows of a colour, as laid out at the top; `holds`: may see the own hand."""
    cdef int other = player ^ 1, ranks = game.ranks
    cdef int width = ranks + game.wagers
    cdef int wager = colour * (ranks + 1)
    cdef int size = position.pile_size[colour]
    cdef uint64_t cards, pile = 0, inside = 0, top = 0
    cdef int rank, slot, depth, wagers = 0
    # Five fields of `width` bits, the last one first.
    cards = bits_of(game, position.known_ranks[player][colour], position.known[player][wager])
    cards = cards << width | bits_of(game, position.known_ranks[other][colour], position.known[other][wager])
    cards <<= width
    if holds:
        cards |= bits_of(game, position.hand_ranks[player][colour], position.hand[player][wager])
    cards = cards << width | bits_of(game, position.column[other][colour], position.wagers[other][colour])
    cards = cards << width | bits_of(game, position.column[player][colour], position.wagers[player][colour])
    for depth in range(1, size + 1):
        rank = position.pile[colour][size - depth]
        inside |= <uint64_t>1 << rank
        slot = rank - 1
        if rank == 0:
            slot = ranks + wagers
            wagers += 1
        pile |= <uint64_t>depth << slot * game.depth_bits
    pile |= inside >> 1 << width * game.depth_bits
    if size:
        top = <uint64_t>1 << position.pile[colour][size - 1]
    if position.barred == colour + 1:
        top |= <uint64_t>2 << ranks
    return <bits128>cards | <bits128>pile << 5 * width | <bits128>top << game.block_bits - ranks - 2


cdef inline bits128 table(LostCities game, const Position* position, int player) noexcept nogil:
    """What `player` knows beside the colours, as laid out at the top."""
    cdef bint drawn = position.phase == DECK      # the turn is over for all that the other player sees
    cdef int left = position.deck_left - drawn
    cdef int at = 2 + game.deck_bits
    cdef int plies, eighths
    cdef bits128 bits = (position.to_act ^ drawn) == player
    bits |= <bits128>(position.phase == DRAW) << 1
    bits |= thermometer(game.deck_bits if left > game.deck_bits else left) << 2
    if game.deck_only_after:
        plies = game.deck_only_after - position.ply
        if plies < 0:
            plies = 0
        bits |= <bits128>plies << at
        eighths = (plies * EIGHTHS + game.deck_only_after - 1) // game.deck_only_after
        bits |= thermometer(eighths) << at + game.ply_bits
    return bits


cdef inline void place_actions(LostCities game, const Position* position, const int* place, const int* before,
                               const int* ties, Output* outputs) noexcept nogil:
    """Where each legal action's value stands once colours are in the places given."""
    cdef int actions[MAX_LEGAL]
    cdef int n = game.legal(position, actions)
    cdef int k, action, colour, stride
    for k in range(n):
        action = actions[k]
        colour = game.colour_of_action[action]
        if colour < 0:
            outputs[k] = Output(action, action, 1, 0)
            continue
        stride = game.ranks + 1 if action < 2 * game.kinds else 1
        outputs[k].slot = action + (place[colour] - colour) * stride
        outputs[k].first = outputs[k].slot - before[colour] * stride
        outputs[k].ties = ties[colour]
        outputs[k].stride = stride


@cython.final
cdef class LostCities(Game):
    """Lost Cities.

    colours (1-6), ranks (1-9: numbers 2 to ranks + 1), wagers (0-3 a colour), hand_size; deck_only_after
    (plies, 0 for never: the official rule); a column with a card scores (sum - cost) * (1 + wagers), plus
    `bonus` points with at least bonus_cards cards. Payoffs are differences of scores, in points.
    ValueError on parameters that make no game.
    """

    def __cinit__(self, *, colours=5, ranks=9, wagers=3, hand_size=8, deck_only_after=400, cost=20,
                  bonus_cards=8, bonus=20):
        self.name = "lost_cities"
        self.colours = _checked("colours", colours, 1, MAX_COLOURS)
        self.ranks = _checked("ranks", ranks, 1, MAX_RANKS)
        self.wagers = _checked("wagers", wagers, 0, MAX_WAGERS)
        self.hand_size = _checked("hand_size", hand_size, 1, MAX_HAND)
        self.deck_only_after = _checked("deck_only_after", deck_only_after, 0, 60000)
        self.cost = _checked("cost", cost, 0, 1000)
        self.bonus_cards = _checked("bonus_cards", bonus_cards, 1, 1000)
        self.bonus = _checked("bonus", bonus, 0, 1000)
        self.parameters = {"colours": self.colours, "ranks": self.ranks, "wagers": self.wagers,
                           "hand_size": self.hand_size, "deck_only_after": self.deck_only_after,
                           "cost": self.cost, "bonus_cards": self.bonus_cards, "bonus": self.bonus}
        set_cards(self)
        set_sizes(self)
        set_features(self)

    # ---- the rules

    cdef void start(self, void* state) noexcept nogil:
        memcpy(state, &self.opening, sizeof(Position))

    cdef int player(self, const void* state) noexcept nogil:
        cdef const Position* position = <const Position*>state
        if position.phase == CARD or position.phase == DRAW:
            return position.to_act
        return TERMINAL if position.phase == OVER else CHANCE

    cdef int legal(self, const void* state, int* actions) noexcept nogil:
        cdef const Position* position = <const Position*>state
        cdef int copies[MAX_KINDS]
        if position.phase == CARD:
            return card_actions(self, position, actions)
        if position.phase == DRAW:
            return draw_actions(self, position, actions)
        return deck_kinds(self, position, actions, copies)

    cdef void chance(self, const void* state, double* probabilities) noexcept nogil:
        cdef const Position* position = <const Position*>state
        cdef int kinds[MAX_KINDS]
        cdef int copies[MAX_KINDS]
        cdef int k
        for k in range(deck_kinds(self, position, kinds, copies)):
            probabilities[k] = <double>copies[k] / position.deck_left

    cdef int sample_chance(self, void* state, Rng* rng) noexcept nogil:
        cdef Position* position = <Position*>state
        cdef int index = rng_below(rng, position.deck_left)
        cdef int kind = position.deck[index]
        take_from_deck(self, position, index)
        return kind

    cdef void apply(self, void* state, int action) noexcept nogil:
        cdef Position* position = <Position*>state
        cdef int index = 0
        if position.phase == CARD:
            play_card(self, position, action)
        elif position.phase == DRAW:
            draw_card(self, position, action)
        else:
            while position.deck[index] != action:
                index += 1
            take_from_deck(self, position, index)

    cdef int column_value(self, const Position* position, int player, int colour) noexcept nogil:
        """Points of one column."""
        cdef unsigned int numbers = position.column[player][colour]
        cdef int wagers = position.wagers[player][colour]
        cdef int cards = count_bits(numbers) + wagers
        cdef int value = -self.cost
        if cards == 0:
            return 0
        while numbers:
            value += lowest_bit(numbers) + 1
            numbers &= numbers - 1
        return value * (1 + wagers) + (self.bonus if cards >= self.bonus_cards else 0)

    cdef int score(self, const Position* position, int player) noexcept nogil:
        """Points of a player as the columns stand."""
        cdef int colour, points = 0
        for colour in range(self.colours):
            points += self.column_value(position, player, colour)
        return points

    cdef double payoff(self, const void* state) noexcept nogil:
        cdef const Position* position = <const Position*>state
        return self.score(position, 0) - self.score(position, 1)

    # ---- what a player knows

    cdef uint64_t sight(self, const void* state, int action, int player) noexcept nogil:
        """Actions are public, a card off the deck is seen by who draws it, a hand once all of it is dealt."""
        cdef const Position* position = <const Position*>state
        if position.phase == CARD or position.phase == DRAW:
            return SIGHT_ACTION + action
        if position.phase == DECK:
            return SIGHT_DRAW + action if position.to_act == player else 0
        if position.dealt == 2 * (self.hand_size - 1) + player:
            return (<uint64_t>1 << 63) | opening_hand(self, position, player, action)
        return 0

    cdef void observe(self, const void* state, int player, uint8_t* row, Output* outputs) noexcept nogil:
        cdef const Position* position = <const Position*>state
        cdef bits128 blocks[MAX_COLOURS]
        cdef uint64_t words[ROW_WORDS]
        cdef int place[MAX_COLOURS]      # of a colour among all, by descending block, ties by colour
        cdef int before[MAX_COLOURS]     # colours placed before it with an equal block
        cdef int ties[MAX_COLOURS]       # colours with an equal block, itself included
        cdef bint holds = position.phase != DEAL or position.dealt >= 2 * self.hand_size - 1 + player
        cdef int colour, other, ahead, equal
        memset(words, 0, sizeof(words))
        for colour in range(self.colours):
            blocks[colour] = block(self, position, player, colour, holds)
            place[colour] = colour
            before[colour] = 0
            ties[colour] = 1
            for other in range(colour):
                ahead = blocks[colour] > blocks[other]
                equal = blocks[colour] == blocks[other]
                place[colour] -= ahead
                place[other] += ahead
                before[colour] += equal
                ties[colour] += equal
                ties[other] += equal
        for colour in range(self.colours):
            put(words, place[colour] * self.block_bits, blocks[colour])
        put(words, self.colours * self.block_bits, table(self, position, player))
        memcpy(row, words, self.row_bytes)
        if self.player(position) == player:
            place_actions(self, position, place, before, ties, outputs)

    # ---- for Python

    def make_state(self, dealer):
        return LostCitiesState(self, dealer)

    def new_initial_state(self, *, seed=None, deck=None):
        """As Game.new_initial_state; `deck` holds cards ("R5", "RH" or kinds) and may be short, not impossible."""
        if deck is not None:
            deck = [self.outcome(card) for card in deck]
            self._check_copies(deck, "deck")
        return Game.new_initial_state(self, seed=seed, deck=deck)

    def outcome(self, card):
        """The kind, an int, of a card: a colour's letter and H for a wager or a number, like "R5"; or a kind."""
        if isinstance(card, str):
            letter, rank = card[:1], card[1:]
            if letter and letter in COLOUR_LETTERS[:self.colours]:
                if rank == "H" and self.wagers:
                    return COLOUR_LETTERS.index(letter) * (self.ranks + 1)
                if rank in NUMBERS[:self.ranks]:
                    return COLOUR_LETTERS.index(letter) * (self.ranks + 1) + 1 + NUMBERS.index(rank)
        elif isinstance(card, Integral) and not isinstance(card, bool):
            if 0 <= card < self.kinds and copies_of(self, card):
                return int(card)
        raise ValueError(f"{card!r} is no card of this game; a card is a letter of "
                         f"{COLOUR_LETTERS[:self.colours]}, then {'H or ' if self.wagers else ''}a number "
                         f"2 to {self.ranks + 1}, like 'R2'")

    def card(self, int kind):
        """The text of a kind: the inverse of outcome()."""
        rank = kind % (self.ranks + 1)
        return COLOUR_LETTERS[kind // (self.ranks + 1)] + (NUMBERS[rank - 1] if rank else "H")

    def column_score(self, cards):
        """The points of one column of `cards`, texts in the order played; none score 0."""
        cdef Position position
        memset(&position, 0, sizeof(Position))
        kinds = [self.outcome(card) for card in cards]
        if kinds:
            self._check_copies(kinds, "a column")
            lay_column(self, &position, 0, self.colour_of[kinds[0]], kinds)
        return self.score(&position, 0)

    def _check_copies(self, kinds, where):
        for kind in sorted(set(kinds)):
            if kinds.count(kind) > copies_of(self, kind):
                raise ValueError(f"{where} holds {self.card(kind)} {kinds.count(kind)} times; the game has "
                                 f"{copies_of(self, kind)}: take the others out")

    def action_to_string(self, player, action):
        """"play R5", "discard RH", "draw deck", "draw R"; "deal R5" for a chance outcome (player -1)."""
        if player == CHANCE:
            return f"deal {self.card(action)}"
        if not 0 <= action < self.n_actions:
            raise ValueError(f"action {action} does not exist; there are 0 to {self.n_actions - 1}")
        if action < 2 * self.kinds:
            return ("play " if action < self.kinds else "discard ") + self.card(action % self.kinds)
        colour = self.colour_of_action[action]
        return "draw deck" if colour < 0 else "draw " + COLOUR_LETTERS[colour]

    def string_to_action(self, text):
        texts = [self.action_to_string(0, action) for action in range(self.n_actions)]
        if text in texts:
            return texts.index(text)
        near = difflib.get_close_matches(str(text), texts, n=3)
        raise ValueError(f"no action is called {text!r}; {'near it are' if near else 'for example'}: "
                         f"{', '.join(near or ('play R2', 'discard R2', 'draw deck', 'draw R'))}")

    def state_from(self, position):
        """The State of a position: a dict with any of READ_KEYS, as LostCitiesState.position() gives it.

        A missing key means player 0, phase CARD, ply 0, and no cards; UNREAD_KEYS are allowed and not read.
        The deck is the one given, its top last; without one the game is over. `known`, a pair of lists, names
        cards that the other player saw that hand pick up. The state has no history. ValueError on what is no
        position of this game.
        """
        cdef LostCitiesState state = LostCitiesState.__new__(LostCitiesState, self)
        cdef Position* table = <Position*>state.data
        cdef int player
        _check_keys(position)
        phase = position.get("phase", "CARD")
        if phase not in ("CARD", "DRAW"):
            raise ValueError(f"phase {phase!r}; a position stands at 'CARD' or 'DRAW'")
        deck = self._kinds(position.get("deck_bottom_to_top"), "deck_bottom_to_top")
        hands = [self._kinds(cards, "a hand") for cards in _pair(position, "hands")]
        known = [self._kinds(cards, "known") for cards in _pair(position, "known")]
        boards = [self._by_colour(columns, "boards") for columns in _pair(position, "boards")]
        piles = self._by_colour(position.get("piles"), "piles")
        everywhere = deck + hands[0] + hands[1]
        for columns in (*boards, piles):
            for kinds in columns.values():
                everywhere += kinds
        self._check_copies(everywhere, "the position")

        table.dealt = 2 * self.hand_size
        table.to_act = _checked("player_to_act", position.get("player_to_act", 0), 0, 1)
        table.ply = _checked("ply", position.get("ply", 0), 0, LAST_PLY)
        table.phase = DRAW if phase == "DRAW" else CARD
        for kind in deck:
            table.deck[table.deck_left] = kind
            table.deck_left += 1
        for player in range(2):
            lay_hand(self, table, player, hands[player], known[player])
            for colour, kinds in boards[player].items():
                lay_column(self, table, player, colour, kinds)
        for colour, kinds in piles.items():
            for kind in kinds:
                table.pile[colour][table.pile_size[colour]] = self.rank_of[kind]
                table.pile_size[colour] += 1
        lay_bar(self, table, position.get("discarded_this_turn"))
        if table.deck_left == 0:
            table.phase = OVER

        state.dealer = _Given(deck)
        state.origin = (<const char*>state.data)[:sizeof(Position)]
        state.seen = [state._seen_position(0), state._seen_position(1)]
        return state

    def _kinds(self, cards, where):
        """The kinds of a list of cards; None is an empty list."""
        if cards is None:
            return []
        if not isinstance(cards, (list, tuple)):
            raise ValueError(f"{where} is {cards!r}; give a list of cards like ['R5', 'G2']")
        return [self.outcome(card) for card in cards]

    def _by_colour(self, columns, where):
        """The kinds of {letter: cards}, by colour."""
        letters = COLOUR_LETTERS[:self.colours]
        if not isinstance(columns or {}, dict):
            raise ValueError(f"{where} holds {columns!r}; give cards by colour like {{'R': ['R5']}}")
        kinds = {}
        for letter, cards in (columns or {}).items():
            colour = self._colour(letter, where)
            kinds[colour] = self._kinds(cards, where)
            for kind in kinds[colour]:
                if self.colour_of[kind] != colour:
                    raise ValueError(f"{where} holds {self.card(kind)} under {letter}; put it under "
                                     f"{letters[self.colour_of[kind]]}")
        return kinds

    def _colour(self, letter, where):
        letters = COLOUR_LETTERS[:self.colours]
        if not isinstance(letter, str) or len(letter) != 1 or letter not in letters:
            raise ValueError(f"{where} names the colour {letter!r}; this game has {', '.join(letters)}")
        return letters.index(letter)

    def describe(self, state):
        """The position in one line, all cards open."""
        position = state.position()
        lists = [" ".join(cards) or "-" for cards in position["hands"]]
        for columns in (*position["boards"], position["piles"]):
            lists.append(" ".join(",".join(cards) for cards in columns.values()) or "-")
        barred = position["discarded_this_turn"]
        return (f"ply {position['ply']}, player {position['player_to_act']}, "
                f"{'over' if position['terminal'] else position['phase']}{f', {barred} barred' if barred else ''}; "
                f"hands {lists[0]} | {lists[1]}; columns {lists[2]} | {lists[3]}; piles {lists[4]}; "
                f"deck {position['deck_left']}; scores {position['scores'][0]} {position['scores'][1]}")


cdef class LostCitiesState(State):
    """A State of Lost Cities: its position can be read, and it may have begun at a given one.

    Owned by its maker; not safe to share while it is changed.
    """
    cdef bytes origin       # the Position it began at; None: the start of the game
    cdef list seen          # what each player saw of that position; None: the start of the game

    def clone(self):
        cdef LostCitiesState other = State.clone(self)
        other.origin = self.origin
        other.seen = self.seen
        return other

    def history_strings(self):
        cdef State replay
        if self.origin is None:
            return State.history_strings(self)
        replay = LostCitiesState.__new__(LostCitiesState, self.game)
        memcpy(replay.data, <const char*>self.origin, sizeof(Position))
        texts = []
        for action in self.history():
            texts.append(replay.action_to_string(action))
            replay._take(action)
        return texts

    def information_state_string(self, player=None):
        """As State's; a state made from a position is told by the position as seen and what came after."""
        text = State.information_state_string(self, player)
        if self.seen is None:
            return text
        return f"{self.seen[int(text[0])]} {text}"

    def position(self):
        """The position as a dict of plain lists: what state_from reads, with scores, deck_left and terminal.

        Hands are in order of kind. The deck is in the order given; where chance draws its cards, in order
        of kind. `known` is there only where a hand holds a card that the other player saw it pick up.
        """
        cdef LostCities game = self.game
        cdef const Position* table = <const Position*>self.data
        deck = [table.deck[i] for i in range(table.deck_left)]
        if isinstance(self.dealer, _Given):
            deck = list(self.dealer.deck)
        else:
            deck.sort()
        position = {
            "player_to_act": table.to_act,
            "phase": PHASES[table.phase],
            "hands": [self._held(player) for player in range(2)],
            "boards": [{COLOUR_LETTERS[colour]: column for colour in range(game.colours)
                        if (column := self._column(player, colour))} for player in range(2)],
            "piles": {COLOUR_LETTERS[colour]: [game.card(colour * (game.ranks + 1) + table.pile[colour][i])
                                               for i in range(table.pile_size[colour])]
                      for colour in range(game.colours) if table.pile_size[colour]},
            "deck_bottom_to_top": [game.card(kind) for kind in deck],
            "discarded_this_turn": COLOUR_LETTERS[table.barred - 1] if table.barred else None,
            "ply": table.ply,
            "scores": [game.score(table, 0), game.score(table, 1)],
            "deck_left": table.deck_left,
            "terminal": table.phase == OVER,
        }
        known = [self._held(player, known=True) for player in range(2)]
        if known[0] or known[1]:
            position["known"] = known
        return position

    def _held(self, int player, bint known=False):
        cdef LostCities game = self.game
        cdef const Position* table = <const Position*>self.data
        cdef const uint8_t* copies = &table.known[player][0] if known else &table.hand[player][0]
        return [game.card(kind) for kind in range(game.kinds) for _ in range(copies[kind])]

    def _column(self, int player, int colour):
        cdef LostCities game = self.game
        cdef const Position* table = <const Position*>self.data
        cdef int first = colour * (game.ranks + 1)
        return ([game.card(first)] * table.wagers[player][colour]
                + [game.card(first + rank) for rank in range(1, game.ranks + 1)
                   if table.column[player][colour] >> rank & 1])

    def _seen_position(self, int player):
        """All that `player` sees of a position with its hands dealt, a canonical text: nothing hidden is in it."""
        cdef LostCities game = self.game
        seen = self.position()
        plies = game.deck_only_after and max(0, game.deck_only_after - seen.pop("ply"))
        hands = seen.pop("hands")
        return json.dumps({"hand": hands[player], "other_hand": len(hands[1 - player]), "plies_left": plies,
                           **{key: value for key, value in seen.items()
                              if key not in ("deck_bottom_to_top", "ply", "scores", "terminal")}},
                          sort_keys=True, separators=(",", ":"))


# nogil-audit: ignore[py-op] it lays out what a position written in Python says
cdef lay_hand(LostCities game, Position* table, int player, kinds, known):
    cdef int kind
    cdef bint drawing = table.phase == DRAW and table.to_act == player
    if len(kinds) > game.hand_size - drawing:
        raise ValueError(f"player {player} holds {len(kinds)} cards; a hand has at most {game.hand_size}, one "
                         "less while its player draws: take some out")
    for kind in kinds:
        gain(table, player, kind, game.colour_of[kind], game.rank_of[kind])
    for kind in known:
        if table.known[player][kind] == table.hand[player][kind]:
            raise ValueError(f"{game.card(kind)} is known to be in player {player}'s hand and is not there; "
                             "known lists cards of the hand")
        table.known[player][kind] += 1
        table.known_ranks[player][game.colour_of[kind]] |= 1 << game.rank_of[kind]


# nogil-audit: ignore[py-op] it lays out what a position written in Python says
cdef lay_bar(LostCities game, Position* table, letter):
    if letter is None:
        return
    colour = game._colour(letter, "discarded_this_turn")
    if table.phase != DRAW or table.pile_size[colour] == 0:
        raise ValueError(f"discarded_this_turn is {letter!r}; that is for phase DRAW and a colour whose pile has "
                         "a card, else give null")
    table.barred = colour + 1


# nogil-audit: ignore[py-op] it lays out what a position written in Python says
cdef lay_column(LostCities game, Position* table, int player, int colour, kinds):
    cdef int kind
    for kind in kinds:
        card = game.card(kind)
        if game.colour_of[kind] != colour:
            raise ValueError(f"{card} is in a column of {COLOUR_LETTERS[colour]}; a column holds one colour")
        if not playable_ranks(table.column[player][colour]) >> game.rank_of[kind] & 1:
            raise ValueError(f"{card} comes too late in its column; wagers come first and numbers rise: "
                             "give a column in the order played")
        if game.rank_of[kind] == 0:
            table.wagers[player][colour] += 1
        else:
            table.column[player][colour] |= 1 << game.rank_of[kind]


def _checked(name, value, int low, int high):
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} is {value!r}; give a whole number from {low} to {high}")
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; it must be from {low} to {high}")
    return value


def _check_keys(position):
    if not isinstance(position, dict):
        raise ValueError(f"a position is a dict, not {position!r}; its keys are {', '.join(READ_KEYS)}")
    for key in position:
        if key not in READ_KEYS and key not in UNREAD_KEYS:
            near = difflib.get_close_matches(str(key), READ_KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(READ_KEYS)}"
            raise ValueError(f"a position has no key {key!r}; {hint}")


def _pair(position, key):
    pair = position.get(key)
    if pair is None:
        return [None, None]
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        raise ValueError(f"{key} is {pair!r}; give a pair, player 0's first")
    return pair
