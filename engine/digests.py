"""Canonical copies and digests of what torch's state_dicts hold."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import Any

import torch


def canonical(state: Any) -> Any:
    """A deep copy on the CPU that is written to the same bytes wherever equal values came from.

    Pickles refer back to objects they met before, so the copy has fresh tensors and tuples and interned texts.
    Raises TypeError on what a checkpoint cannot hold.
    """
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True).contiguous()
    if isinstance(state, Mapping):
        return {canonical(key): canonical(value) for key, value in state.items()}
    if isinstance(state, list):
        return [canonical(item) for item in state]
    if isinstance(state, tuple):
        return tuple([canonical(item) for item in state])
    if isinstance(state, str):
        return sys.intern(str(state))
    if state is None or isinstance(state, bool | int | float):
        return state
    raise TypeError(f"a checkpoint holds tensors, numbers and texts, not a {type(state).__name__}")


def as_bfloat16(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A canonical copy of a network's state_dict, its floats as bfloat16."""
    return {key: value.bfloat16() if value.is_floating_point() else value for key, value in canonical(state).items()}


def digest(*parts: Any) -> str:
    """sha256 (hex) of nested mappings, sequences, tensors, numbers and texts; mappings count in order of their keys."""
    hasher = hashlib.sha256()
    _update(hasher, parts)
    return hasher.hexdigest()


def _update(hasher: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        hasher.update(f"tensor {value.dtype} {tuple(value.shape)}:".encode())
        hasher.update(value.reshape(-1).view(torch.uint8).numpy() if value.numel() else b"")
    elif isinstance(value, Mapping):
        hasher.update(f"mapping {len(value)}:".encode())
        for key in sorted(value, key=lambda key: (str(type(key)), key)):
            _update(hasher, key)
            _update(hasher, value[key])
    elif isinstance(value, list | tuple):
        hasher.update(f"sequence {len(value)}:".encode())
        for item in value:
            _update(hasher, item)
    else:
        text = repr(value).encode()
        hasher.update(f"{type(value).__name__} {len(text)}:".encode() + text)
