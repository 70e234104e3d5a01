"""What every registered game keeps, tested on random plays and, where it is small enough, on its whole tree."""

import pickle
import random
from collections import defaultdict

import numpy as np
import pytest

from pyx.registry import GAMES, load_game
from pyx.rng import Stream
from pyx.tree import GameTree
from tests.pyx.estimators import Check, check, run, table_policy

CHANCE, TERMINAL = -1, -4

# A game's parameters to test; a game that is not here is tested with its defaults.
PARAMETERS = {
    "lost_cities": [
        {},
        {"colours": 2, "ranks": 3, "wagers": 0, "hand_size": 1, "deck_only_after": 2},
        {"colours": 1, "ranks": 4, "wagers": 1, "hand_size": 1, "deck_only_after": 4, "cost": 3},
        {"colours": 6, "ranks": 9, "wagers": 3, "hand_size": 3, "deck_only_after": 60},
    ],
}
CASES = [(name, parameters) for name in GAMES for parameters in PARAMETERS.get(name, [{}])]
# Trees of more histories are not enumerated here; of those above WHOLE a part is compared with states.
LARGE = 500_000
WHOLE = 50_000


def case_id(case):
    return "-".join([case[0], *(f"{key}={value}" for key, value in case[1].items())])


@pytest.fixture(scope="module", params=CASES, ids=case_id)
def game(request):
    name, parameters = request.param
    return load_game(name, **parameters)


@pytest.fixture(scope="module")
def plays(game):
    """The states of random plays: one list a play, from the start to the end."""
    return [list(random_play(game, seed)) for seed in range(8 if is_long(game) else 30)]


@pytest.fixture(scope="module")
def tree(game):
    try:
        return GameTree(game, LARGE)
    except ValueError as error:
        pytest.skip(str(error))


def is_long(game):
    return game.max_length == 0 or game.max_length > 50


def random_play(game, seed):
    choose = random.Random(seed)
    state = game.new_initial_state()
    yield state.clone()
    while not state.is_terminal():
        if state.is_chance_node():
            outcomes, probabilities = zip(*state.chance_outcomes(), strict=True)
            state.apply_action(choose.choices(outcomes, probabilities)[0])
        else:
            state.apply_action(choose.choice(state.legal_actions()))
        yield state.clone()


def everything(state):
    """All that a state says of itself."""
    return (
        state.current_player(),
        state.legal_actions(),
        state.history(),
        state.returns(),
        str(state),
        [state.information_state_string(player) for player in (0, 1)],
        [state.row(player).tobytes() for player in (0, 1)],
    )


def each(plays):
    return (state for play in plays for state in play)


def decisions(plays):
    return (state for state in each(plays) if state.current_player() >= 0)


def test_declared_sizes(game):
    assert game.name in GAMES and load_game(game.name, **game.parameters).parameters == game.parameters
    assert game.num_players() == 2
    assert game.num_distinct_actions() == game.n_actions > 0
    assert game.row_bytes % 8 == 0 and 0 <= 8 * game.row_bytes - game.n_features < 64
    assert game.state_bytes % 8 == 0
    assert 1 <= game.max_legal <= game.n_actions
    assert game.max_payoff >= game.payoff_scale > 0


def test_unknown_parameters_are_refused(game):
    with pytest.raises(ValueError, match="no_such_parameter"):
        load_game(game.name, no_such_parameter=1)


def test_pickled_games_are_the_same(game):
    again = pickle.loads(pickle.dumps(game))
    assert type(again) is type(game) and again.parameters == game.parameters


def test_clones_are_equal_and_independent(plays):
    for play in plays[:5]:
        for before, after in zip(play, play[1:], strict=False):
            said = everything(before)
            clone = before.clone()
            assert everything(clone) == said
            clone.apply_action(after.history()[-1])
            assert everything(clone) == everything(after)
            assert everything(before) == said
            assert everything(before.child(after.history()[-1])) == everything(after)


def test_histories_replay(game, plays):
    for play in plays:
        replay = game.new_initial_state()
        for action in play[-1].history():
            replay.apply_action(action)
        assert everything(replay) == everything(play[-1])
        assert len(play[-1].history()) == len(play) - 1


def test_payoffs_are_zero_sum_and_bounded(game, plays):
    for state in each(plays):
        mine, yours = state.returns()
        assert mine + yours == 0
        assert abs(mine) <= game.max_payoff
        assert state.is_terminal() or mine == 0


def test_ends(game, plays):
    for play in plays:
        assert play[-1].is_terminal() and play[-1].current_player() == TERMINAL
        assert play[-1].legal_actions() == []
        if game.max_game_length() is not None:
            assert sum(state.current_player() >= 0 for state in play) <= game.max_game_length()


def test_legal_actions(game, plays):
    for state in each(plays):
        legal = state.legal_actions()
        assert legal == sorted(set(legal))
        if state.current_player() >= 0:
            assert 1 <= len(legal) <= game.max_legal
            assert 0 <= legal[0] and legal[-1] < game.n_actions
        assert state.is_chance_node() == (state.current_player() == CHANCE)


def test_chance_probabilities(game, plays):
    for state in each(plays):
        if state.is_chance_node():
            outcomes, probabilities = zip(*state.chance_outcomes(), strict=True)
            assert list(outcomes) == state.legal_actions() and len(outcomes) <= game.max_chance
            assert min(probabilities) > 0
            assert sum(probabilities) == pytest.approx(1, abs=1e-12)


def test_sampled_chance_follows_its_probabilities(plays):
    nodes = [state for state in plays[0] if state.is_chance_node()][:6]
    draws = 3_000
    for number, state in enumerate(nodes):
        stream = Stream(number)
        counts = defaultdict(int)
        for draw in range(draws):
            drawn = state.clone()
            outcome = drawn.sample_chance(stream)
            counts[outcome] += 1
            if draw < 20:
                assert everything(drawn) == everything(state.child(outcome))
        expected = {outcome: draws * probability for outcome, probability in state.chance_outcomes()}
        assert set(counts) <= set(expected)
        # Chi-square with n - 1 degrees of freedom: mean n - 1, variance 2 (n - 1).
        statistic = sum((counts[outcome] - mean) ** 2 / mean for outcome, mean in expected.items())
        freedom = len(expected) - 1
        assert statistic <= freedom + 5 * (2 * freedom) ** 0.5 + 5


def test_rows_restore_the_tensor(game, plays):
    for state in each(plays):
        for player in (0, 1):
            row = state.row(player)
            tensor = state.information_state_tensor(player)
            assert row.dtype == np.uint8 and row.shape == (game.row_bytes,)
            assert len(tensor) == game.n_features and set(tensor) <= {0.0, 1.0}
            bits = np.unpackbits(row, bitorder="little")
            assert bits[: game.n_features].tolist() == tensor
            assert not bits[game.n_features :].any()
            assert np.packbits(bits, bitorder="little").tobytes() == row.tobytes()


def test_places_in_outputs(game, plays):
    for state in decisions(plays):
        places = state.outputs()
        assert len(places) == len(state.legal_actions())
        assert len({slot for slot, *_ in places}) == len(places)
        for slot, first, ties, stride in places:
            assert 0 <= slot < game.n_actions and ties >= 1
            tied = [first + i * stride for i in range(ties)]
            assert slot in tied and min(tied) >= 0 and max(tied) < game.n_actions


def test_action_texts_are_exact_inverses(game, plays):
    texts = set()
    for state in decisions(plays):
        for action in state.legal_actions():
            text = state.action_to_string(action)
            texts.add((text, action))
            assert game.string_to_action(text) == action
    assert len({text for text, _ in texts}) == len({action for _, action in texts}) == len(texts)
    with pytest.raises(ValueError, match="no such action"):
        game.string_to_action("no such action")


def test_information_states_grow_by_what_is_seen(plays):
    """Perfect recall: what was told apart once stays so, and who acts knows what was done."""
    for play in plays[:10]:
        for before, after in zip(play, play[1:], strict=False):
            for player in (0, 1):
                was, now = before.information_state_string(player), after.information_state_string(player)
                assert now.startswith(was)
                if before.current_player() == player:
                    assert now != was


def test_information_states_decide_what_a_player_may_use(game):
    """Equal strings: same player to act, legal actions, row and own actions so far."""
    known = {}
    for seed in range(10 if is_long(game) else 300):
        for state in random_play(game, seed):
            for player in (0, 1):
                facts = [state.row(player).tobytes()]
                if state.current_player() == player:
                    facts += [state.legal_actions(), state.outputs()]
                key = state.information_state_string(player), state.current_player() == player
                assert known.setdefault(key, facts) == facts


def test_information_state_defaults_to_who_acts(plays):
    for state in decisions(plays):
        player = state.current_player()
        assert state.information_state_string() == state.information_state_string(player)
        assert state.information_state_tensor() == state.information_state_tensor(player)


def test_illegal_calls_say_what_was_legal(game, plays):
    play = plays[0]
    decision = next(state for state in play if state.current_player() >= 0)
    for wrong in (-1, game.n_actions, "0", None, 0.5, True):
        said = everything(decision)
        with pytest.raises(ValueError, match="legal"):
            decision.apply_action(wrong)
        assert everything(decision) == said
    with pytest.raises(ValueError, match="legal"):
        decision.child(-1)
    with pytest.raises(ValueError, match="no chance node"):
        decision.chance_outcomes()
    with pytest.raises(ValueError, match="no chance node"):
        decision.sample_chance(Stream(0))
    for wrong in (-1, 2):
        with pytest.raises(ValueError, match="players are 0 and 1"):
            decision.information_state_string(wrong)
        with pytest.raises(ValueError, match="players are 0 and 1"):
            decision.information_state_tensor(wrong)
    with pytest.raises(ValueError, match="over"):
        play[-1].apply_action(0)
    with pytest.raises(ValueError):
        play[-1].information_state_string()
    for state in play:
        if state.current_player() < 0:
            with pytest.raises(ValueError, match="no player"):
                state.outputs()


def test_seeded_chance_never_appears(game):
    for seed in range(5):
        states = [game.new_initial_state(seed=seed) for _ in range(2)]
        choose = random.Random(seed)
        while not states[0].is_terminal():
            assert not states[0].is_chance_node()
            action = choose.choice(states[0].legal_actions())
            for state in states:
                state.apply_action(action)
        assert everything(states[0]) == everything(states[1])
    histories = {tuple(game.new_initial_state(seed=seed).history()) for seed in range(20)}
    assert len(histories) > 1
    with pytest.raises(ValueError, match="choose one"):
        game.new_initial_state(seed=1, deck=[])


# -- the whole tree, where it is small ----------------------------------------------------------------


def test_tree_agrees_with_states(tree):
    """Who acts, what is legal, payoffs, and information sets equal exactly if strings are."""
    strings = {}
    nodes = tree.nodes
    choose = random.Random(0)

    def walk(at, state):
        node = nodes[at]
        children = range(node["first_child"], node["first_child"] + node["n_children"])
        assert state.current_player() == node["player"]
        assert state.legal_actions() == [nodes[child]["action"] for child in children]
        if state.is_terminal():
            assert state.returns()[0] == node["payoff"]
        if state.is_chance_node():
            assert [p for _, p in state.chance_outcomes()] == [nodes[child]["chance"] for child in children]
        if state.current_player() >= 0:
            infoset = int(node["infoset"])
            assert strings.setdefault(state.information_state_string(), infoset) == infoset
            assert tree.rows[infoset].tobytes() == state.row(state.current_player()).tobytes()
            assert tree.infosets[infoset]["player"] == state.current_player()
            n = len(children)
            assert [tuple(place) for place in tree.outputs[infoset].tolist()][:n] == state.outputs()
            assert tree.legal[infoset].tolist() == state.legal_actions() + [-1] * (tree.max_legal - n)
        if tree.n_nodes > WHOLE:
            children = choose.sample(children, min(len(children), 2))
        for child in children:
            assert nodes[child]["parent"] == at
            walk(child, state.child(int(nodes[child]["action"])))

    walk(0, tree.game.new_initial_state())
    assert len(set(strings.values())) == len(strings)
    assert len(strings) == tree.n_infosets or tree.n_nodes > WHOLE


def test_bounds_hold_over_the_tree(tree):
    game, nodes = tree.game, tree.nodes
    assert np.abs(nodes["payoff"]).max() <= game.max_payoff
    length = np.zeros(tree.n_nodes, int)
    for at in range(1, tree.n_nodes):
        parent = nodes["parent"][at]
        length[at] = length[parent] + (nodes["player"][parent] >= 0)
    assert length.max() <= game.max_length
    players = nodes["player"]
    assert nodes["n_children"][players >= 0].max() == game.max_legal or game.name == "lost_cities"
    assert nodes["n_children"][players == CHANCE].max() <= game.max_chance


@pytest.mark.parametrize("algorithm", ["external_sampling", "outcome_sampling"])
def test_estimators_average_to_exact_regrets(tree, algorithm):
    """tests/pyx/test_traversal.py on every small game, with a bound that fewer traversals allow."""
    evaluate = table_policy(tree, "random")
    strategy = tree.from_outputs(evaluate(tree.rows))
    traversals = 40_000
    z = []
    for player in (0, 1):
        samples = run(tree.game, algorithm, player, evaluate, traversals)
        z.append(check(tree, player, strategy, samples, traversals, scaled=algorithm == "outcome_sampling").z)
    worst = Check(np.concatenate(z), 0.0).z
    assert len(worst) and np.abs(worst).max() <= 5
