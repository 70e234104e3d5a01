"""Weights that some threads read while others change them: in place under a lock, or as versions that never change."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from threading_runtime.fair_lock import Abandoned, FairLock
from threading_runtime.streams import WeightOrder

Weights = TypeVar("Weights")


class ModelFailed(RuntimeError):
    """A write to the shared model did not come to its end: its weights may be part old, part new."""


class SharedModel:
    """A module whose parameters some threads read, in forward passes, while others write them in place.

    Owned by: whoever made it; neither module nor optimizer is to be used except through here from then on.
    Safe to call from: any thread.
    Guarantees: no forward inside `reading()` sees part of what is done inside `writing()`. Readers do not
        wait for each other; a waiting writer goes before readers that come later. `version` rises by 1 at the
        end of each `writing()` and does not change inside `reading()`. A forward outside of both, and outside of
        `writing()` a `load_state_dict` or an `optimizer.step()`, raise RuntimeError, also of a module that was kept
        beyond its `with` block. After an exception inside `writing()`, or where a thread ended there, `reading()`
        and `writing()` raise ModelFailed, and no thread hangs. Beginning to read or write inside either, in the same
        thread, raises RuntimeError. On CUDA a forward also waits, on its own stream, for the last write, and a write
        for the forwards before it, without the host waiting for the device.
    Does not guarantee: anything about parameters that were kept beyond their `with` block, which nothing can guard.
        Grad mode and inference mode are per thread and left to the caller.
    """

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Raises ValueError for a module of torch.compile, whose guards and caches threads would share."""
        refuse_compiled(module)
        self._module, self._optimizer = module, optimizer
        self._lock = FairLock()
        self._version = 0
        self._failure: BaseException | None = None
        device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
        self._order = WeightOrder(device) if device.type == "cuda" else None
        # Both keep nothing between entry and exit, so that one of each serves all threads.
        self._reading = _Reading(self)
        self._writing = _Writing(self)
        for part in module.modules():
            part.register_forward_pre_hook(_Refusal(self._lock, "a forward", writing=False))
            part.register_load_state_dict_pre_hook(_Refusal(self._lock, "load_state_dict", writing=True))
        if optimizer is not None:
            optimizer.register_step_pre_hook(_Refusal(self._lock, "optimizer.step", writing=True))
            optimizer.register_load_state_dict_pre_hook(_Refusal(self._lock, "load_state_dict", writing=True))

    @property
    def version(self) -> int:
        """How many writes were published."""
        return self._version

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer, inside `reading()` to look at and inside `writing()` to step; RuntimeError elsewhere."""
        if not self._lock.held:
            raise RuntimeError("the optimizer of a shared model is there inside reading() and writing() only.")
        if self._optimizer is None:
            raise RuntimeError("this shared model was made without an optimizer.")
        return self._optimizer

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

    def _abandoned(self, failure: Abandoned) -> None:
        """A writer's thread is no more, and nobody writes any longer."""
        self._failure = failure
        self._refuse_if_failed()


class _Reading:
    def __init__(self, model: SharedModel) -> None:
        self._model = model

    def __enter__(self) -> torch.nn.Module:
        model = self._model
        try:
            model._lock.acquire_read()
        except Abandoned as failure:
            model._abandoned(failure)
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
        try:
            model._lock.acquire_write()
        except Abandoned as failure:
            model._abandoned(failure)
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


class _Refusal:
    """A hook that refuses what is done to a shared module outside of its lock. Copies of the module have none."""

    def __init__(self, lock: FairLock | None = None, what: str = "", writing: bool = False) -> None:
        self._lock, self._what, self._writing = lock, what, writing

    def __call__(self, *_: Any) -> None:
        if self._lock is None:
            return
        held = self._lock.held
        if held != "writing" and (self._writing or held != "reading"):
            where = "writing()" if self._writing else "reading() or writing()"
            raise RuntimeError(
                f"{self._what} of a shared model outside of {where} could meet half of another thread's write; "
                "use it inside."
            )

    def __reduce__(self) -> tuple[type[_Refusal], tuple[()]]:
        return _Refusal, ()


class Snapshot(NamedTuple, Generic[Weights]):
    """One version of some weights. They never change."""

    version: int
    weights: Weights


class Snapshots(Generic[Weights]):
    """The newest of versions that never change: read, copy, update.

    A reader takes the newest version for one batch and keeps it until it takes one for the next, so that nobody who
    publishes waits for readers, and no reader for a publication.

    Owned by: whoever made it, who publishes from one thread at a time.
    Safe to call from: `newest` from any thread.
    Guarantees: `newest` gives whole versions, and never an older one than before. On CUDA the calling thread's stream
        waits for the work by which a version was made, without the host waiting, and the memory of a version is not
        given to others while a stream that took it may still read it.
    Does not guarantee: that two threads take up a version at the same time; nor anything if weights that were
        published are written to.
    """

    def __init__(self, device: torch.device | str, weights: Weights, tensors: Iterable[torch.Tensor] = ()) -> None:
        """Version 0. tensors: all of `weights`, which on CUDA are kept while a stream may read them."""
        self._device = torch.device(device)
        self._local = threading.local()
        self._newest: tuple[Snapshot[Weights], tuple[torch.Tensor, ...], Any]
        self._put(Snapshot(0, weights), tensors)

    def publish(self, weights: Weights, tensors: Iterable[torch.Tensor] = ()) -> int:
        """A new version, made by work on the calling thread's stream; its number."""
        version = self._newest[0].version + 1
        self._put(Snapshot(version, weights), tensors)
        return version

    def newest(self) -> Snapshot[Weights]:
        """The newest version, for work on the calling thread's stream."""
        snapshot, tensors, made = self._newest
        if made is not None and getattr(self._local, "version", -1) != snapshot.version:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(made)
            for tensor in tensors:
                tensor.record_stream(stream)
            self._local.version = snapshot.version
        return snapshot

    def _put(self, snapshot: Snapshot[Weights], tensors: Iterable[torch.Tensor]) -> None:
        made = None
        if self._device.type == "cuda":
            made = torch.cuda.Event()
            made.record(torch.cuda.current_stream(self._device))
        self._newest = snapshot, tuple(tensors), made  # one assignment, so that a reader sees all of it or none


def refuse_compiled(module: torch.nn.Module) -> None:
    """Raise ValueError for a module of torch.compile, or with one inside."""
    for part in module.modules():
        if hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None:
            raise ValueError(
                "a module of torch.compile cannot be shared between threads, which would share its guards and caches; "
                "give the module that was compiled."
            )
