"""Lost Cities in plain Python lists: slow, obvious, and written from the rules alone."""

import numpy as np

LETTERS = "RGWBYP"


def rank_of(card):
    """0 for a wager, else the number less 1."""
    return 0 if card[1:] == "H" else int(card[1:]) - 1


def in_order(cards):
    return sorted(cards, key=lambda card: (LETTERS.index(card[0]), rank_of(card)))


def all_cards(parameters):
    ranks = ["H"] * parameters["wagers"] + [str(number) for number in range(2, parameters["ranks"] + 2)]
    return [letter + rank for letter in LETTERS[: parameters["colours"]] for rank in ranks]


class Table:
    """One round; `deck` is bottom to top. `log` is what each player sees, in words, since the start."""

    def __init__(self, parameters, deck):
        self.parameters = parameters
        self.letters = LETTERS[: parameters["colours"]]
        self.deck = list(deck)
        self.hands = [[], []]
        self.known = [[], []]
        self.boards = [{letter: [] for letter in self.letters} for _ in range(2)]
        self.piles = {letter: [] for letter in self.letters}
        self.mover, self.phase, self.ply, self.barred = 0, "CARD", 0, None
        for _ in range(parameters["hand_size"]):
            for player in range(2):
                self.hands[player].append(self.deck.pop())
        self.log = [[f"my hand {' '.join(in_order(hand))}"] for hand in self.hands]

    def over(self):
        return not self.deck

    def legal(self):
        """Texts, in no order."""
        if self.over():
            return set()
        if self.phase == "CARD":
            discards = {f"discard {card}" for card in self.hands[self.mover]}
            return discards | {f"play {card}" for card in self.hands[self.mover] if self.fits(card)}
        draws = {"draw deck"}
        limit = self.parameters["deck_only_after"]
        if not limit or self.ply < limit:
            draws |= {f"draw {letter}" for letter in self.letters if self.piles[letter] and letter != self.barred}
        return draws

    def fits(self, card):
        column = self.boards[self.mover][card[0]]
        return not column or rank_of(card) > rank_of(column[-1]) or (rank_of(card) == 0 == rank_of(column[-1]))

    def act(self, text):
        verb, what = text.split()
        me = self.mover
        self.ply += 1
        for player in range(2):
            self.log[player].append(text)
        if verb == "draw":
            if what == "deck":
                card = self.deck.pop()
                self.log[me].append(f"drew {card}")
            else:
                card = self.piles[what].pop()
                self.known[me].append(card)
            self.hands[me].append(card)
            self.mover, self.phase, self.barred = 1 - me, "CARD", None
            return
        self.hands[me].remove(what)
        if what in self.known[me]:
            self.known[me].remove(what)
        self.phase = "DRAW"
        if verb == "play":
            self.boards[me][what[0]].append(what)
        else:
            self.piles[what[0]].append(what)
            self.barred = what[0]

    def score(self, player):
        return sum(self.column_score(column) for column in self.boards[player].values())

    def column_score(self, column):
        if not column:
            return 0
        numbers = [rank_of(card) + 1 for card in column if rank_of(card)]
        points = (sum(numbers) - self.parameters["cost"]) * (1 + len(column) - len(numbers))
        return points + (self.parameters["bonus"] if len(column) >= self.parameters["bonus_cards"] else 0)

    def position(self):
        """As LostCitiesState.position() writes it, `known` aside."""
        return {
            "player_to_act": self.mover,
            "phase": self.phase,
            "hands": [in_order(hand) for hand in self.hands],
            "boards": [{letter: column for letter, column in board.items() if column} for board in self.boards],
            "piles": {letter: pile for letter, pile in self.piles.items() if pile},
            "deck_bottom_to_top": self.deck,
            "discarded_this_turn": self.barred,
            "ply": self.ply,
            "scores": [self.score(0), self.score(1)],
            "deck_left": len(self.deck),
            "terminal": self.over(),
        }

    def seen_colour(self, player, letter):
        """All that `player` knows of one colour, without the colour's name."""

        def ranks(cards):
            return tuple(sorted(rank_of(card) for card in cards if card[0] == letter))

        return (
            ranks(self.boards[player][letter]),
            ranks(self.boards[1 - player][letter]),
            ranks(self.hands[player]),
            ranks(self.known[1 - player]),
            ranks(self.known[player]),
            tuple(rank_of(card) for card in self.piles[letter]),
            letter == self.barred,
        )

    def seen_table(self, player):
        """What `player` knows beside the colours: own turn, draw phase, deck, plies until only the deck is left."""
        limit = self.parameters["deck_only_after"]
        return self.mover == player, self.phase == "DRAW", len(self.deck), max(0, limit - self.ply)

    def seen(self, player):
        """All that `player` knows of the position."""
        return tuple(self.seen_colour(player, letter) for letter in self.letters), self.seen_table(player)


def read_row(parameters, row):
    """What a row says: (what seen_colour says of each place, what seen_table says)."""
    ranks, wagers, colours = parameters["ranks"], parameters["wagers"], parameters["colours"]
    deck = colours * (ranks + wagers) - 2 * parameters["hand_size"]
    limit = parameters["deck_only_after"]
    bits = np.unpackbits(row, bitorder="little").tolist()

    def take(n):
        taken, bits[:n] = bits[:n], []
        return taken

    def number(binary):
        return sum(bit << k for k, bit in enumerate(binary))

    def thermometer(marks):
        assert marks == sorted(marks, reverse=True)
        return sum(marks)

    def cards():
        numbers = [rank + 1 for rank, bit in enumerate(take(ranks)) if bit]
        return tuple([0] * thermometer(take(wagers)) + numbers)

    def colour():
        held = [cards() for _ in range(5)]
        depths = [number(take((ranks + wagers).bit_length())) for _ in range(ranks + wagers)]
        inside, top, barred = take(ranks), take(ranks + 1), take(1)
        pile = sorted(
            ((depth, rank) for depth, rank in zip(depths, [*range(1, ranks + 1)] + [0] * wagers, strict=True) if depth),
            reverse=True,
        )
        pile = [rank for _, rank in pile]
        assert sorted(depth for depth in depths if depth) == [*range(1, len(pile) + 1)]
        assert inside == [rank in pile for rank in range(1, ranks + 1)]
        assert top == [pile[-1:] == [rank] for rank in range(ranks + 1)]
        inside_wagers = sorted(depth for depth in depths[ranks:] if depth)
        assert depths[ranks:] == inside_wagers + [0] * (wagers - len(inside_wagers))
        return (*held, tuple(pile), bool(barred[0]))

    places = [colour() for _ in range(colours)]
    mine, drawing = map(bool, take(2))
    left = thermometer(take(deck))
    plies = 0
    if limit:
        plies = number(take(limit.bit_length()))
        assert thermometer(take(8)) == -(-8 * plies // limit)
    assert not any(bits), "padding is zero"
    return places, (mine, drawing, left, plies)
