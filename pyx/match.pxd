"""Lanes and blocks of whole games between two policies: declarations."""
from pyx.bots cimport Bot
from pyx.game cimport Game
from pyx.lost_cities cimport LostCities
from pyx.rng cimport Rng
from pyx.types cimport Output, int32_t, int64_t, uint8_t, uint64_t

cdef enum Status:
    FREE = 0            # no game
    RUNNING = 1         # can go on
    WAITING = 2         # stands at a decision, its row is in a batch

# One finished game, as match.RESULT names its fields. Pairs are (first policy, second policy).
ctypedef struct Result:
    double difference           # what the first policy won, in the game's units
    int32_t points[2]           # Lost Cities: both scores
    int32_t columns[2]          # Lost Cities: columns opened
    int32_t pile_draws[2]       # Lost Cities: draws from discard piles
    int32_t plies               # actions played
    int32_t limited             # Lost Cities: 1 if a decision came at deck_only_after or later

# One game in progress. Its arrays lie in the block's own storage.
ctypedef struct Lane:
    Rng chance                  # the pair's
    Rng choices                 # the game's
    int64_t game                # its place in the block
    int32_t swapped             # 1 if the first policy is player 1
    int32_t status
    int32_t n_legal
    int32_t plies
    int32_t pile_draws[2]
    void* state
    int* actions                # of the decision it waits at, max_legal
    Output* places              # of the same


cdef class Answered:
    cdef readonly str mode, fallback


cdef class MatchBlock:
    cdef readonly Game game
    cdef readonly object first, second      # the policies
    cdef readonly int64_t first_game, count
    cdef readonly int n_lanes
    cdef readonly object results            # RESULT (count,)
    cdef LostCities cities                  # the game where it is Lost Cities, else None
    cdef bint is_cities
    cdef Bot first_bot, second_bot          # None where the policy is Answered
    cdef int rule[2]                        # how a policy's outputs become a strategy
    cdef uint64_t seed
    cdef int64_t next_game
    cdef Result* result_of
    cdef Lane* lanes
    cdef uint8_t* storage
    # A group is one policy in one seat, 2 * policy + player: an agent may have a network a player.
    cdef object arrays                      # per group uint8 (n_lanes, row_bytes), None where a bot plays
    cdef uint8_t* rows_of[4]
    cdef int32_t* waiting_of[4]             # per group: the lane of each row
    cdef int32_t n_waiting[4]
    cdef void run(self) noexcept nogil
    cdef void run_lane(self, int32_t index) noexcept nogil
    cdef void begin(self, Lane* lane) noexcept nogil
    cdef void finish(self, Lane* lane) noexcept nogil
    cdef void play(self, Lane* lane, int policy, int action) noexcept nogil
    cdef void wait(self, Lane* lane, int32_t index, int group, int n) noexcept nogil
    cdef void take(self, int group, const float* outputs, int64_t stride) noexcept nogil
