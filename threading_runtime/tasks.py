"""Chains of steps, each step split into shards, run on a pool so that no thread idles while a shard waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from threading_runtime.pool import Job, Pool, Result, Stopped

# An idle worker looks up this often, in seconds, to see whether the caller was interrupted. New work wakes it
# at once.
_LOOK_UP = 0.1


class Chain(Protocol):
    """A sequence of steps that depends on nothing outside it, such as the updates of one network.

    `shard(step, index)` for index 0 .. shards - 1 may run on any threads at the same time and must write only
    to what belongs to that index. `finish(step)` runs once, alone in its chain, after all shards of the step,
    and before any shard of the next; it sees everything the shards wrote.
    """

    steps: int
    shards: int

    def shard(self, step: int, index: int) -> None: ...

    def finish(self, step: int) -> None: ...


def run_chains(pool: Pool, chains: Sequence[Chain]) -> None:
    """Run every chain to its end on the threads of `pool`.

    A free thread takes the next shard of the chain with the most steps left, so that all end together; the
    thread that ends the last shard of a step runs its `finish`. Which thread ran what cannot change a result,
    as long as the chains keep what `Chain` asks. Exceptions, interrupts and `pool.stopping` are as in
    `Pool.map`.
    """
    schedule = _Schedule(pool, chains)
    pool.map(lambda _: schedule.work(), range(pool.threads))


class BesideChains:
    """The threads of a pool, half of which begin with chains when the others are given jobs by `map`.

    Whoever finds nothing left on its own side goes over to the other: threads that ran out of jobs help with the
    chains, and threads whose chains have ended take jobs. One thread alone runs the chains and then the jobs.

    Owned by: the thread that made it, which calls `map` once.
    Guarantees: when `map` returns, chains and jobs have ended; what either leaves is what it leaves alone.
    Does not guarantee: which thread runs what, nor that the chains have begun, or ended, before any of the jobs.
    """

    def __init__(self, pool: Pool, chains: Sequence[Chain]) -> None:
        self._pool, self._schedule = pool, _Schedule(pool, chains)
        self._first = (pool.threads + 1) // 2  # begin with the chains
        self.jobs_seconds = 0.0  # from the beginning of the first job to the end of the last
        self.chains_seconds = 0.0  # from `map` to the end of the last chain

    @property
    def threads(self) -> int:
        """How many begin with jobs; 1 where there is no other."""
        return max(1, self._pool.threads - self._first)

    def raise_if_stopping(self) -> None:
        """See Pool."""
        self._pool.raise_if_stopping()

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> list[Result]:
        """`[function(job) for job in jobs]`, computed beside the chains."""
        called = time.perf_counter()

        def run(job: tuple[Any] | None) -> tuple[Any, float, float]:
            began, result = time.perf_counter(), None
            if job is None:
                self._schedule.work()
            else:
                result = function(job[0])
            return result, began, time.perf_counter()

        of_chains: list[tuple[Any] | None] = [None] * self._pool.threads
        of_jobs: list[tuple[Any] | None] = [(job,) for job in jobs]
        # Workers take them in this order.
        ended = self._pool.map(run, of_chains[: self._first] + of_jobs + of_chains[self._first :])
        last = self._first + len(of_jobs)
        done = ended[self._first : last]
        if done:
            self.jobs_seconds = max(end for _, _, end in done) - min(began for _, began, _ in done)
        # The first that found no chain left: others may have come to look later.
        self.chains_seconds = min(end for _, _, end in ended[: self._first] + ended[last:]) - called
        return [result for result, _, _ in done]


class _Progress:
    """How far one chain is; guarded by the schedule's lock."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.step = 0
        self.steps_left = chain.steps
        self.to_begin = chain.shards  # of this step
        self.to_end = chain.shards


class _Schedule:
    """Hands shards to the threads of one `run_chains`."""

    def __init__(self, pool: Pool, chains: Sequence[Chain]) -> None:
        for chain in chains:
            if chain.shards < 1 or chain.steps < 0:
                raise ValueError(
                    f"a chain has {chain.steps} steps of {chain.shards} shards; "
                    "it needs at least 0 steps, each of at least 1 shard."
                )
        self._pool = pool
        self._changed = threading.Condition(threading.Lock())
        self._unfinished = [_Progress(chain) for chain in chains if chain.steps]

    def work(self) -> None:
        """Run shards until all chains have ended; called once in every worker."""
        try:
            ended: _Progress | None = None
            while (task := self._exchange(ended)) is not None:
                progress, index = task
                progress.chain.shard(progress.step, index)
                ended = progress
        except BaseException:
            self._pool.stop()
            with self._changed:
                self._changed.notify_all()
            raise

    def _exchange(self, ended: _Progress | None) -> tuple[_Progress, int] | None:
        """Report the shard that `ended`, if any, finish its step if it was the last; take the next shard."""
        with self._changed:
            if ended is not None:
                ended.to_end -= 1
                if ended.to_end == 0:
                    self._finish(ended)
            while True:
                if self._pool.stopping:
                    raise Stopped("the chains were stopped before their end")
                if not self._unfinished:
                    return None
                if (task := self._take()) is not None:
                    return task
                self._changed.wait(_LOOK_UP)

    def _take(self) -> tuple[_Progress, int] | None:
        """The next shard to begin; the lock is held."""
        behind: _Progress | None = None
        for progress in self._unfinished:
            if progress.to_begin and (behind is None or progress.steps_left > behind.steps_left):
                behind = progress
        if behind is None:
            return None
        index = behind.chain.shards - behind.to_begin
        behind.to_begin -= 1
        return behind, index

    def _finish(self, progress: _Progress) -> None:
        """Run `finish` outside the lock, which is held before and after, and offer the next step's shards."""
        chain = progress.chain
        self._changed.release()
        try:
            chain.finish(progress.step)
        finally:
            self._changed.acquire()
        progress.steps_left -= 1
        if progress.steps_left == 0:
            self._unfinished.remove(progress)
            if not self._unfinished:
                self._changed.notify_all()
            return
        progress.step += 1
        progress.to_begin = progress.to_end = chain.shards
        self._changed.notify(chain.shards - 1)  # this thread takes one shard itself
