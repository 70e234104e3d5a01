"""One iteration's traversals: blocks -> threads or processes -> samples merged in block order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import nn

from pyx.stats import TraversalStats
from pyx.traversal import TraversalBlock
from threading_runtime.pool import Pool
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


class Collector(AbstractContextManager, Protocol):
    """Who runs blocks, between entering and leaving it.

    Guarantees: samples are a function of the job and of the networks published before, whoever runs it.
    Does not guarantee: that samples live beyond the next `run`.
    """

    def publish(self, player: int, module: nn.Module) -> None:
        """From now on this player's strategy is that of these weights."""
        ...

    def run(self, pool: Pool, jobs: Sequence[Job]) -> list[Samples]:
        """Every block, in job order. `pool` has as many threads as blocks may run at once."""
        ...

    def take_moved(self) -> Moved:
        """What copying weights and samples to others took since this was last called."""
        ...


def collect(
    pool: Pool, collector: Collector, config: Any, iteration: int, traversers: Sequence[int] = (0, 1)
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
    stats = TraversalStats()
    for samples in blocks:
        stats.merge(samples.stats)
    records: dict[str, list[np.ndarray]] = {f"advantage{player}": [] for player in traversers}
    for job, samples in zip(jobs, blocks, strict=True):
        records[f"advantage{job.traverser}"].append(samples.advantage)
    return Collected({**records, "strategy": [samples.strategy for samples in blocks]}, stats)


def new_block(game: Any, config: Any, job: Job) -> TraversalBlock:
    """A job's block, not yet begun."""
    return TraversalBlock(
        game,
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


def run_block(block: TraversalBlock, evaluate: Sequence[Evaluate], check: Callable[[], None]) -> Samples:
    """Run a block from first to last on this thread; `check` is called between batches and may raise.

    Answers the player with more rows and lets the other's gather, for batches up to twice as large.
    """
    while block.advance():
        check()
        player = 1 if block.waiting(1) > block.waiting(0) else 0
        block.answer(player, evaluate[player](block.rows(player)))
    return samples_of(block)


def samples_of(block: TraversalBlock) -> Samples:
    """What a block that has ended left."""
    return Samples(block.advantage_records(), block.strategy_records(), block.stats)
