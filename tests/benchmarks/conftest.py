"""What kernels are timed on: positions, rows and samples of the full game of Lost Cities, played uniformly.

`make bench` times; without timing every kernel still runs once, so that a benchmark does not rot.
"""

import numpy as np
import pytest
import torch

from engine.networks import Network
from pyx.registry import load_game
from pyx.traversal import TraversalBlock

LANES = 256


@pytest.fixture(scope="session")
def game():
    return load_game("lost_cities")


@pytest.fixture(scope="session")
def make_block(game):
    """Blocks of LANES lanes by default, that never run out of traversals in a benchmark."""

    def make(count=1 << 20, lanes=LANES):
        return TraversalBlock(game, "outcome_sampling", 0, 0, count, lanes=lanes, seed=1, iteration=1)

    return make


@pytest.fixture(scope="session")
def answers(game):
    """Outputs for a batch: random ones with which games end soon, drawing from the deck being the best draw."""
    outputs = np.random.default_rng(0).standard_normal((LANES, game.n_actions)).astype(np.float32)
    outputs[:, 2 * game.kinds] += 2
    return outputs


def take_turn(block, answers):
    """One round of a block: up to its next decisions, and answers to them."""
    block.advance()
    for player in (0, 1):
        if waiting := block.waiting(player):
            block.answer(player, answers[:waiting])


@pytest.fixture(scope="session")
def rows(make_block, answers):
    """LANES packed rows from the middle of games."""
    block, found = make_block(lanes=2 * LANES), []
    twice = np.concatenate([answers, answers])
    while sum(map(len, found)) < LANES:
        for _ in range(20):
            take_turn(block, twice)
        block.advance()
        for player in (0, 1):
            found.append(block.rows(player).copy())
            if waiting := block.waiting(player):
                block.answer(player, twice[:waiting])
    return np.concatenate(found)[:LANES]


@pytest.fixture(scope="session")
def records(make_block, answers):
    """The samples of 200 traversals' traverser."""
    block = make_block(count=200)
    while block.advance():
        for player in (0, 1):
            if waiting := block.waiting(player):
                block.answer(player, answers[:waiting])
    return block.advantage_records()


@pytest.fixture(scope="session")
def network(game):
    return Network(game.n_features, game.n_actions, 512, 3)


@pytest.fixture
def one_torch_thread():
    """Torch's own threads, as they are wherever the engine evaluates and trains."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
