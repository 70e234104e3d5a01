"""Blocks of traversals: their estimators against exact values, and what does not change them."""

import itertools

import numpy as np
import pytest

from pyx.registry import load_game
from pyx.tree import GameTree
from tests.pyx.estimators import Check, check, run, table_policy

KINDS = ("uniform", "random", "near-deterministic")
# Game -> (traversals of a run, runs with different seeds): small games need many runs for a mean of z squared.
RUNS = {
    "kuhn": (20_000, 20),
    "leduc": (400_000, 1),
}


@pytest.fixture(scope="module", params=RUNS)
def tree(request):
    return GameTree(load_game(request.param))


@pytest.mark.parametrize("algorithm", ["external_sampling", "outcome_sampling"])
def test_targets_average_to_counterfactual_regrets(tree, algorithm, capsys):
    traversals, runs = RUNS[tree.game.name]
    z, left_out = [], []
    for kind, player, seed in itertools.product(KINDS, (0, 1), range(runs)):
        evaluate = table_policy(tree, kind)
        strategy = tree.from_outputs(evaluate(tree.rows))
        samples = run(tree.game, algorithm, player, evaluate, traversals, seed=seed)
        one = check(tree, player, strategy, samples, traversals, scaled=algorithm == "outcome_sampling")
        z.append(one.z)
        left_out.append(one.left_out)
    result = Check(np.concatenate(z), float(np.mean(left_out)))
    with capsys.disabled():
        print(f"\n  {tree.game.name} {algorithm}: {result}")
    assert result.passes()
