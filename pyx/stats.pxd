"""Counters of traversals: declarations."""
from pyx.types cimport int64_t

cdef enum:
    BATCH_BUCKETS = 16

# The one declaration of the fields; all are sums but max_depth.
ctypedef struct Counters:
    int64_t traversals
    int64_t nodes               # decisions with at least two legal actions
    int64_t forced_nodes        # decisions with one
    int64_t terminal_nodes
    int64_t depth_sum           # decisions on the way to each terminal node, summed
    int64_t max_depth
    int64_t fallbacks           # nodes where no advantage was positive
    int64_t advantage_samples
    int64_t strategy_samples
    int64_t rows                # rows evaluated
    int64_t batches
    int64_t batch_sizes[BATCH_BUCKETS]      # bucket b: batches of 2**b .. 2**(b+1) - 1 rows


cdef class TraversalStats:
    cdef Counters counters
    cdef void count_batch(self, int64_t rows) noexcept nogil
