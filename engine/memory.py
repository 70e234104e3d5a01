"""Reservoir memory: a uniform sample of everything it was ever offered, one record a row."""

from __future__ import annotations

import mmap

import numpy as np

from engine.errors import BadInput
from pyx.encoding import RecordLayout, reservoir_slots, scatter


class Memory:
    """Samples of one network, at most `capacity` of them.

    Owned by: the trainer. Safe to call from: one thread at a time; `rows` may be read by any number of
    threads while nobody adds.
    Guarantees: which samples are kept depends on the seed, the memory's number and the order in which samples
    were offered, and on nothing else; memory that was never written costs no resident page.
    Does not guarantee: an order of the rows once samples are being replaced.

    rows: uint8 (capacity, record_bytes), the first `size` of them filled. seen: samples ever offered.
    """

    def __init__(self, layout: RecordLayout, capacity: int, *, seed: int, number: int) -> None:
        self.layout, self.capacity, self.seed, self.number = layout, capacity, seed, number
        self.seen = 0
        # Anonymous pages: given by the kernel when first written, so that a large capacity costs nothing early on.
        size = capacity * layout.record_bytes
        try:
            pages = mmap.mmap(-1, size)
        except (OSError, OverflowError):
            raise BadInput(
                f"memory.capacity is {capacity}, but this machine refuses {size / 2**30:,.1f} GiB for one memory of so "
                "many samples; lower it."
            ) from None
        self.rows = np.frombuffer(pages, np.uint8).reshape(capacity, layout.record_bytes)

    @property
    def size(self) -> int:
        """Filled rows."""
        return min(self.seen, self.capacity)

    def add(self, records: np.ndarray) -> np.ndarray:
        """Offer records (uint8, (n, record_bytes)) in order; the slot each went to (int64 (n,)), -1 for none."""
        slots = reservoir_slots(self.seed, self.number, self.seen, self.capacity, len(records))
        scatter(records, slots, self.rows)
        self.seen += len(records)
        return slots

    def latest(self) -> int:
        """The last iteration that a sample is of; 0 where there is none."""
        return int(self.layout.iterations(self.rows[: self.size]).max(initial=0))

    def infosets(self) -> int:
        """How many information sets the samples are of, told apart by a 64-bit hash of their packed rows."""
        words = np.ascontiguousarray(self.rows[: self.size, : self.layout.row_bytes]).view(np.uint64)
        mixers = np.random.default_rng(0).integers(1 << 63, size=words.shape[1], dtype=np.uint64) * 2 + 1
        return len(np.unique(words @ mixers))
