"""Threads that run one at a time and hand over at marked points, in an order that a test chooses."""

import threading
import types
from collections.abc import Callable

_REAL = threading.Lock, threading.Thread, threading.Condition
LONGEST = 60.0


class Deadlock(AssertionError):
    """Nobody can go on, and not everybody has ended."""


class _Ended(BaseException):
    """Unwinds an actor whose schedule was given up."""


class Actor:
    """A thread of a schedule."""

    def __init__(self, schedule: "Schedule", number: int, function: Callable[[int], None]) -> None:
        self.number, self._schedule, self._function = number, schedule, function
        self.waits_for: MarkedLock | None = None
        self.over, self.failure = False, None
        self.turn = _REAL[0]()
        self.turn.acquire()
        self.thread = _REAL[1](target=self._live, daemon=True)

    def _live(self) -> None:
        self._schedule.local.actor = self
        self.turn.acquire()
        try:
            self._schedule.go_on(self)
            self._function(self.number)
        except BaseException as failure:
            self.failure = failure
        self.over = True
        self._schedule.back.release()

    def is_alive(self) -> bool:
        """As the schedule knows it: when the system ends the thread is nobody's choice."""
        return not self.over


class Schedule:
    """Runs actors one at a time; `choose(n)` says which of n that can go on does, at each marked point."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        self.local = threading.local()
        self.back = _REAL[0]()
        self.back.acquire()
        self.given_up = False
        self.steps = 0
        self._choose = choose
        self._actors: list[Actor] = []

    def run(self, functions: list[Callable[[int], None]]) -> None:
        """Every function with its number, from first to last; Deadlock, or what one of them raised."""
        self._actors = [Actor(self, number, function) for number, function in enumerate(functions)]
        for actor in self._actors:
            actor.thread.start()
        try:
            while waiting := [actor for actor in self._actors if not actor.over]:
                able = [actor for actor in waiting if actor.waits_for is None or not actor.waits_for.held]
                if not able:
                    raise Deadlock(f"actors {[actor.number for actor in waiting]} wait for ever")
                self.steps += 1
                self._give_turn(able[self._choose(len(able))])
                for actor in self._actors:
                    if actor.failure is not None:
                        raise actor.failure
        finally:
            self.given_up = True
            for actor in self._actors:
                if not actor.over:
                    self._give_turn(actor)

    def _give_turn(self, actor: Actor) -> None:
        actor.turn.release()
        assert self.back.acquire(timeout=LONGEST), "an actor waits for something that the schedule does not know"

    def go_on(self, actor: Actor) -> None:
        if self.given_up:
            raise _Ended

    def mark(self, waits_for: "MarkedLock | None" = None) -> None:
        """A marked point: whoever else can may go first. With a lock, goes on only when that is free."""
        actor = getattr(self.local, "actor", None)
        if actor is None:  # the test itself, before or after
            return
        actor.waits_for = waits_for
        self.back.release()
        actor.turn.acquire()
        actor.waits_for = None
        self.go_on(actor)

    def threading(self) -> types.SimpleNamespace:
        """Stands in for the module `threading` in what is tested."""
        return types.SimpleNamespace(
            Lock=lambda: MarkedLock(self), local=threading.local, current_thread=lambda: self.local.actor
        )


class MarkedLock:
    """A lock whose every use is a marked point."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self.held = schedule, False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._schedule.mark(self if blocking else None)
        if self.held:
            assert not blocking
            return False
        self.held = True
        return True

    def release(self) -> None:
        self._schedule.mark()
        assert self.held
        self.held = False

    def __enter__(self) -> "MarkedLock":
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
