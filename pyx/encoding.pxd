"""Rows of bits, the floats a network sees, and the records that memories hold.

A record is one sample, `record_bytes` bytes, everything a training step needs of it side by side:

    row         row_bytes        the packed features
    targets     max_legal float  one per legal action
    weight      float            of the sample, beside its iteration's
    iteration   uint32
    slots       max_legal uint16 output slot of each target; NO_SLOT beyond the legal actions
"""
from pyx.types cimport Output, uint8_t, uint16_t, uint32_t

cdef enum:
    NO_SLOT = 0xFFFF


cdef class RecordLayout:
    cdef readonly int row_bytes, n_features, n_actions, max_legal
    cdef readonly int targets_at, weight_at, iteration_at, slots_at, record_bytes


cdef inline float* record_targets(RecordLayout layout, uint8_t* record) noexcept nogil:
    return <float*>(record + layout.targets_at)


cdef void write_record(RecordLayout layout, const uint8_t* row, const Output* places, int n, float weight,
                       uint32_t iteration, uint8_t* record) noexcept nogil
