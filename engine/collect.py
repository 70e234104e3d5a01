"""One iteration's traversals: blocks -> threads -> samples merged in block order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pyx.stats import TraversalStats
from pyx.traversal import TraversalBlock
from threading_runtime.pool import Pool

Evaluate = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Collected:
    """What traversals left: by network, its records in block order."""

    records: dict[str, list[np.ndarray]]  # "advantage0", "advantage1", "strategy" -> uint8 (n, record_bytes) each
    stats: TraversalStats


def run_block(block: TraversalBlock, evaluate: Sequence[Evaluate], check: Callable[[], None]) -> TraversalBlock:
    """Run a block from first to last on this thread; `check` is called between batches and may raise.

    Answers the player with more rows and lets the other's gather, for batches up to twice as large.
    """
    while block.advance():
        check()
        player = 1 if block.waiting(1) > block.waiting(0) else 0
        block.answer(player, evaluate[player](block.rows(player)))
    return block


def collect(
    pool: Pool, game, config, evaluate: Sequence[Evaluate], iteration: int, traversers: Sequence[int] = (0, 1)
) -> Collected:
    """Traverse for these players with the strategies that `evaluate[player]` stand for.

    Which blocks there are depends on traversal.count and traversal.block alone, so a result is the same at any
    number of threads.
    """
    traversal = config.traversal
    jobs = [
        (traverser, first, min(traversal.block, traversal.count - first))
        for traverser in traversers
        for first in range(0, traversal.count, traversal.block)
    ]

    def run(job: tuple[int, int, int]) -> TraversalBlock:
        traverser, first, count = job
        block = TraversalBlock(
            game,
            config.algorithm,
            traverser,
            first,
            count,
            lanes=traversal.lanes,
            seed=config.seed,
            iteration=iteration,
            exploration=traversal.exploration,
            fallback=traversal.fallback,
            keep_strategy=config.average == "strategy_network",
        )
        return run_block(block, evaluate, pool.raise_if_stopping)

    blocks = pool.map(run, jobs)
    stats = TraversalStats()
    for block in blocks:
        stats.merge(block.stats)
    return Collected(
        records={
            **{
                f"advantage{player}": [b.advantage_records() for b in blocks if b.traverser == player]
                for player in traversers
            },
            "strategy": [block.strategy_records() for block in blocks],
        },
        stats=stats,
    )
