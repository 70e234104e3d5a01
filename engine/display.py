"""Live progress of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from engine.config import Config

# Elsewhere than on a terminal a line at most this often, in seconds; evaluations and the last one always.
PLAIN_EVERY = 2.0


class Display:
    """Shows iterations as they end.

    Owned by: the thread that entered it; `show` and `notice` from that thread only. Writes to `stream` alone.
    """

    def __init__(self, config: Config, stream: TextIO) -> None:
        self._total = config.iterations
        self._stream = stream
        self._seconds: deque[float] = deque(maxlen=20)
        self._last_line = float("-inf")
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Display:
        if self._stream.isatty():
            console = Console(file=self._stream)
            columns = (TextColumn("iteration"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
            self._progress = Progress(*columns, console=console)
            self._progress.start()
            self._task = self._progress.add_task("", total=self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, metrics: Mapping[str, Any]) -> None:
        """An iteration ended with these metrics."""
        iteration = metrics["iteration"]
        self._seconds.append(metrics.get("iteration_seconds") or 0.0)
        left = max(0, self._total - iteration) * sum(self._seconds) / len(self._seconds)
        text = ", ".join([*describe(metrics), f"{duration(left)} left"])
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=iteration, description=text)
            return
        now = time.monotonic()
        evaluated = "exploitability" in metrics or "matches" in metrics
        if now - self._last_line >= PLAIN_EVERY or iteration >= self._total or evaluated:
            self._last_line = now
            print(f"iteration {iteration}/{self._total}: {text}", file=self._stream, flush=True)

    def notice(self, text: str) -> None:
        """A line that stays, above the bar."""
        if self._progress is not None:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._stream, flush=True)


def describe(metrics: Mapping[str, Any]) -> list[str]:
    """The parts of an iteration's line that it has figures for."""
    parts = []
    if (speed := metrics.get("nodes_per_second")) is not None:
        parts.append(f"{speed:,.0f} nodes/s")
    for key, label in (("advantage_loss", "advantage loss"), ("policy_loss", "policy loss")):
        value = metrics.get(key)
        for loss in value if isinstance(value, list | tuple) else [value]:
            if loss is not None:
                parts.append(f"{label} {loss:.4g}")
    if (value := metrics.get("exploitability")) is not None:
        parts.append(f"exploitability {value:.4f}")
    for match in metrics.get("matches") or []:
        parts.append(f"{match['opponent']} {match['win_rate']:.0%} {match['score_mean']:+.1f}")
    return parts


def duration(seconds: float) -> str:
    """Seconds as `42s`, `3m 05s` or `2h 07m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
