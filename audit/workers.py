"""Files analysed side by side, in processes.

Threads give the same results, but Cython's front end counts references to so much that is shared that without the GIL
two of them were slower than two processes by a factor of 1.7 (CPython 3.13t, Cython 3.3.1, 24,577 lines, two
processors: 62 to 66 s against 35 to 38 s).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from audit.errors import BadInput

Result = TypeVar("Result")
# Below this many files another process costs more than it saves.
_FEW = 4


def processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def each(
    work: Callable[..., Result], tasks: Sequence[tuple[Any, ...]], jobs: int = 0, kind: str = "processes"
) -> list[Result]:
    """`work(*task)` for every task, in the order of the tasks. What `work` raises is raised here;
    BadInput where a process was killed.

    jobs: how many at once; 0: one per processor. kind: "threads" or "processes", so that both can be measured.
    """
    jobs = min(jobs or processors(), len(tasks))
    if jobs <= 1 or (kind == "processes" and len(tasks) < _FEW):
        return [work(*task) for task in tasks]
    return (_processes if kind == "processes" else _threads)(work, tasks, jobs)


def _threads(work: Callable[..., Result], tasks: Sequence[tuple[Any, ...]], jobs: int) -> list[Result]:
    results: list[Any] = [None] * len(tasks)
    waiting = iter(range(len(tasks)))
    failed: list[BaseException] = []
    lock = threading.Lock()

    def run() -> None:
        while not failed:
            with lock:
                index = next(waiting, None)
            if index is None:
                return
            try:
                results[index] = work(*tasks[index])
            except BaseException as error:  # handed to the caller below
                failed.append(error)

    # Daemons, so that Ctrl-C ends the program without waiting for the files at hand.
    threads = [threading.Thread(target=run, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException as error:
        failed.append(error)
        raise
    if failed:
        raise failed[0]
    return results


def _processes(work: Callable[..., Result], tasks: Sequence[tuple[Any, ...]], jobs: int) -> list[Result]:
    import multiprocessing
    from multiprocessing.connection import Connection, wait

    # A fork has Cython's compiler loaded already, but another thread may hold a lock that it would wait for for ever.
    alone = sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1
    context: Any = multiprocessing.get_context("fork" if alone else "spawn")
    results: list[Any] = [None] * len(tasks)
    lines: dict[Any, int] = {}  # the task that each process is at
    # Neighbours cimport the same, so that each begins in a part of its own; who is done helps whoever has most left.
    parts: dict[Any, deque[int]] = {}
    processes: list[Any] = []

    def next_task(line: Connection) -> None:
        part = parts[line] or max(parts.values(), key=len)
        if not part:
            line.close()  # the process ends by that
            return
        index = part.popleft() if part is parts[line] else part.pop()
        with _told_of_kills():
            line.send(tasks[index])
        lines[line] = index

    try:
        with _interrupts_held_back():
            for job in range(jobs):
                line, far_end = context.Pipe()
                processes.append(context.Process(target=_serve, args=(work, far_end, line), daemon=True))
                processes[-1].start()
                far_end.close()  # so that a process that is gone ends its line
                parts[line] = deque(range(len(tasks) * job // jobs, len(tasks) * (job + 1) // jobs))
        for line in parts:
            next_task(line)
        while lines:
            ready: Any
            for ready in wait(list(lines)):
                with _told_of_kills():
                    succeeded, result = ready.recv()
                if not succeeded:
                    raise result
                results[lines.pop(ready)] = result
                next_task(ready)
    finally:
        for process in processes:
            process.terminate()  # else an interrupt would end the program only after the files at hand
        for process in processes:
            process.join()
    return results


@contextmanager
def _told_of_kills() -> Iterator[None]:
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise BadInput(
            "A process that read files was killed, perhaps for want of memory; --jobs 1 needs less."
        ) from None


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Ctrl-C waits, in this thread and for good in the processes started here; where a system cannot, nothing does."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(work: Callable[..., Any], line: Any, far_end: Any) -> None:
    """Does what comes through the line until it ends, by the caller's will or with the caller."""
    far_end.close()  # a copy
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller's to answer
    try:
        while True:
            task = line.recv()
            try:
                answer = (True, work(*task))
            except Exception as error:  # noqa: BLE001  handed to the caller
                error.add_note(traceback.format_exc())
                answer = (False, error)
            line.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
