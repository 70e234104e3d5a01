"""What the machine has: processor, bfloat16, memory that this process may use, CUDA."""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
from pathlib import Path

# Instructions that make bfloat16 products faster than float32 ones.
_BF16_FLAGS = {"amx_bf16", "avx512_bf16"}


@functools.cache
def _cpuinfo(path: str = "/proc/cpuinfo") -> dict[str, str]:
    """The first processor's fields; empty where the system does not tell."""
    fields: dict[str, str] = {}
    try:
        text = Path(path).read_text()
    except OSError:
        return fields
    for line in text.split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    return fields


def give_back_memory() -> None:
    """Hand what was freed back to the system, where the allocator is glibc's: it keeps tens of MiB for each thread."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def processor() -> str:
    """The processor's name."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def cpu_has_bf16() -> bool:
    """Whether the processor multiplies bfloat16 natively (amx_bf16 or avx512_bf16)."""
    return not _BF16_FLAGS.isdisjoint(_cpuinfo().get("flags", "").split())


def cpu_multiplies_bf16_in_tiles() -> bool:
    """Whether it does so in AMX's tiles, many times faster than in vectors."""
    return "amx_bf16" in _cpuinfo().get("flags", "").split()


def device_has_bf16(device: str) -> bool:
    """Whether `device` ("cpu", "cuda", "cuda:N") multiplies bfloat16 natively."""
    if device == "cpu":
        return cpu_has_bf16()
    import torch

    return torch.cuda.get_device_capability(torch.device(device))[0] >= 8


def cuda_devices() -> int:
    """How many CUDA devices torch sees here."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
