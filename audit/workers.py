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
from collections.abc import Callable, Sequence
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
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # A fork has Cython's compiler loaded already.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_leave_interrupts_to_the_caller)
    try:
        chunk = min(8, max(1, len(tasks) // (jobs * 8)))
        parts = [pool.submit(_call, work, tasks[start : start + chunk]) for start in range(0, len(tasks), chunk)]
        results = [result for part in parts for result in part.result()]
    except BaseException as error:
        # What waits is not cancelled: Python 3.11 prints a traceback for it when its process has gone.
        pool.shutdown(wait=False)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()  # else the program would end only after the files at hand
        if isinstance(error, BrokenProcessPool):
            raise BadInput(
                "A process that read files was killed, perhaps for want of memory; --jobs 1 needs less."
            ) from None
        raise
    pool.shutdown()
    return results


def _leave_interrupts_to_the_caller() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _call(work: Callable[..., Result], tasks: Sequence[tuple[Any, ...]]) -> list[Result]:
    return [work(*task) for task in tasks]
