"""Runs in trouble: disks that fill up, folders that may no longer be written, training that cannot go on.

Whatever happened, `--resume` ends with the bits of a run that nothing happened to.
"""

import errno
import os
import resource
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from engine.checkpoint import list_checkpoints
from tests.commands import NOBODY, freecfr, nobody, readable, sentence
from tests.run_folders import contents, reference, written
from tests.runs import ROOT


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The contents of a run that nothing went wrong with."""
    folder = tmp_path_factory.mktemp("whole")
    return reference(folder, written(folder, "kuhn", iterations=12, memory={"capacity": 5000})[1])


def small_disk(size):
    """No file may outgrow so many bytes, as on a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.parametrize("size", [400, 1000])
def test_a_disk_that_is_full_from_the_start(tmp_path, size):
    path, _ = written(tmp_path, "kuhn", iterations=12)
    ended = freecfr("train", path, "--run", tmp_path / "run", before=partial(small_disk, size))
    sentence(ended, 2, "cannot be written", "--run")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("size", [3000, 20_000])
def test_a_disk_that_fills_up_while_training(whole, tmp_path, size):
    path, config = written(tmp_path, "kuhn", iterations=12, memory={"capacity": 5000})
    run = tmp_path / "run"
    ended = freecfr("train", path, "--run", run, "--json", before=partial(small_disk, size))
    # What it says on standard error is a file here too, and is cut off where the limit is lowest.
    assert ended.status == 1 and "could not be written" in ended.err and "tries again" in ended.err
    assert "Traceback" not in ended.err
    # With room again it goes on from what was saved, to the same end.
    assert freecfr("train", path, "--run", run, "--resume").status == 0
    assert contents(run, config) == whole


def never_saved(ended, reason):
    """It went on to its end, said so on each attempt, and failed because the last one failed too."""
    assert ended.status == 1 and "Traceback" not in ended.err
    attempts = [line for line in ended.err.splitlines() if "could not be written" in line]
    assert len(attempts) >= 3 and all(reason in line for line in attempts)
    assert all("tries again" in line for line in attempts[:-1]) and "tries again" not in attempts[-1]
    assert "iteration 12/12" in ended.err


def full_disk(home, name, calls, until=sys.maxsize):
    """After so many calls of a function of `os`, or of a method, there is no space left; later there may be again."""
    place = import_module(home)
    original, left = getattr(place, name), [calls]

    def fail(*args, **more):
        left[0] -= 1
        if calls - until < left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*args, **more)

    setattr(place, name, fail)


@pytest.mark.parametrize("name, calls", [("fsync", 25), ("replace", 14)])
def test_no_space_left(whole, tmp_path, name, calls):
    path, config = written(tmp_path, "kuhn", iterations=12, memory={"capacity": 5000})
    run = tmp_path / "run"
    ended = freecfr("train", path, "--run", run, before=partial(full_disk, "os", name, calls))
    never_saved(ended, "No space left on device")
    assert list_checkpoints(run / "checkpoints")
    assert freecfr("train", path, "--run", run, "--resume").status == 0
    assert contents(run, config) == whole


@pytest.mark.parametrize("name, calls", [("fsync", 25), ("replace", 14)])
def test_space_that_comes_back(whole, tmp_path, name, calls):
    """Attempts that failed are told; then all that had gathered is written, and nothing is missing."""
    path, config = written(tmp_path, "kuhn", iterations=12, memory={"capacity": 5000})
    run = tmp_path / "run"
    ended = freecfr("train", path, "--run", run, before=partial(full_disk, "os", name, calls, calls + 3))
    assert ended.status == 0, ended.err
    assert "could not be written" in ended.err and "tries again" in ended.err
    assert contents(run, config) == whole


def tiny_disk(target, size):
    """Why no disk of so many bytes can be mounted there by whoever this is, or nothing."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", target]
    try:
        tried = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", *mount], capture_output=True)
    except OSError as error:
        return str(error)
    return tried.stderr.decode().strip() if tried.returncode else ""


# On a disk of its own: trains until there is no room, then with more room to the end, and copies the run away.
ON_A_DISK = """
import shutil, subprocess, sys
from engine.cli import main
path, disk, size, target = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
first = main(["train", path, "--run", f"{disk}/run"])
subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
print(first, main(["train", path, "--run", f"{disk}/run", "--resume"]), flush=True)
shutil.copytree(f"{disk}/run", target)
"""


@pytest.mark.one_build
@pytest.mark.parametrize("kib", [64, 128])  # the run needs about 240, whatever is written when
def test_a_tiny_disk(whole, tmp_path, kib):
    path, config = written(tmp_path, "kuhn", iterations=12, memory={"capacity": 5000})
    disk = tmp_path / "disk"
    disk.mkdir()
    if reason := tiny_disk(disk, kib << 10):
        pytest.skip(f"no disk can be mounted in a user namespace here: {reason}")
    arguments = [path, disk, kib << 10, tmp_path / "run"]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", ON_A_DISK, *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1 0", done.stderr
    assert "No space left on device" in done.stderr and "tries again" in done.stderr
    assert contents(tmp_path / "run", config) == whole


def forbidden(folder, saves, until=sys.maxsize):
    """After so many checkpoints were begun in a folder it may not be written; later it may again."""
    nobody()
    mkdir, begun = os.mkdir, [0]

    def counted(path, *mode):
        if Path(path).parent == folder and Path(path).suffix == ".tmp":
            begun[0] += 1
            folder.chmod(0o500 if saves < begun[0] <= until else 0o700)
        mkdir(path, *mode)

    os.mkdir = counted


@pytest.mark.parametrize("until", [4, sys.maxsize])
def test_a_folder_that_may_not_be_written(whole, tmp_path, until):
    path, config = written(tmp_path, "kuhn", iterations=12, memory={"capacity": 5000})
    home = tmp_path / "home"
    home.mkdir()
    readable(tmp_path)
    if os.geteuid() == 0:
        os.chown(home, NOBODY, NOBODY)
    home.chmod(0o700)
    run = home / "run"
    ended = freecfr("train", path, "--run", run, before=partial(forbidden, run / "checkpoints", 2, until))
    (run / "checkpoints").chmod(0o700)
    assert "Permission denied" in ended.err and "tries again" in ended.err
    if until == sys.maxsize:
        never_saved(ended, "Permission denied")
        assert freecfr("train", path, "--run", run, "--resume", before=nobody).status == 0
    else:
        assert ended.status == 0, ended.err
    assert contents(run, config) == whole


def spoil(iteration):
    """Make a network's weights useless before it trains in an iteration."""
    from engine.learner import Learner

    begin = Learner.begin

    def spoiled(self, number, updates=None):
        if self.name == "advantage1" and number == iteration:
            with self.model.writing() as module:
                next(module.parameters()).data.fill_(float("nan"))
        begin(self, number, updates)

    Learner.begin = spoiled


@pytest.mark.parametrize("iteration", [1, 5])
def test_training_that_cannot_go_on(whole, tmp_path, iteration):
    path, config = written(tmp_path, "kuhn", iterations=12, memory={"capacity": 5000})
    run = tmp_path / "run"
    ended = freecfr("train", path, "--run", run, before=partial(spoil, iteration))
    sentence(ended, 1, f"iteration {iteration}", "advantage1")
    kept = [path.name for path in list_checkpoints(run / "checkpoints")]
    # The last completed iteration is kept, whether it was to be saved or not.
    assert kept == ([] if iteration == 1 else ["iteration-000004", "iteration-000002"])
    assert freecfr("train", path, "--run", run, "--resume").status == 0
    assert contents(run, config) == whole
