"""Python face of every game: OpenSpiel's method names over the compiled interface."""
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

import numpy as np

from pyx.game cimport Game, State
from pyx.rng cimport Rng, Stream
from pyx.types cimport CHANCE, MAX_LEGAL, TERMINAL, Output, uint8_t, uint64_t


cdef class Game:
    """A game's rules; see game.pxd for the compiled interface.

    Safe to call from any thread: nothing changes after construction.
    """

    cdef void start(self, void* state) noexcept nogil:
        pass

    cdef int player(self, const void* state) noexcept nogil:
        return TERMINAL

    cdef int legal(self, const void* state, int* actions) noexcept nogil:
        return 0

    cdef void chance(self, const void* state, double* probabilities) noexcept nogil:
        pass

    cdef int sample_chance(self, void* state, Rng* rng) noexcept nogil:
        return 0

    cdef void apply(self, void* state, int action) noexcept nogil:
        pass

    cdef double payoff(self, const void* state) noexcept nogil:
        return 0.0

    cdef void observe(self, const void* state, int player, uint8_t* row, Output* outputs) noexcept nogil:
        pass

    cdef uint64_t sight(self, const void* state, int action, int player) noexcept nogil:
        return 0

    def num_players(self):
        return 2

    def num_distinct_actions(self):
        return self.n_actions

    def max_game_length(self):
        """Most decisions of one game, an int; None where a game may last for ever."""
        return self.max_length or None

    def new_initial_state(self, *, seed=None, deck=None):
        """The state before anything happened.

        Chance nodes appear; with `seed` (an int) chance is drawn, with `deck` (a sequence of chance
        outcomes, bottom to top: the last is dealt first) it is given, and none appear.
        """
        if seed is not None and deck is not None:
            raise ValueError("seed and deck both given: chance is drawn or given, choose one")
        dealer = None
        if seed is not None:
            dealer = _Drawn(seed)
        elif deck is not None:
            dealer = _Given([self.outcome(card) for card in deck])
        return self.make_state(dealer)

    def make_state(self, dealer):
        """A State at the start whose chance nodes `dealer` answers; None: they appear."""
        return State(self, dealer)

    def outcome(self, card):
        """The chance outcome, an int, that `card` of a deck stands for."""
        return int(card)

    def action_to_string(self, player, action):
        """The text of an action (player 0 or 1) or of a chance outcome (player -1)."""
        raise NotImplementedError

    def string_to_action(self, text):
        """The action that a text of State.action_to_string names; ValueError if there is none."""
        for action in range(self.n_actions):
            if self.action_to_string(0, action) == text:
                return action
        known = ", ".join(self.action_to_string(0, action) for action in range(self.n_actions))
        raise ValueError(f"no action is called {text!r}; {self.name} has: {known}")

    def describe(self, state):
        """One readable line of a State."""
        return " ".join(state.history_strings()) or "start"

    def __reduce__(self):
        from pyx.registry import load_game
        return _load, (self.name, self.parameters)

    def __repr__(self):
        settings = "".join(f", {key}={value}" for key, value in self.parameters.items())
        return f"load_game({self.name!r}{settings})"


def _load(name, parameters):
    from pyx.registry import load_game
    return load_game(name, **parameters)


class _Drawn:
    """Chance drawn from a stream. Owned by one state; copies go on by themselves with the same numbers."""

    def __init__(self, seed, draws=0):
        self.seed, self.draws = seed, draws

    def copy(self):
        return _Drawn(self.seed, self.draws)

    def outcome(self, outcomes):
        point = Stream(self.seed, "state", index=self.draws).double()
        self.draws += 1
        for outcome, probability in outcomes:
            point -= probability
            if point < 0:
                return outcome
        return outcomes[len(outcomes) - 1][0]


class _Given:
    """Chance given as a deck, bottom to top. Owned by one state."""

    def __init__(self, deck):
        self.deck = list(deck)

    def copy(self):
        return _Given(self.deck)

    def outcome(self, outcomes):
        if not self.deck:
            raise ValueError("the deck given is used up and a card must be dealt; give a longer deck")
        card = self.deck.pop()
        possible = [outcome for outcome, _ in outcomes]
        if card not in possible:
            raise ValueError(f"the deck deals {card}, which is no longer in the game; possible: {possible}")
        return card


cdef class State:
    """A history of a game, for Python.

    Owned by its maker; not safe to share while it is changed. An illegal action, a wrong player or a
    call at the wrong kind of node raises ValueError naming what was legal.
    """

    def __cinit__(self, Game game, dealer=None):
        self.game = game
        self.data = calloc(1, game.state_bytes)
        if self.data == NULL:
            raise MemoryError
        self.actions = []
        self.sights = [[], []]
        self.dealer = dealer

    def __init__(self, Game game, dealer=None):
        game.start(self.data)
        self._deal()

    def __dealloc__(self):
        free(self.data)

    cdef int _player(self) noexcept nogil:
        return self.game.player(self.data)

    def _legal(self):
        if self._player() == TERMINAL:
            return []
        buffer = np.empty(max(self.game.max_legal, self.game.max_chance), np.intc)
        cdef int[::1] view = buffer
        cdef int n = self.game.legal(self.data, &view[0])
        return buffer[:n].tolist()

    def _take(self, int action):
        cdef int player
        cdef uint64_t sight
        for player in range(2):
            sight = self.game.sight(self.data, action, player)
            if sight:
                self.sights[player].append(sight)
        self.game.apply(self.data, action)
        self.actions.append(action)

    def _deal(self):
        while self.dealer is not None and self._player() == CHANCE:
            self._take(self.dealer.outcome(self.chance_outcomes()))

    def _check_player(self, player):
        if player not in (0, 1):
            raise ValueError(f"player {player}: players are 0 and 1")

    def current_player(self):
        """0, 1, -1 at a chance node, -4 when over."""
        return self._player()

    def is_chance_node(self):
        return self._player() == CHANCE

    def is_terminal(self):
        return self._player() == TERMINAL

    def legal_actions(self):
        """Ascending ints: actions, outcomes at a chance node, none when over."""
        return self._legal()

    def chance_outcomes(self):
        """[(outcome, probability)] at a chance node, outcomes ascending."""
        if self._player() != CHANCE:
            raise ValueError(f"no chance node: player {self._player()} is to act, legal: {self._legal()}")
        outcomes = self._legal()
        probabilities = np.empty(self.game.max_chance)
        cdef double[::1] view = probabilities
        self.game.chance(self.data, &view[0])
        return list(zip(outcomes, probabilities[:len(outcomes)].tolist()))

    def apply_action(self, action):
        """Play a legal action, or a possible outcome at a chance node."""
        legal = self._legal()
        if isinstance(action, bool) or not isinstance(action, (int, np.integer)) or action not in legal:
            raise ValueError(f"action {action!r} is not legal here; legal: {legal}" if legal else
                             f"action {action!r}: the game is over, nothing is legal")
        self._take(action)
        self._deal()

    def sample_chance(self, Stream stream):
        """At a chance node: draw the outcome from `stream`, as a traversal does."""
        if self._player() != CHANCE:
            raise ValueError(f"no chance node: player {self._player()} is to act, legal: {self._legal()}")
        cdef int player, outcome
        cdef State before = self.clone()
        cdef uint64_t sight
        outcome = self.game.sample_chance(self.data, &stream.rng)
        for player in range(2):
            sight = self.game.sight(before.data, outcome, player)
            if sight:
                self.sights[player].append(sight)
        self.actions.append(outcome)
        return outcome

    def child(self, action):
        """A clone after `action`."""
        state = self.clone()
        state.apply_action(action)
        return state

    def clone(self):
        cdef State other = type(self).__new__(type(self), self.game)
        memcpy(other.data, self.data, self.game.state_bytes)
        other.actions = list(self.actions)
        other.sights = [list(sights) for sights in self.sights]
        other.dealer = None if self.dealer is None else self.dealer.copy()
        return other

    def history(self):
        """Actions and chance outcomes since the start, ints."""
        return list(self.actions)

    def beginning(self):
        """The State this one's history began at; its chance nodes appear."""
        return type(self)(self.game)

    def history_strings(self):
        """The texts of history(), replayed from its beginning."""
        cdef State replay = self.beginning()
        texts = []
        for action in self.history():
            texts.append(replay.action_to_string(action))
            replay._take(action)
        return texts

    def returns(self):
        """[player 0's, player 1's] payoff, floats; zeros before the end."""
        if self._player() != TERMINAL:
            return [0.0, 0.0]
        payoff = self.game.payoff(self.data)
        return [payoff, -payoff]

    def action_to_string(self, action):
        """The text of an action of the player to act, or of an outcome at a chance node."""
        return self.game.action_to_string(self._player() if self._player() != TERMINAL else 0, action)

    def information_state_string(self, player=None):
        """Equal for two states if and only if `player` (default: who is to act) cannot tell them apart."""
        player = self._player() if player is None else player
        self._check_player(player)
        return f"{player}:" + ",".join(format(sight, "x") for sight in self.sights[player])

    def information_state_tensor(self, player=None):
        """What a network sees: n_features floats, 0 or 1."""
        player = self._player() if player is None else player
        self._check_player(player)
        row = self.row(player)
        return np.unpackbits(row, count=self.game.n_features, bitorder="little").astype(np.float32).tolist()

    def row(self, int player):
        """The packed row of `player`, uint8 of row_bytes."""
        self._check_player(player)
        row = np.zeros(self.game.row_bytes, np.uint8)
        cdef uint8_t[::1] view = row
        cdef Output outputs[MAX_LEGAL]
        self.game.observe(self.data, player, &view[0], outputs)
        return row

    def outputs(self):
        """Per legal action (slot, first, ties, stride) of the player to act: see pyx/types.pxd."""
        if self._player() < 0:
            raise ValueError("no player is to act here, so no action has a place in a network's output")
        row = np.zeros(self.game.row_bytes, np.uint8)
        cdef uint8_t[::1] view = row
        cdef Output outputs[MAX_LEGAL]
        self.game.observe(self.data, self._player(), &view[0], outputs)
        return [(outputs[k].slot, outputs[k].first, outputs[k].ties, outputs[k].stride)
                for k in range(len(self._legal()))]

    def __str__(self):
        return self.game.describe(self)
