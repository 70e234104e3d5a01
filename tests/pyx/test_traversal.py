"""Blocks of traversals: their estimators against exact values, and what does not change them."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pyx.registry import load_game
from pyx.traversal import TraversalBlock
from pyx.tree import GameTree
from tests.pyx.estimators import Check, check, run, table_policy

KINDS = ("uniform", "random", "near-deterministic")
# Game -> (traversals of a run, runs with different seeds): small games need many runs for a mean of z squared, and
# where each action is tried there is more in a traversal.
RUNS = {
    "outcome_sampling": {"kuhn": (20_000, 20), "leduc": (400_000, 1)},
    "external_sampling": {"kuhn": (20_000, 20), "leduc": (160_000, 1)},
}


@pytest.fixture(scope="module", params=["kuhn", "leduc"])
def tree(request):
    return GameTree(load_game(request.param))


@pytest.mark.parametrize("algorithm", RUNS)
def test_targets_average_to_counterfactual_regrets(tree, algorithm, capsys):
    traversals, runs = RUNS[algorithm][tree.game.name]

    def one(kind, player, seed):
        evaluate = table_policy(tree, kind)
        strategy = tree.from_outputs(evaluate(tree.rows))
        samples = run(tree.game, algorithm, player, evaluate, traversals, seed=seed)
        return check(tree, player, strategy, samples, traversals, scaled=algorithm == "outcome_sampling")

    with ThreadPoolExecutor(2) as pool:
        checks = list(pool.map(one, *zip(*itertools.product(KINDS, (0, 1), range(runs)), strict=True)))
    result = Check(np.concatenate([each.z for each in checks]), float(np.mean([each.left_out for each in checks])))
    with capsys.disabled():
        print(f"\n  {tree.game.name} {algorithm}: {result}")
    assert result.passes()


FIRST = {
    "both": lambda block: [player for player in (0, 1) if block.waiting(player)],
    "the fuller": lambda block: [1 if block.waiting(1) > block.waiting(0) else 0],
    "player 1": lambda block: [1 if block.waiting(1) else 0],
}


@pytest.mark.parametrize("name, algorithm", [("leduc", "external_sampling"), ("lost_cities", "outcome_sampling")])
def test_who_is_answered_first_changes_the_order_of_samples_only(name, algorithm):
    game = load_game(name)

    def evaluate(rows):  # any function of each row
        return np.take(rows, np.arange(game.n_actions) % game.row_bytes, axis=1).astype(np.float32) % 7 - 3

    found = {}
    for way, chosen in FIRST.items():
        block = TraversalBlock(game, algorithm, 0, 0, 40, lanes=13, seed=5, iteration=2)
        while block.advance():
            for player in chosen(block):
                block.answer(player, evaluate(block.rows(player)))
        stats = block.stats.as_dict()
        assert stats["rows"] == stats["nodes"]
        # Advantage and strategy records as multisets, and how many batches it took.
        samples = [sorted(map(bytes, records)) for records in (block.advantage_records(), block.strategy_records())]
        found[way] = samples, stats.pop("batches"), stats.pop("batch_sizes"), stats
    assert found["both"][0] == found["the fuller"][0] == found["player 1"][0]
    assert found["both"][3] == found["the fuller"][3] == found["player 1"][3]
    assert found["the fuller"][1] < found["both"][1]


def test_advancing_without_an_answer_is_refused():
    block = TraversalBlock(load_game("kuhn"), "outcome_sampling", 0, 0, 40, lanes=13, seed=5, iteration=2)
    assert block.advance() == 13
    with pytest.raises(ValueError, match="answer a player's"):
        block.advance()
    player = 0 if block.waiting(0) else 1
    block.answer(player, np.zeros((block.waiting(player), 2), np.float32))
    assert block.advance()


@pytest.mark.parametrize("algorithm", ["external_sampling", "outcome_sampling"])
@pytest.mark.parametrize("answers", [0, 1, 5, None])
def test_a_block_that_is_restarted_is_a_new_one(algorithm, answers):
    """Whatever it had come to: nothing, something, its end."""
    game = load_game("leduc")

    def play(block, answers=None):
        while block.advance() and answers != 0:
            player = 0 if block.waiting(0) else 1
            block.answer(player, block.rows(player)[:, : game.n_actions].astype(np.float32) % 7 - 3)
            answers = answers and answers - 1
        return block

    def found(block):
        return bytes(block.advantage_records()), bytes(block.strategy_records()), block.stats.as_dict()

    used = play(TraversalBlock(game, algorithm, 0, 100, 40, lanes=13, seed=5, iteration=2), answers)
    stats = used.stats
    before = stats.as_dict()
    used.restart(1, 60, 3)
    assert stats.as_dict() == before, "what was handed out stays as it was"
    new = TraversalBlock(game, algorithm, 1, 60, 40, lanes=13, seed=5, iteration=3)
    assert found(play(used)) == found(play(new))


@pytest.mark.parametrize("traverser, first", [(2, 0), (-1, 0), (0, -1)])
def test_a_block_cannot_restart_as_what_it_cannot_be(traverser, first):
    block = TraversalBlock(load_game("kuhn"), "outcome_sampling", 0, 0, 40, lanes=13, seed=5, iteration=2)
    with pytest.raises(ValueError, match="traverser 0 or 1 and first >= 0"):
        block.restart(traverser, first, 3)
    with pytest.raises(ValueError, match="traverser 0 or 1 and first >= 0"):
        TraversalBlock(load_game("kuhn"), "outcome_sampling", traverser, first, 40, lanes=13, seed=5, iteration=2)
