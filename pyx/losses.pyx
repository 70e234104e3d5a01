"""What networks minimise, and its gradient by their outputs; only legal actions are looked at.

Both functions take and give

    outputs   # IN, (n, n_actions) float32, or uint16 that holds bfloat16 bits
    slots     # IN, uint16 (n, max_legal), as in a record: the outputs of the legal actions, then NO_SLOT
    targets   # IN, float32 (n, max_legal), one per slot
    weights   # IN, float32 (n,)
    gradient  # OUT, of the outputs' shape and type

and return the loss summed over the samples, each times its weight.
"""
from libc.math cimport expf, logf
from libc.string cimport memcpy, memset

import numpy as np

from pyx.types cimport MAX_LEGAL, uint16_t, uint32_t


cdef inline float load(const void* row, bint half, int i) noexcept nogil:
    cdef uint32_t bits
    cdef float value
    if not half:
        return (<const float*>row)[i]
    bits = <uint32_t>(<const uint16_t*>row)[i] << 16
    memcpy(&value, &bits, 4)
    return value


cdef inline void store(void* row, bint half, int i, float value) noexcept nogil:
    cdef uint32_t bits
    if not half:
        (<float*>row)[i] = value
    elif value != value:
        (<uint16_t*>row)[i] = 0x7FC0
    else:  # to nearest, ties to even
        memcpy(&bits, &value, 4)
        (<uint16_t*>row)[i] = <uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16)


cdef double advantage_row(const void* outputs, bint half, const uint16_t* slots, const float* targets, int n,
                          float weight, void* gradient) noexcept nogil:
    cdef double loss = 0.0
    cdef float error
    cdef int k
    for k in range(n):
        error = load(outputs, half, slots[k]) - targets[k]
        store(gradient, half, slots[k], 2.0 * weight * error)
        loss += error * error
    return weight * loss


cdef double strategy_row(const void* outputs, bint half, const uint16_t* slots, const float* targets, int n,
                         float weight, void* gradient) noexcept nogil:
    cdef float logits[MAX_LEGAL]
    cdef float powers[MAX_LEGAL]
    cdef double loss = 0.0
    cdef float largest = 0.0, total = 0.0, mass = 0.0, logarithm
    cdef int k
    for k in range(n):
        logits[k] = load(outputs, half, slots[k])
        if k == 0 or logits[k] > largest:
            largest = logits[k]
    for k in range(n):
        powers[k] = expf(logits[k] - largest)
        total += powers[k]
        mass += targets[k]
    logarithm = logf(total)
    for k in range(n):
        loss -= targets[k] * (logits[k] - largest - logarithm)
        store(gradient, half, slots[k], weight * (mass * powers[k] / total - targets[k]))
    return weight * loss


def advantage_loss(outputs, const uint16_t[:, ::1] slots, const float[:, ::1] targets, const float[::1] weights,
                   gradient):
    """Squared error summed over legal actions: Brown et al. 2019, equation 3."""
    return _loss(advantage_row, outputs, slots, targets, weights, gradient)


def strategy_loss(outputs, const uint16_t[:, ::1] slots, const float[:, ::1] targets, const float[::1] weights,
                  gradient):
    """Cross entropy of the softmax over legal actions against the recorded strategy.

    Its minimum is the weighted mean of the recorded strategies, as that of the squared error is, but it does not
    vanish where the softmax saturates.
    """
    return _loss(strategy_row, outputs, slots, targets, weights, gradient)


ctypedef double (*Row)(const void*, bint, const uint16_t*, const float*, int, float, void*) noexcept nogil


# nogil-audit: ignore[py-op] it checks and opens a caller's arrays; its loop over them is without the GIL
cdef double _loss(Row row, outputs, const uint16_t[:, ::1] slots, const float[:, ::1] targets,
                  const float[::1] weights, gradient) except? -1.0:
    cdef Py_ssize_t n = slots.shape[0], i
    cdef int max_legal = slots.shape[1], n_actions = outputs.shape[1], k
    cdef bint half = outputs.dtype == np.uint16
    cdef size_t stride = n_actions * (2 if half else 4)
    cdef const float[:, ::1] floats
    cdef const uint16_t[:, ::1] halves
    cdef float[:, ::1] float_gradient
    cdef uint16_t[:, ::1] half_gradient
    cdef const char* source
    cdef char* goal
    cdef double loss = 0.0
    if (outputs.shape[0] != n or gradient.shape != outputs.shape or targets.shape[0] != n
            or targets.shape[1] != max_legal or weights.shape[0] != n or max_legal > MAX_LEGAL):
        raise ValueError(f"slots of shape {n, max_legal} do not fit outputs of shape {outputs.shape}, a gradient of "
                         f"{gradient.shape}, targets of {targets.shape[0], targets.shape[1]} and {len(weights)} weights")
    if n == 0:
        return 0.0
    if half:
        halves, half_gradient = outputs, gradient
        source, goal = <const char*>&halves[0, 0], <char*>&half_gradient[0, 0]
    else:
        floats, float_gradient = outputs, gradient
        source, goal = <const char*>&floats[0, 0], <char*>&float_gradient[0, 0]
    with nogil:
        memset(goal, 0, n * stride)
        for i in range(n):
            k = 0
            while k < max_legal and slots[i, k] < n_actions:
                k += 1
            loss += row(source + i * stride, half, &slots[i, 0], &targets[i, 0], k, weights[i], goal + i * stride)
    return loss
