"""`freecfr bench memory`: what a run of full Lost Cities keeps resident once its three memories are full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import psutil

from engine.bench import say, summary
from engine.config import Config
from engine.memory import Memory
from engine.trainer import Trainer

# How long an iteration trains changes nothing of what stays resident.
BASE = ("training.updates=8", "evaluation.every=0")

MIB = 1 << 20


def measure(threads: Sequence[int], overrides: Sequence[str]) -> list[dict[str, Any]]:
    """One row a thread count (by default one a core), each after a whole iteration with full memories."""
    counts: Sequence[int | None] = threads or [None]
    return [_row(count, overrides) for count in counts]


def _row(threads: int | None, overrides: Sequence[str]) -> dict[str, Any]:
    fixed = ["iterations=2"] + [f"threads={threads}"] * bool(threads)  # one to fill from, one to look at
    config = Config().with_overrides([*BASE, *overrides, *fixed])
    before = resident_mib()
    resident: list[float] = []

    def look(metrics: dict[str, Any]) -> None:
        if metrics["iteration"] == 1:
            say("filling the memories with the first iteration's samples, again and again")
            for memory in trainer.memories.values():
                fill(memory)
        else:
            resident.append(resident_mib())

    trainer = Trainer(config, on_iteration=look)
    say(f"{config.iterations} iterations, {len(trainer.memories)} memories of {config.memory.capacity:,} samples")
    metrics = trainer.run()
    memories = trainer.memories.values()
    return {
        "threads": trainer.config.threads,
        "memories": len(memories),
        "capacity": config.memory.capacity,
        "samples": sum(memory.size for memory in memories),
        "record_bytes": trainer.memories["advantage0"].layout.record_bytes,
        "memories_mib": sum(memory.size * memory.layout.record_bytes for memory in memories) / MIB,
        "resident_mib_before": before,
        "resident_mib": max(resident),
        "peak_rss_mib": metrics["peak_rss_mib"],
        **summary("resident_mib", resident),
    }


def fill(memory: Memory, told: Callable[[np.ndarray, np.ndarray], object] = lambda slots, records: None) -> None:
    """Offer a memory its own samples until it is full: every page of it is written then.

    told: the slots and records of each offer.
    """
    own = memory.rows[: memory.size].copy()
    while len(own) and memory.size < memory.capacity:
        offered = own[: memory.capacity - memory.size]
        told(memory.add(offered), offered)


def resident_mib() -> float:
    """Of this process now."""
    return psutil.Process().memory_info().rss / MIB
