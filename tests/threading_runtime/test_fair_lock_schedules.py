"""FairLock in every kind of interleaving: at each use of a lock inside it, hypothesis says who goes on."""

import random
from collections import Counter, deque
from contextlib import contextmanager

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.threading_runtime.schedules import Deadlock, Schedule
from threading_runtime import fair_lock

pytestmark = [
    pytest.mark.one_build,
    pytest.mark.thread_unsafe(reason="replaces `threading` in the module of the lock"),
]

ACQUIRE = {"r": "acquire_read", "w": "acquire_write"}
RELEASE = {"r": "release_read", "w": "release_write"}

# What each thread does, one letter an acquisition: it reads or writes.
ROLES = st.lists(st.text("rw", min_size=1, max_size=3), min_size=1, max_size=5)


SEEDS = st.integers(0, 1 << 32)


@contextmanager
def lock_of(schedule, lock_type=fair_lock.FairLock):
    """A lock whose every use of `threading` is a marked point of the schedule."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fair_lock, "threading", schedule.threading())
        yield lock_type()


def played(choose, roles, lock_type=fair_lock.FairLock):
    """One schedule of threads that acquire and release, from first to last."""
    schedule = Schedule(choose)
    reading, writing, entered = set(), set(), []

    def use(number):
        for kind in roles[number]:
            getattr(lock, ACQUIRE[kind])()
            entered.append((number, kind))
            inside = reading if kind == "r" else writing
            inside.add(number)
            assert len(writing) <= 1 and not (writing and reading), "a writer is not alone"
            schedule.mark()  # others run while it is inside
            inside.remove(number)
            getattr(lock, RELEASE[kind])()

    with lock_of(schedule, lock_type) as lock:
        schedule.run([use] * len(roles))
        assert not lock._queue and not lock._barred and not lock._excluded
    assert sorted(entered) == sorted((number, kind) for number, kinds in enumerate(roles) for kind in kinds)


def drawn(data):
    return lambda n: data.draw(st.integers(0, n - 1)) if n > 1 else 0


@settings(max_examples=150, deadline=None)
@given(ROLES, st.data())
def test_every_interleaving_ends_and_writers_are_alone(roles, data):
    played(drawn(data), roles)


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 5), SEEDS)
def test_readers_overlap_whoever_comes_first(readers, seed):
    """Inside, each stays until all are there."""
    schedule = Schedule(random.Random(seed).randrange)
    inside = set()

    def read(number):
        lock.acquire_read()
        inside.add(number)
        while len(inside) < readers:
            assert schedule.steps < 10_000, "readers do not overlap"
            schedule.mark()
        lock.release_read()

    with lock_of(schedule) as lock:
        schedule.run([read] * readers)


class Line(deque):
    """The lock's queue; counts, for each that stands in it, how often each other thread went in since."""

    def __init__(self):
        super().__init__()
        self._passed, self.worst = {}, 0

    def append(self, waiter):
        super().append(waiter)
        self._passed[id(waiter)] = Counter()

    def popleft(self):
        waiter = super().popleft()
        del self._passed[id(waiter)]
        return waiter

    def went_in(self, number):
        for passed in self._passed.values():
            passed[number] += 1
            self.worst = max(self.worst, passed[number])


def overtaken(readers, writers, seed, lock_type=fair_lock.FairLock):
    """How often a thread in line was passed by any one other, where all come again and again."""
    schedule = Schedule(random.Random(seed).randrange)

    def use(number):
        kind = "r" if number < readers else "w"
        for _ in range(4):
            getattr(lock, ACQUIRE[kind])()
            lock._queue.went_in(number)
            schedule.mark()
            getattr(lock, RELEASE[kind])()

    with lock_of(schedule, lock_type) as lock:
        lock._queue = line = Line()
        schedule.run([use] * (readers + writers))
    return line.worst


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 3), st.integers(1, 3), SEEDS)
def test_nobody_starves(readers, writers, seed):
    """Whoever stood in line before goes first, and when it comes again stands behind."""
    assert overtaken(readers, writers, seed) <= 1


class LastFirst(fair_lock.FairLock):
    """Whoever came last goes first."""

    def _pass_on(self):
        self._queue.reverse()
        super()._pass_on()


class Forgetful(fair_lock.FairLock):
    """A writer that leaves wakes nobody."""

    def _pass_on(self):
        with self._mutex:
            while self._excluded:
                self._excluded.pop().lock.release()
            self._barred = False


class Careless(fair_lock.FairLock):
    """A writer does not wait for the readers that are inside."""

    @staticmethod
    def _exclude(slot):
        return slot.lock.acquire(False)


@pytest.mark.parametrize("lock_type, found", [(Forgetful, Deadlock), (Careless, AssertionError)])
def test_a_lock_that_is_broken_is_found(lock_type, found):
    @settings(max_examples=500, deadline=None, database=None, report_multiple_bugs=False, phases=[Phase.generate])
    @given(ROLES, st.data())
    def search(roles, data):
        played(drawn(data), roles, lock_type)

    with pytest.raises(found):
        search()


def test_a_lock_that_is_unfair_is_found():
    assert max(overtaken(1, 3, seed, LastFirst) for seed in range(50)) > 1
