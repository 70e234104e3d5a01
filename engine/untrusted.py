"""What a run's folder, made by a stranger, must be before it is used: no links, plain archives, weights that fit."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from engine.errors import CheckpointError, RunError

# What is written of a run's folder while training; what is below a folder of these too.
WRITTEN = (".lock", ".config.toml.tmp", "config.toml", "run.json", "metrics.jsonl", "checkpoints", "tensorboard")
# Entries of an archive of torch: one a tensor, and a few more.
MOST_ENTRIES = 100_000


def refuse_links(run: Path) -> None:
    """RunError where something that training writes in this folder is a symbolic link: it may lead out of the folder.

    The folder itself may be one. Call it before anything is written or removed there.
    """
    for name in WRITTEN:
        path = run / name
        if path.is_symlink():
            raise _link(path)
        for folder, folders, files in os.walk(path):
            for entry in (*folders, *files):
                if os.path.islink(os.path.join(folder, entry)):
                    raise _link(Path(folder, entry))


def _link(path: Path) -> RunError:
    return RunError(f"{path} is a symbolic link, and might lead anywhere; put there what it stands for, or remove it.")


def refuse_compressed(file: BinaryIO, path: Path) -> None:
    """CheckpointError unless this is an archive of entries stored as they are: torch makes no more of it than it is.

    torch would also read compressed ones, of which a thousand bytes can stand for a million, and files of its first
    format, which say themselves how much room they need. Only the archive's list is read. path: for the sentence.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
    except Exception as error:  # of a kind for each way of being damaged
        raise CheckpointError(f"{path} holds no weights ({type(error).__name__}).") from None
    plain = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
    if not plain or len(entries) > MOST_ENTRIES or sum(entry.file_size for entry in entries) > size:
        raise CheckpointError(f"{path} holds no weights as this engine writes them: it unpacks to more than it is.")


def refuse_unlike(state: Any, own: Mapping[str, torch.Tensor], where: str) -> None:
    """CheckpointError unless `state` has the tensors of a network's own state_dict, by name and shape.

    Floats may be of another precision. where: what has the state, for the sentence.
    """
    if not isinstance(state, Mapping) or state.keys() != own.keys():
        names = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise CheckpointError(f"{where} has {names}, but its network {sorted(own)}; give the config of its training.")
    for name, mine in own.items():
        tensor = state[name]
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.layout != torch.strided
            or tensor.device.type == "meta"
            or tensor.is_quantized
            or tensor.is_complex()
        ):
            raise CheckpointError(f"{where} has no numbers for {name}; give a checkpoint that has.")
        if tensor.shape != mine.shape or tensor.is_floating_point() != mine.is_floating_point():
            raise CheckpointError(
                f"{where} has {tensor.dtype} {tuple(tensor.shape)} for {name}, but its network {mine.dtype} "
                f"{tuple(mine.shape)}; give the config of its training."
            )


def refuse_other_optimizer(state: Any, own: torch.optim.Optimizer, where: str) -> None:
    """CheckpointError unless `state` is a state_dict that this Adam could have had: of its settings, of its parameters.

    What it holds of a parameter may be missing, as before the first step. where: what has the state, for the sentence.
    """
    mine = own.state_dict()
    groups = state.get("param_groups") if isinstance(state, Mapping) else None
    kept = state.get("state") if isinstance(state, Mapping) else None
    if not (
        isinstance(groups, list)
        and len(groups) == len(mine["param_groups"])
        and all(map(_of_settings, groups, mine["param_groups"]))
        and isinstance(kept, Mapping)
    ):
        raise CheckpointError(f"{where} has an optimizer of other settings; give the config of its training.")
    parameters = dict(enumerate(parameter for group in own.param_groups for parameter in group["params"]))
    for number, values in kept.items():
        parameter = parameters.get(number) if type(number) is int else None
        if parameter is None:
            raise CheckpointError(f"{where} has an optimizer of other parameters; give the config of its training.")
        like = {"step": torch.zeros(()), "exp_avg": parameter, "exp_avg_sq": parameter}
        refuse_unlike(values, like, f"the optimizer of {where}")


def _of_settings(group: Any, own: Mapping[str, Any]) -> bool:
    """Whether a group has no settings but those of its own; the learning rate changes, and newer settings may miss."""
    if not isinstance(group, Mapping) or group.get("params") != own["params"]:
        return False
    rate = group.get("lr")
    return type(rate) is float and all(
        key == "lr" or (key in own and type(value) is type(own[key]) and value == own[key])
        for key, value in group.items()
    )
