"""Matches: the figures of an entry, their intervals, and the same bits on any number of threads."""

import time

import numpy as np
import pytest

from engine.errors import BadInput
from engine.matches import BLOCK_GAMES, mean_interval, play_games, play_match, share_interval, summary
from pyx.bots import make_bot
from pyx.match import RESULT
from pyx.registry import load_game
from threading_runtime.pool import Pool

Z = 1.959964


class Uniform:
    """An agent of one network that answers zeros."""

    mode, fallback, name = "advantage", "uniform", "uniform"

    def __init__(self, game):
        self.pair = [lambda rows: np.zeros((len(rows), game.n_actions), np.float32)] * 2

    def draw(self, seed, index):
        return self.pair


class Sequence:
    """An agent that plays each group of games by another table."""

    mode, fallback = "strategy", "best"

    def __init__(self, game):
        self.game, self.drawn = game, []

    def draw(self, seed, index):
        self.drawn.append(index)
        rng = np.random.default_rng([seed, index])
        tables = rng.standard_normal((2, 1, self.game.n_actions)).astype(np.float32)
        return [lambda rows, table=table: np.repeat(table, len(rows), 0) for table in tables]


@pytest.fixture(scope="module")
def game():
    return load_game("lost_cities")


@pytest.fixture(scope="module")
def pool():
    with Pool(2) as pool:
        yield pool


def steady(entry):
    return {key: value for key, value in entry.items() if not key.endswith("_per_second")}


def test_keys_of_an_entry(game, pool):
    entry = play_match(game, "opener", "threshold", 1000, 0, pool)
    assert entry.keys() >= {
        "opponent", "games", "win_rate", "win_rate_ci95", "score_mean", "score_sd", "ply_limit_share", "plies_mean",
        "games_per_second", "plies_per_second",
    }  # fmt: skip
    assert entry["opponent"] == "threshold" and entry["games"] == 1000
    low, high = entry["win_rate_ci95"]
    assert 0.6 < low < entry["win_rate"] < high < 0.85
    assert entry["score_mean"] == pytest.approx(entry["points_mean"] - entry["opponent_points_mean"])
    assert all(type(value) in (str, int, float, list) for value in entry.values())


@pytest.mark.parametrize("first", ["noisy(opener,0.1)", Uniform, Sequence])
def test_same_bits_at_any_number_of_threads(game, first):
    entries = []
    for threads in (1, 2, 3, 8):
        with Pool(threads) as pool:
            player = first if isinstance(first, str) else first(game)
            entries.append(steady(play_match(game, player, "greedy_lowest", 3 * BLOCK_GAMES + 10, 5, pool)))
    assert all(entry == entries[0] for entry in entries)


def test_a_uniform_agent_plays_like_the_random_bot(game, pool):
    agent = play_match(game, Uniform(game), "gap_player", 2000, 1, pool)
    bot = play_match(game, "random", "gap_player", 2000, 2, pool)
    assert agent["score_mean"] == pytest.approx(bot["score_mean"], abs=4)
    assert agent["score_sd"] == pytest.approx(bot["score_sd"], rel=0.1)


def test_agents_meet_each_other(pool):
    game = load_game("kuhn")
    entry = play_match(game, Uniform(game), Uniform(game), 4000, 0, pool)
    assert entry["opponent"] == "uniform"
    low, high = entry["score_mean_ci95"]
    assert low < 0 < high and entry["points_mean"] == 0


def test_each_player_draws_once_a_block_and_never_the_same_group(game, pool):
    first, second = Sequence(game), Sequence(game)
    results, units = play_games(game, [first, second], 4 * BLOCK_GAMES, 3, pool)
    assert sorted(first.drawn + second.drawn) == list(range(8))
    # Their games share a network within a block: the block is what is independent.
    assert units.tolist() == [game // BLOCK_GAMES for game in range(4 * BLOCK_GAMES)]
    assert summary(results, units)["games"] == 4 * BLOCK_GAMES


def test_pairs_are_the_independent_unit(game, pool):
    results, units = play_games(game, [make_bot("opener"), make_bot("opener")], 600, 3, pool)
    assert units.tolist() == [game // 2 for game in range(600)]
    entry = summary(results, units)
    # A bot meets itself: each pair cancels exactly, however much single games differ.
    assert entry["score_mean"] == 0 and entry["score_mean_ci95"] == [0, 0]
    assert entry["win_rate"] == 0.5 and entry["win_rate_ci95"] == [0.5, 0.5]
    assert entry["score_sd"] > 20


def test_figures_of_a_small_match():
    results = np.zeros(4, RESULT)
    results["difference"] = [10, -4, 0, 6]
    results["points"] = [[30, 20], [1, 5], [7, 7], [6, 0]]
    results["plies"] = [88, 90, 100, 402]
    results["limited"] = [0, 0, 0, 1]
    entry = summary(results, np.array([0, 0, 1, 1]))
    assert entry["win_rate"] == 2.5 / 4
    assert entry["score_mean"] == 3 and entry["score_sd"] == pytest.approx(np.std([10, -4, 0, 6], ddof=1))
    assert entry["points_mean"] == 11 and entry["opponent_points_mean"] == 8
    assert entry["plies_mean"] == 170 and entry["ply_limit_share"] == 0.25


def test_mean_interval_is_that_of_unit_means():
    rng = np.random.default_rng(0)
    values = rng.standard_normal(400) + np.repeat(rng.standard_normal(100), 4)
    low, high = mean_interval(values, np.arange(400) // 4)
    means = values.reshape(100, 4).mean(1)
    error = means.std(ddof=1) / 10
    assert (high - low) / 2 == pytest.approx(Z * error)
    assert (high + low) / 2 == pytest.approx(means.mean())
    assert mean_interval(values, np.zeros(400, int)) is None


@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_share_interval_covers_95_percent(share):
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(1000):
        # Pairs whose games are alike, as those of a deal that decides the game are not.
        wins = np.repeat(rng.random(200) < share, 2).astype(float)
        low, high = share_interval(wins, np.arange(400) // 2)
        covered += low <= share <= high
    assert 0.92 <= covered / 1000 <= 0.98


def test_share_interval_stays_between_0_and_1():
    units = np.arange(400) // 2
    low, high = share_interval(np.ones(400), units)
    assert high == 1 and 0.97 < low < 1
    low, high = share_interval(np.zeros(400), units)
    assert low == 0 and 0 < high < 0.03
    assert share_interval(np.full(400, 0.5), units) == [0.5, 0.5]
    # For large numbers it is the usual one.
    wins = (np.random.default_rng(2).random(20_000) < 0.7).astype(float)
    low, high = share_interval(wins, np.arange(20_000) // 2)
    error = wins.reshape(-1, 2).mean(1).std(ddof=1) / 100
    assert [low, high] == pytest.approx([wins.mean() - Z * error, wins.mean() + Z * error], abs=1e-4)


@pytest.mark.parametrize("games", [0, 1, 7, -2])
def test_games_come_in_pairs(game, pool, games):
    with pytest.raises(BadInput, match="even number"):
        play_match(game, "random", "random", games, 0, pool)


def test_a_wrong_name_is_refused(game, pool):
    with pytest.raises(ValueError, match="did you mean opener"):
        play_match(game, "random", "opner", 2, 0, pool)


def test_an_endless_game_is_refused(pool):
    with pytest.raises(ValueError, match="deck_only_after"):
        play_match(load_game("lost_cities", deck_only_after=0), "random", "opener", 2, 0, pool)


def test_a_match_can_be_stopped(game):
    with Pool(1) as pool:
        started = time.monotonic()

        class Stopping(Uniform):
            def draw(self, seed, index):
                pool.stop()
                return super().draw(seed, index)

        with pytest.raises(Exception, match="stopped"):
            play_match(game, Stopping(game), "random", 100 * BLOCK_GAMES, 0, pool)
        assert time.monotonic() - started < 5


def test_a_network_that_plays_both_seats_is_asked_once_for_both():
    game, sizes = load_game("lost_cities"), []

    class Both:
        mode, fallback = "strategy", "best"

        def draw(self, seed, index):
            def evaluate(rows):
                sizes.append(len(rows))
                return outputs_of(rows)

            return [evaluate, evaluate]

    class Apart(Both):
        def draw(self, seed, index):
            return [outputs_of, lambda rows: outputs_of(rows)]

    def outputs_of(rows):  # any function of each row
        return np.take(rows, np.arange(game.n_actions) % game.row_bytes, axis=1).astype(np.float32) % 7 - 3

    with Pool(1) as pool:
        (mine, _), (other, _) = (
            play_games(game, [player, make_bot("greedy_lowest")], 64, 3, pool) for player in (Both(), Apart())
        )
    assert max(sizes) > 32 and mine.tobytes() == other.tobytes()
