"""The command line in processes of its own that start at once: forked from one that has imported it already."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

# Far above what anything here takes, on a loaded machine too: reached only by what hangs.
LONGEST = 240.0
NOBODY = 65534

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.preloaded"])
_numbers = itertools.count()
_outputs = tempfile.TemporaryDirectory(prefix="freecfr-tests-")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    out: str
    err: str


class Command:
    """`freecfr ARGUMENTS` in progress.

    before: called in the new process first, with no arguments; a function of a module, or a partial of one.
    """

    def __init__(self, *arguments: object, before: Callable[[], object] | None = None) -> None:
        stem = f"{_outputs.name}/{next(_numbers)}"
        self._files = Path(f"{stem}.out"), Path(f"{stem}.err")
        argv = [str(argument) for argument in arguments]
        self._process = context.Process(target=_main, args=(argv, [str(file) for file in self._files], before))
        self._process.start()

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    @property
    def errors(self) -> str:
        """What it has written to standard error so far."""
        return self._files[1].read_text() if self._files[1].exists() else ""

    def send(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self._process.pid, number)

    def wait_for(self, happened: Callable[[], bool]) -> None:
        """Wait until something happened; fails where the command ends before."""
        until = time.monotonic() + LONGEST
        while not happened():
            assert self.running, f"ended too early with {self._process.exitcode}: {self.errors}"
            assert time.monotonic() < until, f"still waiting: {self.errors}"
            time.sleep(0.005)

    def wait_for_text(self, text: str) -> None:
        """Wait until it wrote this to standard error."""
        self.wait_for(lambda: text in self.errors)

    def wait_for_work(self, seconds: float) -> None:
        """Wait until it has used so much more processor time, however long that takes on a loaded machine."""
        until = self._worked() + seconds
        self.wait_for(lambda: self._worked() >= until)

    def end(self, timeout: float = LONGEST) -> Ended:
        """Wait for its end, at most so many seconds."""
        self._process.join(timeout)
        try:
            assert not self.running, f"still running after {timeout} s: {self.errors}"
        finally:
            self._process.kill()
        out, err = (file.read_text() if file.exists() else "" for file in self._files)
        return Ended(self._process.exitcode, out, err)

    def _worked(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def freecfr(*arguments: object, before: Callable[[], object] | None = None) -> Ended:
    """`freecfr ARGUMENTS` from its start to its end."""
    return Command(*arguments, before=before).end()


def sentence(ended: Ended, status: int, *words: str) -> str:
    """The one line of standard error that says what is wrong."""
    assert ended.status == status, ended.err
    assert "Traceback" not in ended.err and ended.out == ""
    [line] = [line for line in ended.err.splitlines() if line.startswith("freecfr: ") and "freecfr: failed" not in line]
    for word in words:
        assert word in line
    return line


def nobody() -> None:
    """For `before`: root may write anywhere, so be somebody else."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def readable(folder: Path) -> None:
    """Let anybody come as far as this folder of a test, and write nothing there."""
    for parent in [folder, *folder.parents]:
        if parent.owner() == folder.owner() and parent.stat().st_mode & 0o005 != 0o005:
            parent.chmod(parent.stat().st_mode | 0o055)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def _main(argv: Sequence[str], files: Sequence[str], before: Callable[[], object] | None) -> None:
    for descriptor, file in enumerate(files, 1):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    if before is not None:
        before()
    from engine.cli import main

    sys.exit(main(argv))
