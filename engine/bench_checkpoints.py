"""`freecfr bench checkpoints`: what saving each iteration costs a run whose memories are full."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from engine.bench import say, summary
from engine.bench_memory import MIB, fill
from engine.config import Config
from engine.trainer import Trainer
from engine.turns import take_turns

TURN = 3  # iterations of a turn, at whose end what is being written is waited for
# The first turn does not count: it fills the memories, and writes all of them for the first time.
BASE = (f"iterations={4 * TURN}", "evaluation.every=0", "checkpoint.every=1")


def measure(threads: Sequence[int], overrides: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each thread count (by default one a core): a run that saves beside one that does not, turn by turn.

    cost_share: of the time of the one that does not. Checkpoints go to the temporary folder.
    """
    config = Config().with_overrides([*BASE, *overrides])
    counts: Sequence[int | None] = threads or [None]
    return [_row(config, [f"threads={count}"] * bool(count)) for count in counts]


def _row(config: Config, changes: list[str]) -> dict[str, Any]:
    config = config.with_overrides(changes).resolved()
    with tempfile.TemporaryDirectory(prefix="freecfr-bench-") as folder:
        say(f"{config.iterations} iterations with and without checkpoints, in turns of {TURN}")

        def trainer(look: Any, run_dir: Path | None) -> Trainer:
            def filling(metrics: dict[str, Any]) -> None:
                if metrics["iteration"] == 1:
                    for name, memory in made.memories.items():
                        fill(memory, functools.partial(made.store.record, name))
                look(metrics)

            made = Trainer(config, run_dir=run_dir, on_iteration=filling)
            return made

        runs = {"without": lambda look: trainer(look, None), "with": lambda look: trainer(look, Path(folder))}
        found = {name: seconds[1:] for name, seconds in take_turns(runs, TURN).items()}
        written = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    shares = np.divide(found["with"], found["without"]) - 1
    return {
        "threads": config.threads,
        "capacity": config.memory.capacity,
        "on_disk_mib": written / MIB,
        "iteration_seconds_without": median(found["without"]) / TURN,
        "iteration_seconds_with": median(found["with"]) / TURN,
        "cost_share": float(np.median(shares)),
        **summary("cost_share", shares.tolist()),
    }
