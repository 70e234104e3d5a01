"""`freecfr bench overlap`: what an iteration takes where traversals run while networks train, and where they do not."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from engine.bench import say, summary, thread_counts
from engine.config import Config
from engine.trainer import Trainer
from engine.turns import take_turns

OVERLAPS = ("none", "pipelined", "free")
# The first iteration does not count: see bench_iteration.
BASE = ("iterations=4", "evaluation.every=0")


def measure(threads: Sequence[int], overrides: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each thread count and overlap; `times_none` is the median, over turns, of none's seconds by its own.

    --set iterations=N measures N turns, the first not counted.
    """
    config = Config().with_overrides([*BASE, *overrides])
    rows = []
    for count in thread_counts(threads, config.threads):
        say(f"{config.iterations} iterations of each, {count} threads")
        runs = {
            overlap: functools.partial(_trainer, config.with_overrides([f"overlap={overlap}", f"threads={count}"]))
            for overlap in OVERLAPS
        }
        found = {name: seconds[1:] for name, seconds in take_turns(runs).items()}
        for overlap, seconds in found.items():
            ratios = np.divide(found["none"], seconds)
            row = {"overlap": overlap, "threads": count, "iteration_seconds": median(seconds)}
            row |= {"times_none": float(np.median(ratios))}
            row |= {f"times_none_p{part}": float(np.percentile(ratios, part)) for part in (25, 75)}
            rows.append(row | summary("iteration_seconds", seconds))
    return rows


def _trainer(config: Config, look: Any) -> Trainer:
    return Trainer(config, on_iteration=look)
