"""A run's metrics as TensorBoard scalars; needs the extra `tensorboard`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter


class TensorBoard:
    """Writes event files to a folder, every two minutes and at the end. Owned by: the trainer's thread."""

    def __init__(self, folder: Path) -> None:
        self._writer = SummaryWriter(str(folder))

    def show(self, metrics: Mapping[str, Any]) -> None:
        """Every number of an iteration, under its own key."""
        for key, value in metrics.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._writer.add_scalar(key, value, metrics["iteration"])
        for match in metrics.get("matches") or []:
            self._writer.add_scalar(f"win_rate/{match['opponent']}", match["win_rate"], metrics["iteration"])
            self._writer.add_scalar(f"score_mean/{match['opponent']}", match["score_mean"], metrics["iteration"])

    def close(self) -> None:
        """Write what waits. May be repeated."""
        self._writer.close()
