"""The one model that all threads evaluate, guarded against being read while it is written."""

from __future__ import annotations

from types import TracebackType

import torch

from threading_runtime.fair_lock import FairLock
from threading_runtime.streams import WeightOrder


class ModelFailed(RuntimeError):
    """A write to the shared model ended in an exception: its weights may be part old, part new."""


class SharedModel:
    """A module whose parameters some threads read, in forward passes, while others write them in place.

    Owned by: whoever made it; the module is not to be used except through here from then on.
    Safe to call from: any thread.
    Guarantees: no forward inside `reading()` sees part of what is done inside `writing()`. Readers do not
        wait for each other; a waiting writer goes before readers that come later. `version` rises by 1 at the
        end of each `writing()` and does not change inside `reading()`. After an exception inside `writing()`,
        `reading()` and `writing()` raise ModelFailed, and no thread hangs. Beginning to read or write inside
        either, in the same thread, raises RuntimeError. On CUDA a forward also waits, on its own stream, for
        the last write, and a write for the forwards before it, without the host waiting for the device.
    Does not guarantee: anything about a module that was kept beyond its `with` block. Grad mode and inference
        mode are per thread and left to the caller.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._lock = FairLock()
        self._version = 0
        self._failure: BaseException | None = None
        device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
        self._order = WeightOrder(device) if device.type == "cuda" else None
        # Both keep nothing between entry and exit, so that one of each serves all threads.
        self._reading = _Reading(self)
        self._writing = _Writing(self)

    @property
    def version(self) -> int:
        """How many writes were published."""
        return self._version

    def reading(self) -> _Reading:
        """`with model.reading() as module:` around a forward pass."""
        return self._reading

    def writing(self) -> _Writing:
        """`with model.writing() as module:` around `optimizer.step()` or `load_state_dict()`."""
        return self._writing

    def _refuse_if_failed(self) -> None:
        if self._failure is not None:
            raise ModelFailed(
                f"the write after version {self._version} of this model ended in {self._failure!r}, so that "
                "its weights may be torn; load the last checkpoint into a new model."
            ) from self._failure


class _Reading:
    def __init__(self, model: SharedModel) -> None:
        self._model = model

    def __enter__(self) -> torch.nn.Module:
        model = self._model
        model._lock.acquire_read()
        try:
            if model._failure is not None:
                model._refuse_if_failed()
            if model._order is not None:
                model._order.before_read()
        except BaseException:
            model._lock.release_read()
            raise
        return model._module

    def __exit__(self, *_: object) -> None:
        model = self._model
        try:
            if model._order is not None:
                model._order.after_read()
        finally:
            model._lock.release_read()


class _Writing:
    def __init__(self, model: SharedModel) -> None:
        self._model = model

    def __enter__(self) -> torch.nn.Module:
        model = self._model
        model._lock.acquire_write()
        try:
            model._refuse_if_failed()
            if model._order is not None:
                model._order.before_write()
        except BaseException:
            model._lock.release_write()
            raise
        return model._module

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        model = self._model
        try:
            model._failure = failure
            if failure is None:
                if model._order is not None:
                    model._order.after_write()
                model._version += 1
        except BaseException as late:
            model._failure = late
            raise
        finally:
            model._lock.release_write()
