"""Checkpoints written beside what the run does, and what becomes of a run that cannot write."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from engine.checkpoint import CheckpointStore
from engine.errors import BadInput, CheckpointError, RunError
from engine.metrics import MetricsLog


class Saver:
    """Puts a run's iterations on disk while the run goes on: metrics at once, checkpoints by a thread of their own.

    Owned by: the trainer's thread.
    Guarantees: at most one checkpoint is being written, and the next waits for it, so that no more than one completed
        iteration that was to be saved is not on disk. What cannot be written is told, kept, and tried again with the
        next; `end` raises where it could not be written at last.
    """

    def __init__(
        self, store: CheckpointStore, log: MetricsLog | None, *, notify: Callable[[str], None] | None = None
    ) -> None:
        """notify: told of each attempt that failed."""
        self._store, self._log = store, log
        self._notify = notify or (lambda text: print(f"freecfr: {text}", file=sys.stderr, flush=True))
        self._thread: threading.Thread | None = None
        self._in_a_hurry = False
        self._failure: BaseException | None = None  # of the thread, other than a disk's

    def append(self, metrics: Mapping[str, Any]) -> None:
        """One iteration's line of metrics."""
        if self._log is None:
            return
        try:
            self._log.append(metrics)
        except RunError as error:
            self._notify(f"{error} The run goes on and tries again after its next iteration.")

    def begin(self) -> None:
        """Begin to write the last completed iteration."""
        self.wait()
        save = self._store.prepared(lambda: self._in_a_hurry)
        if save is not None:
            self._thread = threading.Thread(target=self._run, args=(save,), name="checkpoint")
            self._thread.start()

    def end(self, *, failed: bool = False) -> None:
        """See that the last completed iteration is on disk, with its metrics; CheckpointError or RunError otherwise.

        failed: the run ended by an exception, which is to be heard of first; what cannot be written is told only.
        """
        self._in_a_hurry = True
        self.wait()
        problems: list[BadInput] = []
        for write in (self._store.prepared(lambda: True), self._log.flush if self._log is not None else None):
            try:
                if write is not None:
                    write()
            except BadInput as problem:
                problems.append(problem)
        if problems and not failed:
            raise problems[0]
        for told in problems:
            self._notify(str(told))

    def _run(self, save: Callable[[], object]) -> None:
        try:
            save()
        except CheckpointError as error:
            self._notify(f"{error} The run goes on and tries again with its next checkpoint.")
        except BaseException as error:
            self._failure = error

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, if any."""
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
