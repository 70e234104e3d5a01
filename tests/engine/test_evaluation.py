"""Exact evaluation of policies, networks and averages."""

import subprocess
import sys

import numpy as np
import pytest

from engine import load_game, nash_conv
from engine.evaluation import (
    AverageStrategy,
    evaluate_strategy,
    exploitability,
    game_value,
    strategy_of_network,
    strategy_of_policy,
)
from pyx.tree import GameTree
from tests import reference
from tests.pyx.test_tree import as_policy, random_strategy


@pytest.fixture(scope="module", params=["kuhn", "leduc"])
def tree(request):
    return GameTree(load_game(request.param))


class Agent:
    def __init__(self, policy):
        self.policy = policy

    def action_probabilities(self, state):
        return self.policy(state)


def test_policies_are_evaluated_as_the_strategies_they_play(tree):
    strategy = random_strategy(tree, 0)
    policy = as_policy(tree, strategy)
    assert strategy_of_policy(tree, policy) == pytest.approx(strategy, abs=1e-15)
    for given in (policy, Agent(policy)):
        assert nash_conv(tree.game, given) == pytest.approx(tree.nash_conv(strategy), abs=1e-12)
        assert exploitability(tree, given) == pytest.approx(tree.nash_conv(strategy) / 2, abs=1e-12)
        assert game_value(tree, given) == pytest.approx(tree.expected_value(strategy), abs=1e-12)
    assert evaluate_strategy(tree, strategy) == {
        "nash_conv": tree.nash_conv(strategy),
        "exploitability": tree.nash_conv(strategy) / 2,
        "game_value": tree.expected_value(strategy),
        "exact": True,
    }


@pytest.mark.parametrize(
    "answer, text",
    [
        ({0: 0.5, 1: 0.4}, "sum to 0.9"),
        ({0: 1.5, 1: -0.5}, "at least 0"),
        ({0: float("nan"), 1: 1.0}, "at least 0"),
        ({0: 0.5, 1: 0.25, 2: 0.25}, r"weight on \[2\]; legal: \[0, 1\]"),
        ({}, "sum to 0"),
        ([0.5, 0.5], "probability}"),
        (None, "probability}"),
    ],
)
def test_answers_that_are_no_distribution_are_refused(answer, text):
    with pytest.raises(ValueError, match=text):
        nash_conv(load_game("kuhn"), lambda state: answer)


def test_zero_weight_may_be_given_or_left_out():
    kuhn = load_game("kuhn")
    expected = nash_conv(kuhn, lambda state: {0: 1.0, 1: 0.0})
    assert nash_conv(kuhn, lambda state: {0: 1.0}) == expected
    assert nash_conv(kuhn, lambda state: {0: 1.0, 5: 0.0}) == expected
    # In float32 nothing sums to exactly 1.
    third = np.float32(1 / 3)
    assert nash_conv(kuhn, lambda state: {0: third, 1: 1 - third}) > 0


def test_what_is_no_policy_is_refused():
    with pytest.raises(ValueError, match="a policy is an agent"):
        nash_conv(load_game("kuhn"), 3)


def test_large_games_are_refused():
    with pytest.raises(ValueError, match="too many to enumerate"):
        nash_conv(load_game("lost_cities"), lambda state: {})


def test_networks_are_asked_once(tree):
    calls = []
    table = np.random.default_rng(0).normal(size=(tree.n_infosets, tree.game.n_actions)).astype(np.float32)

    def evaluate(rows):
        calls.append(len(rows))
        return table[: len(rows)]

    for mode in ("advantage", "strategy"):
        assert np.array_equal(strategy_of_network(tree, evaluate, mode), tree.from_outputs(table, mode))
    assert calls == [tree.n_infosets] * 2
    # A pair of networks: each sees the rows of its player.
    calls.clear()
    strategy = strategy_of_network(tree, [evaluate, evaluate])
    own = [np.flatnonzero(tree.infosets["player"] == player) for player in (0, 1)]
    assert calls == [len(own[0]), len(own[1])]
    for mine in own:
        assert np.array_equal(strategy[mine], tree.from_outputs(table[: len(mine)], infosets=mine))


def test_average_is_that_of_cfr(tree):
    """Simultaneous CFR, whose average the accumulator keeps, finds a strategy near equilibrium."""
    average, regrets = AverageStrategy(tree), np.zeros_like(tree.uniform())
    for iteration in range(1, 201):
        strategy = reference.match_regrets(tree, regrets)
        average.add(strategy, iteration)
        regrets = np.maximum(regrets + tree.counterfactual_regrets(strategy), 0)
    assert tree.nash_conv(average.strategy()) < (0.05 if tree.game.name == "kuhn" else 0.2)


def test_average_plays_like_drawing_one_of_its_strategies(tree):
    """Its value against a fixed opponent is the weighted mean of its parts' values (Kuhn's theorem)."""
    parts, weights = [random_strategy(tree, seed) for seed in range(4)], [1.0, 0.0, 2.5, 4.0]
    average = AverageStrategy(tree)
    for part, weight in zip(parts, weights, strict=True):
        average.add(part, weight)
    opponent = random_strategy(tree, 9)
    for player in (0, 1):
        own = (tree.infosets["player"] == player)[:, None]
        values = [tree.expected_value(np.where(own, part, opponent)) for part in parts]
        mixed = tree.expected_value(np.where(own, average.strategy(), opponent))
        assert mixed == pytest.approx(np.average(values, weights=weights), abs=1e-12)


def test_average_of_nothing_is_uniform(tree):
    average = AverageStrategy(tree)
    assert np.array_equal(average.strategy(), tree.uniform())
    for weight in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="weight"):
            average.add(tree.uniform(), weight)


def test_importing_the_engine_imports_nothing_else():
    code = "import engine, sys; assert not {'torch', 'numpy', 'pyx'} & set(sys.modules); engine.load_game('kuhn')"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(ImportError):
        from engine import no_such_name  # noqa: F401
