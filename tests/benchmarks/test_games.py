"""Whole games between two players: extra_info has games and plies a second."""

import pytest
import torch

from engine.inference import PublishedNetwork
from engine.matches import play_match
from threading_runtime.gil import threads_default
from threading_runtime.pool import Pool

pytest.importorskip("pytest_benchmark")

THREADS = sorted({1, threads_default()})


class Untrained:
    """One network for both seats."""

    mode, fallback = "strategy", "best"

    def __init__(self, network, n_features):
        self.network = PublishedNetwork(network, n_features, torch.float32)

    def draw(self, seed, index):
        return [self.network, self.network]


def play(benchmark, game, first, second, games, threads):
    if benchmark.disabled:
        games = 4  # nobody looks at the time
    with Pool(threads) as pool:
        result = benchmark(play_match, game, first, second, games=games, seed=0, pool=pool)
    assert result["games"] == games
    if not benchmark.disabled:
        seconds = benchmark.stats.stats.median
        benchmark.extra_info["games_per_second"] = games / seconds
        benchmark.extra_info["plies_per_second"] = result["plies_mean"] * games / seconds


@pytest.mark.parametrize("threads", THREADS)
def test_bots(benchmark, game, threads):
    """2,048 games of greedy_lowest against discard_only."""
    play(benchmark, game, "greedy_lowest", "discard_only", 2048, threads)


@pytest.mark.parametrize("threads", THREADS)
def test_agent_and_bot(benchmark, game, network, threads):
    """1,024 games of a 512 x 3 network, untrained and so uniform, against greedy_lowest, in float32."""
    play(benchmark, game, Untrained(network, game.n_features), "greedy_lowest", 1024, threads)
