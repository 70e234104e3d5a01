"""Outcome and external sampling as lanes of a block: explicit state machines that wait for the network.

The whole algorithm, one traversal:

    run_lane    go on until a decision with a choice: deal chance, play forced moves; at the end hand
                back the payoff (settle / unwind) and take the block's next traversal
    observe     write the decision's row into the batch
    choose      the network's answer becomes a strategy, and an action
    write       record a sample
    play        the action

Each goes over all lanes before the next begins, so that its time can be told from the others'.

Source: Lanctot, Waugh, Zinkevich, Bowling 2009 (both samplings); Brown, Lerer, Gross, Sandholm 2019
(what is recorded). Nothing here depends on which thread runs a block, nor when.
"""
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

from time import perf_counter_ns

import numpy as np

from pyx.cfr_math cimport (FALLBACK_BEST, FALLBACK_UNIFORM, explore, outcome_targets, regret_matching,
                           sample_strategy)
from pyx.encoding cimport RecordLayout, record_targets, write_record
from pyx.game cimport Game
from pyx.rng cimport STREAM_TRAVERSAL, rng_start
from pyx.stats cimport TraversalStats
from pyx.types cimport CHANCE, MAX_LEGAL, TERMINAL, Output, int32_t, int64_t, uint8_t, uint32_t, uint64_t

ALGORITHMS = ("external_sampling", "outcome_sampling")

# A sample's own weight is stored as a float: the largest that still has room to be multiplied.
cdef double LARGEST_WEIGHT = 1e30


cdef inline double* frame_strategy(Frame* frame) noexcept nogil:
    return <double*>(frame + 1)


cdef inline double* frame_values(Frame* frame, int max_legal) noexcept nogil:
    return frame_strategy(frame) + max_legal


cdef inline int* frame_actions(Frame* frame, int max_legal) noexcept nogil:
    return <int*>(frame_values(frame, max_legal) + max_legal)


cdef inline void* frame_state(Frame* frame, int max_legal) noexcept nogil:
    # An even number of ints, so that the state is 8-byte aligned.
    return <void*>(frame_actions(frame, max_legal) + ((max_legal + 1) & ~1))


cdef inline float own_weight(const Lane* lane) noexcept nogil:
    return <float>(lane.weight if lane.weight < LARGEST_WEIGHT else LARGEST_WEIGHT)


cdef class Records:
    """Samples of one block, in memory that is kept for the next. Owned by: the block."""

    def __cinit__(self, RecordLayout layout):
        self.layout = layout
        self.array = np.empty((0, layout.record_bytes), np.uint8)

    # nogil-audit: ignore-within[py-op, shared-attr] a block is one thread's; add() never allocates
    cdef int reserve(self, int64_t more) except -1:
        """Room for `more` samples, so that add() never allocates. What is never written costs no memory, copies do."""
        cdef uint8_t[:, ::1] view
        if self.count + more > self.room:
            grown = np.empty((max(4 * self.room, self.count + more, 256), self.layout.record_bytes), np.uint8)
            grown[:self.count] = self.array[:self.count]
            view = grown
            self.array, self.data, self.room = grown, &view[0, 0], grown.shape[0]
        return 0

    cdef uint8_t* add(self) noexcept nogil:
        self.count += 1
        return self.at(self.count - 1)

    cdef uint8_t* at(self, int64_t index) noexcept nogil:
        return self.data + index * self.layout.record_bytes


cdef class TraversalBlock:
    """A fixed range of traversals for one traverser, some lanes of them at a time.

    Owned by: the one thread that runs it, from first to last. Safe to call from: that thread.
    Guarantees: rows, samples and counters are a pure function of the arguments and the answers; a traversal's
    samples do not depend on which player is answered first, only their order does.
    Does not guarantee: anything of rows() after that player's answer(), nor of records after restart().

        while block.advance():
            player = 1 if block.waiting(1) > block.waiting(0) else 0
            block.answer(player, evaluate[player](block.rows(player)))
    """

    def __cinit__(self, Game game, str algorithm, int traverser, int64_t first, int64_t count, *, int lanes,
                  uint64_t seed, uint32_t iteration, double exploration=0.6, str fallback="best",
                  bint keep_strategy=True):
        cdef size_t lane_bytes, actions_bytes, places_bytes, strategy_bytes
        cdef uint8_t[:, ::1] view
        cdef uint8_t* cursor
        cdef int i
        if algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm {algorithm!r}; a block knows: {', '.join(ALGORITHMS)}")
        if count < 1 or lanes < 1:
            raise ValueError(f"count {count}, lanes {lanes}: a block needs at least one traversal and lane")
        if not 0.0 < exploration <= 1.0:
            raise ValueError(f"exploration {exploration}: it must be above 0, so that every action can be sampled, "
                             "and at most 1")
        self.external = algorithm == "external_sampling"
        if self.external and game.max_length == 0:
            raise ValueError(f"external sampling tries every action, and a game of {game.name} may never end; "
                             "use outcome_sampling")
        self.game = game
        self.count, self.n_lanes = count, min(lanes, count)
        self.seed, self.exploration = seed, exploration
        self.fallback = {"best": FALLBACK_BEST, "uniform": FALLBACK_UNIFORM}[fallback]
        self.keep_strategy = keep_strategy
        self.layout = RecordLayout(game)
        self.advantages, self.strategies = Records(self.layout), Records(self.layout)

        self.frame_bytes = (sizeof(Frame) + 16 * game.max_legal + 4 * ((game.max_legal + 1) & ~1)
                            + game.state_bytes)
        actions_bytes = (4 * game.max_legal + 7) & ~7
        places_bytes = (sizeof(Output) * game.max_legal + 7) & ~7
        strategy_bytes = sizeof(double) * game.max_legal
        lane_bytes = game.state_bytes + actions_bytes + places_bytes + strategy_bytes
        if self.external:
            lane_bytes += self.frame_bytes * game.max_length
        self.lanes = <Lane*>calloc(self.n_lanes, sizeof(Lane))
        self.storage = <uint8_t*>calloc(self.n_lanes, lane_bytes)
        self.lane_of[0] = <int32_t*>calloc(self.n_lanes, sizeof(int32_t))
        self.lane_of[1] = <int32_t*>calloc(self.n_lanes, sizeof(int32_t))
        if not self.lanes or not self.storage or not self.lane_of[0] or not self.lane_of[1]:
            raise MemoryError(f"{self.n_lanes} lanes of {lane_bytes} bytes; lower traversal.lanes")
        for i in range(self.n_lanes):
            cursor = self.storage + i * lane_bytes
            self.lanes[i].state = cursor
            self.lanes[i].actions = <int*>(cursor + game.state_bytes)
            self.lanes[i].places = <Output*>(cursor + game.state_bytes + actions_bytes)
            self.lanes[i].strategy = <double*>(cursor + game.state_bytes + actions_bytes + places_bytes)
            self.lanes[i].frames = <uint8_t*>self.lanes[i].strategy + strategy_bytes
        self.arrays = [np.zeros((self.n_lanes, game.row_bytes), np.uint8) for _ in range(2)]
        for i in range(2):
            view = self.arrays[i]
            self.rows_of[i] = &view[0, 0]
        self.restart(traverser, first, iteration)

    def __dealloc__(self):
        free(self.lanes)
        free(self.storage)
        free(self.links)
        free(self.lane_of[0])
        free(self.lane_of[1])

    # nogil-audit: ignore-within[shared-attr,shared-attr-c] one thread runs a block
    def restart(self, int traverser, int64_t first, uint32_t iteration):
        """Become the block of as many other traversals, in the same memory: records handed out before are lost."""
        cdef int32_t i
        if traverser not in (0, 1) or first < 0:
            raise ValueError(f"traverser {traverser}, first {first}: a block needs traverser 0 or 1 and first >= 0")
        self.traverser, self.iteration = traverser, iteration
        self.next_traversal, self.end = first, first + self.count
        self.stats = TraversalStats()
        self.advantages.count = self.strategies.count = 0
        self.stuck = False
        for i in range(2):
            self.n_waiting[i] = self.n_observed[i] = 0
        for i in range(self.n_lanes):
            self.begin(&self.lanes[i])

    # nogil-audit: ignore-within[shared-attr-c] one thread runs a block
    def advance(self):
        """Run every lane to its next decision. Returns how many rows wait, 0 when the block is done.

        Rows of a player who was not answered go on waiting, and others join them.
        """
        if self.stuck:
            raise ValueError(f"{self.n_waiting[0]} and {self.n_waiting[1]} rows of players 0 and 1 wait for answers; "
                             "answer a player's before the next advance()")
        cdef int64_t began = perf_counter_ns(), stood
        with nogil:
            self.run()
        stood = perf_counter_ns()
        with nogil:
            self.observe(0)
            self.observe(1)
        self.stats.spent.logic += stood - began
        self.stats.spent.encode += <int64_t>perf_counter_ns() - stood
        self.stuck = self.n_waiting[0] or self.n_waiting[1]
        return self.n_waiting[0] + self.n_waiting[1]

    def waiting(self, int player):
        """How many rows wait for `player`'s network."""
        return self.n_waiting[player]

    def rows(self, int player):
        """The packed rows that wait for `player`'s network: uint8 (waiting, row_bytes)."""
        return self.arrays[player][:self.n_waiting[player]]

    # nogil-audit: ignore-within[shared-attr-c] one thread runs a block
    def answer(self, int player, const float[:, ::1] outputs, bint is_batch=True):
        """The network's outputs for rows(player): float32 (waiting, n_actions).

        is_batch: whether these rows were a batch of their own, which the block counts.
        """
        cdef int64_t n = self.n_waiting[player]
        if n == 0:
            raise ValueError(f"no row waits for player {player}'s network")
        if outputs.shape[0] != n or outputs.shape[1] != self.game.n_actions:
            raise ValueError(f"an answer of {outputs.shape[0]} x {outputs.shape[1]} outputs for {n} rows; "
                             f"{self.game.name} has {self.game.n_actions} outputs a row")
        self._reserve(n)                        # first, as it may fail: nothing has changed then
        cdef int64_t began = perf_counter_ns(), chosen, written
        if is_batch:
            self.stats.count_batch(n)
        self.stuck = False
        with nogil:
            self.choose(player, &outputs[0, 0], outputs.shape[1])
        chosen = perf_counter_ns()
        with nogil:
            self.write(player)
        written = perf_counter_ns()
        with nogil:
            self.play(player)
        self.stats.spent.strategy += chosen - began
        self.stats.spent.write += written - chosen
        self.stats.spent.logic += <int64_t>perf_counter_ns() - written

    # nogil-audit: ignore-within[shared-attr-c] one thread runs a block
    def _reserve(self, int64_t n):
        self.strategies.reserve(n)
        self.advantages.reserve(n)
        cdef Link* grown
        if self.links_room < self.advantages.room and not self.external:
            grown = <Link*>realloc(self.links, self.advantages.room * sizeof(Link))
            if not grown:
                raise MemoryError(f"{self.advantages.room} samples in one block; lower traversal.block")
            self.links, self.links_room = grown, self.advantages.room

    def advantage_records(self):
        """The traverser's samples, uint8 (n, record_bytes), in the order in which they were met."""
        return self.advantages.array[:self.advantages.count]

    def strategy_records(self):
        """The opponent's strategies, uint8 (n, record_bytes), in the order in which they were met."""
        return self.strategies.array[:self.strategies.count]

    cdef void run(self) noexcept nogil:
        cdef int32_t i
        for i in range(self.n_lanes):
            if self.lanes[i].status == RUNNING:
                self.run_lane(i)

    cdef void run_lane(self, int32_t index) noexcept nogil:
        cdef Lane* lane = &self.lanes[index]
        cdef int player, n
        cdef double payoff
        while lane.status == RUNNING:
            player = self.game.player(lane.state)
            if player == CHANCE:
                self.game.sample_chance(lane.state, &lane.rng)
            elif player == TERMINAL:
                payoff = self.game.payoff(lane.state)
                if self.traverser == 1:
                    payoff = -payoff
                self.stats.counters.terminal_nodes += 1
                self.stats.counters.depth_sum += lane.depth
                if lane.depth > self.stats.counters.max_depth:
                    self.stats.counters.max_depth = lane.depth
                if self.external:
                    if self.unwind(lane, payoff):
                        self.begin(lane)
                else:
                    self.settle(lane, payoff)
                    self.begin(lane)
            else:
                n = self.game.legal(lane.state, lane.actions)
                lane.depth += 1
                if n == 1:
                    self.stats.counters.forced_nodes += 1
                    self.game.apply(lane.state, lane.actions[0])
                else:
                    self.wait(lane, index, player, n)

    cdef void begin(self, Lane* lane) noexcept nogil:
        """Take the block's next traversal, or end the lane."""
        if self.next_traversal == self.end:
            lane.status = FREE
            return
        rng_start(&lane.rng, self.seed, STREAM_TRAVERSAL, self.iteration, self.traverser,
                  <uint32_t>self.next_traversal)
        self.next_traversal += 1
        self.stats.counters.traversals += 1
        self.game.start(lane.state)
        lane.status = RUNNING
        lane.depth = 0
        lane.height = 0
        lane.newest = -1
        lane.weight = 1.0

    cdef void wait(self, Lane* lane, int32_t index, int player, int n) noexcept nogil:
        self.lane_of[player][self.n_waiting[player]] = index
        self.n_waiting[player] += 1
        lane.n_legal = n
        lane.status = WAITING
        self.stats.counters.nodes += 1

    cdef void observe(self, int player) noexcept nogil:
        """Rows of lanes that have begun to wait for this player's network."""
        cdef int32_t i
        cdef Lane* lane
        for i in range(self.n_observed[player], self.n_waiting[player]):
            lane = &self.lanes[self.lane_of[player][i]]
            self.game.observe(lane.state, player, self.rows_of[player] + i * self.layout.row_bytes, lane.places)
        self.n_observed[player] = self.n_waiting[player]

    cdef void choose(self, int player, const float* outputs, int64_t stride) noexcept nogil:
        """Answers of the network become strategies, and an action of each.

        outputs  # IN, n_waiting[player] rows of `stride` floats
        """
        cdef double sampling[MAX_LEGAL]
        cdef int32_t i
        cdef int n
        cdef Lane* lane
        for i in range(self.n_waiting[player]):
            lane = &self.lanes[self.lane_of[player][i]]
            n = lane.n_legal
            self.stats.counters.fallbacks += regret_matching(outputs + i * stride, lane.places, n, self.fallback,
                                                             lane.strategy)
            if player != self.traverser:
                lane.sampled = sample_strategy(lane.strategy, n, &lane.rng)
            elif self.external:
                lane.sampled = 0                # all are tried in turn
            else:
                explore(lane.strategy, n, self.exploration, sampling)
                lane.sampled = sample_strategy(sampling, n, &lane.rng)
                lane.sampling = sampling[lane.sampled]

    cdef void write(self, int player) noexcept nogil:
        """A sample of each decision, and what the way back needs of it."""
        cdef int32_t i
        cdef Lane* lane
        cdef const uint8_t* row
        for i in range(self.n_waiting[player]):
            lane = &self.lanes[self.lane_of[player][i]]
            row = self.rows_of[player] + i * self.layout.row_bytes
            if player == self.traverser:
                self.write_advantage(lane, row)
            elif self.keep_strategy:
                self.write_strategy(lane, row)

    cdef void write_strategy(self, Lane* lane, const uint8_t* row) noexcept nogil:
        cdef uint8_t* record = self.strategies.add()
        cdef int k
        write_record(self.layout, row, lane.places, lane.n_legal, own_weight(lane), self.iteration, record)
        for k in range(lane.n_legal):
            record_targets(self.layout, record)[k] = <float>lane.strategy[k]
        self.stats.counters.strategy_samples += 1

    cdef void write_advantage(self, Lane* lane, const uint8_t* row) noexcept nogil:
        cdef int max_legal = self.game.max_legal, n = lane.n_legal
        cdef Frame* frame
        cdef Link* link
        write_record(self.layout, row, lane.places, n, own_weight(lane), self.iteration, self.advantages.add())
        self.stats.counters.advantage_samples += 1
        if self.external:
            frame = <Frame*>(lane.frames + lane.height * self.frame_bytes)
            lane.height += 1
            frame.record = self.advantages.count - 1
            frame.n_legal = n
            frame.trying = 0
            frame.depth = lane.depth
            memcpy(frame_strategy(frame), lane.strategy, n * sizeof(double))
            memcpy(frame_actions(frame, max_legal), lane.actions, n * sizeof(int))
            memcpy(frame_state(frame, max_legal), lane.state, self.game.state_bytes)
        else:
            link = &self.links[self.advantages.count - 1]
            link.previous = lane.newest
            link.strategy = lane.strategy[lane.sampled]
            link.sampling = lane.sampling
            link.sampled = lane.sampled
            link.n_legal = n
            lane.newest = self.advantages.count - 1
            lane.weight *= 1.0 / (n * lane.sampling)

    cdef void play(self, int player) noexcept nogil:
        """The chosen actions; nobody waits for this player's network any more."""
        cdef int32_t i
        cdef Lane* lane
        for i in range(self.n_waiting[player]):
            lane = &self.lanes[self.lane_of[player][i]]
            self.game.apply(lane.state, lane.actions[lane.sampled])
            lane.status = RUNNING
        self.n_waiting[player] = self.n_observed[player] = 0

    cdef bint unwind(self, Lane* lane, double value) noexcept nogil:
        """External sampling: a subtree is worth `value`; try the next action. Returns 1 when none is left."""
        cdef int max_legal = self.game.max_legal, k
        cdef double node
        cdef double* values
        cdef double* strategy
        cdef float* targets
        cdef Frame* frame
        while lane.height > 0:
            frame = <Frame*>(lane.frames + (lane.height - 1) * self.frame_bytes)
            strategy = frame_strategy(frame)
            values = frame_values(frame, max_legal)
            values[frame.trying] = value
            frame.trying += 1
            if frame.trying < frame.n_legal:
                memcpy(lane.state, frame_state(frame, max_legal), self.game.state_bytes)
                self.game.apply(lane.state, frame_actions(frame, max_legal)[frame.trying])
                lane.depth = frame.depth
                return 0
            node = 0.0
            for k in range(frame.n_legal):
                node += strategy[k] * values[k]
            targets = record_targets(self.layout, self.advantages.at(frame.record))
            for k in range(frame.n_legal):
                targets[k] = <float>(values[k] - node)
            value = node
            lane.height -= 1
        return 1

    cdef void settle(self, Lane* lane, double payoff) noexcept nogil:
        """Outcome sampling: the payoff goes back along the path."""
        cdef int64_t index = lane.newest
        cdef double tail = payoff
        cdef Link* link
        while index >= 0:
            link = &self.links[index]
            tail = outcome_targets(tail, link.n_legal, link.sampled, link.strategy, link.sampling,
                                   record_targets(self.layout, self.advantages.at(index)))
            index = link.previous
