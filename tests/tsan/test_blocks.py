"""Blocks on threads that share a game, a network and a tree, and nothing else."""

import numpy as np
import pytest
from setting import at_once, digest, network

from engine.collect import run_block
from pyx.gradients import relu_back, sum_shards
from pyx.losses import advantage_loss
from pyx.registry import load_game
from pyx.traversal import TraversalBlock
from pyx.tree import GameTree

CASES = [
    ("kuhn", "external_sampling", 200),
    ("leduc", "external_sampling", 60),
    ("leduc", "outcome_sampling", 200),
    ("liars_dice", "outcome_sampling", 100),
    ("lost_cities", "outcome_sampling", 30),
]


@pytest.mark.parametrize("name, algorithm, count", CASES)
def test_blocks_side_by_side_leave_what_they_leave_alone(name, algorithm, count):
    game = load_game(name)
    evaluate = [network(game, player) for player in (0, 1)]

    def run(number):
        block = TraversalBlock(game, algorithm, number % 2, number * count, count, lanes=13, seed=5, iteration=2)
        samples = run_block(block, evaluate, lambda: None)
        return digest([samples.advantage, samples.strategy]), samples.stats.as_dict()

    alone = [run(number) for number in range(4)]
    assert at_once(*[lambda number=number: run(number) for number in range(4)]) == alone


def test_games_and_blocks_are_made_and_dropped_on_every_thread():
    def run():
        found = []
        for number in range(20):
            game = load_game("leduc")
            block = TraversalBlock(game, "external_sampling", 0, number, 5, lanes=3, seed=5, iteration=1)
            samples = run_block(block, [network(game)] * 2, lambda: None)
            found.append(digest([samples.advantage, samples.strategy]))
        return found

    assert at_once(*[run] * 4) == [run()] * 4


def test_passes_over_a_tree_that_threads_share():
    game = load_game("leduc")
    tree = GameTree(game)
    outputs = network(game)(np.ascontiguousarray(tree.rows))

    def run():
        return tree.nash_conv(tree.from_outputs(outputs)), tree.expected_value(tree.uniform())

    assert at_once(*[run] * 4) == [run()] * 4


def test_gradients_of_shards_that_are_summed_when_all_have_ended():
    generator = np.random.default_rng(0)
    outputs = generator.standard_normal((4, 50, 6), np.float32)
    targets = generator.standard_normal((4, 50, 3), np.float32)
    slots = np.tile(np.array([0, 2, 5], np.uint16), (50, 1))
    weights = np.ones(50, np.float32)

    def shard(number):
        gradient, totals = np.empty_like(outputs[number]), np.empty(6, np.float32)
        advantage_loss(outputs[number], slots, targets[number], weights, gradient)
        relu_back(gradient, outputs[number], totals)
        return [gradient, totals]

    def whole(shards):
        summed = [np.empty((50, 6), np.float32), np.empty(6, np.float32)]
        return sum_shards(shards, summed, 0.25), digest(summed)

    shards = at_once(*[lambda number=number: shard(number) for number in range(4)])
    assert whole(shards) == whole([shard(number) for number in range(4)])
