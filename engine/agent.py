"""What a run learned, as something that plays: the average strategy of its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.checkpoint import Boundary, read_checkpoint
from engine.config import Config
from engine.config_text import nest
from engine.evaluation import AverageStrategy, Strategy, strategy_of_network
from engine.networks import Factory, PublishedNetwork, default_factory, make_network
from pyx.cfr_math import strategy_of
from pyx.game import Game, State
from pyx.rng import Stream
from pyx.tree import GameTree


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
        networks: list[list[tuple[float, PublishedNetwork]]],
        mode: str,
    ) -> None:
        """networks: per player (weight, network); mode: "strategy" or "advantage"."""
        self.game, self.config, self.networks, self.mode = game, config, networks, mode
        self.fallback = config.traversal.fallback

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
        for weight, network in self.networks[player]:
            outputs = network(rows)
            reach = weight
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
        for networks in zip(*self.networks, strict=True):
            pair = [network for _, network in networks]
            average.add(strategy_of_network(tree, pair, self.mode, self.fallback), networks[0][0])
        return average.strategy()

    def draw(self, seed: int, index: int) -> tuple[PublishedNetwork, PublishedNetwork]:
        """The networks that play group `index` of a match, one a player, drawn by weight."""
        stream = Stream(seed, "match", iteration=0xFFFFFFFF, index=index)
        return tuple(_draw(pairs, stream.double()) for pairs in self.networks)

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


def _draw(pairs: list[tuple[float, PublishedNetwork]], point: float) -> PublishedNetwork:
    edges = np.cumsum([weight for weight, _ in pairs])
    return pairs[int(np.searchsorted(edges, point * edges[-1], side="right"))][1]


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

    def published(state: Mapping[str, Any]) -> PublishedNetwork:
        module = make_network(factory, game, config, number=0, iteration=0)
        module.load_state_dict(state)
        return PublishedNetwork(module, game.n_features, torch.float32)

    if config.average == "strategy_network":
        alone = [(1.0, published(boundary.networks["strategy"]))]
        return Agent(game, config, [alone, alone], "strategy")
    return Agent(
        game,
        config,
        [
            [(past.iteration + 1.0, published(past.load())) for past in boundary.sequence[f"advantage{player}"]]
            for player in (0, 1)
        ],
        "advantage",
    )
