"""Scripted Lost Cities opponents, compiled and GIL-free; make_bot() finds them by name.

Their point limits are those of the full game, where a column costs 20 and the deck starts with 44 cards;
in another they grow with the cost and with the deck. Ties go to the first card of the game's order.
"""
import difflib
import re

from pyx.game cimport Game, State
from pyx.lost_cities cimport CARD, MAX_PILE, LostCities, Position
from pyx.rng cimport Rng, Stream, rng_below, rng_double
from pyx.types cimport MAX_LEGAL, TERMINAL, uint8_t, uint16_t

cdef enum:
    FULL_COST = 20          # of a column in the full game
    FULL_DECK = 44          # cards left after the deal of the full game


# Sets of ranks are bits: bit 0 for wagers, bit r for rank r, the number r + 1.

# What the player to act may see of a position: the bots below have no other way to it.
ctypedef struct View:
    bint card_phase
    int deck_left
    const uint8_t* hand                     # copies of each kind
    const uint16_t* held                    # by colour: the ranks in hand
    const uint16_t* column                  # by colour: the numbers played
    const uint16_t* rival_column
    const uint8_t* wagers                   # by colour: wagers played
    const uint8_t* rival_wagers
    const uint8_t (*pile)[MAX_PILE]         # by colour: ranks, bottom to top
    const uint8_t* pile_size


cdef inline void look(const Position* position, View* view) noexcept nogil:
    cdef int own = position.to_act
    view.card_phase = position.phase == CARD
    view.deck_left = position.deck_left
    view.hand = position.hand[own]
    view.held = position.hand_ranks[own]
    view.column = position.column[own]
    view.rival_column = position.column[1 - own]
    view.wagers = position.wagers[own]
    view.rival_wagers = position.wagers[1 - own]
    view.pile = position.pile
    view.pile_size = position.pile_size


cdef inline int highest(unsigned int ranks) noexcept nogil:
    """The highest number's rank, 0 without numbers."""
    cdef int rank = 0
    while ranks > 1:
        ranks >>= 1
        rank += 1
    return rank


cdef inline int lowest(unsigned int ranks) noexcept nogil:
    """The lowest rank of a set that is not empty."""
    cdef int rank = 0
    while not ranks >> rank & 1:
        rank += 1
    return rank


cdef inline int count(unsigned int ranks) noexcept nogil:
    cdef int n = 0
    while ranks:
        ranks &= ranks - 1
        n += 1
    return n


cdef inline int points(unsigned int ranks) noexcept nogil:
    """The sum of the numbers."""
    cdef int total = 0, number = 2
    ranks >>= 1
    while ranks:
        if ranks & 1:
            total += number
        ranks >>= 1
        number += 1
    return total


cdef inline unsigned int above(int rank) noexcept nogil:
    """Every number above `rank`; wagers never."""
    return ~((2u << rank) - 1)


cdef inline bint is_open(const View* view, int colour) noexcept nogil:
    return view.column[colour] != 0 or view.wagers[colour] != 0


cdef inline unsigned int dead(const View* view, int colour) noexcept nogil:
    """The numbers nobody can draw or play again: in the rival's column, or buried in the pile."""
    cdef unsigned int ranks = view.rival_column[colour]
    cdef int i
    for i in range(view.pile_size[colour] - 1):
        ranks |= 1u << view.pile[colour][i]
    return ranks


cdef inline int skipped(LostCities game, const View* view, int colour, int rank) noexcept nogil:
    """What playing `rank` gives up: lower numbers that are not dead, and the own wagers in hand."""
    cdef unsigned int between
    cdef int wagers = 0
    if rank == 0:
        return 0
    if view.column[colour] == 0:
        wagers = view.hand[colour * (game.ranks + 1)]
    between = above(highest(view.column[colour])) & ((1u << rank) - 1)
    return wagers + count(between & ~dead(view, colour))


cdef inline int worth(const View* view, int colour, int rank) noexcept nogil:
    """A number times the own multiplier of its colour."""
    return (rank + 1) * (1 + view.wagers[colour])


cdef inline bint reaches(LostCities game, int value, int limit) noexcept nogil:
    """Whether `value` points are at least the full game's `limit`."""
    return value * FULL_COST >= limit * game.cost


cdef inline bint deck_over(LostCities game, const View* view, int limit) noexcept nogil:
    """Whether the deck holds more than the full game's `limit` cards."""
    cdef int deck = game.colours * (game.ranks + game.wagers) - 2 * game.hand_size
    return view.deck_left * FULL_DECK > limit * deck


cdef inline int turns_left(const View* view) noexcept nogil:
    """Own turns to come, this one counted, if everybody draws from the deck."""
    return (view.deck_left + 1) // 2


cdef bint turns_run_short(LostCities game, const View* view) noexcept nogil:
    """Whether the cards in hand that fit open columns need every turn left."""
    cdef int colour, n = 0
    for colour in range(game.colours):
        if is_open(view, colour):
            n += count(view.held[colour] & above(highest(view.column[colour])))
            if view.column[colour] == 0:
                n += view.hand[colour * (game.ranks + 1)]
    return n >= turns_left(view)


cdef inline int danger(const View* view, int colour, int rank) noexcept nogil:
    """What a discard is worth to the rival: the number times his multiplier where he can add it to a column."""
    if rank <= highest(view.rival_column[colour]):
        return 0
    if view.rival_column[colour] == 0 and view.rival_wagers[colour] == 0:
        return 0
    return (rank + 1) * (1 + view.rival_wagers[colour])


cdef inline int own_use(const View* view, int colour, int rank) noexcept nogil:
    """What a card in hand promises: six times its worth on an open column, else what its colour holds."""
    if view.column[colour] != 0 and rank <= highest(view.column[colour]):
        return 0
    if not is_open(view, colour):
        return points(view.held[colour])
    return 6 * worth(view, colour, rank)


cdef inline int n_plays(LostCities game, const int* legal, int n_legal) noexcept nogil:
    """How many of a card decision's actions play; they come first."""
    cdef int n = 0
    while n < n_legal and legal[n] < game.kinds:
        n += 1
    return n


cdef inline int lowest_card(LostCities game, const int* actions, int n) noexcept nogil:
    """Of actions that all play or all discard, the one of the lowest card, wagers first."""
    cdef int i, rank, least = game.ranks + 1, best = actions[0]
    for i in range(n):
        rank = game.rank_of[actions[i] % game.kinds]
        if rank < least:
            least = rank
            best = actions[i]
    return best


cdef inline int opening(LostCities game, int colour, unsigned int ranks, bint wager) noexcept nogil:
    """The action that opens a colour with a wager, or with the lowest number of `ranks`."""
    cdef int first = colour * (game.ranks + 1)
    if wager and ranks & 1:
        return first
    return first + lowest(ranks & ~1u)


cdef int best_pile(LostCities game, const View* view, const int* legal, int n_legal, int limit,
                   int gap) noexcept nogil:
    """Draws the pile whose top is a number of most worth, at least `limit`, for an open column.

    It leaves out at most `gap` numbers of the column. The deck where there is none.
    """
    cdef int i, colour, rank, most = -1, best = legal[0]
    for i in range(1, n_legal):
        colour = legal[i] - 2 * game.kinds - 1
        rank = view.pile[colour][view.pile_size[colour] - 1]
        if (is_open(view, colour) and rank > highest(view.column[colour])
                and rank - highest(view.column[colour]) - 1 <= gap
                and reaches(game, worth(view, colour, rank), limit) and worth(view, colour, rank) > most):
            most = worth(view, colour, rank)
            best = legal[i]
    return best


cdef class Bot:
    """A scripted player.

    Safe to call from: any thread; a bot never changes. Guarantees: what it does depends on what the player
    to act may see, and on the random numbers it is given.
    """

    cdef int act(self, Game game, const void* state, const int* legal, int n_legal, Rng* rng) noexcept nogil:
        return legal[0]

    def check(self, Game game):
        """ValueError where this bot cannot play `game`."""

    def action(self, State state, Stream stream):
        """The bot's action, an int, for the player to act in `state`."""
        cdef int legal[MAX_LEGAL]
        cdef int n
        self.check(state.game)
        if state._player() < 0:
            raise ValueError("no player is to act here: " +
                             ("the game is over" if state._player() == TERMINAL else "chance is"))
        n = state.game.legal(state.data, legal)
        return self.act(state.game, state.data, legal, n, &stream.rng)

    def __repr__(self):
        return f"make_bot({self.name!r})"


cdef class Random(Bot):
    """Uniform over the legal actions, of any game."""

    def __cinit__(self):
        self.name = "random"

    cdef int act(self, Game game, const void* state, const int* legal, int n_legal, Rng* rng) noexcept nogil:
        return legal[rng_below(rng, n_legal)]


cdef class Noisy(Bot):
    """Another bot, but a random legal action with probability `noise`."""

    cdef Bot bot
    cdef double noise

    def __cinit__(self, Bot bot, double noise):
        self.bot, self.noise = bot, noise
        self.name = f"noisy({bot.name},{noise!r})"

    def check(self, Game game):
        self.bot.check(game)

    cdef int act(self, Game game, const void* state, const int* legal, int n_legal, Rng* rng) noexcept nogil:
        if rng_double(rng) < self.noise:
            return legal[rng_below(rng, n_legal)]
        return self.bot.act(game, state, legal, n_legal, rng)


cdef class LostCitiesBot(Bot):
    """What the Lost Cities bots share: they look, then choose a card or a draw. The draw is the deck by default."""

    def check(self, Game game):
        if not isinstance(game, LostCities):
            raise ValueError(f"{self.name} plays lost_cities, not {game.name}; of the bots only random plays it")

    cdef int act(self, Game game, const void* state, const int* legal, int n_legal, Rng* rng) noexcept nogil:
        cdef View view
        look(<const Position*>state, &view)
        if view.card_phase:
            return self.card(<LostCities>game, &view, legal, n_legal, rng)
        return self.draw(<LostCities>game, &view, legal, n_legal)

    cdef int card(self, LostCities game, const View* view, const int* legal, int n_legal, Rng* rng) noexcept nogil:
        return legal[0]

    cdef int draw(self, LostCities game, const View* view, const int* legal, int n_legal) noexcept nogil:
        return legal[0]


cdef class DiscardOnly(LostCitiesBot):
    """Never plays: discards the first card of the game's order."""

    def __cinit__(self):
        self.name = "discard_only"

    cdef int card(self, LostCities game, const View* view, const int* legal, int n_legal, Rng* rng) noexcept nogil:
        return legal[n_plays(game, legal, n_legal)]


cdef class RandomPlayer(LostCitiesBot):
    """Any playable card, else any discard."""

    def __cinit__(self):
        self.name = "random_player"

    cdef int card(self, LostCities game, const View* view, const int* legal, int n_legal, Rng* rng) noexcept nogil:
        cdef int n = n_plays(game, legal, n_legal)
        return legal[rng_below(rng, n if n > 0 else n_legal)]


cdef class GreedyLowest(LostCitiesBot):
    """The lowest playable card, wagers first, else discards the lowest."""

    def __cinit__(self):
        self.name = "greedy_lowest"

    cdef int card(self, LostCities game, const View* view, const int* legal, int n_legal, Rng* rng) noexcept nogil:
        cdef int n = n_plays(game, legal, n_legal)
        return lowest_card(game, legal, n if n > 0 else n_legal)


cdef class GapPlayer(LostCitiesBot):
    """Always plays if it can: what skips least, then the colour with most wagers, then the lowest card.

    Discards what helps the rival least; takes a pile's top worth 5 or more for an open column.
    """

    def __cinit__(self):
        self.name = "gap_player"

    cdef int card(self, LostCities game, const View* view, const int* legal, int n_legal, Rng* rng) noexcept nogil:
        cdef int n = n_plays(game, legal, n_legal), i, colour, rank, cost, least = 0, best = -1
        for i in range(n if n > 0 else n_legal):
            colour = game.colour_of[legal[i] % game.kinds]
            rank = game.rank_of[legal[i] % game.kinds]
            if n > 0:
                # The wagers and the rank are below 10 each: the terms do not mix.
                cost = 100 * skipped(game, view, colour, rank) - 10 * view.wagers[colour] + rank
            else:
                cost = danger(view, colour, rank)
            if best < 0 or cost < least:
                least = cost
                best = legal[i]
        return best

    cdef int draw(self, LostCities game, const View* view, const int* legal, int n_legal) noexcept nogil:
        return best_pile(game, view, legal, n_legal, 5, game.ranks)


cdef class Threshold(LostCitiesBot):
    """Opens a colour at 18 points in hand, 24 once the deck is under 20, with a wager from 24 if it is over 20.

    On open columns plays the lowest number that leaves out at most 2, or any when turns run short; this comes
    first. Discards the lowest card; takes the top of a pile that leaves out at most 1 number of an open column.
    """

    def __cinit__(self):
        self.name = "threshold"

    cdef int card(self, LostCities game, const View* view, const int* legal, int n_legal, Rng* rng) noexcept nogil:
        cdef int n = n_plays(game, legal, n_legal), i, colour, rank, most = 0, least = game.ranks + 1, best = -1
        cdef bint short_of_turns = turns_run_short(game, view)
        cdef unsigned int ranks
        for i in range(n):
            colour = game.colour_of[legal[i]]
            rank = game.rank_of[legal[i]]
            if (rank > 0 and rank < least and is_open(view, colour)
                    and (short_of_turns or rank - highest(view.column[colour]) - 1 <= 2)):
                least = rank
                best = legal[i]
        if best >= 0:
            return best
        for colour in range(game.colours):
            ranks = view.held[colour]
            if (not is_open(view, colour) and points(ranks) > most
                    and reaches(game, points(ranks), 18 if deck_over(game, view, 19) else 24)):
                most = points(ranks)
                best = opening(game, colour, ranks, reaches(game, most, 24) and deck_over(game, view, 20))
        if best >= 0:
            return best
        return lowest_card(game, legal + n, n_legal - n)

    cdef int draw(self, LostCities game, const View* view, const int* legal, int n_legal) noexcept nogil:
        return best_pile(game, view, legal, n_legal, 0, 1)


cdef class Opener(LostCitiesBot):
    """Opens a colour with 3 numbers or more in hand that sum to 16, or 21 once the deck is down to 14.

    Only while there are two turns more than numbers to play; with a wager first where it has one. On open
    columns, which come first, plays wagers while 16 points stand behind them, then the number that skips
    least, of two alike that of the colour with more wagers; never one that skips more than 2 unless turns run
    short. Takes a pile's top worth 4 or more for an open column. Discards what has least own use and danger.
    """

    def __cinit__(self):
        self.name = "opener"

    cdef int card(self, LostCities game, const View* view, const int* legal, int n_legal, Rng* rng) noexcept nogil:
        cdef int n = n_plays(game, legal, n_legal), i, colour, rank, gap, cost, least = 0, most = 0, best = -1
        cdef bint short_of_turns = turns_run_short(game, view)
        cdef unsigned int ranks
        for i in range(n):
            colour = game.colour_of[legal[i]]
            rank = game.rank_of[legal[i]]
            if not is_open(view, colour):
                continue
            if rank == 0:
                if reaches(game, points(view.held[colour]), 16):
                    return legal[i]
                continue
            gap = skipped(game, view, colour, rank)
            cost = 10 * gap - view.wagers[colour]
            if (gap <= 2 or short_of_turns) and (best < 0 or cost < least):
                least = cost
                best = legal[i]
        if best >= 0:
            return best
        for colour in range(game.colours):
            ranks = view.held[colour]
            if (not is_open(view, colour) and points(ranks) > most and count(ranks >> 1) >= min(3, game.ranks)
                    and count(ranks >> 1) + 2 <= turns_left(view)
                    and reaches(game, points(ranks), 16 if deck_over(game, view, 14) else 21)):
                most = points(ranks)
                best = opening(game, colour, ranks, True)
        if best >= 0:
            return best
        for i in range(n, n_legal):
            colour = game.colour_of[legal[i] - game.kinds]
            rank = game.rank_of[legal[i] - game.kinds]
            cost = own_use(view, colour, rank) + danger(view, colour, rank)
            if best < 0 or cost < least:
                least = cost
                best = legal[i]
        return best

    cdef int draw(self, LostCities game, const View* view, const int* legal, int n_legal) noexcept nogil:
        return best_pile(game, view, legal, n_legal, 4, game.ranks)


BOTS = {"random": Random, "discard_only": DiscardOnly, "random_player": RandomPlayer,
        "greedy_lowest": GreedyLowest, "gap_player": GapPlayer, "threshold": Threshold, "opener": Opener}


def make_bot(name):
    """The bot called `name`: one of BOTS, or noisy(bot,p) around any, p from 0 to 1.

    ValueError on anything else, with what was nearest.
    """
    text = str(name).strip()
    wrapped = re.fullmatch(r"noisy\((.*),([^,]*)\)", text, re.DOTALL)
    if wrapped:
        try:
            noise = float(wrapped[2])
        except ValueError:
            noise = -1.0
        if not 0.0 <= noise <= 1.0:
            raise ValueError(f"{text!r}: {wrapped[2].strip()!r} is no probability from 0 to 1; "
                             "write it like noisy(opener,0.1)")
        return Noisy(make_bot(wrapped[1]), noise)
    if text not in BOTS:
        near = difflib.get_close_matches(text, [*BOTS, "noisy(opener,0.1)"], n=2)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(f"no bot is called {text!r}; {hint}there are: {', '.join(BOTS)}, "
                         "and noisy(bot,p) around any")
    return BOTS[text]()
