"""A network's first layer straight from packed rows: relu(bias + the sum of the weights of the bits that are set).

Of a row's features few are set (of the full Lost Cities' 703 about 86), so that the sum is a small part of
the matrix product that it stands for. It is a chain of additions, bit by bit upwards, in float32 for every
output by itself: the same bits however wide the processor's vectors are.
"""
from libc.string cimport memcpy

import numpy as np

from pyx.types cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    /* 16 lanes, which the compiler cuts to the vectors there are. Where the linker can choose at load time,
       the loops are compiled for several kinds of processor. */
    #if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
    #define FIRST_LAYER_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
    #else
    #define FIRST_LAYER_CLONES
    #endif

    #define FIRST_LAYER_COLUMNS 64

    typedef float first_layer_floats __attribute__((vector_size(64), aligned(4), may_alias));
    typedef uint32_t first_layer_words __attribute__((vector_size(64), aligned(4), may_alias));
    typedef uint16_t first_layer_halves __attribute__((vector_size(32), aligned(2), may_alias));

    /* Of one row, the outputs of one block. Four vectors stay in registers from the first bit to the last.
       What is not below zero is kept, so that NaN is. */
    FIRST_LAYER_CLONES static void first_layer_float(
            const uint16_t* set, int n_set, const float* weights, const float* bias, float* out) {
        const first_layer_floats* from = (const first_layer_floats*)bias;
        first_layer_floats* to = (first_layer_floats*)out;
        first_layer_floats sums[4];
        for (int v = 0; v < 4; v++) sums[v] = from[v];
        for (int k = 0; k < n_set; k++) {
            from = (const first_layer_floats*)(weights + FIRST_LAYER_COLUMNS * (size_t)set[k]);
            for (int v = 0; v < 4; v++) sums[v] += from[v];
        }
        for (int v = 0; v < 4; v++)
            to[v] = (first_layer_floats)(~(first_layer_words)(sums[v] < 0.0f) & (first_layer_words)sums[v]);
    }

    /* The same with bfloat16 weights and outputs. A word holds the weights of two outputs that are 16 apart,
       so that both are widened without moving lanes. Rounds to nearest even. */
    FIRST_LAYER_CLONES static void first_layer_bfloat(
            const uint16_t* set, int n_set, const uint32_t* weights, const float* bias, uint16_t* out) {
        const first_layer_floats* start = (const first_layer_floats*)bias;
        const first_layer_words* from;
        first_layer_halves* to = (first_layer_halves*)out;
        first_layer_floats sums[4];
        first_layer_words bits;
        for (int v = 0; v < 4; v++) sums[v] = start[v];
        for (int k = 0; k < n_set; k++) {
            from = (const first_layer_words*)(weights + FIRST_LAYER_COLUMNS / 2 * (size_t)set[k]);
            for (int v = 0; v < 2; v++) {
                sums[2 * v] += (first_layer_floats)(from[v] << 16);
                sums[2 * v + 1] += (first_layer_floats)(from[v] & 0xFFFF0000u);
            }
        }
        for (int v = 0; v < 4; v++) {
            bits = ~(first_layer_words)(sums[v] < 0.0f) & (first_layer_words)sums[v];
            bits = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
            to[v] = __builtin_convertvector(bits, first_layer_halves);
        }
    }
    """
    enum: COLUMNS "FIRST_LAYER_COLUMNS"
    void first_layer_float(const uint16_t* set, int n_set, const float* weights, const float* bias,
                           float* out) noexcept nogil
    void first_layer_bfloat(const uint16_t* set, int n_set, const uint32_t* weights, const float* bias,
                            uint16_t* out) noexcept nogil
    int lowest_bit "__builtin_ctzll"(uint64_t) noexcept nogil

# A tile of rows goes through one block's weights after the other, while these are in the cache.
cdef enum:
    TILE = 32
    ROOM = 16384            # set bits of a tile

MAX_FEATURES = ROOM


cdef inline int list_set(const uint8_t* row, int n_bytes, uint16_t* out) noexcept nogil:
    """The numbers of a row's set bits, ascending; returns how many.

    row  # IN, n_bytes, whole 8-byte words
    out  # OUT, 8 * n_bytes or less
    """
    cdef uint64_t word
    cdef int at, n = 0
    for at in range(0, n_bytes, 8):
        memcpy(&word, row + at, 8)
        while word:
            out[n] = <uint16_t>(8 * at + lowest_bit(word))
            n += 1
            word &= word - 1
    return n


cdef class FirstLayer:
    """A linear layer on features that are bits, and the ReLU behind it.

    Owned by: whoever made it. Safe to call from: any thread; it never changes.
    Guarantees: a row's outputs depend on nothing but the row.
    Does not guarantee: the bits of a matrix product, which adds in another order.

    weight: float32 (width, n_features), at most MAX_FEATURES of them. bias: float32 (width,). bfloat: both hold
    bfloat16 values, and so do the outputs.
    """

    def __cinit__(self, weight, bias, *, bint bfloat=False):
        width, n_features = weight.shape
        if n_features > MAX_FEATURES:
            raise ValueError(f"{n_features} features; the first layer takes at most {MAX_FEATURES}")
        self.width, self.n_features, self.bfloat = width, n_features, bfloat
        self.row_bytes = (n_features + 63) // 64 * 8
        self.n_blocks = (width + COLUMNS - 1) // COLUMNS
        # Weights of padding bits are zero, so that no row can reach beyond them.
        by_bit = np.zeros((8 * self.row_bytes, self.n_blocks * COLUMNS), np.float32)
        by_bit[:n_features, :width] = np.asarray(weight, np.float32).T
        biases = np.zeros(self.n_blocks * COLUMNS, np.float32)
        biases[:width] = bias
        if bfloat:
            halves = (by_bit.view(np.uint32) >> 16).reshape(8 * self.row_bytes, -1, 2, 16)
            by_bit = (halves[:, :, 0] | halves[:, :, 1] << 16).reshape(8 * self.row_bytes, -1)
        blocks = np.ascontiguousarray(by_bit.reshape(8 * self.row_bytes, self.n_blocks, -1).transpose(1, 0, 2))
        self.kept = (blocks, biases)
        cdef const float[::1] bias_view = biases
        cdef const uint32_t[:, :, ::1] view = blocks.view(np.uint32)
        self.bias = &bias_view[0]
        self.pairs = &view[0, 0, 0]
        self.floats = <const float*>self.pairs

    def __call__(self, const uint8_t[:, ::1] rows, out):
        """The layer's outputs for packed rows.

        rows  # IN, uint8 (n, row_bytes)
        out   # OUT, (n or more, width) float32, or uint16 that holds bfloat16 bits
        """
        cdef float[:, ::1] floats
        cdef uint16_t[:, ::1] bfloats
        cdef void* to
        if rows.shape[1] != self.row_bytes or out.shape[0] < rows.shape[0] or out.shape[1] != self.width:
            raise ValueError(f"rows {rows.shape[0]} x {rows.shape[1]} bytes and an output of shape {out.shape}; "
                             f"the layer maps {self.row_bytes} bytes to {self.width} outputs")
        if rows.shape[0] == 0:
            return
        if self.bfloat:
            bfloats = out
            to = &bfloats[0, 0]
        else:
            floats = out
            to = &floats[0, 0]
        with nogil:
            self.run(&rows[0, 0], rows.shape[0], to)

    cdef void run(self, const uint8_t* rows, Py_ssize_t n, void* out) noexcept nogil:
        """See __call__.

        rows  # IN, n * row_bytes
        out   # OUT, n * width floats or halves
        """
        cdef uint16_t room[ROOM]
        cdef uint16_t* set[TILE]
        cdef int n_set[TILE]
        cdef float floats[COLUMNS]
        cdef uint16_t halves[COLUMNS]
        cdef int block, columns, i, rows_in_tile, used
        cdef Py_ssize_t first = 0, at
        cdef size_t weights
        while first < n:
            rows_in_tile = used = 0
            while rows_in_tile < TILE and first + rows_in_tile < n and used + 8 * self.row_bytes <= ROOM:
                set[rows_in_tile] = room + used
                n_set[rows_in_tile] = list_set(rows + (first + rows_in_tile) * self.row_bytes, self.row_bytes,
                                               room + used)
                used += n_set[rows_in_tile]
                rows_in_tile += 1
            for block in range(self.n_blocks):
                columns = min(<int>COLUMNS, self.width - block * COLUMNS)
                weights = <size_t>block * 8 * self.row_bytes * COLUMNS
                for i in range(rows_in_tile):
                    at = (first + i) * self.width + block * COLUMNS
                    if self.bfloat:
                        if columns == COLUMNS:
                            first_layer_bfloat(set[i], n_set[i], self.pairs + weights // 2,
                                               self.bias + block * COLUMNS, <uint16_t*>out + at)
                        else:
                            first_layer_bfloat(set[i], n_set[i], self.pairs + weights // 2,
                                               self.bias + block * COLUMNS, halves)
                            memcpy(<uint16_t*>out + at, halves, columns * sizeof(uint16_t))
                    else:
                        if columns == COLUMNS:
                            first_layer_float(set[i], n_set[i], self.floats + weights,
                                              self.bias + block * COLUMNS, <float*>out + at)
                        else:
                            first_layer_float(set[i], n_set[i], self.floats + weights,
                                              self.bias + block * COLUMNS, floats)
                            memcpy(<float*>out + at, floats, columns * sizeof(float))
            first += rows_in_tile
