"""`freecfr bench`: which measurements there are, and what they share. Every published figure comes from here."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from statistics import median
from typing import Any

from engine.errors import BadInput, near

# Name -> the module whose measure(threads, overrides) gives the rows.
BENCHES = {
    "traversal": "engine.bench_traversal",
    "forward": "engine.bench_forward",
    "end-to-end": "engine.bench_iteration",
    "baseline": "engine.bench_baseline",
    "schedulers": "engine.bench_schedulers",
    "streams": "engine.bench_streams",
    "overlap": "engine.bench_overlap",
    "checkpoints": "engine.bench_checkpoints",
    "matches": "engine.bench_matches",
    "memory": "engine.bench_memory",
    "learning": "engine.bench_learning",
}
NOT_BUILT = ("gates",)


def check(name: str) -> None:
    """BadInput, one sentence, where there is no such bench."""
    if name in NOT_BUILT:
        raise BadInput(f"bench {name!r} is not built yet; there are: {', '.join(BENCHES)}")
    if name not in BENCHES:
        raise BadInput(f"there is no bench {name!r}; {near(name, BENCHES)}there are: {', '.join(BENCHES)}")


def run(name: str, threads: Sequence[int], overrides: Sequence[str]) -> dict[str, Any]:
    """Measure: what `freecfr bench --json` prints, a dict of `name`, `machine` and `rows`.

    threads: thread counts to measure at; empty leaves the choice to the bench. overrides: KEY=VALUE of the config.
    rows: flat dicts; `median` and `spread` (largest minus smallest) over `repeats` are of what `figure` names.
    Raises BadInput for an unknown name and for settings that cannot be used.
    """
    check(name)
    about = machine()  # before the load that it reports is our own
    rows = import_module(BENCHES[name]).measure(threads, overrides)
    return {"name": name, "machine": about, "rows": rows}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import numpy
    import torch

    from engine import hardware
    from threading_runtime.gil import free_threaded_build, gil_enabled, threads_default

    return {
        "processor": hardware.processor(),
        "cores": threads_default(),
        "bf16": hardware.cpu_has_bf16(),
        "gil_enabled": gil_enabled(),
        "free_threaded_build": free_threaded_build(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": f"{platform.system()} {platform.release()}",
        # Others at work on the machine make every figure worse.
        "load_average": round(os.getloadavg()[0], 2),
    }


def thread_counts(given: Sequence[int], configured: int | None) -> list[int]:
    """Ascending thread counts: those given, else the config's, else 1 and one a core."""
    from threading_runtime.gil import threads_default

    return sorted({*given} or ({configured} if configured else {1, threads_default()}))


def summary(figure: str, values: Iterable[float]) -> dict[str, Any]:
    """A row's account of its repeats."""
    values = list(values)
    return {
        "figure": figure,
        "repeats": len(values),
        "median": median(values),
        "spread": max(values) - min(values),
    }


def say(text: str) -> None:
    """A line of progress, apart from the results."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
