"""What a run learned, as something that plays: the average strategy of its checkpoint."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.checkpoint import Boundary, PastNetwork, read_checkpoint
from engine.config import Config
from engine.config_text import nest
from engine.errors import CheckpointError
from engine.evaluation import AverageStrategy, Strategy, strategy_of_network
from engine.inference import PublishedNetwork
from engine.networks import Factory, default_factory, make_network
from engine.untrusted import refuse_unlike
from pyx.cfr_math import strategy_of
from pyx.game import Game, State
from pyx.rng import Stream
from pyx.tree import GameTree

# Networks of a sequence that are kept ready, in bytes of float32 weights; the rest is read again when needed.
KEPT_BYTES = 1 << 28

Source = Callable[[], Mapping[str, torch.Tensor]]  # gives a network's state_dict


class Agent:
    """The average strategy of a run, over one game.

    Owned by: whoever made it. Safe to call from: any thread.
    Guarantees: probabilities are of legal actions only and sum to 1.

    With average = strategy_network one network plays. With advantage_sequence every past advantage network has a
    weight, its iteration; the average counts each by its own reach too (Steinberger 2019), which
    `action_probabilities` and `strategy_on` compute exactly and matches sample: one network is drawn for a group
    of games and plays them whole.
    """

    def __init__(
        self,
        game: Game,
        config: Config,
        networks: Sequence[Sequence[tuple[float, Source]]],
        mode: str,
        factory: Factory = default_factory,
    ) -> None:
        """networks: per player (weight, source) of each, one list twice where both have the same; mode: "strategy" or
        "advantage"."""
        self.game, self.config, self.networks, self.mode = game, config, networks, mode
        self.fallback = config.traversal.fallback
        self._template = make_network(factory, game, config, number=0, iteration=0)
        size = sum(parameter.numel() * 4 for parameter in self._template.parameters())
        self._ready = functools.lru_cache(max(2, KEPT_BYTES // size))(self._published)

    def _network(self, player: int, index: int) -> PublishedNetwork:
        """The same object for both players where they have the same networks, so that a match asks it once for both."""
        return self._ready(0 if self.networks[0] is self.networks[1] else player, index)

    def _published(self, player: int, index: int) -> PublishedNetwork:
        network = PublishedNetwork(self._template, self.game.n_features, torch.float32)
        state = self.networks[player][index][1]()
        refuse_unlike(state, self._template.state_dict(), "the checkpoint")
        network.publish_state(state)
        return network

    def action_probabilities(self, state: State) -> dict[int, float]:
        """{action: probability} of the player to act, legal actions only."""
        player = state.current_player()
        legal = state.legal_actions()
        if player < 0:
            raise ValueError(f"player {player} is to act, so nobody decides; legal: {legal}")
        if state.game.n_features != self.game.n_features or state.game.n_actions != self.game.n_actions:
            raise ValueError(f"the agent plays {self.game!r}, the state is of {state.game!r}")
        decisions = self._own_decisions(state, player)
        rows = np.stack([row for row, _, _ in decisions])
        total = np.zeros(len(legal))
        for index, (reach, _) in enumerate(self.networks[player]):
            outputs = self._network(player, index)(rows)
            for output, (_, places, chosen) in zip(outputs, decisions, strict=True):
                strategy = strategy_of(output, places, self.mode, self.fallback)
                if chosen is not None:
                    reach *= strategy[chosen]
            total += reach * strategy
        mass = total.sum()
        # A history that no network plays to has no average; any strategy is as good, and uniform is the honest one.
        probabilities = total / mass if mass > 0 else np.full(len(legal), 1 / len(legal))
        return dict(zip(legal, probabilities.tolist(), strict=True))

    def strategy_on(self, tree: GameTree) -> Strategy:
        """The exact average at every information set, float64 (n_infosets, max_legal)."""
        average = AverageStrategy(tree)
        for index, (weight, _) in enumerate(self.networks[0]):
            pair = [self._network(player, index) for player in (0, 1)]
            strategy = strategy_of_network(tree, pair, self.mode, self.fallback)
            if self.mode == "strategy" and len(self.networks[0]) == 1:
                return strategy  # its own average, also where its play does not come; weighing it would round it
            average.add(strategy, weight)
        return average.strategy()

    def draw(self, seed: int, index: int) -> list[PublishedNetwork]:
        """The networks that play group `index` of a match, one a player, drawn by weight."""
        stream = Stream(seed, "match", iteration=0xFFFFFFFF, index=index)
        drawn = []
        for player, weighted in enumerate(self.networks):
            edges = np.cumsum([weight for weight, _ in weighted])
            which = int(np.searchsorted(edges, stream.double() * edges[-1], side="right"))
            drawn.append(self._network(player, which))
        return drawn

    def _own_decisions(self, state: State, player: int) -> list[tuple[np.ndarray, list, int | None]]:
        """The row, places and chosen action of each of the player's decisions on the way, the last not yet made.

        One network has no reach to weigh, so only the last is looked at.
        """
        decisions = []
        if len(self.networks[player]) > 1:
            replay = state.beginning()
            for action in state.history():
                legal = replay.legal_actions()
                if replay.current_player() == player and len(legal) > 1:
                    decisions.append((replay.row(player), replay.outputs(), legal.index(action)))
                replay.apply_action(action)
        return [*decisions, (state.row(player), state.outputs(), None)]


def load_agent(run: str | Path, *, network: Factory | None = None) -> Agent:
    """The agent of a run's folder (its newest checkpoint) or of one checkpoint.

    network: the factory the run was trained with, where it was not the config's own network.
    Raises CheckpointError, one sentence, where there is no agent to load.
    """
    boundary = read_checkpoint(run)
    config = Config(**nest(boundary.config))
    return agent_of(config, boundary, network or default_factory)


def agent_of(config: Config, boundary: Boundary, factory: Factory = default_factory) -> Agent:
    """The agent of a run as of a boundary."""
    game = config.load_game()
    if config.average == "strategy_network":
        networks: Any = boundary.networks  # as a stranger's file has them
        state: Any = networks.get("strategy") if isinstance(networks, Mapping) else None
        sources: list[list[tuple[float, Source]]] = [[(1.0, lambda: state)]] * 2
        mode = "strategy"
    else:
        sources, mode = sequence_sources(config, boundary.sequence), "advantage"
    if factory is default_factory:
        # Before the config has a network made: it may name a size that the machine has no memory for.
        with torch.device("meta"):
            own = default_factory(game.n_features, game.n_actions, config).state_dict()
        refuse_unlike(sources[0][0][1](), own, "the checkpoint")
    return Agent(game, config, sources, mode, factory)


def sequence_sources(config: Config, sequence: Mapping[str, list[PastNetwork]]) -> list[list[tuple[float, Source]]]:
    """Per player (weight, source) of its past networks.

    CheckpointError where the players do not have networks of the same iterations, in order.
    """
    both = [sequence.get(f"advantage{player}", []) for player in (0, 1)]
    first, second = ([past.iteration for past in pasts] for pasts in both)
    if not first or first != second or first[0] < 0 or any(a >= b for a, b in zip(first, first[1:], strict=False)):
        raise CheckpointError("the checkpoint has no past networks of both players, iteration by iteration; give one.")
    return [[(sequence_weight(config, past.iteration), past.load) for past in pasts] for pasts in both]


def sequence_weight(config: Config, iteration: int) -> float:
    """What the network after an iteration weighs in the average: the sum of the iterations in which its player
    traverses by it.

    That is the next one. Where both players traverse at once while the networks of the iteration before train, it is
    the one after, and the first networks play in two.
    """
    if config.overlap == "none" or config.order == "alternating":
        return iteration + 1.0
    return iteration + 2.0 if iteration else 3.0
