"""One benchmark a kernel. What its time is of stands in each one's docstring."""

import numpy as np
import pytest
import torch

from engine.inference import PublishedNetwork
from engine.memory import Memory
from pyx.cfr_math import draw, iteration_weights
from pyx.encoding import RecordLayout, batch_indices, expand, gather
from pyx.first_layer import FirstLayer
from pyx.random_play import nanoseconds
from pyx.registry import GAMES, load_game
from pyx.tree import GameTree
from tests.benchmarks.conftest import LANES, take_turn

pytest.importorskip("pytest_benchmark")

BATCH = 1024
WIDTHS = pytest.mark.parametrize("kind", [np.float32, np.uint16], ids=["float32", "bfloat16"])


def test_rng(benchmark):
    """100,000 draws of 64 bits."""
    indices = benchmark(batch_indices, 1, 0, 1, 0, 1 << 40, 100_000)
    assert len(indices) == 100_000


def test_sample_from_a_strategy(benchmark):
    """100,000 draws among 16 actions."""
    drawn = benchmark(draw, np.full(16, 1 / 16), 100_000)
    assert set(drawn) == set(range(16))


def test_regret_matching(benchmark):
    """All 936 information sets of Leduc."""
    tree = GameTree(load_game("leduc"))
    outputs = np.random.default_rng(0).standard_normal((tree.n_infosets, tree.game.n_actions)).astype(np.float32)
    strategy = benchmark(tree.from_outputs, outputs)
    np.testing.assert_allclose(strategy.sum(axis=1), 1)


@WIDTHS
def test_expand(benchmark, game, rows, kind):
    """256 packed rows to a network's input."""
    out = np.zeros((len(rows), game.n_features), kind)
    benchmark(expand, rows, out)
    assert np.count_nonzero(out) == np.unpackbits(rows).sum()


@WIDTHS
def test_first_layer(benchmark, game, rows, kind):
    """256 packed rows to the 512 outputs of a first layer."""
    weight = np.random.default_rng(0).standard_normal((512, game.n_features)).astype(np.float32)
    layer = FirstLayer(weight, np.zeros(512, np.float32), bfloat=kind is np.uint16)
    out = np.zeros((len(rows), 512), kind)
    benchmark(layer, rows, out)
    assert out.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shortcuts", [False, True], ids=["plain", "shortcuts"])
def test_evaluate(benchmark, game, rows, network, one_torch_thread, dtype, shortcuts):
    """256 packed rows through a whole 512 x 3 network on one thread."""
    published = PublishedNetwork(network, game.n_features, dtype, shortcuts=shortcuts)
    assert benchmark(published, rows).shape == (len(rows), game.n_actions)


@pytest.mark.parametrize("name", GAMES)
def test_game(benchmark, name):
    """500 states each copied, and their legal(), observe() and apply(); extra_info has nanoseconds of each."""
    game = load_game(name)
    benchmark(nanoseconds, game, states=500, repeats=1)
    benchmark.extra_info.update(nanoseconds(game, states=500, repeats=20))


def test_block(benchmark, make_block, answers):
    """256 lanes from one decision to the next: rules, rows, regret matching, sampling and records, no network."""
    block = make_block()
    for _ in range(400):  # until lanes stand at all depths
        take_turn(block, answers)
    benchmark.pedantic(take_turn, (block, answers), rounds=500)
    assert block.stats.as_dict()["terminal_nodes"] > LANES


@pytest.mark.parametrize("full", [False, True], ids=["filling", "full"])
def test_memory_add(benchmark, game, records, full):
    """About 10,000 samples offered to a memory of 100,000: to one that is empty, or that was offered a million."""
    records = records[:10_000]

    def offered():
        memory = Memory(RecordLayout(game), 100_000, seed=1, number=0)
        memory.rows[:] = 0  # its pages are there
        memory.seen = 1_000_000 if full else 0
        return (memory, records), {}

    slots = benchmark.pedantic(Memory.add, setup=offered, rounds=20)
    assert (slots >= 0).all() != full


@WIDTHS
def test_memory_sample(benchmark, game, records, kind):
    """A training batch of 1024: which samples, and their features, targets and weights."""
    layout = RecordLayout(game)
    memory = Memory(layout, 100_000, seed=1, number=0)
    while memory.size < memory.capacity:
        memory.add(records[: memory.capacity - memory.size])
    features = np.zeros((BATCH, game.n_features), kind)
    slots, targets = (np.zeros((BATCH, game.max_legal), kind) for kind in (np.uint16, np.float32))
    sample_weights, of_iteration = np.zeros(BATCH, np.float32), iteration_weights(1)

    def sample():
        indices = batch_indices(1, 0, 1, 0, memory.size, BATCH)
        gather(layout, memory.rows, indices, of_iteration, 1.0, 1e6, features, slots, targets, sample_weights)

    benchmark(sample)
    assert (slots[:, 1] < game.n_actions).all() and (sample_weights > 0).all()
