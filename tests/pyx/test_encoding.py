"""Rows, records and reservoirs: what is stored is what comes back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.memory import Memory
from pyx.cfr_math import iteration_weights
from pyx.encoding import RecordLayout, batch_indices, expand, gather, reservoir_slots, scatter
from pyx.registry import load_game
from pyx.traversal import TraversalBlock
from pyx.tree import GameTree

LEDUC = load_game("leduc")
CITIES = load_game("lost_cities", colours=1, ranks=4, wagers=1, hand_size=1, deck_only_after=4, cost=3)


def records_of(game, algorithm="outcome_sampling", traversals=50, iteration=2):
    block = TraversalBlock(game, algorithm, 0, 0, traversals, lanes=8, seed=4, iteration=iteration)
    while block.advance():
        for player in (0, 1):
            if block.waiting(player):
                block.answer(player, np.zeros((block.waiting(player), game.n_actions), np.float32))
    return block


@given(st.integers(1, 200), st.integers(1, 5), st.integers(0, 2**32))
def test_rows_become_floats(n_features, n, seed):
    bits = np.random.default_rng(seed).integers(0, 2, (n, n_features), np.uint8)
    row_bytes = (n_features + 63) // 64 * 8
    rows = np.zeros((n, row_bytes), np.uint8)
    packed = np.packbits(bits, axis=1, bitorder="little")
    rows[:, : packed.shape[1]] = packed
    floats, halves = np.empty((n, n_features), np.float32), np.empty((n, n_features), np.uint16)
    expand(rows, floats)
    expand(rows, halves)
    assert (floats == bits).all()
    assert (halves == bits * np.uint16(0x3F80)).all()


def test_rows_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="do not fit"):
        expand(np.zeros((3, 8), np.uint8), np.empty((2, 64), np.float32))


@pytest.mark.parametrize("game", [LEDUC, CITIES], ids=lambda game: game.name)
def test_a_record_restores_the_very_row_and_its_targets(game):
    layout = RecordLayout(game)
    assert layout.record_bytes <= game.n_features + 8 * game.max_legal + 16  # at most one byte a binary feature
    rows = {row.tobytes() for row in GameTree(game).rows}
    for record in records_of(game).strategy_records():
        sample = layout.restore(record)
        assert sample["row"].tobytes() in rows
        assert sample["targets"].sum() == pytest.approx(1)
        assert len(set(sample["slots"].tolist())) == len(sample["slots"]) >= 2
        assert sample["weight"] > 0 and sample["iteration"] == 2


@pytest.mark.parametrize("game", [LEDUC, CITIES], ids=lambda game: game.name)
def test_a_batch_is_its_records(game):
    layout = RecordLayout(game)
    records = np.array(records_of(game).advantage_records())
    indices = np.array([3, 0, len(records) - 1, 3])
    weights_of = iteration_weights(2)
    n = len(indices)
    features = np.empty((n, game.n_features), np.float32)
    slots, targets = np.empty((n, game.max_legal), np.uint16), np.empty((n, game.max_legal), np.float32)
    weights = np.empty(n, np.float32)
    gather(layout, records, indices, weights_of, 0.5, 1.25, features, slots, targets, weights)
    for i, index in enumerate(indices):
        sample = layout.restore(records[index])
        bits = np.unpackbits(sample["row"], count=game.n_features, bitorder="little")
        assert (features[i] == bits).all()
        legal = len(sample["slots"])
        assert (slots[i, :legal] == sample["slots"]).all() and (slots[i, legal:] == 0xFFFF).all()
        assert (targets[i, :legal] == sample["targets"] * np.float32(0.5)).all() and (targets[i, legal:] == 0).all()
        assert weights[i] == pytest.approx(min(sample["weight"], 1.25) * weights_of[2], rel=1e-6)


def test_samples_outside_the_memory_are_refused():
    layout = RecordLayout(LEDUC)
    memory = np.zeros((4, layout.record_bytes), np.uint8)
    shape = (1, LEDUC.max_legal)
    targets, weights = np.empty(shape, np.float32), np.empty(1, np.float32)
    out = [np.empty((1, LEDUC.n_features), np.float32), np.empty(shape, np.uint16), targets, weights]
    with pytest.raises(ValueError, match="the memory has 4"):
        gather(layout, memory, np.array([4]), np.ones(2), 1.0, 1.0, *out)
    memory[2, layout.iteration_at : layout.slots_at] = np.array([1 << 31], np.uint32).view(np.uint8)
    with pytest.raises(ValueError, match=f"iteration {1 << 31}, but the last one is 1"):
        gather(layout, memory, np.array([2]), np.ones(2), 1.0, 1.0, *out)
    with pytest.raises(ValueError, match="no weights"):
        gather(layout, memory, np.array([0]), np.ones(0), 1.0, 1.0, *out)


def test_a_reservoir_keeps_every_sample_equally_often():
    capacity, offered, runs = 20, 100, 2000
    kept = np.zeros(offered)
    for seed in range(runs):
        slots = reservoir_slots(seed, 0, 0, capacity, offered)
        memory = np.full(capacity, -1)
        for sample, slot in enumerate(slots):
            if slot >= 0:
                memory[slot] = sample
        kept[memory] += 1
    expected = runs * capacity / offered
    # Each count is binomial; their chi-square has about 99 degrees of freedom.
    assert ((kept - expected) ** 2 / (expected * (1 - capacity / offered))).sum() < 160


def test_a_reservoir_depends_on_what_came_before_and_not_on_how_it_was_cut():
    whole = reservoir_slots(9, 1, 0, 50, 300)
    parts = [reservoir_slots(9, 1, first, 50, 75) for first in range(0, 300, 75)]
    assert (np.concatenate(parts) == whole).all()
    assert (reservoir_slots(9, 2, 0, 50, 300) != whole).any()
    assert (whole[:50] == np.arange(50)).all()


def test_a_later_sample_wins_its_slot():
    memory = np.zeros((2, 8), np.uint8)
    records = np.arange(24, dtype=np.uint8).reshape(3, 8)
    scatter(records, np.array([1, -1, 1]), memory)
    assert (memory[1] == records[2]).all() and not memory[0].any()
    with pytest.raises(ValueError, match="the memory has 2"):
        scatter(records, np.array([0, 1, 2]), memory)


def test_batches_are_a_function_of_their_key():
    one = batch_indices(1, 0, 3, 4, 1000, 64)
    assert (batch_indices(1, 0, 3, 4, 1000, 64) == one).all()
    for other in [(2, 0, 3, 4), (1, 1, 3, 4), (1, 0, 4, 4), (1, 0, 3, 5)]:
        assert (batch_indices(*other, 1000, 64) != one).any()
    assert 0 <= one.min() and one.max() < 1000
    with pytest.raises(ValueError, match="empty"):
        batch_indices(1, 0, 1, 1, 0, 8)


def test_a_memory_is_mapped_lazily_and_bounded():
    layout = RecordLayout(LEDUC)
    memory = Memory(layout, 10, seed=1, number=0)
    records = np.array(records_of(LEDUC).advantage_records())
    slots = memory.add(records)
    assert memory.size == 10 and memory.seen == len(records)
    assert (slots[:10] == np.arange(10)).all() and slots.max() < 10
    for slot in range(10):
        last = np.flatnonzero(slots == slot)[-1]
        assert (memory.rows[slot] == records[last]).all()


def test_samples_of_iterations_that_have_no_weight_are_refused():
    """As from a stranger's checkpoint: nothing beside the weights is read."""
    layout = RecordLayout(LEDUC)
    memory = np.zeros((4, layout.record_bytes), np.uint8)
    memory[2, layout.iteration_at : layout.slots_at].view(np.uint32)[0] = 1 << 31
    assert [*layout.iterations(memory)] == [0, 0, 1 << 31, 0]
    shape = (4, LEDUC.max_legal)
    targets, weights = np.empty(shape, np.float32), np.empty(4, np.float32)
    out = [np.empty((4, LEDUC.n_features), np.float32), np.empty(shape, np.uint16), targets, weights]
    with pytest.raises(ValueError, match=f"of iteration {1 << 31}, but the last one is 1"):
        gather(layout, memory, np.arange(4), np.ones(2), 1.0, 1.0, *out)
    with pytest.raises(ValueError, match="no weights of iterations"):
        gather(layout, memory, np.arange(4), np.ones(0), 1.0, 1.0, *out)
