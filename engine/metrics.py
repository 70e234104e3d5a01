"""metrics.jsonl: one JSON object an iteration, appended and flushed, read back without a torn last line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.errors import RunError

# A longer line was not written by this engine.
LONGEST_LINE = 1 << 20


def jsonable(value: Any) -> Any:
    """Plain values that JSON can hold: NumPy's and torch's scalars as numbers, what is not finite as null."""
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def dumps(value: Any) -> str:
    """One line of strict JSON: never a bare NaN."""
    return json.dumps(jsonable(value), allow_nan=False)


class MetricsLog:
    """Appends to a run's metrics.jsonl.

    Owned by: the trainer. Safe to call from: one thread at a time.
    Guarantees: after `append` returns, the line is with the operating system; where writing failed, RunError is
        raised, no part of a line stays behind, and the lines that wait are written by the next `append` that can.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._waiting: list[bytes] = []
        self._size: int | None = None  # bytes of whole lines in the file

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Write one iteration's metrics."""
        self._waiting.append(dumps(metrics).encode() + b"\n")
        try:
            with open(self.path, "ab", buffering=0) as file:
                if self._size is None:
                    self._size = file.tell()
                file.truncate(self._size)
                while self._waiting:
                    line = self._waiting[0]
                    if file.write(line) != len(line):
                        raise OSError(None, "the disk is full")
                    self._size += len(line)
                    del self._waiting[0]
        except OSError as error:
            if self._size is not None:
                _truncate(self.path, self._size)
            raise RunError(
                f"{self.path} could not be written ({error.strerror or error}); {len(self._waiting)} lines wait."
            ) from error

    def cut(self, iteration: int) -> None:
        """Drop what is torn and what is later than `iteration`: a resumed run writes it again."""
        self._waiting.clear()
        size = 0
        for line, metrics in _lines(self.path):
            if metrics.get("iteration", 0) > iteration:
                break
            size += len(line)
        if self.path.exists():
            os.truncate(self.path, size)
        self._size = size


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """All whole lines, oldest first; none where there is no file. What follows a damaged line is not read."""
    return [metrics for _, metrics in _lines(Path(path))]


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    try:
        with open(path, "rb") as file:
            while (line := file.readline(LONGEST_LINE)).endswith(b"\n"):
                try:
                    metrics = json.loads(line)
                except (ValueError, RecursionError):
                    return
                if not isinstance(metrics, dict) or not isinstance(metrics.get("iteration", 0), int):
                    return
                yield line, metrics
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from None


def _truncate(path: Path, size: int) -> None:
    try:
        os.truncate(path, size)
    except OSError:
        pass  # the next append tries again
