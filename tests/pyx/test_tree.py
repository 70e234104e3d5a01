"""Game trees: exact passes against slow twins, and what a tree refuses."""

import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyx.cfr_math import strategy_of
from pyx.registry import load_game
from pyx.tree import GameTree
from tests import reference

TINY = {"colours": 1, "ranks": 4, "wagers": 1, "hand_size": 1, "deck_only_after": 4, "cost": 3}


@pytest.fixture(scope="module", params=["kuhn", "leduc", "lost_cities"])
def tree(request):
    return GameTree(load_game(request.param, **(TINY if request.param == "lost_cities" else {})))


@pytest.fixture(scope="module")
def kuhn():
    return GameTree(load_game("kuhn"))


def random_strategy(tree, seed, pure=0.3):
    """Some information sets mixed, some pure, so that parts of the tree are not reached."""
    random = np.random.default_rng(seed)
    weights = random.random(tree.legal.shape) * (tree.legal >= 0)
    certain = random.random(tree.n_infosets) < pure
    weights[certain] = weights[certain] == weights[certain].max(axis=1, keepdims=True)
    return weights / weights.sum(axis=1, keepdims=True)


def as_policy(tree, strategy):
    """The strategy as a function of a state."""
    rows = {}
    for infoset in range(tree.n_infosets):
        n = tree.infosets["n_legal"][infoset]
        policy = dict(zip(tree.legal[infoset, :n].tolist(), strategy[infoset, :n].tolist(), strict=True))
        rows[tree.state(infoset).information_state_string()] = policy
    return lambda state: rows[state.information_state_string()]


def test_values_and_best_responses_equal_their_twins(tree):
    strategy = random_strategy(tree, 1)
    policy = as_policy(tree, strategy)
    value = reference.expected_value(tree.game.new_initial_state(), policy)
    assert tree.expected_value(strategy) == pytest.approx(value, abs=1e-12)
    assert tree.node_values(strategy)[0] == pytest.approx(value, abs=1e-12)
    for player in (0, 1):
        expected = reference.best_response_value(tree.game, policy, player)
        assert tree.best_response(strategy, player)[0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_best_responses_win_what_they_say(tree, seed):
    strategy = random_strategy(tree, seed)
    gains = 0.0
    for player, sign in ((0, 1), (1, -1)):
        value, response = tree.best_response(strategy, player)
        own = tree.infosets["player"] == player
        assert np.array_equal(response[~own], strategy[~own])
        assert sign * tree.expected_value(response) == pytest.approx(value, abs=1e-12)
        gains += value
        # No change of one action makes it better.
        values = tree.counterfactual_values(response)
        chosen = (values * response).sum(axis=1)
        reached = own & (tree.own_reach(response) > 0)
        assert (np.where(tree.legal >= 0, values, -np.inf).max(axis=1)[reached] <= chosen[reached] + 1e-12).all()
    assert tree.nash_conv(strategy) == pytest.approx(gains, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_counterfactual_regrets_equal_their_twin(tree, seed):
    strategy = random_strategy(tree, seed)
    expected = np.zeros_like(strategy)
    levels = reference.Levels(tree)
    own = sum(levels.add_regrets(strategy, player, expected) for player in (0, 1))
    assert tree.counterfactual_regrets(strategy) == pytest.approx(expected, abs=1e-12)
    assert tree.plan(strategy) == pytest.approx(own, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_reaches_agree(tree, seed):
    strategy = random_strategy(tree, seed)
    reach = tree.node_reach(strategy)
    at = tree.infosets["node"]
    assert reach[at, tree.infosets["player"]] == pytest.approx(tree.own_reach(strategy), abs=1e-12)
    ends = tree.terminals["node"]
    assert reach[ends].prod(axis=1).sum() == pytest.approx(1, abs=1e-12)
    assert tree.expected_value(strategy) == pytest.approx(
        (reach[ends].prod(axis=1) * tree.nodes["payoff"][ends]).sum(), abs=1e-12
    )
    # An information set's value is its counterfactual reach times what its node is worth on average.
    ones = tree.counterfactual_reach(strategy)
    decision = np.flatnonzero(tree.nodes["infoset"] >= 0)
    player = tree.nodes["player"][decision]
    worth = reach[decision, 1 - player] * reach[decision, 2] * tree.node_values(strategy)[decision] * (1 - 2 * player)
    value = np.bincount(tree.nodes["infoset"][decision], worth, minlength=tree.n_infosets)
    assert (strategy * tree.counterfactual_values(strategy)).sum(axis=1) == pytest.approx(value, abs=1e-12)
    assert (ones >= 0).all() and ones.sum() > 0


def test_scans_find_parents_before_children(tree):
    parent = tree.nodes["parent"]
    assert parent[0] == -1 and (parent[1:] < np.arange(1, tree.n_nodes)).all()
    above = tree.infosets["parent"] // tree.max_legal
    assert (above < np.arange(tree.n_infosets)).all()
    assert np.array_equal(tree.infosets["player"][above[above >= 0]], tree.infosets["player"][above >= 0])
    for node in (0, 1, tree.n_nodes // 2, tree.n_nodes - 1):
        state = tree.game.new_initial_state()
        for action in tree.history(node):
            state.apply_action(action)
        assert state.current_player() == tree.nodes["player"][node]


@settings(max_examples=50, deadline=None)
@given(data=st.data(), mode=st.sampled_from(["advantage", "strategy"]), fallback=st.sampled_from(["best", "uniform"]))
def test_outputs_become_strategies_as_in_traversals(kuhn, data, mode, fallback):
    numbers = st.floats(-(2.0**100), 2.0**100, width=32)
    size = kuhn.n_infosets * kuhn.game.n_actions
    outputs = np.array(data.draw(st.lists(numbers, min_size=size, max_size=size)), np.float32).reshape(-1, 2)
    strategy = kuhn.checked(kuhn.from_outputs(outputs, mode, fallback))
    for infoset in range(kuhn.n_infosets):
        places = kuhn.state(infoset).outputs()
        assert np.array_equal(strategy[infoset], strategy_of(outputs[infoset], places, mode, fallback))
    some = np.array([7, 2])
    assert np.array_equal(kuhn.from_outputs(outputs[some], mode, fallback, some), strategy[some])


def test_bad_outputs_are_refused(kuhn):
    outputs = np.zeros((12, 2), np.float32)
    for arguments, text in [
        ((outputs[:5],), r"shape \(5, 2\)"),
        ((outputs, "policy"), "there are: advantage, strategy"),
        ((outputs, "advantage", "worst"), "there are: best, uniform"),
        ((outputs[:1], "advantage", "best", [12]), "0 to 11"),
        ((outputs + np.nan,), "not finite"),
    ]:
        with pytest.raises(ValueError, match=text):
            kuhn.from_outputs(*arguments)


def test_bad_strategies_are_refused(kuhn):
    leduc = GameTree(load_game("leduc"))
    wrong = leduc.uniform()
    wrong[0] = [0.5, 0.25, 0.25]  # the third is beyond the two legal actions
    with pytest.raises(ValueError, match=r"information set 0 .*2 legal actions"):
        leduc.nash_conv(wrong)
    for row in ([0.5, 0.4], [1.5, -0.5], [np.nan, 1.0], [0.0, 0.0]):
        strategy = kuhn.uniform()
        strategy[3] = row
        with pytest.raises(ValueError, match="information set 3"):
            kuhn.expected_value(strategy)
    with pytest.raises(ValueError, match=r"shape \(12, 3\)"):
        kuhn.nash_conv(np.zeros((12, 3)))
    with pytest.raises(ValueError, match="players are 0 and 1"):
        kuhn.best_response(kuhn.uniform(), 2)


def test_too_large_games_are_refused():
    kuhn = load_game("kuhn")
    assert GameTree(kuhn, 58).n_nodes == 58
    with pytest.raises(ValueError, match="more than 57 histories"):
        GameTree(kuhn, 57)
    with pytest.raises(ValueError, match="more than 10,000,000 histories.*matches"):
        GameTree(load_game("lost_cities"))
    with pytest.raises(ValueError, match="for ever"):
        GameTree(load_game("lost_cities", deck_only_after=0))
    with pytest.raises(ValueError, match="max_histories"):
        GameTree(kuhn, 0)


def test_trees_grow_past_their_first_room():
    game = load_game("lost_cities", colours=2, ranks=3, wagers=0, hand_size=1, deck_only_after=2)
    tree = GameTree(game)
    assert (tree.n_nodes, tree.n_infosets) == (44_953, 9_528)
    assert pickle.loads(pickle.dumps(tree)).nodes.tobytes() == tree.nodes.tobytes()


def test_passes_may_run_on_several_threads(tree):
    strategies = [random_strategy(tree, seed) for seed in range(4)]
    alone = [tree.nash_conv(strategy) for strategy in strategies]
    found = [[] for _ in strategies]

    def evaluate(i):
        for _ in range(20):
            found[i].append(tree.nash_conv(strategies[i]))

    threads = [threading.Thread(target=evaluate, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[value] * 20 for value in alone]
