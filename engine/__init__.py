"""A Deep CFR training engine. The names below are imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Config": "engine.config",
    "load_agent": "engine.agent",
    "load_game": "pyx.registry",
    "nash_conv": "engine.evaluation",
    "train": "engine.trainer",
}

__all__ = ["Config", "load_agent", "load_game", "nash_conv", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'engine' has no attribute {name!r}; it has: {', '.join(_HOMES)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
