"""Runs in one process that go on one at a time, so that a noisy machine is fair to all that are compared."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from engine.trainer import Trainer

Watch = Callable[[dict[str, Any]], object]


def take_turns(runs: Mapping[str, Callable[[Watch], Trainer]], turn: int = 1) -> dict[str, list[float]]:
    """Seconds of each turn of each run: `turn` iterations and what they left to be written, evaluation not counted.

    runs: name -> what makes the trainer, given the `on_iteration` to make it with; all of equally many iterations.
    """
    return _Turns(runs, turn).seconds()


class _Turns:
    def __init__(self, runs: Mapping[str, Callable[[Watch], Trainer]], turn: int) -> None:
        self._runs, self._turn = runs, turn
        self._changed = threading.Condition()  # guards the next two
        self._current = 0
        self._failure: BaseException | None = None
        self._seconds: dict[str, list[float]] = {name: [] for name in runs}

    def seconds(self) -> dict[str, list[float]]:
        threads = [threading.Thread(target=self._live, args=each, name=each[1]) for each in enumerate(self._runs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        return self._seconds

    def _live(self, number: int, name: str) -> None:
        try:
            self._wait(number)
            began, evaluating = time.perf_counter(), 0.0

            def look(metrics: dict[str, Any]) -> None:
                nonlocal began, evaluating
                evaluating += metrics["evaluate_seconds"]
                if metrics["iteration"] % self._turn == 0:
                    trainer.wait_for_checkpoint()
                    self._seconds[name].append(time.perf_counter() - began - evaluating)
                    self._pass_on()
                    self._wait(number)
                    began, evaluating = time.perf_counter(), 0.0

            trainer = self._runs[name](look)
            began = time.perf_counter()
            trainer.run()
            self._pass_on()
        except BaseException as failure:
            with self._changed:
                self._failure = self._failure or failure
                self._changed.notify_all()

    def _wait(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._current == number or self._failure is not None)
            if self._failure is not None:
                raise RuntimeError("another run failed") from self._failure

    def _pass_on(self) -> None:
        with self._changed:
            self._current = (self._current + 1) % len(self._runs)
            self._changed.notify_all()
