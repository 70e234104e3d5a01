"""`freecfr bench matches`: games a second between any two bots, and between a network and each bot."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations
from statistics import median
from typing import Any

import torch

from engine.bench import say, summary, thread_counts
from engine.bench_networks import played_network
from engine.config import Config
from engine.inference import DTYPES, PublishedNetwork
from engine.judge import opponents_of
from engine.matches import play_match
from pyx.bots import Bot
from pyx.game import Game
from threading_runtime.pool import Pool

REPEATS = 5
BOT_GAMES = 16_384
AGENT_GAMES = 1_024


class Played:
    """An agent of the config's own size, with networks whose play is neither uniform nor endless."""

    name, mode, fallback = "agent", "advantage", "best"

    def __init__(self, game: Game, config: Config) -> None:
        dtype = torch.float32 if config.inference_dtype == "auto" else DTYPES[config.inference_dtype]
        self._networks = [
            PublishedNetwork(played_network(game, config, player), game.n_features, dtype) for player in (0, 1)
        ]

    def draw(self, seed: int, index: int) -> list[PublishedNetwork]:
        """One network a seat, the same for every group of games."""
        return self._networks


def measure(threads: Sequence[int], overrides: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each thread count and pair; evaluation.opponents among the overrides says which bots."""
    config = Config().with_overrides(overrides)
    game = config.load_game()
    bots = opponents_of(game, config.evaluation.opponents)
    agent = Played(game, config)
    pairs: list[tuple[Bot | Played, Bot, int]] = [(agent, bot, AGENT_GAMES) for bot in bots]
    pairs += [(first, second, BOT_GAMES) for first, second in combinations(bots, 2)]
    with ExitStack() as stack:
        pools = [stack.enter_context(Pool(count)) for count in thread_counts(threads, config.threads)]
        settings = [(pool, *pair) for pair in pairs for pool in pools]
        found: list[list[dict[str, Any]]] = [[] for _ in settings]
        for repeat in range(REPEATS):
            say(f"repeat {repeat + 1} of {REPEATS}")
            for (pool, first, second, games), matches in zip(settings, found, strict=True):
                matches.append(play_match(game, first, second, games, config.seed, pool))
    return [
        {
            "threads": pool.threads,
            "first": first.name,
            "second": second.name,
            "games": games,
            "plies_mean": matches[0]["plies_mean"],
            "plies_per_second": median(match["plies_per_second"] for match in matches),
            "games_per_second": median(match["games_per_second"] for match in matches),
            **summary("games_per_second", (match["games_per_second"] for match in matches)),
        }
        for (pool, first, second, games), matches in zip(settings, found, strict=True)
    ]
