"""metrics.jsonl: one JSON object an iteration, appended and flushed, read back without a torn last line."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.errors import RunError

# A longer line, or a later iteration, was not written by this engine.
LONGEST_LINE = 1 << 20
LAST_ITERATION = 1 << 53
# Nothing that is measured comes near; sums of such numbers are finite.
LARGEST_NUMBER = 1e100

# Keys whose values may differ between runs that are equal bit by bit.
MAY_DIFFER = re.compile(r".*_(seconds|per_second|mib)|threads|workers|gil_enabled|python|torch")


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


def equal_bits(metrics: Any) -> Any:
    """Metrics, nested ones too, without the keys that may differ between equal runs."""
    if isinstance(metrics, Mapping):
        return {key: equal_bits(value) for key, value in metrics.items() if not MAY_DIFFER.fullmatch(key)}
    if isinstance(metrics, list | tuple):
        return [equal_bits(value) for value in metrics]
    return jsonable(metrics)


def dumps(value: Any) -> str:
    """One line of strict JSON: never a bare NaN."""
    return json.dumps(jsonable(value), allow_nan=False)


class MetricsLog:
    """Appends to a run's metrics.jsonl.

    Owned by: the trainer. Safe to call from: one thread at a time.
    Guarantees: after `append` returns, the line is with the operating system; where writing failed, RunError is
        raised, no part of a line stays behind, and the lines that wait are written by the next call that can.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._waiting: list[bytes] = []
        self._size: int | None = None  # bytes of whole lines in the file

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Write one iteration's metrics."""
        self._waiting.append(dumps(metrics).encode() + b"\n")
        self.flush()

    def flush(self) -> None:
        """Write the lines that wait."""
        if not self._waiting:
            return
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


def is_number(value: Any) -> bool:
    """Whether a value of a line is a number; read back, it is finite."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """All whole lines, oldest first; none where there is no file. What follows a damaged line is not read.

    A stranger may have written them: numbers too large to be any, and lists and mappings of another kind than this
    engine's, are left out, so that `matches` is of whole matches and any other list is of numbers.
    """
    return [_sound(metrics) for _, metrics in _lines(Path(path))]


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    try:
        if path.exists() and not path.is_file():
            raise RunError(f"{path} cannot be read: it is no file.")
        with open(path, "rb") as file:
            while (line := file.readline(LONGEST_LINE)).endswith(b"\n"):
                try:
                    metrics = json.loads(line, parse_int=_int, parse_float=_float, parse_constant=lambda text: None)
                except (ValueError, RecursionError):
                    return
                if not isinstance(metrics, dict):
                    return
                iteration = metrics.get("iteration", 0)
                if type(iteration) is not int or not 0 <= iteration <= LAST_ITERATION:
                    return
                yield line, metrics
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from None


def _int(text: str) -> int | None:
    return int(text) if len(text) <= 100 else None


def _float(text: str) -> float | None:
    value = float(text)
    return value if abs(value) <= LARGEST_NUMBER else None


def _sound(metrics: dict[str, Any]) -> dict[str, Any]:
    kept = {}
    for key, value in metrics.items():
        if key == "matches":
            value = [match for match in value if _is_match(match)] if isinstance(value, list) else []
        elif isinstance(value, dict) or (isinstance(value, list) and not all(map(is_number, value))):
            continue
        kept[key] = value
    return kept


def _is_match(match: Any) -> bool:
    if not isinstance(match, dict):
        return False
    opponent, interval = match.get("opponent"), match.get("win_rate_ci95")
    return (
        isinstance(opponent, str)
        and opponent.isprintable()  # it is shown on a terminal
        and all(is_number(match.get(key)) for key in ("win_rate", "score_mean"))
        and isinstance(interval, list)
        and len(interval) == 2
        and all(map(is_number, interval))
    )


def _truncate(path: Path, size: int) -> None:
    try:
        os.truncate(path, size)
    except OSError:
        pass  # the next append tries again
