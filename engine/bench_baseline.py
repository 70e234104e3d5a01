"""`freecfr bench baseline`: threads beside worker processes, on the same blocks, iteration by iteration in turn.

Each run is a process of its own (engine.baseline_run). First each is alone, for start-up and memory. Memory is the sum
of proportional set sizes (PSS) over all processes, this one included, so that a page they share counts once; that of an
idle process, which has imported the same and does nothing, is taken off. Then runs of all kinds stand side by side and
take turns: one works while the others wait. As all come to the same bits, their iterations of one turn are the same
work, done within seconds of one another, and a ratio is of these two: a machine that is slower for a minute is slower
for both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import psutil

from engine.bench import say, summary, thread_counts
from engine.config import Config
from engine.errors import BadInput

KINDS = ("threads", "processes-pickle", "processes-shared-memory")
REPEATS = 3  # of runs alone, of one iteration each

# All iterations but the first count: its networks still play uniformly, in games twice as long.
BASE = ("iterations=6", "evaluation.every=0")

MIB = 1 << 20

Figures = dict[str, float]


def measure(threads: Sequence[int], overrides: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each kind of workers and count, by default 1 and one a core: medians.

    collect_seconds is the whole collecting phase: traversals, transfer, merge and publication; traverse_seconds the
    traversals with the transfer. overhead_mib is what the run holds beyond filled memories and an idle process.
    *_over_threads: what that figure is of the threads' at the same count; of an iteration and of collecting the median
    over turns, with its quartiles (*_p25, *_p75). end_to_end_ceiling: how much quicker an iteration would be if
    collecting took no time.
    """
    if not Path("/proc/self/smaps_rollup").exists():
        raise BadInput("bench baseline counts memory by /proc/self/smaps_rollup, which this system lacks; use Linux.")
    base = Config().with_overrides([*BASE, *overrides])
    if base.iterations < 2:
        raise BadInput(
            f"iterations is {base.iterations}, but bench baseline does not count the first; give 2 or more, one for "
            "each turn and one."
        )
    counts = thread_counts(threads, base.threads)
    changes = {(kind, count): [f"workers={kind}", f"threads={count}"] for count in counts for kind in KINDS}
    alone: dict[tuple[str, int], list[Figures]] = {setting: [] for setting in changes}
    idle = _idle()
    for turn in range(REPEATS):
        for kind, count in _rotated(list(changes), turn):
            say(f"alone, run {turn + 1} of {REPEATS}: {kind}, {count}")
            config = base.with_overrides([*changes[kind, count], "iterations=1"])
            alone[kind, count].append(_alone(config, idle))
    rows: list[dict[str, Any]] = []
    for count in counts:
        turns = _turns({kind: base.with_overrides(changes[kind, count]) for kind in KINDS})
        of_threads = _medians(alone["threads", count])
        for kind in KINDS:
            mine = _medians(alone[kind, count])
            row: dict[str, Any] = {"workers": kind, "count": count, **_medians(turns[kind]), **mine}
            for figure in ("startup_seconds", "overhead_mib"):
                row[_over_threads(figure)] = mine[figure] / of_threads[figure]
            for figure in ("iteration_seconds", "collect_seconds"):
                row |= _paired(_over_threads(figure), figure, turns[kind], turns["threads"])
            row["end_to_end_ceiling"] = row["iteration_seconds"] / (row["iteration_seconds"] - row["collect_seconds"])
            rows.append({**row, **summary("iteration_seconds", [each["iteration_seconds"] for each in turns[kind]])})
    return rows


def _rotated(settings: Sequence[Any], turn: int) -> list[Any]:
    """Another order each time: whoever comes after whom gains or loses by it only once."""
    first = turn % len(settings)
    return [*settings[first:], *settings[:first]]


def _medians(repeats: Sequence[Figures]) -> Figures:
    return {figure: median(each[figure] for each in repeats) for figure in repeats[0]}


def _over_threads(figure: str) -> str:
    return f"{figure.rpartition('_')[0]}_over_threads"


def _paired(name: str, figure: str, mine: Sequence[Figures], others: Sequence[Figures]) -> Figures:
    """How much larger a figure is than another's of the same turn."""
    ratios = [one[figure] / other[figure] for one, other in zip(mine, others, strict=True)]
    low, middle, high = map(float, np.percentile(ratios, (25, 50, 75)))
    return {name: middle, f"{name}_p25": low, f"{name}_p75": high}


class Idle(NamedTuple):
    """Memory of a process that has imported what a run imports and does nothing, in MiB."""

    tree: float  # beside this process, both together
    alone: float  # were there no other


def _idle() -> Idle:
    with _child({"idle": True}) as child:
        _next(child)
        return Idle(pss_mib(), psutil.Process(child.pid).memory_info().rss / MIB)


def _alone(config: Config, idle: Idle) -> Figures:
    """Start-up and memory of a run beside which there is no other."""
    with _child({"config": config.model_dump_json()}) as child:
        last = _next(child)
        beyond_idle = pss_mib() - idle.tree
    return {
        "startup_seconds": last["startup_seconds"],
        "memories_mib": last["memories_mib"],
        "overhead_mib": beyond_idle - last["memories_mib"],
        "pss_mib": beyond_idle + idle.alone,
    }


def _turns(configs: dict[str, Config]) -> dict[str, list[Figures]]:
    """The figures of each kind's iterations, the first left out."""
    figures: dict[str, list[Figures]] = {kind: [] for kind in configs}
    children: dict[str, subprocess.Popen[str]] = {}
    with ExitStack() as stack:
        for kind, config in configs.items():
            say(f"start: {kind}, {config.threads}")
            children[kind] = stack.enter_context(_child({"config": config.model_dump_json()}))
            _next(children[kind])
        turns = next(iter(configs.values())).iterations - 1
        for turn in range(turns):
            say(f"turn {turn + 1} of {turns}")
            for kind in _rotated(list(children), turn):
                figures[kind].append(_of_iteration(_again(children[kind])))
    return figures


def _of_iteration(told: dict[str, Any]) -> Figures:
    metrics, moved = told["metrics"], told["moved"]
    return {
        "iteration_seconds": metrics["iteration_seconds"],
        "collect_seconds": sum(metrics[f"{phase}_seconds"] for phase in ("collect", "remember", "publish")),
        "traverse_seconds": metrics["collect_seconds"],
        "transfer_seconds": moved["seconds"],
        "transfer_bytes": moved["bytes"],
        "train_seconds": metrics["train_seconds"],
        "nodes": metrics["nodes"],
        "nodes_per_second": metrics["nodes_per_second"],
    }


def _again(child: subprocess.Popen[str]) -> dict[str, Any]:
    """What a run tells of its next iteration."""
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()
    return _next(child)


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
