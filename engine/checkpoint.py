"""Checkpoints: complete or absent, verified when read, exact to go on from.

    RUN/checkpoints/iteration-000123/manifest.json   what belongs to it, with checksums
    RUN/checkpoints/iteration-000123/state.pt        weights and optimizers
    RUN/checkpoints/memories/                        bases and journals (see journal.py), shared
    RUN/checkpoints/networks/                        past networks in bfloat16, written once, shared

A checkpoint's folder is written beside, flushed and renamed, after everything it refers to is on disk. Nothing in it
is ever unpickled: weights are loaded by torch with weights_only, memories are plain arrays, the rest is JSON.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import re
import shutil
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.config import MAY_CHANGE
from engine.digests import as_bfloat16, canonical, digest
from engine.errors import CheckpointError
from engine.journal import COMPACT_ABOVE, Extent, Journal, Mark, sync, verify
from engine.untrusted import refuse_compressed, refuse_links

FORMAT = 1
# More would not be a manifest or a state of this engine.
LARGEST_MANIFEST = 1 << 28
LARGEST_STATE = 1 << 36
_FOLDER = re.compile(r"iteration-(\d{6,12})")
_NETWORK = re.compile(r"[a-z0-9_]+-\d{6,12}\.pt")


@dataclass
class Boundary:
    """A run as of the end of an iteration.

    networks, optimizers: name -> state_dict. totals: what metrics count over the run, as JSON has it.
    sequence: name -> past networks by iteration; memories: name -> seen, size, digest; both filled in by the store.
    config: the settings by dotted key, as given to the store, but for those that may change when a run goes on.
    """

    iteration: int
    networks: dict[str, dict[str, Any]]
    optimizers: dict[str, dict[str, Any]]
    totals: dict[str, Any] = field(default_factory=dict)
    sequence: dict[str, list[PastNetwork]] = field(default_factory=dict)
    memories: dict[str, dict[str, Any]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


class PastNetwork:
    """A network as it was after an iteration, in bfloat16: held until it is on disk, then read from there."""

    def __init__(self, iteration: int, folder: Path | None, extent: Extent, state: dict | None = None) -> None:
        self.iteration, self.extent = iteration, extent
        self._folder, self._state = folder, state

    def load(self) -> dict[str, torch.Tensor]:
        """The state_dict, floats as bfloat16. Raises CheckpointError where the file is not what was written."""
        if (state := self._state) is not None:  # once: another thread may be writing it
            return state
        assert self._folder is not None
        return _load(self._folder, self.extent)

    def write(self) -> None:
        """Put it on disk, once."""
        if self._state is None or self._folder is None:
            return
        data = _dump(self._state)
        _replace(self._folder / self.extent.file, data)
        self.extent = Extent(self.extent.file, len(data), hashlib.sha256(data).hexdigest())
        self._state = None


@dataclass(frozen=True)
class _Complete:
    boundary: Boundary
    marks: dict[str, Mark]


class CheckpointStore:
    """The checkpoints of one run.

    Owned by: the trainer. Safe to call from: one thread at a time, and beside it one thread that runs what `prepared`
    gave, one at a time.
    Guarantees: `save` puts the last completed iteration on disk as a whole, however much of the next was recorded; it
    raises CheckpointError where that fails, keeps everything and can be called again; an interrupt at any moment
    leaves every checkpoint that was on disk as it was.
    Does not guarantee: that two processes may write to one run; runs.RunFolder holds the lock.
    """

    def __init__(
        self,
        run_dir: Path | None,
        keep: int,
        memories: Mapping[str, Any],
        config: Mapping[str, Any] | None = None,
        *,
        notify: Callable[[str], None] | None = None,
        compact_above: int = COMPACT_ABOVE,
    ) -> None:
        """memories: name -> object with rows, uint8 (capacity, record_bytes), and seen.

        Without a run_dir nothing is written and only digests are made. `notify` is told of damage that was survived.
        """
        self.folder = None if run_dir is None else Path(run_dir) / "checkpoints"
        self.keep = keep
        self.saved_iteration: int | None = None
        self.sequence: dict[str, list[PastNetwork]] = {}
        self._config = {key: value for key, value in (config or {}).items() if key not in MAY_CHANGE}
        self._notify = notify or (lambda text: print(text, file=sys.stderr))
        memory_folder = self.folder and self.folder / "memories"
        self._journals = {
            name: Journal(memory_folder, name, memory, compact_above) for name, memory in memories.items()
        }
        self._complete: _Complete | None = None

    def record(self, name: str, slots: Any, records: Any) -> None:
        """Records, uint8 (n, record_bytes), went to these slots, int64 (n,), of a memory; negative slots are skipped.

        Call in the order in which the memory was written.
        """
        self._journals[name].record(slots, records)

    def add_network(self, name: str, iteration: int, state: Mapping[str, torch.Tensor]) -> PastNetwork:
        """Append a network, as it is after this iteration, to the sequence `name`, in bfloat16."""
        folder = self.folder and self.folder / "networks"
        past = PastNetwork(iteration, folder, Extent(f"{name}-{iteration:06d}.pt"), as_bfloat16(state))
        self.sequence.setdefault(name, []).append(past)
        return past

    def digest(self, boundary: Boundary) -> str:
        """sha256 (hex) of all that this boundary holds; call it before `complete`. Changes nothing."""
        return digest(boundary.iteration, self._memories(self._next_marks()), boundary.networks, boundary.optimizers)

    def _next_marks(self) -> dict[str, Mark]:
        return {name: journal.next_mark() for name, journal in self._journals.items()}

    @staticmethod
    def _memories(marks: Mapping[str, Mark]) -> dict[str, dict[str, Any]]:
        return {name: {"seen": mark.seen, "size": mark.size, "digest": mark.digest} for name, mark in marks.items()}

    def complete(self, boundary: Boundary) -> None:
        """An iteration is complete. The boundary becomes what `save` writes; weights are copied."""
        marks = self._next_marks()
        boundary.memories = self._memories(marks)
        boundary.sequence = {name: list(past) for name, past in self.sequence.items()}
        boundary.config = self._config
        if self.folder is not None:
            boundary.networks = canonical(boundary.networks)
            boundary.optimizers = canonical(boundary.optimizers)
        # One assignment: an interrupt finds either the iteration before or this one, whole.
        self._complete = _Complete(boundary, marks)
        for name, journal in self._journals.items():
            journal.begin(marks[name])

    @property
    def boundary(self) -> Boundary | None:
        """That of the last completed iteration."""
        return None if self._complete is None else self._complete.boundary

    def save(self) -> Path | None:
        """Write the last completed iteration, unless it is on disk: its folder, or None where there is none."""
        save = self.prepared()
        return save() if save is not None else self._target(self.saved_iteration)

    def prepared(self, hurry: Callable[[], bool] = lambda: False) -> Callable[[], Path] | None:
        """What `save` would do, as a function for any one thread; None where there is nothing to write.

        Meanwhile iterations may be recorded and completed. hurry: whether to leave out what can be done later.
        """
        complete = self._complete
        if complete is None or self.folder is None or self.saved_iteration == complete.boundary.iteration:
            return None
        return lambda: self._save(complete, hurry)

    def _target(self, iteration: int | None) -> Path | None:
        if self.folder is None or iteration is None:
            return None
        return self.folder / f"iteration-{iteration:06d}"

    def _save(self, complete: _Complete, hurry: Callable[[], bool]) -> Path:
        iteration = complete.boundary.iteration
        target = self._target(iteration)
        assert target is not None
        try:
            self._write(complete.boundary, complete.marks, target, hurry)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint of iteration {iteration} could not be written to {self.folder}: {error.strerror or error}."
            ) from error
        self.saved_iteration = iteration
        return target

    def _write(self, boundary: Boundary, marks: Mapping[str, Mark], target: Path, hurry: Callable[[], bool]) -> None:
        assert self.folder is not None
        memories, networks = self.folder / "memories", self.folder / "networks"
        memories.mkdir(parents=True, exist_ok=True)
        for name, journal in self._journals.items():
            journal.write(marks[name], hurry)
        sync(memories)
        if boundary.sequence:
            networks.mkdir(exist_ok=True)
            for past in itertools.chain(*boundary.sequence.values()):
                past.write()
            sync(networks)
        state = _dump({"networks": boundary.networks, "optimizers": boundary.optimizers})
        manifest = {
            "format": FORMAT,
            "iteration": boundary.iteration,
            "config": boundary.config,
            "totals": boundary.totals,
            "memories": {name: journal.describe(marks[name]) for name, journal in self._journals.items()},
            "state": vars(Extent("state.pt", len(state), hashlib.sha256(state).hexdigest())),
            "sequence": {
                name: [{"iteration": past.iteration, **vars(past.extent)} for past in sequence]
                for name, sequence in boundary.sequence.items()
            },
        }
        manifest["checksum"] = _checksum(manifest)
        beside = self.folder / f".{target.name}.tmp"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        _replace(beside / "state.pt", state)
        _replace(beside / "manifest.json", json.dumps(manifest, indent=1, allow_nan=False).encode())
        sync(beside)
        if target.exists():
            shutil.rmtree(target)
        os.replace(beside, target)
        sync(self.folder)
        self._prune()

    def _prune(self) -> None:
        """Remove all but the newest checkpoints, and the memories' files that no checkpoint refers to."""
        assert self.folder is not None
        checkpoints = list_checkpoints(self.folder)
        for old in checkpoints[self.keep :]:
            shutil.rmtree(old, ignore_errors=True)
        needed = set()
        for folder in checkpoints[: self.keep]:
            try:
                for about in _manifest(folder)["memories"].values():
                    needed |= {about["base"]["file"], about["journal"]["file"]}
            except (CheckpointError, KeyError, TypeError, AttributeError):
                continue
        for name, journal in self._journals.items():
            for path in (self.folder / "memories").glob(f"{name}.*"):
                if path.name not in needed and path.name not in journal.files():
                    path.unlink(missing_ok=True)

    def resume(self) -> Boundary | None:
        """Go on from the newest whole checkpoint: memories are filled, what is newer than it is removed.

        None where there is no checkpoint. A damaged one is reported and the one before it used; CheckpointError where
        all are damaged, or where the newest was made by a format that this version does not read.
        """
        if self.folder is None or not self.folder.is_dir():
            return None
        refuse_links(self.folder.parent)
        for rest in [*self.folder.glob(".*.tmp"), *self.folder.glob("*/.*.tmp")]:
            _remove(rest)

        damaged: list[Path] = []
        found = _newest(self.folder, self._read, self._notify, damaged)
        if found is None:
            return None
        for folder in damaged:
            shutil.rmtree(folder)
        boundary = self._restore(found)
        self.saved_iteration = boundary.iteration
        return boundary

    def replay(self, folder: Path) -> Boundary:
        """Go on from a checkpoint of whatever run, which stays as it is; memories are filled. For a store that writes
        nothing."""
        assert self.folder is None
        return self._restore(_guarded(self._read, folder))

    def rows_of(self, folder: Path, name: str) -> np.ndarray:
        """The rows of one memory of a checkpoint: uint8 (size, record_bytes)."""
        about = _manifest(folder)["memories"][name]
        memory = types.SimpleNamespace(rows=np.zeros((about["size"], about["record_bytes"]), np.uint8), seen=0)
        memories, journal = folder.parent / "memories", Journal(None, name, memory)
        journal.restore(about, journal.verified(about | {"capacity": about["size"]}, memories), memories)
        return memory.rows

    def _read(self, folder: Path) -> tuple[Path, Boundary, dict[str, Any], dict[str, Any]]:
        boundary, manifest = _read(folder)
        about, memories = manifest["memories"], folder.parent / "memories"
        if about.keys() != self._journals.keys():
            raise CheckpointError(f"{folder} has memories {sorted(about)}, but this run's {sorted(self._journals)}.")
        disks = {name: journal.verified(about[name], memories) for name, journal in self._journals.items()}
        return memories, boundary, about, disks

    def _restore(self, found: tuple[Path, Boundary, dict[str, Any], dict[str, Any]]) -> Boundary:
        memories, boundary, about, disks = found
        for name, journal in self._journals.items():
            journal.restore(about[name], disks[name], memories)
        self.sequence = {name: list(past) for name, past in boundary.sequence.items()}
        self._complete = _Complete(boundary, {name: journal.mark for name, journal in self._journals.items()})
        return boundary


def is_checkpoint(path: Path) -> bool:
    """Whether a path is named as a checkpoint of a run is."""
    return _FOLDER.fullmatch(path.resolve().name) is not None


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a run's folder `checkpoints`, newest first."""
    found = [path for path in folder.glob("iteration-*") if _FOLDER.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)


def read_checkpoint(path: Path | str, notify: Callable[[str], None] | None = None) -> Boundary:
    """Networks and settings of a checkpoint, or of a run's newest whole one; memories stay on disk.

    Raises CheckpointError, one sentence, where there is none.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path} does not exist; give a run's folder or one of its checkpoints.")
    if is_checkpoint(path):
        return _guarded(lambda folder: _read(folder)[0], path)
    if not (path / "checkpoints").is_dir():
        raise CheckpointError(f"{path} is not a run's folder: it has no folder checkpoints; give one that has.")
    notify = notify or (lambda text: print(text, file=sys.stderr))
    boundary = _newest(path / "checkpoints", lambda folder: _read(folder)[0], notify, [])
    if boundary is None:
        raise CheckpointError(f"{path} has no checkpoint yet; let the run finish an iteration and save it.")
    return boundary


class _Unreadable(CheckpointError):
    """Whole, but not for this version: going on from an older checkpoint would drop good work."""


def _newest(folder: Path, read: Callable[[Path], Any], notify: Callable[[str], None], damaged: list[Path]) -> Any:
    """What `read` makes of the newest checkpoint that is whole; those that are not are reported and collected."""
    checkpoints = list_checkpoints(folder)
    for checkpoint in checkpoints:
        try:
            return _guarded(read, checkpoint)
        except _Unreadable:
            raise
        except CheckpointError as error:
            damaged.append(checkpoint)
            if checkpoint is not checkpoints[-1]:
                notify(f"{checkpoint} cannot be used, the one before it is tried: {error}")
            else:
                raise CheckpointError(f"no checkpoint in {folder} can be used; the last one tried: {error}") from None
    return None


def _guarded(read: Callable[[Path], Any], folder: Path) -> Any:
    try:
        return read(folder)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{folder} is damaged: {type(error).__name__}: {error}.") from None


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise CheckpointError(f"{path} is no file of its own; a manifest is.")
        with open(path, "rb") as file:
            data = file.read(LARGEST_MANIFEST + 1)
        if len(data) > LARGEST_MANIFEST:
            raise CheckpointError(f"{path} has over {LARGEST_MANIFEST} bytes; no manifest has.")
        manifest = json.loads(data)
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no manifest.json: it is half written or not a checkpoint.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is damaged: it is not JSON.") from None
    if not isinstance(manifest, dict):
        raise CheckpointError(f"{path} is damaged: it is not a JSON object.")
    if manifest.get("format") != FORMAT:
        raise _Unreadable(
            f"{folder} was made by checkpoint format {manifest.get('format')!r}, this version reads format {FORMAT}; "
            "use the version that made it."
        )
    if manifest.pop("checksum", None) != _checksum(manifest):
        raise CheckpointError(f"{path} is damaged: its checksum is not the one written.")
    return manifest


def _read(folder: Path) -> tuple[Boundary, dict[str, Any]]:
    manifest = _manifest(folder)
    extent = Extent.read(manifest["state"])
    if extent.file != "state.pt" or extent.bytes > LARGEST_STATE:
        raise CheckpointError(f"{folder} refers to {extent.file} of {extent.bytes} bytes as its state: impossible.")
    number = int(folder.resolve().name.rpartition("-")[2])
    if type(manifest["iteration"]) is not int or manifest["iteration"] != number or number < 1:
        raise CheckpointError(f"{folder} says that it is of iteration {manifest['iteration']!r}, its name {number}.")
    state = _load(folder, extent)
    if not isinstance(state, dict):
        raise CheckpointError(f"{folder / extent.file} holds no weights ({type(state).__name__}).")
    networks = folder.parent / "networks"
    sequence: dict[str, list[PastNetwork]] = {}
    for name, entries in manifest["sequence"].items():
        sequence[name] = []
        for entry in entries:
            past = Extent.read(entry)
            if not _NETWORK.fullmatch(past.file):
                raise CheckpointError(f"{folder} refers to {past.file!r} as a past network: impossible.")
            path = networks / past.file
            if path.is_symlink() or not path.is_file() or path.stat().st_size != past.bytes:
                raise CheckpointError(f"{path} is missing or not of {past.bytes} bytes.")
            sequence[name].append(PastNetwork(int(entry["iteration"]), networks, past))
    memories = {
        name: {key: about[key] for key in ("seen", "size", "digest")} for name, about in manifest["memories"].items()
    }
    boundary = Boundary(
        iteration=number,
        networks=state["networks"],
        optimizers=state["optimizers"],
        totals=dict(manifest["totals"]),
        sequence=sequence,
        memories=memories,
        config=dict(manifest["config"]),
    )
    return boundary, manifest


def _checksum(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _dump(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _load(folder: Path, extent: Extent) -> Any:
    """State dicts from a file that is what `extent` says. torch raises many kinds of errors on bytes that are none."""
    path = folder / extent.file
    if path.is_symlink() or not path.is_file():
        raise CheckpointError(f"{path} is missing.")
    with open(path, "rb") as file:
        refuse_compressed(file, path)
        verify(folder, extent)
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise CheckpointError(f"{path} holds no weights ({type(error).__name__}).") from None


def _remove(path: Path) -> None:
    """Whatever it is, and nothing that it leads to; gone is as good."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _replace(path: Path, data: bytes) -> None:
    """Write a file beside, flush it, and put it in place."""
    beside = path.with_name(f".{path.name}.tmp")
    with open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
