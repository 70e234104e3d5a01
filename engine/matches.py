"""Matches between two players, bots or agents, on paired deals with seats swapped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.errors import BadInput
from pyx.bots import Bot, make_bot
from pyx.game import Game
from pyx.match import Answered, MatchBlock
from threading_runtime.pool import Pool

Evaluate = Callable[[NDArray[np.uint8]], NDArray[np.float32]]  # packed rows (n, row_bytes) to outputs (n, n_actions)

# Games of one block, all of them in progress at once. It depends on nothing, so that results do not either.
BLOCK_GAMES = 256

# Half the width of a 95 % interval in standard errors.
Z95 = 1.959964


class NetworkPlayer(Protocol):
    """A player that networks decide for."""

    mode: str  # how outputs are read: "advantage" or "strategy"
    fallback: str  # what is played where no advantage is positive: "best" or "uniform"

    def draw(self, seed: int, index: int) -> Sequence[Evaluate]:
        """What evaluates the rows of player 0 and of player 1 in group `index` of a match's games.

        Called on worker threads. A player that is one network returns the same objects each time.
        """
        ...


Player: TypeAlias = Bot | NetworkPlayer | str


def play_match(game: Game, first: Player, second: Player, games: int, seed: int, pool: Pool) -> dict[str, Any]:
    """How `first` does against `second`: one entry of `matches` of `freecfr eval --json`.

    first, second   a Bot or its name, or a NetworkPlayer
    games           even: each deal is played twice, with seats swapped
    The same seed gives the same entry at any number of threads, but for `*_per_second`.
    BadInput or ValueError, one sentence, where this cannot be played.
    """
    players = [make_bot(player) if isinstance(player, str) else player for player in (first, second)]
    if games < 2 or games % 2:
        raise BadInput(f"games is {games}, but each deal is played twice with seats swapped; give an even number")
    started = time.perf_counter()
    results, groups = play_games(game, players, games, seed, pool)
    seconds = time.perf_counter() - started
    return {
        "opponent": getattr(players[1], "name", "agent"),
        **summary(results, groups),
        "games_per_second": games / seconds,
        "plies_per_second": int(results["plies"].sum()) / seconds,
    }


def play_games(
    game: Game, players: Sequence[Bot | NetworkPlayer], games: int, seed: int, pool: Pool
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Every game's result, pyx.match.RESULT (games,), and its independent unit, int64 (games,).

    Games 2k and 2k + 1 are one deal. The unit is the deal; where a player drew different networks for different
    blocks, the games of a block share their luck and the unit is the block.
    """
    policies = [player if isinstance(player, Bot) else Answered(player.mode, player.fallback) for player in players]
    jobs = [(first, min(BLOCK_GAMES, games - first)) for first in range(0, games, BLOCK_GAMES)]

    def run(job: tuple[int, int]) -> tuple[NDArray[Any], list[Evaluate]]:
        first, count = job
        block = MatchBlock(game, *policies, first, count, lanes=count, seed=seed)
        networks = {
            (policy, seat): evaluate
            for policy, player in enumerate(players)
            if not isinstance(player, Bot)
            for seat, evaluate in enumerate(player.draw(seed, 2 * (first // BLOCK_GAMES) + policy))
        }
        while block.advance():
            pool.raise_if_stopping()
            _answer(block, networks)
        pool.raise_if_stopping()
        return block.results, list(networks.values())

    blocks = pool.map(run, jobs)
    alone = all(one is other for _, drawn in blocks for one, other in zip(drawn, blocks[0][1], strict=True))
    return np.concatenate([results for results, _ in blocks]), np.arange(games) // (2 if alone else BLOCK_GAMES)


def _answer(block: MatchBlock, networks: dict[tuple[int, int], Evaluate]) -> None:
    """Answer all that waits; a network that plays both seats is asked once for both."""
    asking: dict[int, list[tuple[int, int]]] = {}
    for group in block.groups():
        asking.setdefault(id(networks[group]), []).append(group)
    for groups in asking.values():
        rows = [block.rows(group) for group in groups]
        outputs = networks[groups[0]](np.concatenate(rows) if len(rows) > 1 else rows[0])
        start = 0
        for group, own in zip(groups, rows, strict=True):
            block.answer(group, outputs[start : start + len(own)])
            start += len(own)


def summary(results: NDArray[Any], units: NDArray[np.int64]) -> dict[str, Any]:
    """The figures of a match, from the first player's side.

    results   pyx.match.RESULT (games,)
    units     int64 (games,), ascending from 0: games of different units are independent
    Points, columns and draws are those of Lost Cities, 0 in another game; a draw counts half a win.
    """
    difference = results["difference"]
    wins = (np.sign(difference) + 1) / 2
    return {
        "games": len(results),
        "win_rate": float(wins.mean()),
        "win_rate_ci95": share_interval(wins, units),
        "score_mean": float(difference.mean()),
        "score_mean_ci95": mean_interval(difference, units),
        "score_sd": float(difference.std(ddof=1)),
        "points_mean": float(results["points"][:, 0].mean()),
        "opponent_points_mean": float(results["points"][:, 1].mean()),
        "columns_opened_mean": float(results["columns"][:, 0].mean()),
        "pile_draws_mean": float(results["pile_draws"][:, 0].mean()),
        "ply_limit_share": float(results["limited"].mean()),
        "plies_mean": float(results["plies"].mean()),
    }


def standard_error(values: NDArray[np.float64], units: NDArray[np.int64]) -> float:
    """Of the mean of values that are independent between units, not within one; nan for a single unit."""
    sums = np.bincount(units, values - values.mean())
    n = len(sums)
    return float(np.sqrt((sums**2).sum() * n / (n - 1)) / len(values)) if n > 1 else float("nan")


def mean_interval(values: NDArray[np.float64], units: NDArray[np.int64]) -> list[float] | None:
    """A 95 % interval of a mean; None for a single unit, which says nothing of its own spread."""
    error = standard_error(values, units)
    if np.isnan(error):
        return None
    return [float(values.mean() - Z95 * error), float(values.mean() + Z95 * error)]


def share_interval(values: NDArray[np.float64], units: NDArray[np.int64]) -> list[float]:
    """A 95 % interval of a mean of values from 0 to 1: Wilson's, never outside them.

    It is the interval of as many independent trials as would have the units' standard error. Where all values
    are 0, or all 1, there is no error to see, and each unit counts as one trial.
    """
    share, error, trials = float(values.mean()), standard_error(values, units), float(units[-1] + 1)
    spread = share * (1 - share)
    if spread > 0 and not np.isnan(error):
        if error == 0:
            return [share, share]
        trials = spread / error**2
    middle = (share + Z95**2 / (2 * trials)) / (1 + Z95**2 / trials)
    half = Z95 / (1 + Z95**2 / trials) * np.sqrt(spread / trials + Z95**2 / (4 * trials**2))
    # At the ends the formula gives 0 and 1 up to rounding.
    return [0.0 if share == 0 else float(middle - half), 1.0 if share == 1 else float(middle + half)]
