"""Imports that have no place in pyx/: this project's own rule."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Module
from audit.graph import Project
from audit.rule import Finding, Severity

ID = "placement"
SEVERITY = Severity.SLOWS
ON = False
TITLE = "pyx/ imports torch or engine"
WHY = """\
A rule of one project, off unless it is asked for. Its folder pyx/ holds compiled code that games and traversals are
made of, and that code must not know of the training around it: importing torch there makes every user of a game pay
for it, and importing engine turns the order of the layers around."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

import torch
from engine.config import Config
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

from pyx.rng cimport Rng

import numpy as torch
"""

_REFUSED = ("torch", "engine")
_MAY = ("engine", "threading_runtime", "tests")  # packages that stand above


def check(module: Module, project: Project) -> Iterator[Finding]:
    if module.name.split(".")[0] in _MAY:
        return
    for found in module.imports:
        package = found.module.split(".")[0]
        if package in _REFUSED:
            yield Finding.at(
                found.where,
                ID,
                found.function,
                SEVERITY,
                f"{found.module} is imported in pyx/, which may import neither torch nor engine.",
                "Do it in engine/ and hand what is needed in as arrays or numbers.",
            )
