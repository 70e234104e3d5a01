"""A reader/writer lock that serves its callers in the order in which they came."""

from __future__ import annotations

import threading
from collections import deque

# Whoever waits looks up this often, in seconds, whether the thread that it waits for still lives.
_LOOK_UP = 0.5


class Abandoned(RuntimeError):
    """A thread ended while it wrote: what it wrote may be half done, and nobody will ever release the lock."""


class _Slot:
    """What the lock knows of one thread.

    `lock` is held while the thread reads and while a writer keeps it from reading. A reader writes to nothing
    but its own slot, so that readers on different cores do not wait for one another.
    """

    __slots__ = ("holds", "lock", "thread")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holds = ""  # "reading" or "writing"; written by its own thread only
        self.thread = threading.current_thread()


class _Waiter:
    """One place in the queue; `gate` opens when its turn comes. A writer has no slot here."""

    __slots__ = ("gate", "slot")

    def __init__(self, slot: _Slot | None) -> None:
        self.slot = slot
        self.gate = threading.Lock()
        self.gate.acquire()


class FairLock:
    """Many readers or one writer.

    Owned by: whoever made it.
    Safe to call from: any thread; what a thread acquired it releases itself.
    Guarantees: while a thread writes no other reads or writes. Readers do not wait for each other. Once a
        writer waits, readers that come later wait behind it, and readers that came before another writer go
        before it, so that neither side starves. Acquiring what would deadlock, because the thread already
        reads or writes, raises RuntimeError. A thread that is interrupted while it waits gives up its place.
        Where a thread ended while it wrote, whoever waits or comes later gets Abandoned; one that ended while it
        read keeps nobody waiting.
    Does not guarantee: that an exception which a signal handler raises at the very moment of acquisition, in
        the main thread, leaves the lock free.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()  # guards the next three; _barred is also read without it
        self._slots: list[_Slot] = []
        self._queue: deque[_Waiter] = deque()
        self._barred = False  # a writer writes, or its turn has come and it waits for readers to leave
        self._writer: _Slot | None = None  # of who writes
        self._excluded: list[_Slot] = []  # whose locks the writer holds; belongs to the writer
        self._local = threading.local()

    @property
    def held(self) -> str:
        """What the calling thread does: "reading", "writing" or ""."""
        slot: _Slot | None = getattr(self._local, "slot", None)
        return "" if slot is None else slot.holds

    def acquire_read(self) -> None:
        """Wait until no writer writes or waits, then read."""
        slot = self._own_slot()
        if slot.holds:
            raise RuntimeError(f"this thread is already {slot.holds}; it cannot begin to read.")
        # A writer bars before it takes the slots. So either it finds this one taken and waits for its
        # release, or this thread sees the bar.
        if slot.lock.acquire(False):
            if not self._barred:
                slot.holds = "reading"
                return
            slot.lock.release()
        with self._mutex:
            waiter = None
            if self._barred:
                waiter = _Waiter(slot)
                self._queue.append(waiter)
            else:
                slot.lock.acquire()  # free: only a writer could hold it, and there is none
        if waiter is not None:
            self._wait_for_turn(waiter)
        slot.holds = "reading"

    def release_read(self) -> None:
        """End what `acquire_read` of the same thread began."""
        slot = self._own_slot()
        if slot.holds != "reading":
            raise RuntimeError("this thread is not reading.")
        slot.holds = ""
        slot.lock.release()

    def acquire_write(self) -> None:
        """Wait for everyone who came before, then write alone."""
        slot = self._own_slot()
        if slot.holds:
            raise RuntimeError(f"this thread is already {slot.holds}; it cannot begin to write.")
        with self._mutex:
            waiter = None
            if self._barred:
                waiter = _Waiter(None)
                self._queue.append(waiter)
            else:
                self._barred = True
        if waiter is not None:
            self._wait_for_turn(waiter)
        with self._mutex:
            slots = self._slots  # a thread that comes later finds the bar
        try:
            for each in slots:
                if self._exclude(each):
                    self._excluded.append(each)
        except BaseException:
            self._pass_on()
            raise
        slot.holds = "writing"
        self._writer = slot

    def release_write(self) -> None:
        """End what `acquire_write` of the same thread began."""
        slot = self._own_slot()
        if slot.holds != "writing":
            raise RuntimeError("this thread is not writing.")
        slot.holds = ""
        self._writer = None
        self._pass_on()

    @staticmethod
    def _exclude(slot: _Slot) -> bool:
        """Wait until the slot's thread does not read, and keep it from reading; False where it ended as it read."""
        while not slot.lock.acquire(timeout=_LOOK_UP):
            if not slot.thread.is_alive():
                return False
        return True

    def _own_slot(self) -> _Slot:
        slot: _Slot | None = getattr(self._local, "slot", None)
        if slot is None:
            slot = _Slot()
            with self._mutex:
                # A new list, because a writer may be walking through the old one.
                self._slots = [each for each in self._slots if each.thread.is_alive()] + [slot]
            self._local.slot = slot
        return slot

    def _wait_for_turn(self, waiter: _Waiter) -> None:
        try:
            while not waiter.gate.acquire(timeout=_LOOK_UP):
                writer = self._writer
                if writer is not None and not writer.thread.is_alive():
                    raise Abandoned(f"thread {writer.thread.name} ended while it was writing.")
        except BaseException:
            with self._mutex:
                queued = waiter in self._queue
                if queued:
                    self._queue.remove(waiter)
            if not queued:  # the turn came at the same moment
                if waiter.slot is not None:
                    waiter.slot.lock.release()
                else:
                    self._pass_on()
            raise

    def _pass_on(self) -> None:
        """The writer leaves: let in the readers at the head of the queue; the writer behind them is next."""
        with self._mutex:
            while self._excluded:
                self._excluded.pop().lock.release()
            while self._queue and (slot := self._queue[0].slot) is not None:
                slot.lock.acquire()  # for its thread, which waits at the gate
                self._queue.popleft().gate.release()
            if self._queue:
                self._queue.popleft().gate.release()
            else:
                self._barred = False
