"""Published values of the small games, and the curves of tabular solvers on them.

The figures were measured with OpenSpiel 2.0.2 (Liar's Dice: by the linear program here, see there).
"""

import numpy as np
import pytest

from engine.evaluation import evaluate_strategy, game_value, nash_conv
from pyx.registry import load_game
from pyx.tree import GameTree
from tests import reference


@pytest.fixture(scope="module")
def trees():
    return {name: GameTree(load_game(name)) for name in ("kuhn", "leduc")}


def uniform(state):
    legal = state.legal_actions()
    return {action: 1 / len(legal) for action in legal}


@pytest.mark.parametrize(
    "name, decision, terminal, chance, infosets, infoset_actions",
    [("kuhn", 24, 30, 4, 12, 24), ("leduc", 3_780, 5_520, 157, 936, 2_184)],
)
def test_counts(trees, name, decision, terminal, chance, infosets, infoset_actions):
    tree = trees[name]
    player = tree.nodes["player"]
    assert (player >= 0).sum() == decision
    assert (player == -4).sum() == tree.n_terminals == terminal
    assert (player == -1).sum() == chance
    assert tree.n_nodes == decision + terminal + chance
    assert tree.n_infosets == infosets
    assert (tree.legal >= 0).sum() == infoset_actions


@pytest.mark.parametrize("name, expected", [("kuhn", 0.9166666667), ("leduc", 4.7472222222)])
def test_nash_conv_of_uniform(trees, name, expected):
    assert nash_conv(load_game(name), uniform) == pytest.approx(expected, abs=1e-10)
    assert trees[name].nash_conv(trees[name].uniform()) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("name, expected", [("kuhn", 0.125), ("leduc", -0.078125)])
def test_value_of_uniform(trees, name, expected):
    assert game_value(load_game(name), uniform) == pytest.approx(expected, abs=1e-12)
    assert evaluate_strategy(trees[name], trees[name].uniform())["game_value"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name, expected", [("kuhn", -1 / 18), ("leduc", -0.0856064241)])
def test_game_value_by_linear_program(trees, name, expected):
    assert reference.linear_program_value(trees[name]) == pytest.approx(expected, abs=1e-9)


def test_payoffs_of_leduc(trees):
    payoff = trees["leduc"].nodes["payoff"]
    assert payoff.min() == -13 and payoff.max() == 13


@pytest.mark.parametrize(
    "name, solver, after_10, after_100, after_1000",
    [
        ("kuhn", reference.cfr, 0.1373976, 0.01645195, 0.00187523),
        ("kuhn", reference.cfr_plus, 0.0653742, 0.00238881, 0.00017473),
        ("kuhn", reference.linear_cfr, 0.0425015, 0.00217805, 0.00018706),
        ("kuhn", reference.discounted_cfr, 0.0455576, 0.00333268, 0.00029300),
        ("leduc", reference.cfr, 1.7771580, 0.1914327, 0.0236356),
        ("leduc", reference.cfr_plus, 1.2208778, 0.0268320, 0.00051430),
        ("leduc", reference.linear_cfr, 1.4421303, 0.0689791, None),
        ("leduc", reference.discounted_cfr, 1.5576041, 0.0155065, None),
    ],
)
def test_tabular_solvers(trees, name, solver, after_10, after_100, after_1000):
    tree = trees[name]
    run = solver(tree)
    assert tree.nash_conv(run.run(1).average()) == pytest.approx(tree.nash_conv(tree.uniform()))
    assert tree.nash_conv(run.run(9).average()) == pytest.approx(after_10, abs=6e-8)
    assert tree.nash_conv(run.run(90).average()) == pytest.approx(after_100, abs=6e-9 if name == "kuhn" else 6e-8)
    if after_1000 is not None:
        digits = 6e-8 if after_1000 > 0.01 else 6e-9
        assert tree.nash_conv(run.run(900).average()) == pytest.approx(after_1000, abs=digits)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


# The published ranges are over three seeds. The mean over the seeds here is held to them, 15 % wider at both ends.
@pytest.mark.parametrize(
    "name, solver, iterations, seeds, low, high",
    [
        ("kuhn", reference.ExternalSampling, 1_000, 20, 0.044, 0.059),
        ("kuhn", reference.OutcomeSampling, 1_000, 20, 0.19, 0.23),
        ("leduc", reference.ExternalSampling, 1_000, 10, 2.25, 2.75),
        ("leduc", reference.OutcomeSampling, 1_000, 20, 4.19, 4.47),
        ("kuhn", reference.ExternalSampling, 10_000, 5, 0.015, 0.035),
        ("kuhn", reference.OutcomeSampling, 10_000, 5, 0.035, 0.109),
        slow("leduc", reference.ExternalSampling, 10_000, 5, 0.538, 0.562),
        slow("leduc", reference.OutcomeSampling, 10_000, 5, 1.94, 2.26),
        slow("kuhn", reference.ExternalSampling, 100_000, 3, 0.0029, 0.0052),
        slow("kuhn", reference.OutcomeSampling, 100_000, 3, 0.011, 0.032),
        slow("leduc", reference.ExternalSampling, 100_000, 3, 0.118, 0.143),
        slow("leduc", reference.OutcomeSampling, 100_000, 3, 0.97, 1.19),
    ],
)
def test_monte_carlo_solvers(trees, name, solver, iterations, seeds, low, high):
    tree = trees[name]
    mean = np.mean([tree.nash_conv(solver(tree, seed).run(iterations).average()) for seed in range(seeds)])
    assert 0.85 * low <= mean <= 1.15 * high


@pytest.fixture(scope="module")
def liars_dice():
    return GameTree(load_game("liars_dice"))


def test_counts_of_liars_dice(liars_dice):
    # 36 rolls; then the bids made are any subset of 12 in order, and all but the empty one may be called.
    assert liars_dice.n_nodes == 1 + 6 + 36 * (2**12 + 2**12 - 1)
    assert liars_dice.n_terminals == 36 * (2**12 - 1)
    assert liars_dice.n_infosets == 6 * 2**12


def test_game_value_of_liars_dice(liars_dice):
    """Found by the linear program here, not published; the variants below vouch for rules and program."""
    assert reference.linear_program_value(liars_dice) == pytest.approx(-7 / 258, abs=1e-9)


@pytest.mark.parametrize("wild, expected", [(None, -1 / 9), (0, -7 / 327)])
def test_published_variants_of_liars_dice(liars_dice, wild, expected):
    """No wild face, and the 1 wild: values published by Ahle, github.com/thomasahle/snyd ("Normal", "Joker")."""
    ends = liars_dice.terminals.copy()
    for end in ends:
        first, second, *actions = liars_dice.history(end["node"])
        bid, caller = actions[-2], (len(actions) - 1) % 2
        right = sum(die in (bid % 6, wild) for die in (first, second)) > bid // 6
        end["weight"] = (1 if right == (caller == 1) else -1) / 36
    assert reference.linear_program_value(liars_dice, ends) == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow
def test_cfr_plus_closes_in_on_the_value_of_liars_dice(liars_dice):
    strategy = reference.cfr_plus(liars_dice).run(300).average()
    least = -liars_dice.best_response(strategy, 1)[0]
    most = liars_dice.best_response(strategy, 0)[0]
    assert least <= -7 / 258 <= most and most - least < 0.003
