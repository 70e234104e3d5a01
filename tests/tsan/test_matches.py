"""Matches on a pool's threads, which share players and game."""

import pytest
from setting import THREADS, digest, network

from engine.matches import play_games
from pyx.bots import make_bot
from pyx.registry import load_game
from threading_runtime.pool import Pool


class Player:
    """Networks that all blocks share."""

    mode, fallback = "advantage", "best"

    def __init__(self, game):
        self._networks = [network(game, player) for player in (0, 1)]

    def draw(self, seed, index):
        return self._networks


PAIRS = [
    ("lost_cities", "opener", "noisy(threshold,0.2)", 1024),
    ("lost_cities", "agent", "gap_player", 512),
    ("leduc", "agent", "random", 1024),
]


@pytest.mark.parametrize("name, first, second, games", PAIRS)
def test_results_are_the_same_at_any_number_of_threads(name, first, second, games, monkeypatch):
    monkeypatch.setattr("engine.matches.BLOCK_GAMES", 64)  # several blocks a thread
    game = load_game(name)
    players = [Player(game) if player == "agent" else make_bot(player) for player in (first, second)]
    found = []
    for threads in THREADS:
        with Pool(threads) as pool:
            results, _ = play_games(game, players, games, 3, pool)
        found.append(digest([results]))
    assert len(set(found)) == 1
