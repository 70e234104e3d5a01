"""The GIL stays off through the first optimizer, and the default number of threads respects every limit."""

import os
import subprocess
import sys

import pytest

from threading_runtime import gil


def test_a_build_with_the_gil_has_it_on():
    assert gil.free_threaded_build() or gil.gil_enabled()


SCRIPT = """
import sys
from threading_runtime import gil
gil.keep_gil_off()
import torch
weight = torch.zeros(3, requires_grad=True)
optimizer = torch.optim.Adam([weight], lr=0.1)
weight.sum().backward()
optimizer.step()
torch.optim.lr_scheduler.LinearLR(optimizer).step()
print(gil.gil_enabled())
"""


@pytest.mark.skipif(not gil.free_threaded_build(), reason="this build always has the GIL")
def test_optimizers_leave_the_gil_off():
    paths = "import sys; sys.path[:0] = " + repr([path for path in sys.path if path]) + "\n"
    command = [sys.executable, "-c", paths + SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"


def test_triton_that_is_already_there_is_left_alone(monkeypatch):
    present = object()
    monkeypatch.setitem(sys.modules, "triton", present)
    gil.keep_gil_off()
    assert sys.modules["triton"] is present


def test_triton_is_left_alone_where_the_gil_is_always_on(monkeypatch):
    monkeypatch.setattr(gil, "free_threaded_build", lambda: False)
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    gil.keep_gil_off()
    assert "triton" not in sys.modules


def machine(root, siblings, files):
    """A made-up /sys and /proc: the siblings list of each CPU, and other files by path."""
    topology = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": text for cpu, text in siblings.items()
    }
    for path, text in (topology | files).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n")


PAIRS = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"}
V2 = "proc/self/cgroup", "0::/user/job"
V1 = "proc/self/cgroup", "5:cpuset:/\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/"


@pytest.mark.parametrize(
    ("allowed", "files", "threads"),
    [
        (range(8), {}, 4),
        ({0, 4}, {}, 1),
        ({0, 1, 4}, {}, 2),
        ({2, 5}, {}, 2),
        ({8, 9}, {}, 2),  # no topology known: each CPU is a core
        (range(8), dict([V2]) | {"sys/fs/cgroup/user/job/cpu.max": "max 100000"}, 4),
        (range(8), dict([V2]) | {"sys/fs/cgroup/user/job/cpu.max": "250000 100000"}, 2),
        (range(8), dict([V2]) | {"sys/fs/cgroup/user/cpu.max": "300000 100000"}, 3),  # an ancestor's
        (range(8), dict([V2]) | {"sys/fs/cgroup/cpu.max": "50000 100000"}, 1),  # as a container sees its own
        (range(8), dict([V2]) | {"sys/fs/cgroup/user/job/cpu.max": "1600000 100000"}, 4),
        (range(8), dict([V2]) | {"sys/fs/cgroup/unified/user/job/cpu.max": "200000 100000"}, 2),
        (
            range(8),
            dict([V1])
            | {
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "150000",
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "50000",
            },
            3,
        ),
        (
            range(8),
            dict([V1]) | {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
            4,
        ),
        (
            range(8),
            dict([V1])
            | {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            2,
        ),
    ],
)
def test_threads_default(tmp_path, allowed, files, threads):
    machine(tmp_path, PAIRS, files)
    assert gil.threads_default(tmp_path, set(allowed)) == threads


def test_threads_default_here():
    assert 1 <= gil.threads_default() <= (os.cpu_count() or 1)


def test_threads_default_follows_the_affinity_mask():
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system has no affinity mask")
    script = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); import sys; " + (
        f"sys.path[:0] = {[path for path in sys.path if path]!r}; "
        "from threading_runtime.gil import threads_default; print(threads_default())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "1", done.stderr
