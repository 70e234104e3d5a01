"""Random games beside OpenSpiel, where it is installed: legal moves, information states and payoffs."""

import random

import numpy as np
import pytest

from engine.evaluation import nash_conv
from pyx.registry import load_game

pyspiel = pytest.importorskip("pyspiel")

# Our name and OpenSpiel's; action numbers, chance outcomes and features are the same.
OPEN_SPIEL = {
    "kuhn": "kuhn_poker",
    "leduc": "leduc_poker",
    "liars_dice": "liars_dice(players=2,numdice=1)",
}
PLAYS = 3_000


@pytest.fixture(params=OPEN_SPIEL)
def games(request):
    return load_game(request.param), pyspiel.load_game(OPEN_SPIEL[request.param])


def test_sizes(games):
    ours, theirs = games
    assert ours.num_distinct_actions() == theirs.num_distinct_actions()
    assert ours.n_features == theirs.information_state_tensor_size()
    assert ours.max_game_length() == theirs.max_game_length()
    assert ours.max_payoff == theirs.max_utility() == -theirs.min_utility()


def test_random_games(games):
    ours, theirs = games
    choose = random.Random(0)
    names = {}, {}  # our information state -> theirs, and back
    for _ in range(PLAYS):
        state, other = ours.new_initial_state(), theirs.new_initial_state()
        while True:
            assert state.current_player() == other.current_player()
            assert state.is_terminal() == other.is_terminal()
            assert state.legal_actions() == other.legal_actions()
            if state.is_terminal():
                break
            if state.is_chance_node():
                chance = state.chance_outcomes()
                assert [outcome for outcome, _ in chance] == [outcome for outcome, _ in other.chance_outcomes()]
                assert np.allclose([p for _, p in chance], [p for _, p in other.chance_outcomes()], rtol=1e-15)
            else:
                for player in (0, 1):
                    assert state.information_state_tensor(player) == other.information_state_tensor(player)
                player = state.current_player()
                mine, yours = state.information_state_string(player), other.information_state_string(player)
                assert names[0].setdefault(mine, yours) == yours
                assert names[1].setdefault(yours, mine) == mine
            action = choose.choice(state.legal_actions())
            state.apply_action(action)
            other.apply_action(action)
        assert state.returns() == other.returns()
        assert state.history() == other.history()


@pytest.mark.parametrize("name", ["kuhn", "leduc"])
def test_nash_conv_of_a_random_policy(name):
    from open_spiel.python import policy as policies
    from open_spiel.python.algorithms import exploitability

    theirs = pyspiel.load_game(OPEN_SPIEL[name])
    table = policies.TabularPolicy(theirs)
    weights = np.random.default_rng(0).random(table.action_probability_array.shape) * table.legal_actions_mask
    table.action_probability_array[:] = weights / weights.sum(axis=1, keepdims=True)

    def policy(state):
        other = theirs.new_initial_state()
        for action in state.history():
            other.apply_action(action)
        return table.action_probabilities(other)

    assert nash_conv(load_game(name), policy) == pytest.approx(exploitability.nash_conv(theirs, table), abs=1e-12)
