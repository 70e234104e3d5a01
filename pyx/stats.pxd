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

# Where the time of the threads went that ran blocks, in nanoseconds; sums.
ctypedef struct Spent:
    int64_t logic               # rules, chance, actions, payoffs carried back
    int64_t encode              # rows for the network
    int64_t forward             # the network's answers
    int64_t strategy            # regret matching, and the choice of an action
    int64_t write               # samples


cdef class TraversalStats:
    cdef Counters counters
    cdef Spent spent
    cdef void count_batch(self, int64_t rows) noexcept nogil
