"""A Deep CFR training engine. The names below are imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "load_game": "pyx.registry",
    "nash_conv": "engine.evaluation",
}

__all__ = ["load_game", "nash_conv"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'engine' has no attribute {name!r}; it has: {', '.join(_HOMES)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
