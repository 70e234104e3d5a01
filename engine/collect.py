"""One iteration's traversals: blocks -> whoever runs them -> samples merged in block order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter, perf_counter_ns
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from pyx.stats import TraversalStats
from pyx.traversal import TraversalBlock
from threading_runtime.pool import Workers
from threading_runtime.processes import Moved

Evaluate = Callable[[np.ndarray], np.ndarray]  # packed rows (n, row_bytes) to outputs, float32 (n, n_actions)


@dataclass(frozen=True)
class Job:
    """A block: traversals first, first + 1, ... of a player and iteration."""

    iteration: int
    traverser: int
    first: int
    count: int


class Samples(NamedTuple):
    """What a block left. records: uint8 (n, record_bytes)."""

    advantage: np.ndarray
    strategy: np.ndarray
    stats: TraversalStats


@dataclass(frozen=True)
class Collected:
    """What traversals left: by network, its records in block order."""

    records: dict[str, list[np.ndarray]]  # "advantage0", "advantage1", "strategy" -> uint8 (n, record_bytes) each
    stats: TraversalStats
    merge_seconds: float  # of the caller, once all blocks had ended


class Collector(AbstractContextManager, Protocol):
    """Who runs blocks, between entering and leaving it.

    Guarantees: samples are a function of the job and of the networks published before, whoever runs it.
    Does not guarantee: that samples live beyond the next `run`.
    """

    def publish(self, player: int, state: Mapping[str, torch.Tensor]) -> None:
        """From now on this player's strategy is that of these weights, which are copied."""
        ...

    def run(self, pool: Workers, jobs: Sequence[Job]) -> list[Samples]:
        """Every block, in job order. `pool` has as many threads as blocks may run at once."""
        ...

    def take_moved(self) -> Moved:
        """What copying weights and samples to others took since this was last called."""
        ...


def collect(
    pool: Workers, collector: Collector, config: Any, iteration: int, traversers: Sequence[int] = (0, 1)
) -> Collected:
    """Traverse for these players.

    Which blocks there are depends on traversal.count and traversal.block alone, so a result is the same at any
    number of threads.
    """
    traversal = config.traversal
    jobs = [
        Job(iteration, traverser, first, min(traversal.block, traversal.count - first))
        for traverser in traversers
        for first in range(0, traversal.count, traversal.block)
    ]
    blocks = collector.run(pool, jobs)
    began = perf_counter()
    stats = TraversalStats()
    for samples in blocks:
        stats.merge(samples.stats)
    records: dict[str, list[np.ndarray]] = {f"advantage{player}": [] for player in traversers}
    for job, samples in zip(jobs, blocks, strict=True):
        records[f"advantage{job.traverser}"].append(samples.advantage)
    records["strategy"] = [samples.strategy for samples in blocks]
    return Collected(records, stats, perf_counter() - began)


class Blocks:
    """A block for each place in a list of jobs, whose memory the next list's job at that place uses again.

    Memory that is new costs a page fault for each 4 KiB, more than what a traversal writes there.

    Owned by: a collector. Safe to call from: any thread, one at a time for a place.
    Does not guarantee: that what a block left lives beyond the next `begin` at its place.
    """

    def __init__(self, game: Any, config: Any) -> None:
        self._game, self._config = game, config
        self._blocks: dict[int, TraversalBlock] = {}

    def begin(self, place: int, job: Job) -> TraversalBlock:
        """A job's block, not yet begun."""
        block = self._blocks.get(place)
        if block is not None and block.count == job.count:
            block.restart(job.traverser, job.first, job.iteration)
            return block
        config = self._config
        block = self._blocks[place] = TraversalBlock(
            self._game,
            config.algorithm,
            job.traverser,
            job.first,
            job.count,
            lanes=config.traversal.lanes,
            seed=config.seed,
            iteration=job.iteration,
            exploration=config.traversal.exploration,
            fallback=config.traversal.fallback,
            keep_strategy=config.average == "strategy_network",
        )
        return block


def run_block(
    block: TraversalBlock, evaluate: Sequence[Evaluate], check: Callable[[], None], *, is_batch: bool = True
) -> Samples:
    """Run a block from first to last on this thread; `check` is called between batches and may raise.

    is_batch: whether an evaluation is a batch of its own, which the block's stats then count.
    """
    while block.advance():
        check()
        player = _player_to_answer(block)
        began = perf_counter_ns()
        outputs = evaluate[player](block.rows(player))
        block.stats.add_forward(perf_counter_ns() - began)
        block.answer(player, outputs, is_batch)
    return samples_of(block)


def run_together(
    blocks: Sequence[TraversalBlock], evaluate: Sequence[Evaluate], check: Callable[[], None]
) -> list[Samples]:
    """Run blocks side by side on this thread, with batches over all of them, counted in the first one's stats.

    Each block is answered as run_block would, so that what it leaves differs by rounding at most.
    """
    running = [block for block in blocks if block.advance()]
    while running:
        check()
        chosen = [_player_to_answer(block) for block in running]
        for player in (0, 1):
            asking = [block for block, choice in zip(running, chosen, strict=True) if choice == player]
            if not asking:
                continue
            began = perf_counter_ns()
            outputs = evaluate[player](np.concatenate([block.rows(player) for block in asking]))
            blocks[0].stats.add_forward(perf_counter_ns() - began)
            blocks[0].stats.add_batch(len(outputs))
            start = 0
            for block in asking:
                end = start + block.waiting(player)
                block.answer(player, outputs[start:end], False)
                start = end
        running = [block for block in running if block.advance()]
    return [samples_of(block) for block in blocks]


def _player_to_answer(block: TraversalBlock) -> int:
    """The player with more rows; the other's gather, for batches up to twice as large."""
    return 1 if block.waiting(1) > block.waiting(0) else 0


def samples_of(block: TraversalBlock) -> Samples:
    """What a block that has ended left."""
    return Samples(block.advantage_records(), block.strategy_records(), block.stats)
