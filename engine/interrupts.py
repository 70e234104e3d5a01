"""Ctrl-C and SIGTERM: the first asks a run to end well, a later one ends the process at once."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType, TracebackType
from typing import Any

# `timeout` and some terminals deliver one request twice; what follows within this many seconds is the same request.
SAME_REQUEST = 1.0


class Terminated(KeyboardInterrupt):
    """SIGTERM came. What handles an interrupt handles this too."""


class Interrupts:
    """Between `with Interrupts() as interrupts:` and its end, signals raise in the main thread.

    Owned by: the main thread. KeyboardInterrupt comes of SIGINT, Terminated of SIGTERM, once; a second request ends
    the process at once with the same status, leaving on disk what is there. `status` is 130 or 143 after a signal.
    """

    def __init__(self) -> None:
        self.status = 0
        self._first = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.status:
            if now - self._first > SAME_REQUEST:
                os._exit(128 + number)
            return
        self.status, self._first = 128 + number, now
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
