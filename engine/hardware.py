"""What the machine has: processor, bfloat16, memory that this process may use, CUDA."""

from __future__ import annotations

import ctypes
import functools
import platform
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import torch

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


def peak_rss_mib() -> float:
    """The most memory that this process ever had resident, MiB.

    Linux hands ru_maxrss from the process that started this one on, so that it is asked elsewhere there.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) / 2**10


@dataclass(frozen=True)
class Available:
    """bytes: memory that this process may still take. of: what says so."""

    bytes: int
    of: str


def memory_available(root: Path = Path("/"), machine: int | None = None) -> Available:
    """The least of what the machine has left, what its cgroups leave, and what its address space may grow by.

    Pages that the system can drop, such as files read before, count as free.
    """
    if machine is None:
        machine = psutil.virtual_memory().available
    found = [Available(machine, "of the machine"), *_cgroups(root)]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        found.append(Available(max(0, limit - psutil.Process().memory_info().vms), "the limit of its address space"))
    return min(found, key=lambda each: each.bytes)


def _cgroups(root: Path) -> Iterator[Available]:
    """What each cgroup that this process is in leaves it, of version 2 or 1; nothing where the system does not tell."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = root / "sys/fs/cgroup" / controllers
        names = ("memory.max", "memory.current", "inactive_file")
        if controllers:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        folder = top / path.lstrip("/")
        # A container sees its own group as the top, whatever its path is outside.
        for group in [folder, *folder.parents] if folder.is_dir() else [top]:
            if (left := _left(group, *names)) is not None:
                yield Available(left, "its cgroup's limit")
            if group == top:
                break


def _left(group: Path, limit: str, usage: str, droppable: str) -> int | None:
    """What a cgroup leaves of its limit, if it has one."""
    try:
        most = (group / limit).read_text().strip()
        used = int((group / usage).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if not most.isdigit():  # "max": no limit
        return None
    return max(0, int(most) - used + int(stat.get(droppable, 0)))


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


def onednn_dtypes() -> frozenset[torch.dtype]:
    """Of which torch has oneDNN's linear products here; of bfloat16 it refuses them on a processor without AVX-512."""
    import torch

    ops = torch.ops.mkldnn
    if not torch.backends.mkldnn.is_available() or not hasattr(ops, "_linear_pointwise"):
        return frozenset()
    return frozenset({torch.float32, torch.bfloat16} if ops._is_mkldnn_bf16_supported() else {torch.float32})


def cuda_devices() -> int:
    """How many CUDA devices torch sees here."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
