"""Writers of feature rows and sample records, and the gather that makes a training batch of them."""
from libc.string cimport memcpy, memset

import numpy as np

from pyx.game cimport Game
from pyx.rng cimport Rng, STREAM_BATCH, STREAM_RESERVOIR, rng_start, rng_u64
from pyx.types cimport Output, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define freecfr_prefetch(address) __builtin_prefetch(address)
    #else
    #define freecfr_prefetch(address)
    #endif
    """
    void freecfr_prefetch(const void* address) noexcept nogil

cdef enum:
    AHEAD = 8  # records of a batch asked of main memory before the one that is read

# Eight features at a time: the floats of every byte. Written once at import, read by all threads.
cdef float FLOATS[256][8]
cdef uint16_t BFLOATS[256][8]


cdef void fill_tables() noexcept nogil:
    cdef int byte, bit
    for byte in range(256):
        for bit in range(8):
            FLOATS[byte][bit] = <float>((byte >> bit) & 1)
            BFLOATS[byte][bit] = 0x3F80 if (byte >> bit) & 1 else 0


fill_tables()


cdef inline void expand_float(const uint8_t* row, int n_features, float* out) noexcept nogil:
    """One packed row as float32.

    row  # IN, packed
    out  # OUT, n_features
    """
    cdef int i
    for i in range(n_features >> 3):
        memcpy(out + 8 * i, FLOATS[row[i]], 32)
    if n_features & 7:
        memcpy(out + (n_features & ~7), FLOATS[row[n_features >> 3]], 4 * (n_features & 7))


cdef inline void expand_bfloat(const uint8_t* row, int n_features, uint16_t* out) noexcept nogil:
    """One packed row as bfloat16.

    row  # IN, packed
    out  # OUT, n_features
    """
    cdef int i
    for i in range(n_features >> 3):
        memcpy(out + 8 * i, BFLOATS[row[i]], 16)
    if n_features & 7:
        memcpy(out + (n_features & ~7), BFLOATS[row[n_features >> 3]], 2 * (n_features & 7))


def _refuse(bint wrong, str sentence):
    if wrong:
        raise ValueError(sentence)


def expand(const uint8_t[:, ::1] rows, out):
    """Packed rows as the floats a network sees.

    rows  # IN, uint8 (n, row_bytes)
    out   # OUT, (n or more, n_features) float32, or uint16 that holds bfloat16 bits
    """
    cdef float[:, ::1] floats
    cdef uint16_t[:, ::1] bfloats
    cdef Py_ssize_t i, n = rows.shape[0]
    cdef int n_features = out.shape[1]
    _refuse(out.shape[0] < n or n_features > 8 * rows.shape[1],
            f"rows {rows.shape[0]} x {rows.shape[1]} bytes do not fit an output of shape {out.shape}")
    if out.dtype == np.float32:
        floats = out
        with nogil:
            for i in range(n):
                expand_float(&rows[i, 0], n_features, &floats[i, 0])
    else:
        bfloats = out
        with nogil:
            for i in range(n):
                expand_bfloat(&rows[i, 0], n_features, &bfloats[i, 0])


cdef class RecordLayout:
    """How a game's samples lie in memory; immutable, safe to share. See encoding.pxd."""

    def __cinit__(self, Game game):
        self.row_bytes = game.row_bytes
        self.n_features = game.n_features
        self.n_actions = game.n_actions
        self.max_legal = game.max_legal
        self.targets_at = self.row_bytes
        self.weight_at = self.targets_at + 4 * self.max_legal
        self.iteration_at = self.weight_at + 4
        self.slots_at = self.iteration_at + 4
        self.record_bytes = (self.slots_at + 2 * self.max_legal + 7) & ~7

    def iterations(self, rows):
        """Of which iteration each record is: uint32 (n,), for rows uint8 (n, record_bytes)."""
        return np.ascontiguousarray(rows[:, self.iteration_at:self.slots_at]).view(np.uint32).reshape(-1)

    def restore(self, const uint8_t[::1] record):
        """A record as a dict: row (uint8), slots and targets of the legal actions, weight, iteration."""
        _refuse(record.shape[0] != self.record_bytes,
                f"a record of {record.shape[0]} bytes; this game's have {self.record_bytes}")
        raw = np.array(record)
        slots = raw[self.slots_at:self.slots_at + 2 * self.max_legal].view(np.uint16)
        legal = slots[slots != NO_SLOT]
        targets = raw[self.targets_at:self.weight_at].view(np.float32)
        return {"row": raw[:self.row_bytes], "slots": legal, "targets": targets[:len(legal)],
                "weight": float(raw[self.weight_at:self.iteration_at].view(np.float32)[0]),
                "iteration": int(raw[self.iteration_at:self.slots_at].view(np.uint32)[0])}


cdef void write_record(RecordLayout layout, const uint8_t* row, const Output* places, int n, float weight,
                       uint32_t iteration, uint8_t* record) noexcept nogil:
    """Everything of a record but its targets, which are zeroed.

    row     # IN, row_bytes
    places  # IN, n
    record  # OUT, record_bytes
    """
    cdef uint16_t* slots = <uint16_t*>(record + layout.slots_at)
    cdef int k
    memset(record + layout.targets_at, 0, layout.record_bytes - layout.targets_at)
    memcpy(record, row, layout.row_bytes)
    (<float*>(record + layout.weight_at))[0] = weight
    (<uint32_t*>(record + layout.iteration_at))[0] = iteration
    for k in range(n):
        slots[k] = <uint16_t>places[k].slot
    for k in range(n, layout.max_legal):
        slots[k] = NO_SLOT


def reservoir_slots(uint64_t seed, uint32_t memory, int64_t seen, int64_t capacity, int64_t count):
    """Where the next `count` samples of a reservoir go (Vitter 1985, algorithm R): int64 (count,), -1 for nowhere.

    Sample number j, counted over the whole run, draws from a stream of its own, so that where it goes
    depends on nothing else. memory: the reservoir's number, below 256. seen: samples offered before.
    """
    slots = np.empty(count, np.int64)
    cdef int64_t[::1] out = slots
    cdef Rng rng
    cdef int64_t i, j, slot
    with nogil:
        for i in range(count):
            j = seen + i
            slot = j
            if j >= capacity:
                rng_start(&rng, seed, STREAM_RESERVOIR, <uint32_t>(<uint64_t>j >> 32), memory, <uint32_t>j)
                # 64 bits over at most 2**40 samples: the bias is below 2**-24 of a slot's share.
                slot = <int64_t>(rng_u64(&rng) % <uint64_t>(j + 1))
                if slot >= capacity:
                    slot = -1
            out[i] = slot
    return slots


def scatter(const uint8_t[:, ::1] records, const int64_t[::1] slots, uint8_t[:, ::1] memory):
    """Put records into a memory's slots, in order; slot -1 drops one.

    records  # IN, uint8 (n, record_bytes)
    slots    # IN, int64 (n,)
    memory   # OUT, uint8 (capacity, record_bytes)
    """
    cdef Py_ssize_t i
    cdef size_t size = memory.shape[1]
    _refuse(records.shape[1] != memory.shape[1] or slots.shape[0] != records.shape[0],
            f"records {records.shape[0]} x {records.shape[1]} and {slots.shape[0]} slots do not fit "
            f"a memory of rows of {memory.shape[1]} bytes")
    for i in range(slots.shape[0]):
        _refuse(slots[i] >= memory.shape[0], f"slot {slots[i]}: the memory has {memory.shape[0]}")
    with nogil:
        for i in range(slots.shape[0]):
            if slots[i] >= 0:
                memcpy(&memory[slots[i], 0], &records[i, 0], size)


def batch_indices(uint64_t seed, uint32_t network, uint32_t iteration, uint32_t update, int64_t size, int64_t count):
    """Which samples make a batch: int64 (count,), uniform over the first `size`, with replacement.

    A pure function of (seed, network, iteration, update). network below 256; ValueError on an empty memory.
    """
    _refuse(size < 1, "the memory is empty: there is nothing to draw a batch from")
    indices = np.empty(count, np.int64)
    cdef int64_t[::1] out = indices
    cdef Rng rng
    cdef int64_t i
    rng_start(&rng, seed, STREAM_BATCH, iteration, network, update)
    with nogil:
        for i in range(count):
            out[i] = <int64_t>(rng_u64(&rng) % <uint64_t>size)
    return indices


def gather(RecordLayout layout, const uint8_t[:, ::1] memory, const int64_t[::1] indices,
           const double[::1] iteration_weights, double scale, double weight_cap,
           features, uint16_t[:, ::1] slots, float[:, ::1] targets, float[::1] weights):
    """A training batch of a memory's samples.

    memory             # IN, uint8 (capacity, record_bytes)
    indices            # IN, int64 (n,)
    iteration_weights  # IN, float64 (iterations + 1,)
    scale              # IN, factor of every target
    weight_cap         # IN, no sample's own weight counts for more
    features           # OUT, (n, n_features) float32, or uint16 that holds bfloat16 bits
    slots              # OUT, uint16 (n, max_legal): of each legal action, then NO_SLOT
    targets            # OUT, float32 (n, max_legal): of each slot
    weights            # OUT, float32 (n,): iteration's weight times sample's weight
    ValueError on a sample of an iteration that has no weight: one that was read back and damaged.
    """
    cdef Py_ssize_t i, n = indices.shape[0]
    cdef int k, n_features = layout.n_features, max_legal = layout.max_legal
    cdef float[:, ::1] floats
    cdef uint16_t[:, ::1] bfloats
    cdef bint wide = features.dtype == np.float32
    cdef const uint8_t* record
    cdef const float* values
    cdef double weight
    cdef uint32_t iteration, latest = <uint32_t>(iteration_weights.shape[0] - 1), beyond = 0
    _refuse(iteration_weights.shape[0] < 1, "there are no weights of iterations")
    if wide:
        floats = features
    else:
        bfloats = features
    _refuse(features.shape[0] != n or targets.shape[0] != n or slots.shape[0] != n or weights.shape[0] != n
            or features.shape[1] != n_features or targets.shape[1] != max_legal or slots.shape[1] != max_legal
            or memory.shape[1] != layout.record_bytes,
            f"a batch of {n} does not fit the arrays given for this game's layout")
    for i in range(n):
        if not 0 <= indices[i] < memory.shape[0]:
            raise ValueError(f"sample {indices[i]}: the memory has {memory.shape[0]}")
    with nogil:
        for i in range(n):
            # Samples lie far apart in main memory, and each would be waited for in turn.
            if i + AHEAD < n:
                for k in range(0, layout.record_bytes, 64):  # a line of the cache
                    freecfr_prefetch(&memory[indices[i + AHEAD], k])
            record = &memory[indices[i], 0]
            if wide:
                expand_float(record, n_features, &floats[i, 0])
            else:
                expand_bfloat(record, n_features, &bfloats[i, 0])
            memcpy(&slots[i, 0], record + layout.slots_at, max_legal * sizeof(uint16_t))
            values = <const float*>(record + layout.targets_at)
            for k in range(max_legal):
                targets[i, k] = <float>(values[k] * scale)
            weight = (<const float*>(record + layout.weight_at))[0]
            iteration = (<const uint32_t*>(record + layout.iteration_at))[0]
            if iteration > latest:
                beyond = iteration
                iteration = latest
            weights[i] = <float>((weight if weight < weight_cap else weight_cap) * iteration_weights[iteration])
    _refuse(beyond > 0, f"a sample is of iteration {beyond}, but the last one is {latest}")
