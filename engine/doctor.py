"""What this Python and this machine offer, and what is in the way of running on every core."""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from engine import hardware, needs
from engine.config import Config
from engine.errors import BadInput, ConfigError
from threading_runtime.gil import KEPT_OUT, free_threaded_build, gil_enabled, keep_gil_off, threads_default

# Imports what a run imports, makes an optimizer, and prints what switched the GIL on without Python's saying so.
_PROBE = """
import importlib, json, sys
from threading_runtime.gil import gil_enabled, keep_gil_off
keep_gil_off()
silent, before = [], gil_enabled()
def look(name):
    global before
    if gil_enabled() and not before:
        silent.append(name)
    before = gil_enabled()
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    look(name)
import torch
torch.optim.Adam([torch.zeros(1, requires_grad=True)])
look("torch.optim")
print(json.dumps(silent))
"""

NOTHING = "Nothing is in the way."
MIB = 1 << 20

IMPORTED = (
    "numpy",
    "torch",
    "pydantic",
    "rich",
    "matplotlib.backends.backend_agg",
    "tensorboardX",
    "pyx.registry",
    "engine.trainer",
    "engine.report",
    "engine.commands",
)


def gil_enabled_by() -> list[str]:
    """The extension modules that switch the GIL on when a run's imports are made, found in a fresh process.

    Empty on a build that always has the GIL, where the GIL is off, and where the environment asks for it.
    """
    if not free_threaded_build() or gil_forced():
        return []
    probe = subprocess.run(
        [sys.executable, "-W", "always::RuntimeWarning", "-c", _PROBE, json.dumps(IMPORTED)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if named := re.findall(r"has been enabled to load module '([^']+)'", probe.stderr):
        return list(dict.fromkeys(named))
    try:
        return list(json.loads(probe.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        return []


def kept_out_needs_gil(module: str) -> bool | None:
    """Whether a module that is kept out still switches the GIL on, found in a fresh process.

    None where nothing can be said: it is not installed or fails, or the GIL is on anyway.
    """
    if not free_threaded_build() or gil_forced():
        return None
    code = f"import sys; on = sys._is_gil_enabled(); import {module}; print(None if on else sys._is_gil_enabled())"
    probe = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    return {"True": True, "False": False}.get(probe.stdout.strip())


def gil_forced() -> bool:
    """Whether the environment or an option of the interpreter asked for the GIL."""
    return os.environ.get("PYTHON_GIL") == "1" or sys._xoptions.get("gil") == "1"


def gil_notice(allowed: bool) -> str:
    """A sentence where threads will take turns, else nothing. BadInput where that is neither due nor `allowed`."""
    if not gil_enabled():
        return ""
    if not free_threaded_build():
        return (
            "this Python has the GIL, so threads take turns in Python code; a free-threaded 3.13t or 3.14t would not."
        )
    if not allowed:
        reason = "the environment asks for it" if gil_forced() else f"switched on by {_names(gil_enabled_by())}"
        raise BadInput(
            f"the GIL is on ({reason}), so threads would take turns; {_remedy()}, or give --allow-gil to train so."
        )
    return "the GIL is on, as allowed: threads take turns."


def _names(modules: list[str]) -> str:
    return ", ".join(modules) if modules else "an extension module that was imported"


def _remedy() -> str:
    if gil_forced():
        return "unset PYTHON_GIL and leave out -X gil=1"
    return "remove or upgrade what provides it"


def examine(config: Config | None = None) -> dict[str, Any]:
    """The keys of `freecfr doctor --json`; memory is that of a run by these settings, or by the default ones."""
    import torch

    keep_gil_off()
    for name in IMPORTED:
        with suppress(ImportError):
            importlib.import_module(name)
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    on = gil_enabled()
    # The import that did it has happened; a fresh process tells which it was.
    culprits = gil_enabled_by() if on else []
    kept_out = {module: kept_out_needs_gil(module) for module in KEPT_OUT}
    cuda = hardware.cuda_devices() > 0
    bf16 = hardware.device_has_bf16("cuda" if cuda else "cpu")
    config = (config or Config()).resolved()
    parts = {part.name: part.bytes / MIB for part in needs.parts_of(config)}
    advice = _advice(on, culprits, bf16, [module for module, needed in kept_out.items() if needed is False])
    try:
        needs.refuse_too_large(config)
    except ConfigError as problem:
        advice = [text for text in advice if text != NOTHING] + problem.problems
    return {
        "python": platform.python_version(),
        "free_threaded_build": free_threaded_build(),
        "gil_enabled": on,
        "gil_enabled_by": culprits,
        "kept_out": [module for module, needed in kept_out.items() if needed],
        "threads_default": threads_default(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "cuda": cuda,
        "inference_dtype": "bfloat16" if bf16 else "float32",
        "processor": hardware.processor(),
        "memory_available_mib": hardware.memory_available().bytes / MIB,
        "memory_needed_mib": sum(parts.values()),
        "memory_needed_for": parts,
        "advice": advice,
    }


def _advice(on: bool, culprits: list[str], bf16: bool, harmless: Sequence[str] = ()) -> list[str]:
    """harmless: modules that are kept out and need not be."""
    advice = []
    if not free_threaded_build():
        advice.append(
            "This Python was built with the GIL: everything works, but threads take turns. scripts/bootstrap gets a "
            "free-threaded 3.14t or 3.13t."
        )
    elif on and gil_forced():
        advice.append(f"The GIL is on because the environment asks for it: {_remedy()}.")
    elif on or culprits:
        advice.append(f"The GIL was switched on by {_names(culprits)}: {_remedy()}, or train with --allow-gil.")
    if not bf16:
        advice.append("The processor has neither amx_bf16 nor avx512_bf16, so networks are evaluated in float32.")
    for module in harmless:
        advice.append(
            f"{module} leaves the GIL off now: threading_runtime/gil.py need not keep it out any more, and "
            "torch.compile can be tried (docs/reports/pytorch_free_threaded.md)."
        )
    if not advice:
        advice.append(NOTHING)
    return advice
