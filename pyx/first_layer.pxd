"""A network's first layer as a sum of the weights of the bits that are set: declarations."""
from pyx.types cimport uint8_t, uint16_t, uint32_t


cdef class FirstLayer:
    cdef readonly int n_features, row_bytes, width
    cdef readonly bint bfloat               # weights and outputs are bfloat16; else float32
    cdef int n_blocks                       # of COLUMNS outputs each, the last one filled up with zeros
    cdef object kept                        # the arrays that the pointers point into
    cdef const float* bias                  # n_blocks * COLUMNS
    cdef const float* floats                # block, bit, COLUMNS; or
    cdef const uint32_t* pairs              # block, bit, COLUMNS / 2
    cdef void run(self, const uint8_t* rows, Py_ssize_t n, void* out) noexcept nogil
