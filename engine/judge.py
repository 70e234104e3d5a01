"""How strong the average strategy of a run in progress is: exactly where the game is small, by matches elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from engine.agent import Agent, sequence_sources, sequence_weight
from engine.checkpoint import PastNetwork
from engine.config import Config
from engine.digests import canonical
from engine.evaluation import AverageStrategy, evaluate_strategy, strategy_of_network
from engine.inference import PublishedNetwork
from engine.matches import play_match
from engine.networks import Factory, make_network
from pyx.bots import Bot, make_bot
from pyx.game import Game
from pyx.tree import GameTree
from threading_runtime.pool import Pool

# Larger trees are judged by matches: enumerating one would take seconds and hundreds of MiB.
LARGEST_TREE = 1_000_000


# Who an agent is matched with where nobody was named.
DEFAULT_OPPONENTS = ("random", "discard_only", "random_player", "greedy_lowest", "gap_player", "threshold", "opener")


def opponents_of(game: Game, names: Sequence[str]) -> list[Bot]:
    """The bots of these names, or of the usual ones; ValueError, one sentence, where one cannot play the game."""
    usual = DEFAULT_OPPONENTS if game.name == "lost_cities" else ("random",)
    bots = [make_bot(name) for name in names or usual]
    for bot in bots:
        bot.check(game)
    return bots


def solvable(game: Game) -> GameTree | None:
    """The tree of a game small enough to evaluate exactly, else None."""
    if game.max_game_length() is None:
        return None
    try:
        return GameTree(game, LARGEST_TREE)
    except ValueError:
        return None


class Judge:
    """Evaluates the average strategy while a run goes on.

    Owned by: the trainer. Safe to call from: one thread at a time.
    Guarantees: judging changes nothing that training reads; networks are evaluated in float32, those of the
    sequence as they are stored, so that what it says is what `freecfr eval` says of the checkpoint.
    """

    def __init__(self, game: Game, config: Config, factory: Factory) -> None:
        self.game, self.config, self._factory = game, config, factory
        tree = solvable(game) if config.evaluation.every else None
        self._average = AverageStrategy(tree) if tree else None
        self._players = [
            PublishedNetwork(
                make_network(factory, game, config, number=number, iteration=0), game.n_features, torch.float32
            )
            for number in (0, 1)
            if tree
        ]
        self._opponents = opponents_of(game, config.evaluation.opponents) if config.evaluation.every else []

    def start(self, sequence: Mapping[str, list]) -> None:
        """Count the past networks of a resumed run, and the first network of a new one."""
        if self._average is not None and self.config.average == "advantage_sequence":
            for pair in zip(*sequence.values(), strict=True):
                self._count(self._average, pair)

    def judge(self, pool: Pool, iteration: int, learners: Mapping[str, Any], sequence: Mapping[str, list]) -> dict:
        """What is known of the average strategy after an iteration; {} where none was asked for."""
        every = self.config.evaluation.every
        due = bool(every) and (iteration % every == 0 or iteration == self.config.iterations)
        if self._average is not None:
            average = self._average
            return pool.map(lambda _: self._exactly(average, due, learners, sequence), [None])[0]
        return self._by_matches(pool, learners, sequence) if due else {}

    def _exactly(
        self, average: AverageStrategy, due: bool, learners: Mapping[str, Any], sequence: Mapping[str, list]
    ) -> dict:
        tree = average.tree
        if self.config.average == "advantage_sequence":
            self._count(average, [past[-1] for past in sequence.values()])
        if not due:
            return {}
        if self.config.average == "advantage_sequence":
            strategy = average.strategy()
        else:
            for player in self._players:
                with learners["strategy"].model.reading() as module:
                    player.publish(module)
            strategy = strategy_of_network(tree, self._players, "strategy")
        infosets = sum(learner.memory.infosets() for name, learner in learners.items() if name != "strategy")
        return {**evaluate_strategy(tree, strategy), "infosets_sampled": infosets, "infosets": tree.n_infosets}

    def _count(self, average: AverageStrategy, pair: Sequence[PastNetwork]) -> None:
        """Add one iteration's strategies to the exact average."""
        for player, past in zip(self._players, pair, strict=True):
            player.publish_state(past.load())
        strategy = strategy_of_network(average.tree, self._players, "advantage", self.config.traversal.fallback)
        average.add(strategy, sequence_weight(self.config, pair[0].iteration))

    def _by_matches(self, pool: Pool, learners: Mapping[str, Any], sequence: Mapping[str, list]) -> dict:
        """Matches of the average strategy against the config's opponents."""
        if self.config.average == "strategy_network":
            with learners["strategy"].model.reading() as module:
                state = canonical(module.state_dict())
            agent = Agent(self.game, self.config, [[(1.0, lambda: state)]] * 2, "strategy", self._factory)
        else:
            agent = Agent(self.game, self.config, sequence_sources(self.config, sequence), "advantage", self._factory)
        games = self.config.evaluation.games
        return {
            "matches": [
                play_match(self.game, agent, opponent, games, self.config.seed, pool) for opponent in self._opponents
            ]
        }
