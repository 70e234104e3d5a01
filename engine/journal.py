"""A reservoir memory on disk: a base file and an append-only journal of what was written since.

    NAME.base-000002      rows, as in the memory, one after the other
    NAME.journal-000002   entries: slot (8 bytes, little-endian), record

A memory is its base with the journal's entries written over it, in order; a checkpoint remembers how much of the
journal was there, so that many checkpoints share both files. When the journal outgrows the base, a new base is made
of the two and a new journal begins; the old pair stays for as long as a checkpoint refers to it.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import CheckpointError

# Below this many bytes a journal is not worth a new base.
COMPACT_ABOVE = 8 << 20
_CHUNK = 4 << 20


@dataclass(frozen=True)
class Extent:
    """The first `bytes` bytes of a file and their sha256. No file is needed where there are none."""

    file: str
    bytes: int = 0
    sha256: str = hashlib.sha256().hexdigest()

    @classmethod
    def read(cls, about: Any) -> Extent:
        """The extent that a manifest describes; ValueError where it describes none."""
        extent = cls(str(about["file"]), about["bytes"], str(about["sha256"]))
        if type(extent.bytes) is not int or extent.bytes < 0:
            raise ValueError(f"{extent.file} cannot have {extent.bytes!r} bytes")
        return extent


@dataclass(frozen=True)
class Mark:
    """A memory as of the end of an iteration.

    digest chains the entries of every iteration so far, so that equal digests mean equal histories of the memory.
    count: how many arrays of entries had been recorded since this process started.
    """

    seen: int
    size: int
    digest: str
    count: int


@dataclass(frozen=True)
class _Disk:
    """What is on disk. Replaced as a whole, so that an interrupt finds either the old or the new."""

    generation: int
    base: Extent
    journal: Extent
    hasher: Any  # of the journal's bytes


class _Abandoned(Exception):
    """A new base is not worth waiting for."""


class Journal:
    """One memory's files.

    Owned by: a CheckpointStore. Safe to call from: two threads at a time, of which one calls `record`, `next_mark` and
    `begin`, the other what reads and writes files.
    Guarantees: `write` puts the entries up to a mark on disk, or raises and leaves what was there before as good as
    it was; an interrupt at any moment leaves it able to write again.
    """

    def __init__(self, folder: Path | None, name: str, memory: Any, compact_above: int = COMPACT_ABOVE) -> None:
        """`memory` has rows, uint8 (capacity, record_bytes), and seen; without a folder only digests are made."""
        self.folder, self.name = folder, name
        self.capacity, self.record_bytes = memory.rows.shape
        self._memory = memory
        self._compact_above = compact_above
        self._disk = _Disk(0, Extent(self._file("base", 0)), Extent(self._file("journal", 0)), hashlib.sha256())
        self.mark = Mark(0, 0, hashlib.sha256().hexdigest(), 0)
        self._lock = threading.Lock()  # guards the next four
        self._waiting: list[np.ndarray] = []  # recorded and not written, in order
        self._written = 0  # arrays of entries recorded before those
        self._count = 0  # ... and with those
        self._writing = False
        self._hashers = hashlib.sha256(), hashlib.sha256()

    def _file(self, kind: str, generation: int) -> str:
        return f"{self.name}.{kind}-{generation:06d}"

    def files(self) -> set[str]:
        """The names of the files that are written on."""
        return {self._disk.base.file, self._disk.journal.file}

    def record(self, slots: np.ndarray, records: np.ndarray) -> None:
        """Records, uint8 (n, record_bytes), were written to these slots, int64 (n,); a negative slot is skipped."""
        kept = slots >= 0
        if not kept.all():
            slots, records = slots[kept], records[kept]
        slots, records = np.ascontiguousarray(slots, "<i8"), np.ascontiguousarray(records)
        self._hashers[0].update(slots.data)
        self._hashers[1].update(records.data)
        if self.folder is not None:
            entries = np.empty((len(slots), 8 + self.record_bytes), np.uint8)
            entries[:, :8] = slots.view(np.uint8).reshape(-1, 8)
            entries[:, 8:] = records
        with self._lock:
            self._count += 1
            if self.folder is not None:
                self._waiting.append(entries)

    def next_mark(self) -> Mark:
        """What the end of this iteration is. Changes nothing: `begin` starts the next."""
        seen = int(self._memory.seen)
        link = f"{self.mark.digest} {self._hashers[0].hexdigest()} {self._hashers[1].hexdigest()} {seen}"
        digest = hashlib.sha256(link.encode()).hexdigest()
        return Mark(seen, min(seen, self.capacity), digest, self._count)

    def begin(self, mark: Mark) -> None:
        """The iteration that ended at `mark` is complete; the next begins."""
        self.mark = mark
        self._hashers = hashlib.sha256(), hashlib.sha256()
        self._bound()

    def _bound(self) -> None:
        """Entries that could not be written for long need no more room than the memory itself: newest per slot."""
        with self._lock:
            if self._writing or sum(map(len, self._waiting)) <= 2 * self.capacity:
                return
            entries = np.concatenate(self._waiting)
            slots = _slots(entries)
            newest = len(slots) - 1 - np.unique(slots[::-1], return_index=True)[1]
            # One array now stands for all; it is the last of those counted.
            self._waiting, self._written = [entries[np.sort(newest)]], self._count - 1

    def write(self, mark: Mark, hurry: Callable[[], bool] = lambda: False) -> None:
        """Append the entries recorded up to `mark`, flushed to the disk; make a new base where that is due.

        A new base is given up, until the next time, once `hurry` says so.
        """
        with self._lock:
            waiting = self._waiting[: mark.count - self._written]
            self._writing = True
        try:
            self._append(waiting)
            with self._lock:
                del self._waiting[: len(waiting)]
                self._written += len(waiting)
        finally:
            with self._lock:
                self._writing = False
        if self._disk.journal.bytes > max(self._disk.base.bytes, self._compact_above):
            try:
                self._compact(mark, hurry)
            except _Abandoned:
                pass  # what is on disk is whole without it

    def _append(self, waiting: list[np.ndarray]) -> None:
        assert self.folder is not None
        if not waiting:
            return
        disk = self._disk
        path = self.folder / disk.journal.file
        hasher, size = disk.hasher.copy(), disk.journal.bytes
        with open(path, "r+b" if path.exists() else "x+b") as file:
            # Whatever stands behind the last good byte was torn off by a crash or belongs to a dropped iteration.
            file.truncate(size)
            file.seek(size)
            for entries in waiting:
                file.write(entries.data)
                hasher.update(entries.data)
                size += entries.nbytes
            file.flush()
            os.fsync(file.fileno())
        self._disk = _Disk(disk.generation, disk.base, Extent(disk.journal.file, size, hasher.hexdigest()), hasher)

    def _compact(self, mark: Mark, hurry: Callable[[], bool]) -> None:
        assert self.folder is not None
        disk = self._disk
        generation = disk.generation + 1
        target = self.folder / self._file("base", generation)
        beside = target.with_name(f".{target.name}.tmp")
        rows = mark.size * self.record_bytes
        with open(beside, "wb") as file:
            for chunk in _chunks(self.folder / disk.base.file, disk.base.bytes, self.record_bytes):
                _unless(hurry)
                file.write(chunk.data)
            file.truncate(rows)
        image = np.memmap(beside, np.uint8, "r+", shape=(mark.size, self.record_bytes))
        for entries in _chunks(self.folder / disk.journal.file, disk.journal.bytes, 8 + self.record_bytes):
            _unless(hurry)
            image[_slots(entries)] = entries[:, 8:]
        image.flush()
        del image
        _unless(hurry)
        base = Extent(target.name, rows, hash_file(beside, rows).hexdigest())
        _unless(hurry)
        sync(beside)
        os.replace(beside, target)
        (self.folder / self._file("journal", generation)).unlink(missing_ok=True)
        self._disk = _Disk(generation, base, Extent(self._file("journal", generation)), hashlib.sha256())

    def describe(self, mark: Mark) -> dict[str, Any]:
        """What a checkpoint remembers of the memory at a mark that was written."""
        disk = self._disk
        return {
            "capacity": self.capacity,
            "record_bytes": self.record_bytes,
            "seen": mark.seen,
            "size": mark.size,
            "digest": mark.digest,
            "base": vars(disk.base),
            "journal": vars(disk.journal),
        }

    def verified(self, about: dict[str, Any], folder: Path) -> _Disk:
        """The files in `folder` that a checkpoint describes, found whole. Raises CheckpointError; changes nothing."""
        here = {"capacity": self.capacity, "record_bytes": self.record_bytes}
        if here != (there := {key: about[key] for key in here}):
            raise CheckpointError(f"memory {self.name} is of {there}, but this run's of {here}; give its own config.")
        extents = [Extent.read(about[kind]) for kind in ("base", "journal")]
        generation = int(str(extents[0].file).rpartition("-")[2])
        names = [self._file(kind, generation) for kind in ("base", "journal")]
        if names != [extent.file for extent in extents]:
            raise CheckpointError(f"memory {self.name} refers to {[extent.file for extent in extents]}, not {names}.")
        base, journal = extents
        if not all(type(about[key]) is int and 0 <= about[key] < 1 << 62 for key in ("seen", "size")):
            raise CheckpointError(f"memory {self.name} has {about['size']!r} rows of {about['seen']!r}: impossible.")
        rows = about["size"] * self.record_bytes
        if about["size"] != min(about["seen"], self.capacity) or not 0 <= base.bytes <= rows:
            raise CheckpointError(f"memory {self.name} has {about['size']} rows of {about['seen']} seen: impossible.")
        hashers = [verify(folder, extent) for extent in extents]
        width = 8 + self.record_bytes
        if journal.bytes % width or base.bytes % self.record_bytes:
            raise CheckpointError(f"memory {self.name} ends in the middle of a record.")
        for entries in _chunks(folder / journal.file, journal.bytes, width):
            slots = _slots(entries)
            if slots.min() < 0 or slots.max() >= about["size"]:
                raise CheckpointError(f"memory {self.name} has an entry for a slot outside of its {about['size']}.")
        return _Disk(generation, base, journal, hashers[1])

    def restore(self, about: dict[str, Any], disk: _Disk, folder: Path) -> None:
        """Fill the memory from files that were verified, and go on writing behind them, if they are one's own."""
        filled = disk.base.bytes // self.record_bytes
        if filled:
            with open(folder / disk.base.file, "rb") as file:
                # readinto may stop early on very large reads
                view = memoryview(self._memory.rows[:filled]).cast("B")
                done = 0
                while done < len(view) and (n := file.readinto(view[done : done + _CHUNK])):
                    done += n
        for entries in _chunks(folder / disk.journal.file, disk.journal.bytes, 8 + self.record_bytes):
            self._memory.rows[_slots(entries)] = entries[:, 8:]
        self._memory.seen = about["seen"]
        self._disk = disk
        self.mark = Mark(about["seen"], about["size"], about["digest"], self._count)


def _unless(hurry: Callable[[], bool]) -> None:
    if hurry():
        raise _Abandoned


def _slots(entries: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(entries[:, :8]).view("<i8").reshape(-1)


def _chunks(path: Path, size: int, width: int) -> Iterator[np.ndarray]:
    """The first `size` bytes of a file as arrays of whole entries, uint8 (n, width)."""
    if not size:
        return
    step = max(1, _CHUNK // width) * width
    with open(path, "rb") as file:
        while size and (data := file.read(min(step, size))):
            size -= len(data)
            yield np.frombuffer(data, np.uint8).reshape(-1, width)


def hash_file(path: Path, size: int) -> Any:
    """The sha256 of a file's first `size` bytes, as an object. Raises CheckpointError if it is shorter."""
    hasher = hashlib.sha256()
    left = size
    if size:
        with open(path, "rb") as file:
            while left and (data := file.read(min(_CHUNK, left))):
                hasher.update(data)
                left -= len(data)
    if left:
        raise CheckpointError(f"{path} has {size - left} bytes of {size}: it was cut off.")
    return hasher


def verify(folder: Path, extent: Extent) -> Any:
    """The sha256 object of a file that is what `extent` says; CheckpointError where it is not."""
    path = folder / extent.file
    try:
        if path.is_symlink() or (extent.bytes and not path.is_file()):
            raise CheckpointError(f"{path} is missing.")
        hasher = hash_file(path, extent.bytes)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None
    if hasher.hexdigest() != extent.sha256:
        raise CheckpointError(f"{path} is damaged: its checksum is not the one written.")
    return hasher


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
