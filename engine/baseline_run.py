"""One run that `freecfr bench baseline` measures: a line of JSON after each iteration, then a wait to be looked at."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from engine.config import Config
from engine.trainer import Trainer
from threading_runtime.gil import keep_gil_off

MIB = 1 << 20


def main(task: dict[str, Any]) -> None:
    """task: {"idle": true}, to import what a run imports and do nothing, or {"config": JSON}."""
    if task.get("idle"):
        keep_gil_off()
        torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # the first one imports some hundred modules
        _tell({})
        return
    trainer: Trainer

    def look(metrics: dict[str, Any]) -> None:
        memories = trainer.memories.values()
        _tell(
            {
                "metrics": metrics,
                "moved": trainer.collector.take_moved()._asdict(),
                "startup_seconds": trainer.startup_seconds,
                "memories_mib": sum(memory.size * memory.layout.record_bytes for memory in memories) / MIB,
            }
        )

    trainer = Trainer(Config.model_validate_json(task["config"]), on_iteration=look)
    trainer.run()


def _tell(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
