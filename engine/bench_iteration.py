"""`freecfr bench end-to-end`: whole iterations of training as a run does them, phase by phase."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from engine.bench import say, summary
from engine.config import Config, TrainingSettings
from engine.hardware import cpu_has_bf16
from engine.trainer import Trainer
from engine.training_bench import training_rows

PHASES = ("collect", "remember", "train", "publish", "iteration")

# Iterations that count; --set iterations=N measures more. One before them does not: it compiles products, and its
# networks still play uniformly, in games twice as long as those that follow.
BASE = ("iterations=1", "evaluation.every=0")

DEFAULT_UPDATES = TrainingSettings().updates


def measure(threads: Sequence[int], overrides: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each thread count (by default one a core) and precision."""
    config = Config().with_overrides([*BASE, *overrides])
    counts: Sequence[int | None] = threads or [None]
    rows = []
    for count in counts:
        rows += [_row(config, count, *precision) for precision in _precisions(config)]
        say("training beside its own products")
        alone = {row["dtype"]: row for row in training_rows(count, overrides)}
        for row in rows[-len(_precisions(config)) :]:
            row |= _shares(alone["bfloat16" if row["autocast"] else "float32"], config.training.updates)
    return rows


def _precisions(config: Config) -> list[tuple[str, bool]]:
    """Inference dtype and autocast: all float32 and all bfloat16, where the config leaves both open."""
    if config.inference_dtype == "auto" and config.training.autocast == "auto":
        return [("float32", False), ("bfloat16", True)] if cpu_has_bf16() else [("float32", False)]
    config = config.resolved()
    assert config.training.autocast != "auto"
    return [(config.inference_dtype, config.training.autocast)]


def _row(config: Config, threads: int | None, dtype: str, autocast: bool) -> dict[str, Any]:
    changes = [f"iterations={config.iterations + 1}", f"inference_dtype={dtype}"]
    changes += [f"training.autocast={str(autocast).lower()}"] + [f"threads={threads}"] * bool(threads)
    measured: list[dict[str, Any]] = []
    trainer = Trainer(config.with_overrides(changes), on_iteration=measured.append)
    say(f"{config.iterations} + 1 iterations, {dtype}, {trainer.config.threads} threads")
    trainer.run()
    counted = measured[1:]
    seconds = {f"{phase}_seconds": median(each[f"{phase}_seconds"] for each in counted) for phase in PHASES}
    return {
        "threads": trainer.config.threads,
        "inference_dtype": dtype,
        "autocast": autocast,
        **seconds,
        **_scaled(config.training.updates, seconds),
        "nodes_per_second": median(each["nodes_per_second"] for each in counted),
        "traversals": 2 * config.traversal.count,
        "networks": len(trainer.learners),
        "updates": config.training.updates,
        "batch_size": config.training.batch_size,
        **summary("iteration_seconds", [each["iteration_seconds"] for each in counted]),
    }


def _scaled(updates: int, seconds: dict[str, float]) -> dict[str, float]:
    """What training would have taken with the default number of updates, where another was measured."""
    if updates == DEFAULT_UPDATES:
        return {}
    train = seconds["train_seconds"] * DEFAULT_UPDATES / updates
    return {
        "scaled_to_updates": DEFAULT_UPDATES,
        "scaled_train_seconds": train,
        "scaled_iteration_seconds": seconds["iteration_seconds"] - seconds["train_seconds"] + train,
    }


def _shares(alone: dict[str, Any], updates: int) -> dict[str, float]:
    """Training beside the matrix products of the same updates: see engine.training_bench."""
    return {
        "training_share": alone["roofline_share"],
        "training_cpu_share": alone["roofline_cpu_share"],
        "training_roofline_seconds": alone["roofline_seconds"] * updates,
    }
