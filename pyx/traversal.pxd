"""Lanes and blocks of traversals: declarations."""
from pyx.encoding cimport RecordLayout
from pyx.game cimport Game
from pyx.rng cimport Rng
from pyx.stats cimport TraversalStats
from pyx.types cimport Output, int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum Status:
    FREE = 0            # no traversal
    RUNNING = 1         # can go on
    WAITING = 2         # stands at a decision, its row is in the batch

# One traversal in progress. Its arrays lie in the block's own storage.
ctypedef struct Lane:
    Rng rng
    int32_t status
    int32_t n_legal
    int32_t depth               # decisions so far
    int32_t height              # external sampling: frames on the stack
    int64_t newest              # outcome sampling: the path's newest advantage record, -1 for none
    double weight               # outcome sampling: product of (1 / n) / sampling over the traverser's decisions
    void* state
    int* actions                # of the decision it waits at, max_legal
    Output* places              # of the same
    double* strategy            # of the same, once answered
    int32_t sampled             # of the same: which action, and with what probability
    double sampling
    uint8_t* frames             # external sampling: max_length frames

# Outcome sampling: what the way back needs of an advantage record.
ctypedef struct Link:
    int64_t previous            # record of the traverser's decision before, -1 for none
    double strategy             # of the sampled action
    double sampling
    int32_t sampled
    int32_t n_legal

# External sampling: a traverser's decision whose actions are being tried. Behind it in memory:
# strategy and values (max_legal doubles each), actions (max_legal ints), the state (state_bytes).
ctypedef struct Frame:
    int64_t record
    int32_t n_legal
    int32_t trying
    int32_t depth               # decisions up to and with this one
    int32_t padding


# Samples in the order in which they were met, in memory of the block's own.
cdef class Records:
    cdef RecordLayout layout
    cdef object array           # uint8 (room, record_bytes)
    cdef uint8_t* data
    cdef int64_t count, room
    cdef int reserve(self, int64_t more) except -1
    cdef uint8_t* add(self) noexcept nogil
    cdef uint8_t* at(self, int64_t index) noexcept nogil


cdef class TraversalBlock:
    cdef readonly Game game
    cdef readonly TraversalStats stats
    cdef readonly int traverser, n_lanes
    cdef readonly int64_t count             # traversals of the block
    cdef bint external, keep_strategy
    cdef int fallback
    cdef double exploration
    cdef uint64_t seed
    cdef uint32_t iteration
    cdef int64_t next_traversal, end
    cdef RecordLayout layout
    cdef Records advantages, strategies
    cdef Link* links
    cdef int64_t links_room
    cdef Lane* lanes
    cdef uint8_t* storage
    cdef size_t frame_bytes
    cdef object arrays                      # per player uint8 (n_lanes, row_bytes): rows of waiting lanes
    cdef uint8_t* rows_of[2]
    cdef int32_t* lane_of[2]                # per player: the lane of each row
    cdef int32_t n_waiting[2]
    cdef int32_t n_observed[2]              # of these, how many rows are written
    cdef bint stuck                         # every lane waits, and nothing was answered since advance()
    cdef void run(self) noexcept nogil
    cdef void run_lane(self, int32_t index) noexcept nogil
    cdef void begin(self, Lane* lane) noexcept nogil
    cdef void wait(self, Lane* lane, int32_t index, int player, int n) noexcept nogil
    cdef void observe(self, int player) noexcept nogil
    cdef void choose(self, int player, const float* outputs, int64_t stride) noexcept nogil
    cdef void write(self, int player) noexcept nogil
    cdef void write_strategy(self, Lane* lane, const uint8_t* row) noexcept nogil
    cdef void write_advantage(self, Lane* lane, const uint8_t* row) noexcept nogil
    cdef void play(self, int player) noexcept nogil
    cdef bint unwind(self, Lane* lane, double value) noexcept nogil
    cdef void settle(self, Lane* lane, double payoff) noexcept nogil
