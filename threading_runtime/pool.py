"""Persistent worker threads that take jobs in order and give results back in job order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

import torch

Job = TypeVar("Job")
Result = TypeVar("Result")

# A waiting caller looks up this often, in seconds, so that a signal which the kernel delivered to another
# thread is handled too. Results do not wait for it: whoever ends the last job wakes the caller.
_LOOK_UP = 0.1

# An idle worker looks up this often, in seconds, so that a pool left open does not keep the process.
_LOOK_UP_IDLE = 1.0


class Stopped(Exception):
    """Raised inside a job that was asked to stop, and by `Run.result` when `Pool.stop` ended the run."""


class Workers(Protocol):
    """What jobs are given to: a Pool, or the threads of one that something else leaves free (tasks.BesideChains)."""

    @property
    def threads(self) -> int: ...

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> list[Result]: ...

    def raise_if_stopping(self) -> None: ...


class Run:
    """The jobs of one `Pool.start` and their results.

    Owned by: the thread that called `Pool.start`.
    Safe to call from: any thread; `result` not from a worker of the same pool.
    Guarantees: results are in job order; once `result` returns or raises, no job of this run is in progress,
        unless a second exception, such as another Ctrl-C, cut its waiting short.
    Does not guarantee: which thread ran which job.
    """

    def __init__(self, function: Callable[[Any], Any], jobs: list[Any]) -> None:
        self._function = function
        self._jobs = jobs
        self._results: list[Any] = [None] * len(jobs)
        self._lock = threading.Lock()  # guards the next five
        self._next = 0
        self._running = 0
        self._missing = len(jobs)  # jobs without a result
        self._failure: tuple[int, BaseException] | None = None
        self._over = not jobs
        self._stopping = False
        # Held until the run is over. A bare lock, because its acquisition is one C call that a signal
        # handler's exception cannot leave half done, as it can threading.Event's or Condition's.
        self._done = threading.Lock()
        self._done.acquire()

    @property
    def stopping(self) -> bool:
        """Whether the run was asked to stop: a job failed, the caller was interrupted, or `Pool.stop`."""
        return self._stopping

    @property
    def over(self) -> bool:
        """Whether every job that was begun has ended and no other will begin."""
        return self._over

    @property
    def size(self) -> int:
        """The number of jobs."""
        return len(self._jobs)

    def stop(self) -> None:
        """Let no further job begin. Does not wait, takes no lock: may be called from a signal handler."""
        if not self._over:
            self._stopping = True

    def work(self) -> None:
        """Run jobs until there is none left to begin; called by the pool's workers."""
        index = self._begin()
        while index is not None:
            failure = None
            try:
                self._results[index] = self._function(self._jobs[index])
            except BaseException as caught:
                failure = caught
            index = self._end_and_begin(index, failure)
            del failure  # its traceback refers to this frame

    def wait(self) -> None:
        """Wait until the run is over, whatever came of it."""
        while not self._over:
            self._done.acquire(timeout=_LOOK_UP)

    def result(self) -> list[Any]:
        """Wait for the run to be over; its results in job order, or the exception that ended it."""
        try:
            self.wait()
        except BaseException:
            self.stop()
            self.wait()
            raise
        if self._failure is not None:
            try:
                raise self._failure[1]
            finally:
                self._failure = None  # its traceback refers to this frame: break the cycle
        if self._missing:
            raise Stopped("the run was stopped before all of its jobs had ended")
        return self._results

    def _end_and_begin(self, index: int, failure: BaseException | None) -> int | None:
        """Report the end of one job and take the next one, if any may begin."""
        with self._lock:
            self._running -= 1
            if failure is None:
                self._missing -= 1
            else:
                # A job that raises Stopped because it was asked to is not why the run ended. Of several jobs
                # that failed by themselves the first in job order is reported.
                obeyed = isinstance(failure, Stopped) and self._stopping
                if not obeyed and (self._failure is None or index < self._failure[0]):
                    self._failure = (index, failure)
                self._stopping = True
            return self._take()

    def _begin(self) -> int | None:
        with self._lock:
            return self._take()

    def _take(self) -> int | None:
        """The next job to begin, or the end of the run if there is none; the lock is held."""
        if self._next < len(self._jobs) and not self._stopping:
            self._next += 1
            self._running += 1
            return self._next - 1
        if self._running == 0 and not self._over:
            self._over = True
            self._done.release()
        return None


class Pool:
    """Worker threads that live from `with Pool(n) as pool:` to the end of that block.

    Owned by: the thread that entered it.
    Safe to call from: any thread that is not one of its workers; `stopping`, `raise_if_stopping` and `stop`
        from any thread.
    Guarantees: workers take jobs in job order and results come back in job order. Torch's intra-op thread
        count is 1 in every worker and is left alone elsewhere. When a job raises, no further job begins and
        the caller gets that very exception, with the worker's traceback. When the caller is interrupted while
        it waits, the same happens and the interrupt goes on once the jobs in progress have ended. No thread
        outlives the block.
    Does not guarantee: which thread runs which job, nor that a long job ends early: it has to poll
        `stopping`. Grad mode and inference mode are per thread and left to the jobs. An interrupt that comes
        at the jump back of a `while` loop written right inside the `with` block is not seen by that block,
        nor by any other handler of that function (CPython 3.13): put such a loop into a function of its own.
    """

    def __init__(self, threads: int, *, initialise: Callable[[], object] | None = None) -> None:
        """`initialise` is called once in every worker before its first job."""
        if threads < 1:
            raise ValueError(f"threads is {threads}, but a pool needs at least 1 thread.")
        self._threads = threads
        self._initialise = initialise
        self._inbox: SimpleQueue[Run | None] = SimpleQueue()
        self._ready: SimpleQueue[BaseException | None] = SimpleQueue()
        self._workers: list[threading.Thread] = []
        self._lock = threading.Lock()  # guards _run and _open
        self._run: Run | None = None
        self._open = False

    def __enter__(self) -> Pool:
        if self._workers:
            raise RuntimeError("this pool was entered before; make a new one.")
        # Torch keeps one process-wide count that a thread adopts when it first asks, and a worker's own
        # setting changes it. Asking here pins the count of the caller before that.
        torch.get_num_threads()
        try:
            for number in range(self.threads):
                worker = threading.Thread(target=self._live, name=f"worker-{number}")
                self._workers.append(worker)
                worker.start()
            for _ in self._workers:
                if (failure := self._next_ready()) is not None:
                    raise failure
            self._open = True
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def threads(self) -> int:
        """How many there are."""
        return self._threads

    @property
    def stopping(self) -> bool:
        """Whether jobs in progress should end early; long jobs poll it, between two batches for example."""
        run = self._run
        return run is not None and run.stopping

    def raise_if_stopping(self) -> None:
        """Raise `Stopped` when `stopping`."""
        if self.stopping:
            raise Stopped("the run was stopped while this job was in progress")

    def stop(self) -> None:
        """Let no further job of the current run begin. May be called from a signal handler."""
        if (run := self._run) is not None:
            run.stop()

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> list[Result]:
        """`[function(job) for job in jobs]`, computed by the workers."""
        run = Run(function, list(jobs))
        try:
            self._begin(run)
            run.wait()
        except BaseException:
            self._abandon(run)  # an interrupt can come at any line, between these two for example
            raise
        return run.result()

    def start(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Run:
        """Begin what `map` does and return at once; `result()` of what is returned waits.

        One run at a time: RuntimeError while another is in progress, and always from a worker of this pool.
        """
        run = Run(function, list(jobs))
        try:
            self._begin(run)
        except BaseException:
            self._abandon(run)
            raise
        return run

    def close(self) -> None:
        """Stop the current run, if any, and wait until every worker thread has ended. May be repeated."""
        if threading.current_thread() in self._workers:
            raise RuntimeError("a job cannot close its own pool.")
        with self._lock:
            self._open = False
        self.stop()
        for _ in self._workers:
            self._inbox.put(None)
        for worker in self._workers:
            while worker.is_alive():
                worker.join(_LOOK_UP)

    def _begin(self, run: Run) -> None:
        if threading.current_thread() in self._workers:
            raise RuntimeError("a job asked its own pool to run jobs; it would wait for itself.")
        with self._lock:
            if not self._open:
                raise RuntimeError("the pool runs jobs only inside its own `with` block.")
            if self._run is not None and not self._run.over:
                raise RuntimeError("the pool is busy with another run; wait for its result first.")
            self._run = run
        for _ in range(min(self.threads, run.size)):
            self._inbox.put(run)

    def _abandon(self, run: Run) -> None:
        """See that `run` is over, if it was begun at all."""
        if self._run is run and not run.over:
            run.stop()
            self._inbox.put(run)  # an interrupted _begin may have told no worker, and only they end a run
            run.wait()

    def _next_ready(self) -> BaseException | None:
        while True:
            try:
                return self._ready.get(timeout=_LOOK_UP)
            except Empty:
                pass

    def _live(self) -> None:
        try:
            torch.set_num_threads(1)
            if self._initialise is not None:
                self._initialise()
        except BaseException as failure:
            self._ready.put(failure)
            return
        self._ready.put(None)
        while (run := self._next_run()) is not None:
            run.work()
            del run  # an idle worker keeps no job, result or exception alive

    def _next_run(self) -> Run | None:
        """The next run to work on; None when the pool is closed, or left open by a main thread that ended."""
        while threading.main_thread().is_alive():
            try:
                return self._inbox.get(timeout=_LOOK_UP_IDLE)
            except Empty:
                pass
        return None
