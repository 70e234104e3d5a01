"""Passes over gradients that would otherwise be several: back through a ReLU, and the sum of shards in order.

Arrays are float32, or uint16 that holds bfloat16 bits; whatever is summed is summed in float32, in an order that
depends on nothing but the arrays' shapes.
"""
from libc.math cimport sqrt
from libc.stdlib cimport free, malloc

import numpy as np

from pyx.types cimport uint16_t

cdef extern from *:
    """
    /* Loops that the compiler cuts to the vectors there are. Where the linker can choose at load time, they are
       compiled for several kinds of processor; each element by itself has the same bits on all of them. */
    #if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
    #define GRADIENTS_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
    #else
    #define GRADIENTS_CLONES
    #endif

    #define GRADIENTS_CHUNK 2048 /* elements at a time: they stay in the first-level cache */
    #define GRADIENTS_LANES 16   /* partial sums of squares */

    typedef union { uint32_t bits; float value; } gradients_word;

    /* gradient, outputs: n rows of `width`; totals: width. */
    GRADIENTS_CLONES static void relu_back_float(
            float* gradient, const float* outputs, size_t n, size_t width, float* totals) {
        for (size_t i = 0; i < n; i++, gradient += width, outputs += width)
            for (size_t k = 0; k < width; k++) {
                gradient[k] = outputs[k] > 0 ? gradient[k] : 0;
                totals[k] += gradient[k];
            }
    }

    /* What a ReLU gives out is above zero unless it is a zero of either sign. */
    GRADIENTS_CLONES static void relu_back_half(
            uint16_t* gradient, const uint16_t* outputs, size_t n, size_t width, float* totals) {
        for (size_t i = 0; i < n; i++, gradient += width, outputs += width)
            for (size_t k = 0; k < width; k++) {
                gradients_word wide;
                gradient[k] = (uint16_t)(outputs[k] << 1) ? gradient[k] : 0;
                wide.bits = (uint32_t)gradient[k] << 16;
                totals[k] += wide.value;
            }
    }

    /* Elements start to start + n of every shard, n at most GRADIENTS_CHUNK, scaled; returns the sum of squares.
       shards: n_shards pointers to float32, or with `half` to bfloat16; out: n. */
    GRADIENTS_CLONES static double sum_chunk(
            const void** shards, int n_shards, int half, size_t start, int n, float scale, float* out) {
        float total[GRADIENTS_CHUNK], lanes[GRADIENTS_LANES] = {0};
        gradients_word wide[GRADIENTS_CHUNK];
        double squares = 0;
        int s, i, k;
        for (s = 0; s < n_shards; s++) {
            if (half) {
                const uint16_t* halves = (const uint16_t*)shards[s] + start;
                for (i = 0; i < n; i++) wide[i].bits = (uint32_t)halves[i] << 16;
                if (s == 0) for (i = 0; i < n; i++) total[i] = wide[i].value;
                else for (i = 0; i < n; i++) total[i] += wide[i].value;
            } else {
                const float* values = (const float*)shards[s] + start;
                if (s == 0) for (i = 0; i < n; i++) total[i] = values[i];
                else for (i = 0; i < n; i++) total[i] += values[i];
            }
        }
        for (i = 0; i < n; i++) out[i] = total[i] *= scale;
        for (i = 0; i + GRADIENTS_LANES <= n; i += GRADIENTS_LANES)
            for (k = 0; k < GRADIENTS_LANES; k++) lanes[k] += total[i + k] * total[i + k];
        for (k = 0; i < n; i++, k++) lanes[k] += total[i] * total[i];
        for (k = 0; k < GRADIENTS_LANES; k++) squares += lanes[k];
        return squares;
    }
    """
    int CHUNK "GRADIENTS_CHUNK"
    void relu_back_float(float* gradient, const float* outputs, size_t n, size_t width, float* totals) noexcept nogil
    void relu_back_half(uint16_t* gradient, const uint16_t* outputs, size_t n, size_t width,
                        float* totals) noexcept nogil
    double sum_chunk(const void** shards, int n_shards, int half, size_t start, int n, float scale,
                     float* out) noexcept nogil


def relu_back(gradient, outputs, float[::1] totals):
    """Back through a ReLU: the gradient becomes 0 where the ReLU gave 0; and its sums over the rows.

    gradient  # IN and OUT, (n, width)
    outputs   # IN, (n, width), of the ReLU, in the gradient's type
    totals    # OUT, float32 (width,)
    """
    cdef float[:, ::1] floats
    cdef const float[:, ::1] float_outputs
    cdef uint16_t[:, ::1] halves
    cdef const uint16_t[:, ::1] half_outputs
    cdef size_t n = gradient.shape[0], width = gradient.shape[1]
    if outputs.shape != gradient.shape or totals.shape[0] != <Py_ssize_t>width:
        raise ValueError(f"a gradient of shape {gradient.shape}, outputs of {outputs.shape} and {totals.shape[0]} "
                         "totals do not fit")
    if n == 0 or width == 0:
        totals[:] = 0.0
    elif gradient.dtype == np.float32:
        floats, float_outputs = gradient, outputs
        with nogil:
            totals[:] = 0.0
            relu_back_float(&floats[0, 0], &float_outputs[0, 0], n, width, &totals[0])
    else:
        halves, half_outputs = gradient, outputs
        with nogil:
            totals[:] = 0.0
            relu_back_half(&halves[0, 0], &half_outputs[0, 0], n, width, &totals[0])


def sum_shards(list shards, list outputs, double scale):
    """Scaled sums, each shard added to those before it; returns the Euclidean norm of all of them.

    shards   # IN, per shard one contiguous array a parameter
    outputs  # OUT, one contiguous float32 array a parameter, of the shards' sizes
    """
    cdef int n_shards = len(shards), s
    cdef size_t start, size
    cdef bint half
    cdef double squares = 0.0
    cdef const float[::1] floats
    cdef const uint16_t[::1] halves
    cdef float[::1] out
    cdef const void** pointers = <const void**>malloc((n_shards + 1) * sizeof(void*))
    if pointers == NULL:
        raise MemoryError
    try:
        for parameter, output in enumerate(outputs):
            out = output.reshape(-1)
            size = out.shape[0]
            half = shards[0][parameter].dtype == np.uint16
            for s in range(n_shards):
                flat = shards[s][parameter].reshape(-1)
                if <size_t>len(flat) != size:
                    raise ValueError(f"parameter {parameter} has {size} elements, but its gradient in shard {s} "
                                     f"has {len(flat)}")
                if half:
                    halves = flat
                    pointers[s] = &halves[0]
                else:
                    floats = flat
                    pointers[s] = &floats[0]
            with nogil:
                start = 0
                while start < size:
                    squares += sum_chunk(pointers, n_shards, half, start, <int>min(<size_t>CHUNK, size - start),
                                         <float>scale, &out[start])
                    start += CHUNK
    finally:
        free(pointers)
    return sqrt(squares)
