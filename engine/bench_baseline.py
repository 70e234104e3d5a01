"""`freecfr bench baseline`: threads beside worker processes, on the same blocks, run by run in turn.

Each run is a process of its own (engine.baseline_run), so that start-up and memory are those of a real run. Memory is
the sum of proportional set sizes (PSS) over all processes, this one included, so that a page they share counts once;
that of an idle process, which has imported the same and does nothing, is taken off.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from engine.bench import say, summary, thread_counts
from engine.config import Config
from engine.errors import BadInput

KINDS = ("threads", "processes-pickle", "processes-shared-memory")
REPEATS = 3

# One iteration counts. One before it does not: its networks still play uniformly, in games twice as long.
BASE = ("iterations=2", "evaluation.every=0")

MIB = 1 << 20
FIGURES = ("iteration_seconds", "collect_seconds", "traverse_seconds", "transfer_seconds", "transfer_bytes",
           "train_seconds", "nodes", "nodes_per_second", "pss_mib", "memories_mib", "overhead_mib",
           "startup_seconds")  # fmt: skip


def measure(threads: Sequence[int], overrides: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each kind of workers and count, by default 1 and one a core.

    collect_seconds is the whole collecting phase: traversals, transfer, merge and publication; traverse_seconds the
    traversals with the transfer. overhead_mib is what the run holds beyond filled memories and an idle process.
    *_over_threads: this row's median over that of threads at the same count. end_to_end_ceiling: how much quicker an
    iteration would be if collecting took no time.
    """
    if not Path("/proc/self/smaps_rollup").exists():
        raise BadInput("bench baseline counts memory by /proc/self/smaps_rollup, which this system lacks; use Linux.")
    config = Config().with_overrides([*BASE, *overrides])
    settings = [(kind, count) for count in thread_counts(threads, config.threads) for kind in KINDS]
    runs: dict[tuple[str, int], list[dict[str, float]]] = {setting: [] for setting in settings}
    idle = _idle()
    for turn in range(REPEATS):
        # Another order each time: whoever comes after whom gains or loses by it only once.
        for kind, count in settings[turn % len(settings) :] + settings[: turn % len(settings)]:
            say(f"run {turn + 1} of {REPEATS}: {kind}, {count}")
            changes = [*BASE, *overrides, f"workers={kind}", f"threads={count}"]
            runs[kind, count].append(_run(Config().with_overrides(changes), idle))
    rows = [_row(kind, count, runs[kind, count]) for kind, count in settings]
    threads_of = {row["count"]: row for row in rows if row["workers"] == "threads"}
    for row in rows:
        for figure in ("iteration_seconds", "collect_seconds", "startup_seconds", "overhead_mib"):
            row[f"{figure.rpartition('_')[0]}_over_threads"] = row[figure] / threads_of[row["count"]][figure]
    return rows


def _row(kind: str, count: int, runs: list[dict[str, float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"workers": kind, "count": count}
    row |= {figure: median(run[figure] for run in runs) for figure in FIGURES}
    row["end_to_end_ceiling"] = row["iteration_seconds"] / (row["iteration_seconds"] - row["collect_seconds"])
    return {**row, **summary("iteration_seconds", [run["iteration_seconds"] for run in runs])}


class Idle(NamedTuple):
    """Memory of a process that has imported what a run imports and does nothing, in MiB."""

    tree: float  # beside this process, both together
    alone: float  # were there no other


def _idle() -> Idle:
    with _child({"idle": True}) as child:
        _next(child)
        return Idle(pss_mib(), psutil.Process(child.pid).memory_info().rss / MIB)


def _run(config: Config, idle: Idle) -> dict[str, float]:
    """The figures of one run's last iteration."""
    with _child({"config": config.model_dump_json()}) as child:
        assert child.stdin is not None
        for _ in range(config.iterations):
            last = _next(child)
            beyond_idle = pss_mib() - idle.tree
            child.stdin.write("\n")
            child.stdin.flush()
    metrics, moved = last["metrics"], last["moved"]
    return {
        "iteration_seconds": metrics["iteration_seconds"],
        "collect_seconds": sum(metrics[f"{phase}_seconds"] for phase in ("collect", "remember", "publish")),
        "traverse_seconds": metrics["collect_seconds"],
        "train_seconds": metrics["train_seconds"],
        "nodes": metrics["nodes"],
        "nodes_per_second": metrics["nodes_per_second"],
        "transfer_bytes": moved["bytes"],
        "transfer_seconds": moved["seconds"],
        "startup_seconds": last["startup_seconds"],
        "memories_mib": last["memories_mib"],
        "overhead_mib": beyond_idle - last["memories_mib"],
        "pss_mib": beyond_idle + idle.alone,
    }


@contextmanager
def _child(task: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """A process of engine.baseline_run, ended with the block. Raises RuntimeError where it failed."""
    command = [sys.executable, "-m", "engine.baseline_run", json.dumps(task)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
            assert child.stdin is not None
            child.stdin.close()  # nothing is left to wait for
            if child.wait() != 0:
                raise RuntimeError(f"a measured run ended with status {child.returncode}; its own words are above.")
        except BaseException:
            child.terminate()
            raise


def _next(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise RuntimeError("a measured run ended early; its own words are above.")
    return json.loads(line)


def pss_mib() -> float:
    """Proportional set sizes of this process and all that it started, together."""
    total = 0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended, and holds nothing
        for line in rollup.splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total / MIB
