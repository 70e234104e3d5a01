"""Uniformly random games, compiled: what a game's published figures and timings are checked with.

Random play of Lost Cities has published figures; a kernel's cost is measured on the states it meets.
"""
from libc.string cimport memcpy, memset

import time

import numpy as np

from pyx.game cimport Game
from pyx.lost_cities cimport LostCities, Position
from pyx.rng cimport STREAM_STATE, Rng, rng_below, rng_start
from pyx.types cimport CHANCE, MAX_LEGAL, TERMINAL, Output, int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef void to_next_decision(Game game, void* state, Rng* rng) noexcept nogil:
    while game.player(state) == CHANCE:
        game.sample_chance(state, rng)


def random_rounds(LostCities game, int rounds, uint64_t seed, bint always_deck=False):
    """Play rounds of Lost Cities with uniformly random actions; `always_deck` draws from the deck only.

    Returns a dict: `scores` int32 (rounds, 2), `plies` int32 (rounds,), and over all rounds
    `card_choices` and `draw_choices` (legal actions per decision) and `pile_share` (of all draws).
    """
    cdef int32_t[:, ::1] scores = np.zeros((rounds, 2), np.int32)
    cdef int32_t[::1] plies = np.zeros(rounds, np.int32)
    cdef int actions[MAX_LEGAL]
    cdef int64_t choices[2]
    cdef int64_t decisions[2]
    cdef int64_t pile_draws = 0
    cdef Position position
    cdef Rng rng
    cdef int i, n, action
    memset(choices, 0, sizeof(choices))
    memset(decisions, 0, sizeof(decisions))
    with nogil:
        for i in range(rounds):
            rng_start(&rng, seed, STREAM_STATE, 0, 0, <uint32_t>i)
            game.start(&position)
            to_next_decision(game, &position, &rng)
            while game.player(&position) != TERMINAL:
                n = game.legal(&position, actions)
                choices[plies[i] & 1] += n
                decisions[plies[i] & 1] += 1
                action = actions[rng_below(&rng, n)]
                if always_deck and plies[i] & 1:
                    action = 2 * game.kinds
                pile_draws += action > 2 * game.kinds
                game.apply(&position, action)
                plies[i] += 1
                to_next_decision(game, &position, &rng)
            scores[i, 0] = game.score(&position, 0)
            scores[i, 1] = game.score(&position, 1)
    return {"scores": np.asarray(scores), "plies": np.asarray(plies),
            "card_choices": <double>choices[0] / decisions[0], "draw_choices": <double>choices[1] / decisions[1],
            "pile_share": <double>pile_draws / decisions[1]}


def nanoseconds(Game game, int states=500, int repeats=100, uint64_t seed=0):
    """The cost in nanoseconds of a game's methods on decisions of random play: the mean of `states`, best of `repeats`.

    Returns a dict with `copy`, `legal`, `observe`, and `apply` (with its copy taken off, chance not played).
    """
    states_met = np.zeros((states, game.state_bytes), np.uint8)
    cdef uint8_t[:, ::1] met = states_met
    cdef uint8_t[::1] state = np.zeros(game.state_bytes, np.uint8)
    cdef uint8_t[::1] row = np.zeros(game.row_bytes, np.uint8)
    cdef int[::1] chosen = np.zeros(states, np.intc)
    cdef int actions[MAX_LEGAL]
    cdef Output outputs[MAX_LEGAL]
    cdef Rng rng
    cdef int i
    with nogil:
        rng_start(&rng, seed, STREAM_STATE, 0, 0, 0)
        game.start(&state[0])
        for i in range(states):
            to_next_decision(game, &state[0], &rng)
            while game.player(&state[0]) == TERMINAL:
                game.start(&state[0])
                to_next_decision(game, &state[0], &rng)
            memcpy(&met[i, 0], &state[0], game.state_bytes)
            chosen[i] = actions[rng_below(&rng, game.legal(&state[0], actions))]
            game.apply(&state[0], chosen[i])
    best = [float("inf")] * 4
    for _ in range(repeats):
        marks = [time.perf_counter()]
        for i in range(states):
            memcpy(&state[0], &met[i, 0], game.state_bytes)
        marks.append(time.perf_counter())
        for i in range(states):
            game.legal(&met[i, 0], actions)
        marks.append(time.perf_counter())
        for i in range(states):
            game.observe(&met[i, 0], game.player(&met[i, 0]), &row[0], outputs)
        marks.append(time.perf_counter())
        for i in range(states):
            memcpy(&state[0], &met[i, 0], game.state_bytes)
            game.apply(&state[0], chosen[i])
        marks.append(time.perf_counter())
        best = [min(b, 1e9 * (after - before) / states) for b, before, after in zip(best, marks, marks[1:])]
    copy, legal, observe, apply = best
    return {"copy": copy, "legal": legal, "observe": observe, "apply": apply - copy}
