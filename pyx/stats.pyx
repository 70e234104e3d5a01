"""Counters that a block owns and that are merged explicitly."""
from pyx.types cimport int64_t


cdef class TraversalStats:
    """What one block's traversals met.

    Owned by: one block. Safe to call from: the thread that runs it; merge when it has ended.
    Guarantees: merging is a sum, so its order does not matter. Does not guarantee: anything while the
    block runs on another thread.
    """

    cdef void count_batch(self, int64_t rows) noexcept nogil:
        cdef int bucket = 0
        self.counters.batches += 1
        self.counters.rows += rows
        while rows > 1 and bucket < BATCH_BUCKETS - 1:
            rows >>= 1
            bucket += 1
        self.counters.batch_sizes[bucket] += 1

    def add_batch(self, int64_t rows):
        """Count a batch of `rows` rows."""
        self.count_batch(rows)

    # nogil-audit: ignore-within[shared-attr-c] of the one thread that runs the block
    def add_forward(self, int64_t nanoseconds):
        """Count time that the block's thread spent on answers of the network."""
        self.spent.forward += nanoseconds

    # nogil-audit: ignore-within[shared-attr-c] one thread merges blocks that have ended
    def merge(self, TraversalStats other):
        """Add another block's counters to these."""
        cdef int64_t* mine = <int64_t*>&self.counters
        cdef const int64_t* theirs = <const int64_t*>&other.counters
        cdef int64_t deepest = max(self.counters.max_depth, other.counters.max_depth)
        cdef size_t i
        for i in range(sizeof(Counters) // sizeof(int64_t)):
            mine[i] += theirs[i]
        self.counters.max_depth = deepest
        mine, theirs = <int64_t*>&self.spent, <const int64_t*>&other.spent
        for i in range(sizeof(Spent) // sizeof(int64_t)):
            mine[i] += theirs[i]

    def as_dict(self):
        """Field name -> int; batch_sizes -> list of BATCH_BUCKETS ints."""
        return self.counters

    def seconds(self):
        """Part of the work -> seconds that threads spent on it, all threads together."""
        return {part: 1e-9 * spent for part, spent in (<dict>self.spent).items()}

    def __reduce__(self):
        return _restored, (self.counters, self.spent)


def _restored(counters, spent):
    """Pickled counters again."""
    cdef TraversalStats stats = TraversalStats()
    stats.counters, stats.spent = counters, spent
    return stats
