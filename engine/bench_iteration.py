"""`freecfr bench end-to-end`: whole iterations of training as a run does them, phase by phase and part by part."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from engine.bench import say, summary
from engine.config import Config, TrainingSettings
from engine.errors import BadInput
from engine.hardware import cpu_has_bf16
from engine.trainer import Trainer
from engine.training_bench import training_rows

PHASES = ("collect", "remember", "train", "publish", "boundary")
# Parts of collecting in which threads work side by side, as the trainer's metrics name them -> what they are.
COLLECTING = {"logic": "game logic", "encode": "encoding", "forward": "forward", "strategy": "regret matching",
              "write": "sample writing"}  # fmt: skip

# Iterations that count; --set iterations=N measures more. One before them does not: it compiles products, and its
# networks still play uniformly, in games twice as long as those that follow. The last alone is evaluated.
BASE = ("iterations=1", f"evaluation.every={1 << 30}")

DEFAULT_UPDATES = TrainingSettings().updates


def measure(threads: Sequence[int], overrides: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each thread count (by default one a core) and precision; then a row for each part of its iterations.

    iteration_seconds leaves evaluate_seconds out, as few iterations are evaluated. A part's seconds are its share of
    the phase's, so that all parts together are the iteration; thread_seconds are what all threads spent on it.
    """
    config = Config().with_overrides([*BASE, *overrides])
    if config.overlap != "none":
        raise BadInput(
            f"overlap is {config.overlap!r}, but bench 'end-to-end' measures phases that follow one another; leave it "
            "out, or use: freecfr bench overlap."
        )
    counts: Sequence[int | None] = threads or [None]
    rows: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for count in counts:
        for dtype, autocast in _precisions(config):
            row, of_row = _row(config, count, dtype, autocast)
            rows.append(row)
            parts += of_row
        say("training beside its own products")
        alone = {row["dtype"]: row for row in training_rows(count, overrides)}
        for row in rows[-len(_precisions(config)) :]:
            row |= _shares(alone["bfloat16" if row["autocast"] else "float32"], config.training.updates)
    return rows + parts


def _precisions(config: Config) -> list[tuple[str, bool]]:
    """Inference dtype and autocast: all float32 and all bfloat16, where the config leaves both open."""
    if config.inference_dtype == "auto" and config.training.autocast == "auto":
        return [("float32", False), ("bfloat16", True)] if cpu_has_bf16() else [("float32", False)]
    config = config.resolved()
    assert config.training.autocast != "auto"
    return [(config.inference_dtype, config.training.autocast)]


def _row(
    config: Config, threads: int | None, dtype: str, autocast: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One setting's row, and those of its parts."""
    changes = [f"iterations={config.iterations + 1}", f"inference_dtype={dtype}"]
    changes += [f"training.autocast={str(autocast).lower()}"] + [f"threads={threads}"] * bool(threads)
    measured: list[dict[str, Any]] = []
    trainer = Trainer(config.with_overrides(changes), on_iteration=measured.append)
    say(f"{config.iterations} + 1 iterations, {dtype}, {trainer.config.threads} threads")
    trainer.run()
    counted = measured[1:]
    whole = [each["iteration_seconds"] - each["evaluate_seconds"] for each in counted]
    seconds = {f"{phase}_seconds": median(each[f"{phase}_seconds"] for each in counted) for phase in PHASES}
    seconds |= {"evaluate_seconds": counted[-1]["evaluate_seconds"], "iteration_seconds": median(whole)}
    setting = {"threads": trainer.config.threads, "inference_dtype": dtype, "autocast": autocast}
    row = {
        **setting,
        **seconds,
        **_scaled(config.training.updates, seconds),
        "nodes_per_second": median(each["nodes_per_second"] for each in counted),
        "traversals": 2 * config.traversal.count,
        "networks": len(trainer.learners),
        "updates": config.training.updates,
        "batch_size": config.training.batch_size,
        **summary("iteration_seconds", whole),
    }
    return row, [setting | part for part in _parts(counted, whole, trainer.threads)]


def _parts(counted: Sequence[dict[str, Any]], whole: Sequence[float], threads: int) -> list[dict[str, Any]]:
    """What an iteration's time went to, on the trainer's one clock, and evaluation beside it."""
    each = [_parts_of(metrics, seconds, threads) for metrics, seconds in zip(counted, whole, strict=True)]
    rows = []
    for name in each[0]:
        seconds = [parts[name][0] for parts in each]
        rows.append(
            {
                "part": name,
                "seconds": median(seconds),
                "thread_seconds": median(parts[name][1] for parts in each),
                "share": median(one / total for one, total in zip(seconds, whole, strict=True)),
                **summary("seconds", seconds),
            }
        )
    spent = counted[-1]["evaluate_seconds"]
    rows.append(
        {"part": "evaluation", "seconds": spent, "thread_seconds": spent * threads, "share": spent / median(whole)}
        | summary("seconds", [spent])
    )
    return rows


def _parts_of(metrics: dict[str, Any], whole: float, threads: int) -> dict[str, tuple[float, float]]:
    """Part -> its seconds and thread seconds, of one iteration."""

    def spent(part: str) -> float:
        return metrics[f"{part}_thread_seconds"]

    parts = {COLLECTING[part]: (spent(part) / threads, spent(part)) for part in COLLECTING}
    parts["merging"] = (spent("merge"), spent("merge"))
    waited = metrics["collect_seconds"] - sum(seconds for seconds, _ in parts.values())
    parts["collecting: waiting, Python"] = (waited, waited * threads)
    parts["memory"] = (metrics["remember_seconds"], metrics["remember_seconds"])
    networks = [key for key in metrics if key.startswith("train_") and key.endswith("_thread_seconds")]
    for key in networks:
        parts[f"training {key[len('train_') : -len('_thread_seconds')]}"] = (metrics[key] / threads, metrics[key])
    waited = metrics["train_seconds"] - sum(metrics[key] for key in networks) / threads
    parts["training: waiting, Python"] = (waited, waited * threads)
    parts["publishing"] = (metrics["publish_seconds"], metrics["publish_seconds"])
    parts["boundary"] = (metrics["boundary_seconds"], metrics["boundary_seconds"])
    other = whole - sum(seconds for seconds, _ in parts.values())
    parts["other"] = (other, other)
    return parts


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
