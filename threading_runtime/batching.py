"""Option A: one thread that evaluates the rows of many threads, in batches over all of them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

Evaluate = Callable[[np.ndarray], np.ndarray]  # rows (n, width) to outputs (n, outputs a row)

# Whoever waits looks up this often, in seconds, whether its run was stopped.
_LOOK_UP = 0.1


class Cancelled(RuntimeError):
    """The server was closed before it answered."""


class _Request:
    def __init__(self, group: int, rows: np.ndarray, version: int) -> None:
        self.group, self.rows, self.version = group, rows, version
        self.outputs: np.ndarray | None = None
        self.failure: BaseException | None = None
        self.done = threading.Lock()  # released once outputs or failure are there
        self.done.acquire()


class BatchServer:
    """A thread that answers requests in batches, from `with BatchServer(...) as server:` to the end of that block.

    Owned by: the thread that entered it, which alone calls `next_version`.
    Safe to call from: `ask` from any thread but the server's own.
    Guarantees: every request ends: with answers of the version in force when it was made, with what its evaluation
        raised, or with Cancelled. At most `queue` requests wait; whoever comes then waits for room. A batch is of one
        group and version and has at most `limit` rows, unless a single request has more. Nobody reads a request's rows
        once `ask` has returned or raised.
    Does not guarantee: which requests share a batch.
    """

    def __init__(
        self,
        evaluate: Sequence[Evaluate],
        clients: int,
        *,
        limit: int,
        wait_seconds: float,
        queue: int,
        on_batch: Callable[[int], object] = lambda rows: None,
        initialise: Callable[[], object] = lambda: None,
    ) -> None:
        """evaluate: by group. clients: how many threads ask; once all of them wait there is nothing to wait for.

        wait_seconds: how long an incomplete batch waits for more rows. on_batch: told the rows of each batch, by the
        server's thread, which calls `initialise` first.
        """
        if min(clients, limit, queue) < 1 or wait_seconds < 0:
            raise ValueError(
                f"clients is {clients}, limit {limit}, queue {queue}, wait_seconds {wait_seconds}; the first three "
                "have to be at least 1 and the last 0."
            )
        self.version = 0
        self.waits: list[float] = []  # seconds from each request to its answer
        self._evaluate, self._clients, self._limit, self._queue = evaluate, clients, limit, queue
        self._wait_seconds, self._on_batch, self._initialise = wait_seconds, on_batch, initialise
        self._changed = threading.Condition()  # guards the next three and `version`
        self._pending: list[_Request] = []
        self._in_flight = 0
        self._closed = False
        self._thread = threading.Thread(target=self._live, name="batch-server")

    def __enter__(self) -> BatchServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what waits, let the batch in progress end, end the thread. May be repeated."""
        self._cancel(None)
        if self._thread.is_alive():
            self._thread.join()

    def next_version(self) -> None:
        """Say that evaluations change from here on. RuntimeError while a request is pending."""
        with self._changed:
            if self._pending or self._in_flight:
                raise RuntimeError("requests are pending; publish between runs.")
            self.version += 1

    def ask(self, group: int, rows: np.ndarray, check: Callable[[], object] = lambda: None) -> np.ndarray:
        """The outputs of a group's evaluation for these rows, which must not change meanwhile.

        `check` is called now and then while it waits and may raise, which withdraws the request.
        """
        started = time.perf_counter()
        with self._changed:
            while len(self._pending) >= self._queue and not self._closed:
                self._changed.wait(_LOOK_UP)
                check()
            if self._closed:
                raise Cancelled("the batch server is closed.")
            request = _Request(group, rows, self.version)
            self._pending.append(request)
            self._changed.notify_all()
        try:
            while not request.done.acquire(timeout=_LOOK_UP):
                check()
        except BaseException:
            self._withdraw(request)
            raise
        if request.failure is not None:
            raise request.failure
        assert request.outputs is not None
        self.waits.append(time.perf_counter() - started)
        return request.outputs

    def _withdraw(self, request: _Request) -> None:
        with self._changed:
            if request in self._pending:
                self._pending.remove(request)
                self._changed.notify_all()
                return
        request.done.acquire()  # its rows are being read

    def _live(self) -> None:
        try:
            self._initialise()
            while batch := self._take():
                self._answer(batch)
        except BaseException as failure:  # whoever waits hears of it before the thread ends
            self._cancel(failure)
            raise

    def _take(self) -> list[_Request]:
        """The next batch, [] when closed."""
        with self._changed:
            while not self._closed:
                self._changed.wait_for(lambda: self._pending or self._closed)
                self._changed.wait_for(lambda: self._closed or self._complete(), self._wait_seconds)
                if self._pending:  # not all of them withdrawn meanwhile
                    break
            if self._closed:
                return []
            chosen, _ = self._largest()
            batch: list[_Request] = []
            for request in self._pending:
                if (request.group, request.version) == chosen and (
                    not batch or sum(len(each.rows) for each in [*batch, request]) <= self._limit
                ):
                    batch.append(request)
            self._pending = [request for request in self._pending if request not in batch]
            self._in_flight = len(batch)
            self._changed.notify_all()
            return batch

    def _complete(self) -> bool:
        """Whether waiting could bring nothing: every client waits already, or a batch is full."""
        return bool(self._pending) and (len(self._pending) >= self._clients or self._largest()[1] >= self._limit)

    def _largest(self) -> tuple[tuple[int, int], int]:
        """The group and version of which most rows wait, the oldest of several, and how many."""
        rows: Counter[tuple[int, int]] = Counter()
        for request in self._pending:
            rows[request.group, request.version] += len(request.rows)
        return max(rows.items(), key=lambda item: item[1])

    def _answer(self, batch: list[_Request]) -> None:
        try:
            rows = batch[0].rows if len(batch) == 1 else np.concatenate([request.rows for request in batch])
            outputs = self._evaluate[batch[0].group](rows)
            self._on_batch(len(rows))
            start = 0
            for request in batch:
                request.outputs = outputs[start : start + len(request.rows)]
                start += len(request.rows)
        except BaseException as failure:  # whatever it is, those who wait for it get it
            for request in batch:
                request.failure = failure
        finally:
            with self._changed:
                self._in_flight = 0
            for request in batch:
                request.done.release()

    def _cancel(self, cause: BaseException | None) -> None:
        """Close, and end every request that waits."""
        with self._changed:
            self._closed = True
            pending, self._pending = self._pending, []
            self._changed.notify_all()
        for request in pending:
            request.failure = Cancelled("the batch server was closed before it answered.")
            request.failure.__cause__ = cause
            request.done.release()
