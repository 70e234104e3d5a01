"""Whole games between two policies, bots or agents, as lanes of a block that wait for networks.

Games 2k and 2k + 1 are a pair: the same deal with seats swapped. Each draws its chance from the pair's own
stream, so that whatever is dealt, hands and deck alike, comes in the same order in both.

    run_lane    go on until an agent must choose: deal chance, play forced moves, ask bots; at the end
                write the result and take the block's next game
    wait        write the decision's row into its group's batch
    take        the agent's outputs become a strategy, an action is drawn from it and played
"""
from libc.stdlib cimport calloc, free

import numpy as np

from pyx.bots cimport Bot
from pyx.cfr_math cimport FALLBACK_BEST, FALLBACK_UNIFORM, regret_matching, sample_strategy, softmax_strategy
from pyx.game cimport Game
from pyx.lost_cities cimport LostCities, Position
from pyx.rng cimport STREAM_MATCH, rng_start
from pyx.types cimport CHANCE, MAX_LEGAL, TERMINAL, Output, int32_t, int64_t, uint8_t, uint32_t, uint64_t

RESULT = np.dtype([("difference", np.float64), ("points", np.int32, 2), ("columns", np.int32, 2),
                   ("pile_draws", np.int32, 2), ("plies", np.int32), ("limited", np.int32)])

# Streams of a match, told apart by the iteration of their key.
cdef enum:
    CHANCE_OF_PAIR = 0
    CHOICES_OF_GAME = 1

cdef enum Rule:
    MATCH_BEST = FALLBACK_BEST
    MATCH_UNIFORM = FALLBACK_UNIFORM
    SOFTMAX = 2


cdef class Answered:
    """A policy whose decisions come from outside: what its outputs mean.

    mode      "advantage": regret matching; "strategy": softmax of the legal actions' logits
    fallback  "best" or "uniform": what is played where no advantage is positive
    """

    def __init__(self, str mode="advantage", str fallback="best"):
        if mode not in ("advantage", "strategy"):
            raise ValueError(f"mode {mode!r}: outputs are read as 'advantage' or as 'strategy'")
        if fallback not in ("best", "uniform"):
            raise ValueError(f"fallback {fallback!r}: where no advantage is positive 'best' or 'uniform' is played")
        self.mode, self.fallback = mode, fallback


def rule_of(policy):
    """How a policy's outputs become a strategy."""
    if isinstance(policy, Bot) or policy.mode == "advantage" and policy.fallback == "best":
        return MATCH_BEST
    return SOFTMAX if policy.mode == "strategy" else MATCH_UNIFORM


cdef class MatchBlock:
    """A fixed range of games between two policies, each a Bot or Answered, some lanes of them at a time.

    Owned by: the one thread that runs it, from first to last. Safe to call from: that thread.
    Guarantees: results and rows are a pure function of the arguments and the answers; where answers are a
    function of the row alone, results depend neither on lanes nor on how games are split into blocks.
    Does not guarantee: anything of rows() after the next advance(), nor of results before the end.

        while block.advance():
            for group in block.groups():
                block.answer(group, evaluate[group](block.rows(group)))

    A group is (policy, player): policy 0 is `first`, 1 is `second`; player is the seat it has in that game,
    0 in even games for `first`. `results` is RESULT (count,): its pairs of fields are (first, second).
    """

    def __cinit__(self, Game game, first, second, int64_t first_game, int64_t count, *, int lanes, uint64_t seed):
        cdef size_t actions_bytes, places_bytes, lane_bytes
        cdef uint8_t[:, ::1] view
        cdef uint8_t[::1] results
        cdef uint8_t* cursor
        cdef int i
        for policy in (first, second):
            if isinstance(policy, Bot):
                policy.check(game)
            elif not isinstance(policy, Answered):
                raise ValueError(f"{policy!r} plays no match; a policy is a Bot or Answered")
        if first_game < 0 or count < 2 or first_game % 2 or count % 2 or lanes < 1:
            raise ValueError(f"first_game {first_game}, count {count}, lanes {lanes}: a block needs whole pairs, so "
                             "an even first_game of at least 0, an even count of at least 2, and at least 1 lane")
        if first_game + count > <int64_t>1 << 32:
            raise ValueError(f"games up to {first_game + count}: streams are numbered up to 2**32 games")
        if game.max_length == 0:
            raise ValueError(f"{game!r} may never end, and scripted players do repeat positions for ever; "
                             "set deck_only_after above 0")
        self.game, self.first, self.second = game, first, second
        self.first_bot = first if isinstance(first, Bot) else None
        self.second_bot = second if isinstance(second, Bot) else None
        self.rule[0], self.rule[1] = rule_of(first), rule_of(second)
        self.is_cities = isinstance(game, LostCities)
        self.cities = game if self.is_cities else None
        self.first_game, self.count, self.n_lanes, self.seed = first_game, count, min(lanes, count), seed
        self.results = np.zeros(count, RESULT)
        results = self.results.view(np.uint8)
        self.result_of = <Result*>&results[0]

        actions_bytes = (sizeof(int) * game.max_legal + 7) & ~7
        places_bytes = (sizeof(Output) * game.max_legal + 7) & ~7
        lane_bytes = game.state_bytes + actions_bytes + places_bytes
        self.lanes = <Lane*>calloc(self.n_lanes, sizeof(Lane))
        self.storage = <uint8_t*>calloc(self.n_lanes, lane_bytes)
        self.waiting_of[0] = <int32_t*>calloc(4 * self.n_lanes, sizeof(int32_t))
        if not self.lanes or not self.storage or not self.waiting_of[0]:
            raise MemoryError(f"{self.n_lanes} lanes of {lane_bytes} bytes; play with fewer")
        for i in range(self.n_lanes):
            cursor = self.storage + i * lane_bytes
            self.lanes[i].state = cursor
            self.lanes[i].actions = <int*>(cursor + game.state_bytes)
            self.lanes[i].places = <Output*>(cursor + game.state_bytes + actions_bytes)
            self.begin(&self.lanes[i])
        self.arrays = []
        for i in range(4):
            self.waiting_of[i] = self.waiting_of[0] + i * self.n_lanes
            if isinstance((first, second)[i // 2], Bot):
                self.arrays.append(None)
            else:
                view = np.zeros((self.n_lanes, game.row_bytes), np.uint8)
                self.arrays.append(np.asarray(view))
                self.rows_of[i] = &view[0, 0]

    def __dealloc__(self):
        free(self.lanes)
        free(self.storage)
        free(self.waiting_of[0])

    def advance(self):
        """Run every lane to its next choice of an agent. Returns how many rows wait, 0 when the block is done."""
        if self.groups():
            raise ValueError(f"rows of the groups {self.groups()} wait for answers; answer them before the next "
                             "advance()")
        with nogil:
            self.run()
        return self.n_waiting[0] + self.n_waiting[1] + self.n_waiting[2] + self.n_waiting[3]

    def groups(self):
        """The groups of which rows wait, a list of (policy, player)."""
        return [(i // 2, i % 2) for i in range(4) if self.n_waiting[i]]

    def rows(self, group):
        """The packed rows of a waiting group: uint8 (waiting, row_bytes), valid until advance()."""
        cdef int i = self._group_of(group)
        return self.arrays[i][:self.n_waiting[i]]

    def answer(self, group, const float[:, ::1] outputs):
        """The network's outputs for rows(group): float32 (waiting, n_actions)."""
        cdef int i = self._group_of(group)
        if outputs.shape[0] != self.n_waiting[i] or outputs.shape[1] != self.game.n_actions:
            raise ValueError(f"an answer of {outputs.shape[0]} x {outputs.shape[1]} outputs for "
                             f"{self.n_waiting[i]} rows; {self.game.name} has {self.game.n_actions} outputs a row")
        with nogil:
            self.take(i, &outputs[0, 0], outputs.shape[1])

    def _group_of(self, group):
        if group not in self.groups():
            raise ValueError(f"no row of group {group!r} waits; of these do: {self.groups()}")
        return 2 * group[0] + group[1]

    cdef void run(self) noexcept nogil:
        cdef int32_t i
        for i in range(self.n_lanes):
            if self.lanes[i].status == RUNNING:
                self.run_lane(i)

    cdef void run_lane(self, int32_t index) noexcept nogil:
        cdef Lane* lane = &self.lanes[index]
        cdef int player, policy, n
        while lane.status == RUNNING:
            player = self.game.player(lane.state)
            if player == CHANCE:
                self.game.sample_chance(lane.state, &lane.chance)
                continue
            if player == TERMINAL:
                self.finish(lane)
                self.begin(lane)
                continue
            n = self.game.legal(lane.state, lane.actions)
            policy = player ^ lane.swapped
            if n == 1:
                self.play(lane, policy, lane.actions[0])
            elif self.rows_of[2 * policy] != NULL:
                self.wait(lane, index, 2 * policy + player, n)
            elif policy == 0:
                self.play(lane, 0, self.first_bot.act(self.game, lane.state, lane.actions, n, &lane.choices))
            else:
                self.play(lane, 1, self.second_bot.act(self.game, lane.state, lane.actions, n, &lane.choices))

    cdef void begin(self, Lane* lane) noexcept nogil:
        """Take the block's next game, or end the lane."""
        cdef uint32_t game = <uint32_t>(self.first_game + self.next_game)
        if self.next_game == self.count:
            lane.status = FREE
            return
        lane.game = self.next_game
        self.next_game += 1
        rng_start(&lane.chance, self.seed, STREAM_MATCH, CHANCE_OF_PAIR, 0, game >> 1)
        rng_start(&lane.choices, self.seed, STREAM_MATCH, CHOICES_OF_GAME, 0, game)
        lane.swapped = game & 1
        lane.plies = 0
        lane.pile_draws[0] = lane.pile_draws[1] = 0
        lane.status = RUNNING
        self.game.start(lane.state)

    cdef void finish(self, Lane* lane) noexcept nogil:
        cdef Result* result = &self.result_of[lane.game]
        cdef const Position* position = <const Position*>lane.state
        cdef double payoff = self.game.payoff(lane.state)
        cdef int policy, player, colour
        result.difference = -payoff if lane.swapped else payoff
        result.plies = lane.plies
        if not self.is_cities:
            return
        result.limited = 0 < self.cities.deck_only_after < lane.plies
        for policy in range(2):
            player = policy ^ lane.swapped
            result.points[policy] = self.cities.score(position, player)
            result.pile_draws[policy] = lane.pile_draws[policy]
            for colour in range(self.cities.colours):
                if position.column[player][colour] or position.wagers[player][colour]:
                    result.columns[policy] += 1

    cdef void play(self, Lane* lane, int policy, int action) noexcept nogil:
        # In Lost Cities the draws from piles come after the draw from the deck.
        if self.is_cities and action > 2 * self.cities.kinds:
            lane.pile_draws[policy] += 1
        lane.plies += 1
        self.game.apply(lane.state, action)

    cdef void wait(self, Lane* lane, int32_t index, int group, int n) noexcept nogil:
        cdef int32_t row = self.n_waiting[group]
        self.game.observe(lane.state, group & 1, self.rows_of[group] + row * self.game.row_bytes, lane.places)
        self.waiting_of[group][row] = index
        self.n_waiting[group] += 1
        lane.n_legal = n
        lane.status = WAITING

    cdef void take(self, int group, const float* outputs, int64_t stride) noexcept nogil:
        """Answers of an agent's network, row by row.

        outputs  # IN, n_waiting[group] rows of `stride` floats
        """
        cdef double strategy[MAX_LEGAL]
        cdef int policy = group >> 1, rule = self.rule[policy]
        cdef int32_t i
        cdef Lane* lane
        for i in range(self.n_waiting[group]):
            lane = &self.lanes[self.waiting_of[group][i]]
            if rule == SOFTMAX:
                softmax_strategy(outputs + i * stride, lane.places, lane.n_legal, strategy)
            else:
                regret_matching(outputs + i * stride, lane.places, lane.n_legal, rule, strategy)
            lane.status = RUNNING
            self.play(lane, policy, lane.actions[sample_strategy(strategy, lane.n_legal, &lane.choices)])
        self.n_waiting[group] = 0
