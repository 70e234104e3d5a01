"""FairLock: exclusion, order of arrival, and no way to hang it."""

import random
import signal
import threading
import time
from itertools import groupby

import pytest

from threading_runtime.fair_lock import FairLock

THREADS = [1, 2, 3, 8]


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.0005)


class Crew:
    """Threads whose failures are raised where they are joined."""

    def __init__(self):
        self.threads, self.failures = [], []

    def start(self, function, *arguments):
        def work():
            try:
                function(*arguments)
            except BaseException as failure:
                self.failures.append(failure)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self.threads.append(thread)

    def join(self):
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), "a thread hangs"
        if self.failures:
            raise self.failures[0]


@pytest.fixture
def crew():
    crew = Crew()
    yield crew
    crew.join()


def usable(lock):
    """Whether another thread can write and read now."""
    done = []

    def use():
        lock.acquire_write()
        lock.release_write()
        lock.acquire_read()
        lock.release_read()
        done.append(True)

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(5)
    return bool(done)


@pytest.mark.parametrize("count", THREADS)
def test_readers_overlap(crew, count):
    lock, together = FairLock(), threading.Barrier(count)

    def read():
        for _ in range(20):
            lock.acquire_read()
            together.wait(60)  # passes only when all read at the same time
            lock.release_read()

    for _ in range(count):
        crew.start(read)
    crew.join()
    assert usable(lock)


@pytest.mark.parametrize("writers", [1, 2, 3])
@pytest.mark.parametrize("readers", THREADS)
def test_no_reader_sees_half_a_write(crew, readers, writers):
    lock = FairLock()
    pair = [0, 0]

    def pause():  # the marked point between the halves
        time.sleep(random.choice([0, 0, 0.0002]))

    def read():
        for _ in range(100):
            lock.acquire_read()
            first = pair[0]
            pause()
            assert first == pair[1]
            lock.release_read()

    def write():
        for _ in range(40):
            lock.acquire_write()
            pair[0] += 1
            pause()
            pair[1] += 1
            lock.release_write()

    for _ in range(readers):
        crew.start(read)
    for _ in range(writers):
        crew.start(write)
    crew.join()
    assert pair == [40 * writers] * 2


@pytest.mark.parametrize("seed", range(20))
def test_callers_are_served_in_the_order_in_which_they_came(crew, seed):
    """Behind a writer a random queue forms: readers next to each other go in together, nobody overtakes."""
    kinds = random.Random(seed).choices("rrw", k=8)
    groups = [(kind, len(list(group))) for kind, group in groupby(kinds)]
    lock, served = FairLock(), []

    def read(number, together):
        lock.acquire_read()
        served.append(number)
        together.wait(60)
        lock.release_read()

    def write(number):
        lock.acquire_write()
        served.append(number)
        time.sleep(0.001)
        lock.release_write()

    lock.acquire_write()
    number = 0
    for kind, size in groups:
        together = threading.Barrier(size)
        for _ in range(size):
            crew.start(*((read, number, together) if kind == "r" else (write, number)))
            number += 1
            wait_until(lambda: len(lock._queue) == number)  # noqa: B023
    lock.release_write()
    crew.join()
    first = 0
    for kind, size in groups:
        part = served[first : first + size]
        assert (sorted(part) if kind == "r" else part) == list(range(first, first + size))
        first += size
    assert usable(lock)


def test_a_waiting_writer_lets_no_new_reader_in(crew):
    lock, served = FairLock(), []

    def write():
        lock.acquire_write()
        served.append("writer")
        lock.release_write()

    def read():
        lock.acquire_read()
        served.append("reader")
        lock.release_read()

    lock.acquire_read()
    crew.start(write)
    wait_until(lambda: lock._barred)
    crew.start(read)
    wait_until(lambda: lock._queue)
    assert not served
    lock.release_read()
    crew.join()
    assert served == ["writer", "reader"]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_stream_of_readers_does_not_starve_a_writer(crew, count):
    lock, over = FairLock(), []

    def read():
        while not over:
            lock.acquire_read()
            time.sleep(0.0002)
            lock.release_read()

    for _ in range(count):
        crew.start(read)
    for _ in range(30):
        lock.acquire_write()
        lock.release_write()
    over.append(True)


def test_a_stream_of_writers_does_not_starve_a_reader(crew):
    lock, over = FairLock(), []

    def write():
        while not over:
            lock.acquire_write()
            time.sleep(0.0002)
            lock.release_write()

    for _ in range(3):
        crew.start(write)
    for _ in range(30):
        lock.acquire_read()
        lock.release_read()
    over.append(True)


@pytest.mark.parametrize("held", ["read", "write"])
@pytest.mark.parametrize("wanted", ["read", "write"])
def test_what_would_deadlock_is_refused(held, wanted):
    lock = FairLock()
    getattr(lock, f"acquire_{held}")()
    with pytest.raises(RuntimeError, match="already"):
        getattr(lock, f"acquire_{wanted}")()
    other = {"read": "write", "write": "read"}[held]
    with pytest.raises(RuntimeError, match="not"):
        getattr(lock, f"release_{other}")()
    getattr(lock, f"release_{held}")()
    with pytest.raises(RuntimeError, match="not"):
        getattr(lock, f"release_{held}")()
    assert usable(lock)


def test_a_thread_that_comes_during_a_write_waits(crew):
    lock, seen = FairLock(), []

    def read():
        lock.acquire_read()
        seen.append(True)
        lock.release_read()

    lock.acquire_write()
    crew.start(read)
    wait_until(lambda: lock._queue)
    assert not seen
    lock.release_write()
    crew.join()
    assert seen


@pytest.mark.thread_unsafe(reason="counts threads that ended, of which others of the same crew are not yet joined")
def test_threads_that_ended_are_forgotten(crew):
    lock = FairLock()

    def read():
        lock.acquire_read()
        lock.release_read()

    for _ in range(50):
        crew.start(read)
        crew.join()
    assert len(lock._slots) <= 2
    assert usable(lock)


@pytest.mark.thread_unsafe(reason="signals, which only the main thread is given")
@pytest.mark.parametrize(("held", "wanted"), [("read", "write"), ("write", "read"), ("write", "write")])
def test_an_interrupted_waiter_gives_up_its_place(crew, held, wanted):
    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    lock, held_now, release = FairLock(), threading.Event(), threading.Event()

    def hold():
        getattr(lock, f"acquire_{held}")()
        held_now.set()
        release.wait(60)
        getattr(lock, f"release_{held}")()

    crew.start(hold)
    held_now.wait(60)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupted):
            getattr(lock, f"acquire_{wanted}")()
    finally:
        signal.signal(signal.SIGALRM, before)
    if held == "read":
        lock.acquire_read()  # the writer that gave up bars nobody
        lock.release_read()
    release.set()
    crew.join()
    assert not lock._queue and usable(lock)
