"""What this interpreter's GIL does, what would switch it on, and how many threads this process should use."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# Modules that switch the GIL on when they are imported, and that nothing here needs.
KEPT_OUT = ("triton",)


def free_threaded_build() -> bool:
    """Whether this interpreter was built so that it can run without the GIL."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def gil_enabled() -> bool:
    """Whether the GIL is on now; an extension module can switch it on at import."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def keep_gil_off() -> None:
    """Call before the first optimizer is made. Does nothing on a build that always has the GIL.

    Constructing any torch.optim optimizer imports torch._dynamo, and that imports triton, whose extension
    module does not declare that it runs without the GIL, so that the import switches the GIL on for the whole
    process. Nothing here uses triton, and torch does without it where it cannot be imported.
    """
    if free_threaded_build():
        for module in KEPT_OUT:
            sys.modules.setdefault(module, None)  # type: ignore[arg-type]  # importing it now raises ImportError


def threads_default(root: Path = Path("/"), allowed: set[int] | None = None) -> int:
    """One thread per physical core that this process may use, and at least 1.

    The affinity mask and the CPU quota of the process's cgroup (v1 and v2, its ancestors included) count; a
    quota of 2.5 CPUs makes 2 threads. `root` is where /sys and /proc are, `allowed` the numbers of the CPUs
    in the mask.
    """
    if allowed is None:
        has_mask = hasattr(os, "sched_getaffinity")
        allowed = os.sched_getaffinity(0) if has_mask else set(range(os.cpu_count() or 1))
    cores = {_core(root, cpu) for cpu in allowed}
    return max(1, min([len(cores), *(int(quota) for quota in _quotas(root))]))


def _core(root: Path, cpu: int) -> str:
    """A name that the CPUs of one physical core share; the CPU's own where the system does not tell."""
    siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    return _read(siblings) or str(cpu)


def _quotas(root: Path) -> Iterator[float]:
    """The CPU quotas, in CPUs, of this process's cgroups and all of their ancestors."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif "cpu" in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / controllers, root / "sys/fs/cgroup/cpu"]
        else:
            continue
        # Inside a container the path may be the host's, of which only the part from the mount down exists
        # here; a folder that does not exist has no quota file, and the mount itself is among the ancestors.
        parts = [part for part in path.split("/") if part]
        for mount in mounts:
            for depth in range(len(parts) + 1):
                yield from _quota(mount.joinpath(*parts[:depth]))


def _quota(group: Path) -> Iterator[float]:
    """The quota of one cgroup's folder, if it has one."""
    v2 = _read(group / "cpu.max").split()
    v1 = [_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")]
    quota, period = v2 if len(v2) == 2 else v1
    if quota.isdigit() and period.isdigit():  # "max" in v2 and -1 in v1 mean that there is none
        yield int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
