"""Persistent worker processes: what threads are measured against, at its strongest.

A process is started by spawn, makes its worker once, and then answers one request at a time. The thread that asks waits
for its own process, so that a `Pool` of as many threads deals the jobs out, keeps their order and passes on what they
raise, exactly as it does when the threads do the work themselves.

Two transports. "pickle": states and results are pickled into pipes, a state once for each process. "shared_memory": a
state is written once, into one of two places that every process maps, and the arrays of results into a segment of each
process's own, which the parent reads without a copy; only what describes them goes through a pipe.

Segments are memfds: they have no name, so that none can be left behind, whatever kills whom.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

TRANSPORTS = ("pickle", "shared_memory")

# A waiting thread looks up this often, in seconds, whether its run was stopped.
_LOOK_UP = 0.1

# How long an idle process is given to end by itself, in seconds. A busy one is killed.
_PATIENCE = 2.0

_ALIGNED = 64
_PR_SET_PDEATHSIG = 1

Arrays = Sequence[np.ndarray]
Layout = dict[str, tuple[int, torch.dtype, torch.Size]]  # name of a tensor -> offset in bytes, dtype, shape


class Worker(Protocol):
    """What runs in a process."""

    def publish(self, name: str, state: Mapping[str, torch.Tensor]) -> None:
        """Take over a state. Its tensors are lent: they change with the second publication from now."""
        ...

    def run(self, job: Any) -> tuple[Arrays, Any]:
        """Answer a job: arrays, which are read before the next, and anything small that can be pickled."""
        ...


class WorkerDied(RuntimeError):
    """A worker process ended without an answer; the text says how."""


class RemoteTraceback(Exception):
    """The cause of an exception that a worker process raised: its traceback, as text."""

    def __str__(self) -> str:
        return f"in a worker process:\n{self.args[0]}"


class Moved(NamedTuple):
    """What hand-overs moved."""

    bytes: int
    seconds: float


class Processes:
    """Worker processes, from `with Processes(...) as processes:` to the end of that block.

    Owned by: the thread that entered it, which alone calls `publish` and `begin`, and never while another is in `run`.
    Safe to call from: `run` from as many threads as there are processes; a thread keeps to the process it first got.
    Guarantees: an answer is of the states published before it was asked for. What a worker raises is raised by `run`,
        with the worker's traceback as its cause; a process that dies raises WorkerDied. No process outlives the block,
        nor the parent, however that ends; no shared memory is left behind.
    Does not guarantee: that the arrays of results live beyond the next `begin`.
    """

    def __init__(self, count: int, make: Callable[[], Worker], transport: str) -> None:
        """make: called once in each process; it and all jobs have to be picklable."""
        if count < 1:
            raise ValueError(f"count is {count}, but there has to be at least 1 process.")
        if transport not in TRANSPORTS:
            raise ValueError(f"transport is {transport!r}; there are: {', '.join(TRANSPORTS)}.")
        self.count, self.transport = count, transport
        self._make = make
        self._workers: list[_Process] = []
        self._free: list[_Process] = []
        self._mine = threading.local()
        self._lock = threading.Lock()  # guards _free and _moved
        self._moved = Moved(0, 0.0)
        self._states: _Segment | None = None
        self._places: dict[str, tuple[int, int]] = {}  # name of a state -> offset, bytes of one of its two places
        self._versions: dict[str, int] = {}

    def __enter__(self) -> Processes:
        if self._workers:
            raise RuntimeError("these processes were entered before; make new ones.")
        try:
            if self.transport == "shared_memory":
                self._states = _Segment(os.memfd_create("states"))
            for number in range(self.count):
                self._workers.append(_Process(number, self._make, self._states))
            for worker in self._workers:
                worker.answer(lambda: None)
        except BaseException:
            self.close()
            raise
        self._free = self._workers[::-1]
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(self, name: str, state: Mapping[str, torch.Tensor]) -> None:
        """Give every process a state."""
        started = time.perf_counter()
        layout, size = _layout(state)
        if self._states is None:
            data = bytearray(size)
            _write(state, layout, memoryview(data))
            message = pickle.dumps(("state", name, layout, data), pickle.HIGHEST_PROTOCOL)
            moved = self.count * len(message)
        else:
            offset = self._place(name, size)
            _write(state, layout, memoryview(self._states.pages)[offset : offset + size])
            message = pickle.dumps(("state", name, layout, (offset, self._states.size)))
            moved = size + self.count * len(message)
        for worker in self._workers:
            worker.send(message)
        self._count(Moved(moved, time.perf_counter() - started))

    def begin(self) -> None:
        """No result so far is needed any longer: their room is used again."""
        for worker in self._workers:
            worker.used = 0

    def run(self, job: Any, check: Callable[[], None] = lambda: None) -> tuple[Arrays, Any]:
        """What the calling thread's process answers. `check` is called now and then while it waits, and may raise."""
        if not hasattr(self._mine, "worker"):
            with self._lock:
                self._mine.worker = self._free.pop()
        worker: _Process = self._mine.worker
        worker.send(pickle.dumps(("job", job, worker.used), pickle.HIGHEST_PROTOCOL))
        arrays, rest, moved = worker.answer(check)
        self._count(moved)
        return arrays, rest

    def take_moved(self) -> Moved:
        """What hand-overs moved since this was last called. Seconds add up over processes that wait side by side."""
        with self._lock:
            moved, self._moved = self._moved, Moved(0, 0.0)
        return moved

    def pids(self) -> list[int]:
        """The processes' ids."""
        return [worker.process.pid for worker in self._workers if worker.process.pid is not None]

    def close(self) -> None:
        """End every process and wait for it. May be repeated."""
        for worker in self._workers:
            worker.dismiss()
        deadline = time.monotonic() + _PATIENCE
        for worker in self._workers:
            worker.end(deadline)
        self._workers, self._free, self._states = [], [], None

    def _count(self, moved: Moved) -> None:
        with self._lock:
            self._moved = Moved(self._moved.bytes + moved.bytes, self._moved.seconds + moved.seconds)

    def _place(self, name: str, size: int) -> int:
        """Where the next version of a state goes: not where the one is that processes have."""
        assert self._states is not None
        if name not in self._places:
            self._places[name] = self._states.size, size
            self._states.grow(self._states.size + 2 * size)
        offset, room = self._places[name]
        if size != room:
            raise ValueError(f"state {name!r} has {size} bytes, but had {room} before; a state keeps its shape.")
        version = self._versions[name] = self._versions.get(name, -1) + 1
        return offset + version % 2 * size


class _Segment:
    """Shared memory without a name. Grows and never shrinks; what was mapped before stays valid, and the same."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.size = 0
        self.pages: mmap.mmap

    def grow(self, size: int) -> None:
        """Have at least `size` bytes mapped, whoever made the file as large."""
        if size > self.size:
            if size > os.fstat(self.descriptor).st_size:
                os.ftruncate(self.descriptor, size)
            self.pages, self.size = mmap.mmap(self.descriptor, size), size

    def __del__(self) -> None:
        os.close(self.descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled for a process that is being started, which inherits it."""
        return _inherited, (DupFd(self.descriptor),)


def _inherited(duplicate: Any) -> _Segment:
    return _Segment(duplicate.detach())


class _Process:
    """One process, as the parent sees it.

    Owned by: one thread at a time.
    """

    def __init__(self, number: int, make: Callable[[], Worker], states: _Segment | None) -> None:
        self.number = number
        self.used = 0  # bytes of the arena that hold results
        self._busy = True
        self._arena = None if states is None else _Segment(os.memfd_create(f"results-{number}"))
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process = context.Process(
            target=_live, args=(theirs, os.getpid(), make, states, self._arena), name=f"worker-{number}", daemon=True
        )
        try:
            self.process.start()
        finally:
            theirs.close()

    def send(self, message: bytes) -> None:
        self._busy = True
        try:
            self._connection.send_bytes(message)
        except OSError:
            self._receive()  # what it said before it ended
            raise self._died() from None

    def answer(self, check: Callable[[], None]) -> tuple[Arrays, Any, Moved]:
        """Wait for the answer to what was sent last."""
        try:
            while not wait([self._connection, self.process.sentinel], _LOOK_UP):
                check()
        except BaseException:
            self.process.kill()  # its answer would be taken for that to the next job
            raise
        size, (arrays, rest, used, loading, ended) = self._receive()
        self._busy = False
        moved = size + used - self.used
        if self._arena is not None:
            self._arena.grow(used)
            arrays = [_view(self._arena, *about) for about in arrays]
            self.used = used
        return arrays, rest, Moved(moved, loading + time.perf_counter() - ended)

    def _receive(self) -> tuple[int, list[Any]]:
        """What it said: bytes, and parts; raises what it raised, and WorkerDied where it said nothing."""
        try:
            if not self._connection.poll():
                raise EOFError
            message = self._connection.recv_bytes()
        except (EOFError, OSError):
            raise self._died() from None
        kind, *parts = pickle.loads(message)
        if kind == "failed":
            error, text = parts
            raise error from RemoteTraceback(text)
        return len(message), parts

    def dismiss(self) -> None:
        """An idle process ends when nobody can ask it any more; a busy one would not notice."""
        self._connection.close()
        if self._busy:
            self.process.kill()

    def end(self, deadline: float) -> None:
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()

    def _died(self) -> WorkerDied:
        self.process.join(_PATIENCE)
        code = self.process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            why = f"was killed by {name}" + ("; the system does that where memory runs out" * (name == "SIGKILL"))
        else:
            why = "stopped answering" if code is None else f"ended with status {code}"
        return WorkerDied(f"worker process {self.number} (pid {self.process.pid}) {why}.")


def _live(
    connection: Connection, parent: int, make: Callable[[], Worker], states: _Segment | None, arena: _Segment | None
) -> None:
    """A process's whole life."""
    # The kernel kills it with its parent; whoever interrupts the parent leaves it to the parent to end this one.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(1)
    try:
        try:
            worker = make()
            _say(connection, ("done", [], None, 0, 0.0, time.perf_counter()))
            loading = 0.0
            while True:
                kind, *parts = pickle.loads(connection.recv_bytes())
                if kind == "state":
                    began = time.perf_counter()
                    worker.publish(parts[0], _read(states, *parts[1:]))
                    loading += time.perf_counter() - began
                    continue
                job, used = parts
                arrays, rest = worker.run(job)
                ended = time.perf_counter()
                found, used = (arrays, used) if arena is None else _put(arena, used, arrays)
                _say(connection, ("done", found, rest, used, loading, ended))
                loading = 0.0
        except (EOFError, BrokenPipeError):
            return  # the parent has closed its end
        except BaseException as error:
            _say(connection, ("failed", _picklable(error), traceback.format_exc()))
    except BrokenPipeError:
        return


def _say(connection: Connection, message: tuple[Any, ...]) -> None:
    connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def _picklable(error: BaseException) -> BaseException:
    """The error itself where it survives pickling, else one that says the same."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception as problem:  # whatever an exception's own __reduce__ or __init__ raises
        return RuntimeError(f"{type(error).__name__}: {error} (which cannot be pickled: {problem})")
    return copy if type(copy) is type(error) else RuntimeError(f"{type(error).__name__}: {error}")


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _layout(state: Mapping[str, torch.Tensor]) -> tuple[Layout, int]:
    """Where each tensor of a state goes, and how many bytes they take."""
    layout: Layout = {}
    size = 0
    for name, tensor in state.items():
        layout[name] = size, tensor.dtype, tensor.shape
        size += _aligned(tensor.numel() * tensor.element_size())
    return layout, size


def _tensor(buffer: Any, offset: int, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    if not shape.numel():
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype, count=shape.numel(), offset=offset).view(shape)


def _write(state: Mapping[str, torch.Tensor], layout: Layout, buffer: memoryview) -> None:
    for name, tensor in state.items():
        _tensor(buffer, *layout[name]).copy_(tensor.detach())


def _read(states: _Segment | None, layout: Layout, where: Any) -> dict[str, torch.Tensor]:
    """The tensors of a state, in the message itself or in shared memory."""
    if states is None:
        buffer, base = where, 0
    else:
        base, mapped = where
        states.grow(mapped)
        buffer = states.pages
    return {name: _tensor(buffer, base + offset, dtype, shape) for name, (offset, dtype, shape) in layout.items()}


def _put(arena: _Segment, used: int, arrays: Arrays) -> tuple[list[tuple[Any, ...]], int]:
    """Write arrays behind the bytes in use: what `_view` finds each by, and how many are in use now."""
    begin, found = used, []
    for array in arrays:
        found.append((begin, array.dtype.str, array.shape))
        begin += _aligned(array.nbytes)
    if begin > arena.size:
        arena.grow(max(begin, 2 * arena.size, 1 << 20))
    for array, about in zip(arrays, found, strict=True):
        _view(arena, *about)[...] = array
    return found, begin


def _view(arena: _Segment, offset: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.ndarray(shape, dtype, arena.pages, offset) if 0 not in shape else np.empty(shape, dtype)
