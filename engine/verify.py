"""Whether a run's bits can be had again: computed anew from the checkpoint before the newest, and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.checkpoint import Boundary, is_checkpoint, list_checkpoints, read_checkpoint
from engine.config import Config
from engine.errors import CheckpointError, RunError
from engine.metrics import equal_bits, read_metrics
from engine.trainer import Trainer


def verify(run: Path, threads: int | None = None, *, tell: Callable[[str], object] = lambda text: None) -> dict:
    """Replay the iterations up to a run's newest checkpoint, or up to the checkpoint that is given.

    The keys of `freecfr verify --json`: run, from_iteration (0: from the start), to_iteration, threads, match, and
    parts_at: None, or where the bits part first, with iteration, what, recorded and replayed. Nothing is written.
    Raises RunError or CheckpointError, one sentence, where there is nothing to replay.
    """
    target, before = _checkpoints(run)
    folder = target.parent.parent
    config = Config.from_toml(folder / "config.toml", [f"threads={threads}"] if threads else [])
    if not config.reproducible:
        raise RunError(
            f"{folder} was trained with overlap = {config.overlap!r} on {config.device}, which promises no equal bits; "
            'only runs with overlap "none" or "pipelined", on CUDA with deterministic = true, can be verified.'
        )
    recorded = {line["iteration"]: line for line in read_metrics(folder / "metrics.jsonl")}
    expected = read_checkpoint(target)
    parts_at: dict[str, Any] | None = None

    def look(metrics: dict[str, Any]) -> bool:
        nonlocal parts_at
        iteration = metrics["iteration"]
        parts_at = _difference(recorded.get(iteration, {}), metrics)
        tell(f"iteration {iteration}: {'the same bits' if parts_at is None else 'other bits'}")
        return parts_at is None and iteration < expected.iteration

    trainer = Trainer(config, replay=before, on_iteration=look)
    start = trainer.iteration
    if start < expected.iteration:
        trainer.run()
    if trainer.iteration == expected.iteration:
        replayed = trainer.store.boundary
        assert replayed is not None
        parts_at = _place(target, expected, replayed, trainer) or parts_at
    return {
        "run": str(run),
        "from_iteration": start,
        "to_iteration": expected.iteration,
        "threads": trainer.threads,
        "match": parts_at is None,
        "parts_at": parts_at,
    }


def _checkpoints(run: Path) -> tuple[Path, Path | None]:
    """The checkpoint to come to, and the one before it."""
    if is_checkpoint(run):
        folder, newest = run.parent, run
    else:
        folder, newest = run / "checkpoints", None
        if not run.is_dir() or not (run / "config.toml").is_file():
            raise RunError(f"{run} is not a run's folder; give one that freecfr train made, or one of its checkpoints.")
    checkpoints = list_checkpoints(folder)
    if newest is not None:
        checkpoints = [path for path in checkpoints if path.name <= newest.name]
    if not checkpoints:
        raise CheckpointError(f"{run} has no checkpoint yet; let the run finish an iteration and save it.")
    return checkpoints[0], checkpoints[1] if len(checkpoints) > 1 else None


def _difference(recorded: Mapping[str, Any], replayed: Mapping[str, Any]) -> dict[str, Any] | None:
    """The first key of an iteration's metrics that has other bits; the digest, which is of all the rest, last."""
    old, new = equal_bits(recorded), equal_bits(replayed)
    # What was evaluated may differ: a run that went on evaluated its former last iteration too.
    for key in sorted(old.keys() & new.keys(), key=lambda key: key == "digest"):
        if old[key] != new[key]:
            return _parting(replayed["iteration"], key, old[key], new[key])
    return None


def _place(target: Path, expected: Boundary, replayed: Boundary, trainer: Trainer) -> dict[str, Any] | None:
    """The first place where two boundaries of one iteration part: of memories, then weights, then optimizers."""
    iteration = expected.iteration
    for name, about in expected.memories.items():
        if (found := replayed.memories[name]) != about:
            rows = trainer.store.rows_of(target, name)
            mine = trainer.memories[name].rows[: found["size"]]
            shared = min(len(rows), len(mine))
            other = np.flatnonzero((rows[:shared] != mine[:shared]).any(axis=1))
            where = f", row {other[0]}" if len(other) else ""
            return _parting(iteration, f"memory {name}{where}", about["digest"], found["digest"])
    for kind in ("networks", "optimizers"):
        old, new = _flat(getattr(expected, kind)), _flat(getattr(replayed, kind))
        for key in old.keys() | new.keys():
            if not _same(old.get(key), new.get(key)):
                return _parting(iteration, f"{kind} {key}", _shown(old.get(key)), _shown(new.get(key)))
    return None


def _parting(iteration: int, what: str, recorded: Any, replayed: Any) -> dict[str, Any]:
    return {"iteration": iteration, "what": what, "recorded": recorded, "replayed": replayed}


def _flat(value: Any, at: str = "") -> dict[str, Any]:
    """Nested mappings and sequences as dotted key -> value."""
    if isinstance(value, Mapping):
        parts = list(value.items())
    elif isinstance(value, list | tuple):
        parts = list(enumerate(value))
    else:
        return {at: value}
    return {key: leaf for name, part in parts for key, leaf in _flat(part, f"{at}.{name}" if at else str(name)).items()}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())
    return type(one) is type(other) and one == other


def _shown(value: Any) -> Any:
    return f"tensor of norm {value.double().norm().item():.17g}" if isinstance(value, torch.Tensor) else value
