"""The batch server: everybody gets their own answers, every request ends, batches are what the limits say."""

import sys
import threading
import time

import numpy as np
import pytest

from threading_runtime.batching import BatchServer, Cancelled
from threading_runtime.pool import Pool, Stopped


def doubled(rows):
    return rows.astype(np.float32) * 2


def tripled(rows):
    return rows.astype(np.float32) * 3


def server(evaluate=(doubled, tripled), clients=4, *, limit=64, wait_seconds=0.001, queue=64, **more):
    return BatchServer(list(evaluate), clients, limit=limit, wait_seconds=wait_seconds, queue=queue, **more)


class Gate:
    """An evaluation that waits to be let through, and says when it was begun."""

    def __init__(self):
        self.begun, self.open = threading.Event(), threading.Event()

    def __call__(self, rows):
        self.begun.set()
        assert self.open.wait(30)
        return doubled(rows)


def asking(*calls):
    """Threads that make these calls; joined, what each returned or raised."""
    results = [None] * len(calls)

    def run(number, call):
        try:
            results[number] = call()
        except BaseException as failure:
            results[number] = failure

    threads = [threading.Thread(target=run, args=item) for item in enumerate(calls)]
    for thread in threads:
        thread.start()

    def join():
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        return results

    return join


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("queue", [1, 2, 64])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_everybody_gets_their_own_answers(threads, queue):
    batches = []
    with server(clients=threads, limit=16, queue=queue, on_batch=batches.append) as served, Pool(threads) as pool:

        def work(seed):
            random = np.random.default_rng(seed)
            for _ in range(50):
                group = int(random.integers(2))
                rows = random.integers(0, 255, (int(random.integers(1, 9)), 3), np.uint8)
                assert np.array_equal(served.ask(group, rows), (doubled, tripled)[group](rows))
            return True

        assert pool.map(work, range(threads * 2)) == [True] * (threads * 2)
    assert max(batches) <= 16
    if threads == 1:
        assert len(batches) == 100


def test_batches_are_over_all_clients():
    batches, gate = [], Gate()
    with server([gate], 5, on_batch=batches.append, wait_seconds=10) as served:
        first = asking(*[lambda n=n: served.ask(0, np.full((2, 1), n, np.uint8)) for n in range(5)])
        assert gate.begun.wait(30), "all clients wait: nobody waits for the time limit"
        gate.open.set()
        assert [result[0, 0] for result in first()] == [0, 2, 4, 6, 8]
    assert batches == [10]


def test_an_incomplete_batch_waits_no_longer_than_its_limit():
    with server(clients=2, wait_seconds=0.05) as served:
        assert served.ask(0, np.ones((1, 1), np.uint8)).tolist() == [[2.0]]


def test_a_request_larger_than_the_limit_is_a_batch_of_its_own():
    batches = []
    with server(limit=4, on_batch=batches.append, clients=1) as served:
        served.ask(0, np.ones((9, 1), np.uint8))
    assert batches == [9]


def test_what_an_evaluation_raises_is_raised_by_who_asked():
    def broken(rows):
        raise ZeroDivisionError("no")

    with server([broken, doubled], 1) as served:
        with pytest.raises(ZeroDivisionError):
            served.ask(0, np.ones((1, 1), np.uint8))
        assert served.ask(1, np.ones((1, 1), np.uint8)).tolist() == [[2.0]], "and the server goes on"


def test_what_waits_when_it_closes_is_cancelled_and_what_is_evaluated_is_answered():
    gate = Gate()
    served = server([gate], 1, limit=1).__enter__()
    first = asking(lambda: served.ask(0, np.ones((1, 1), np.uint8)))
    assert gate.begun.wait(30)
    others = asking(*[lambda: served.ask(0, np.ones((1, 1), np.uint8))] * 3)
    until(lambda: len(served._pending) == 3)
    close = asking(served.close)
    assert all(isinstance(result, Cancelled) for result in others())
    gate.open.set()
    close()
    assert first()[0].tolist() == [[2.0]]
    with pytest.raises(Cancelled):
        served.ask(0, np.ones((1, 1), np.uint8))


@pytest.mark.thread_unsafe(reason="replaces threading.excepthook")
def test_a_thread_that_cannot_begin_cancels_what_waits():
    def broken():
        raise OSError("no core left")

    hooked = []
    before, threading.excepthook = threading.excepthook, hooked.append
    try:
        with server(clients=1, initialise=broken) as served, pytest.raises(Cancelled) as caught:
            served.ask(0, np.ones((1, 1), np.uint8))
            served.ask(0, np.ones((1, 1), np.uint8))
    finally:
        threading.excepthook = before
    assert len(hooked) == 1 and (caught.value.__cause__ is None or isinstance(caught.value.__cause__, OSError))


def test_a_run_that_stops_withdraws_its_requests():
    gate = Gate()
    with server([gate], 9, limit=1, wait_seconds=0) as served:
        first = asking(lambda: served.ask(0, np.ones((1, 1), np.uint8)))
        assert gate.begun.wait(30)

        def stop():
            raise Stopped("now")

        waiting = asking(lambda: served.ask(0, np.ones((1, 1), np.uint8), stop))
        assert isinstance(waiting()[0], Stopped)
        assert served._pending == []
        in_flight = asking(lambda: served.ask(0, np.ones((1, 1), np.uint8)))
        gate.open.set()
        first(), in_flight()


def test_whoever_stops_while_its_rows_are_read_waits_for_that():
    gate = Gate()
    with server([gate], 1) as served:

        def stop():
            raise Stopped("now")

        waiting = asking(lambda: served.ask(0, np.ones((1, 1), np.uint8), stop))
        assert gate.begun.wait(30)
        time.sleep(0.3)  # three times as long as between two checks
        opened = time.monotonic()
        gate.open.set()
        assert isinstance(waiting()[0], Stopped)
        assert time.monotonic() >= opened


def test_a_new_version_begins_between_requests_only():
    gate = Gate()
    with server([gate], 1) as served:
        served.next_version()
        first = asking(lambda: served.ask(0, np.ones((1, 1), np.uint8)))
        assert gate.begun.wait(30)
        with pytest.raises(RuntimeError, match="pending"):
            served.next_version()
        gate.open.set()
        first()
        served.next_version()
    assert served.version == 2


@pytest.mark.parametrize("wrong", [{"clients": 0}, {"limit": 0}, {"queue": 0}, {"wait_seconds": -1.0}])
def test_what_cannot_work_is_refused(wrong):
    with pytest.raises(ValueError, match="at least"):
        server(**wrong)


@pytest.mark.thread_unsafe(reason="sets the interpreter's switch interval")
def test_many_clients_that_switch_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with server(clients=6, limit=8, queue=3, wait_seconds=0) as served, Pool(6) as pool:

            def work(seed):
                for number in range(200):
                    rows = np.full((1 + number % 3, 2), seed, np.uint8)
                    assert (served.ask(number % 2, rows) == seed * (2 + number % 2)).all()

            pool.map(work, range(6))
    finally:
        sys.setswitchinterval(interval)
