"""Lost Cities: every published case and figure, the rules beside a slow twin, and what a row holds and hides."""

import json
import pickle
import random
from collections import Counter
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyx.random_play import random_rounds
from pyx.registry import load_game
from pyx.rng import Stream
from tests.pyx.lost_cities_reference import LETTERS, Table, all_cards, read_row

CASES = Path(__file__).parent.parent / "cases" / "lost_cities"
RULES = json.loads((CASES / "rule_cases.json").read_text())
SCORES = json.loads((CASES / "score_cases.json").read_text())
TRACES = json.loads((CASES / "traces.json").read_text())["traces"]

OFFICIAL = load_game("lost_cities", deck_only_after=0)
FULL = load_game("lost_cities")
SMALL = load_game("lost_cities", colours=3, ranks=4, wagers=2, hand_size=3, deck_only_after=30)
TINY = load_game("lost_cities", colours=2, ranks=2, wagers=1, hand_size=1, deck_only_after=6)
NO_WAGERS = load_game("lost_cities", colours=2, ranks=2, wagers=0, hand_size=1, deck_only_after=0)
SIX = load_game("lost_cities", colours=6, hand_size=9, deck_only_after=50)
GAMES = [OFFICIAL, FULL, SMALL, TINY, NO_WAGERS, SIX]
NAMES = ["official", "full", "small", "tiny", "no_wagers", "six"]
each_game = pytest.mark.parametrize("game", GAMES, ids=NAMES)
any_game = st.sampled_from(GAMES)
seeds = st.integers(0, 2**32)


def texts(state):
    return sorted(state.action_to_string(action) for action in state.legal_actions())


def act(state, text):
    state.apply_action(state.game.string_to_action(text))


def ids(cases):
    return [case["id"] for case in cases]


def dealt_deck(trace):
    """The 60 cards, bottom to top, that give a trace's hands and deck."""
    dealt = [card for pair in zip(*trace["hands"], strict=True) for card in pair]
    return trace["deck_bottom_to_top"] + dealt[::-1]


def rounds_beside_twin(game, seed):
    """One random round: yields (state, table) at every decision and at the end."""
    chooser = random.Random(seed)
    deck = all_cards(game.parameters)
    chooser.shuffle(deck)
    state, table = game.new_initial_state(deck=deck), Table(game.parameters, deck)
    lively = chooser.random()  # from nearly always the deck to nearly always the piles
    yield state, table
    for _ in range(600):
        if state.is_terminal():
            return
        actions = texts(state)
        piles = [text for text in actions if text.startswith("draw") and text != "draw deck"]
        text = chooser.choice(piles) if piles and chooser.random() < lively else chooser.choice(actions)
        act(state, text)
        table.act(text)
        yield state, table


def reached(game, seed):
    """(state, table) at a decision or end somewhere in a random round."""
    steps = rounds_beside_twin(game, seed)
    here = next(steps)
    for _ in range(random.Random(seed + 1).randrange(120)):
        here = next(steps, here)
    return here


# ---- published cases


def check_keys(position, expected):
    """The keys that a case writes, hands as multisets."""
    for key in ("player_to_act", "phase", "boards", "piles", "discarded_this_turn", "deck_left", "terminal", "scores"):
        if key in expected:
            assert position[key] == expected[key], key
    if "hands" in expected:
        assert [sorted(hand) for hand in position["hands"]] == [sorted(hand) for hand in expected["hands"]]


@pytest.mark.parametrize("case", RULES["positions"], ids=ids(RULES["positions"]))
def test_rule_case(case):
    state = OFFICIAL.state_from(case)
    assert texts(state) == sorted(case["legal"])
    assert state.is_terminal() == case["terminal"]
    check_keys(state.position(), case)
    for transition in case.get("transitions", []):
        after = state.clone()
        if transition["result"] != "ok":
            with pytest.raises(ValueError, match="legal"):
                act(after, transition["action"])
            assert after.position() == state.position()
            continue
        act(after, transition["action"])
        check_keys(after.position(), transition)
        assert after.is_terminal() == transition["terminal"]
        if "legal_after" in transition:
            assert texts(after) == sorted(transition["legal_after"])


def test_endless_line_repeats_without_touching_the_deck():
    line = RULES["endless_line"]
    state = OFFICIAL.state_from(line["start"])
    assert not state.is_terminal()
    turns = [state.position()]
    for number, text in enumerate(line["actions"]):
        act(state, text)
        if number % 2:
            turns.append(state.position())
    assert state.position()["deck_left"] == line["deck_left"]
    for position in turns:
        del position["ply"]
        position.pop("known", None)
    for later, earlier in line["repeats"]:
        assert turns[later] == turns[earlier]


@pytest.mark.parametrize("case", SCORES["expeditions"], ids=ids(SCORES["expeditions"]))
def test_column_score(case):
    assert OFFICIAL.column_score(case["cards"]) == case["score"]


@pytest.mark.parametrize("case", SCORES["boards"], ids=ids(SCORES["boards"]))
def test_board_score(case):
    for player in range(2):
        boards = [{}, {}]
        boards[player] = case["board"]
        state = OFFICIAL.state_from({"boards": boards})
        scores = [0, 0]
        scores[player] = case["score"]
        assert state.position()["scores"] == scores
        assert state.returns() == [scores[0] - scores[1], scores[1] - scores[0]]


@pytest.mark.parametrize("given_as", ["deck", "position"])
@pytest.mark.parametrize("trace", TRACES, ids=ids(TRACES))
def test_trace(trace, given_as):
    if given_as == "deck":
        state = OFFICIAL.new_initial_state(deck=dealt_deck(trace))
    else:
        state = OFFICIAL.state_from({key: trace[key] for key in ("hands", "deck_bottom_to_top")})
    check_keys(state.position(), {"hands": trace["hands"], "deck_left": len(trace["deck_bottom_to_top"])})
    for text, count in zip(trace["actions"], trace["legal_counts"], strict=True):
        assert len(state.legal_actions()) == count
        act(state, text)
    position = state.position()
    assert state.is_terminal() and position["ply"] == trace["plies"]
    assert position["scores"] == trace["scores"]
    assert position["boards"] == [
        {letter: column for letter, column in board.items() if column} for board in trace["final_boards"]
    ]
    assert state.returns()[0] == trace["scores"][0] - trace["scores"][1]
    assert [text for text in state.history_strings() if not text.startswith("deal")] == trace["actions"]


def test_random_play_has_the_published_figures():
    """20,000 rounds. Tolerances: four standard errors of a difference of two such samples, and the rounding."""
    rounds = random_rounds(OFFICIAL, 20000, seed=1)
    scores, plies = rounds["scores"], rounds["plies"]
    assert abs(scores.mean() + 33.9) < 0.6
    assert abs(scores.std() - 20.2) < 0.4
    assert abs(plies.mean() - 286.0) < 1.6
    assert abs(plies.std() - 40) < 1.5
    assert abs(np.quantile(plies, 0.99) - 392) < 6
    assert abs((plies >= 400).mean() - 0.0067) < 0.0033
    assert abs(rounds["card_choices"] - 9.4) < 0.06
    assert abs(rounds["draw_choices"] - 3.84) < 0.02
    assert abs(rounds["pile_share"] - 0.69) < 0.008
    first = (scores[:, 0] > scores[:, 1]).mean() + (scores[:, 0] == scores[:, 1]).mean() / 2
    assert abs(first - 0.499) < 0.015


def test_random_cards_and_always_the_deck_have_the_published_figures():
    rounds = random_rounds(OFFICIAL, 20000, seed=2, always_deck=True)
    assert set(rounds["plies"].tolist()) == {88}
    assert abs(rounds["scores"].mean() + 69.5) < 0.8
    assert abs(rounds["scores"].std() - 26.1) < 0.5


# ---- rules


@each_game
def test_rounds_equal_the_twin(game):
    for seed in range(6):
        for state, table in rounds_beside_twin(game, seed):
            position = state.position()
            known = position.pop("known", [[], []])
            assert position == table.position()
            assert [sorted(cards) for cards in known] == [sorted(cards) for cards in table.known]
            assert set(texts(state)) == table.legal()
            assert state.legal_actions() == sorted(set(state.legal_actions()))
            assert len(state.legal_actions()) <= game.max_legal
            assert state.current_player() == (-4 if table.over() else table.mover)


@pytest.mark.parametrize("game", [SMALL, TINY, SIX], ids=["small", "tiny", "six"])
def test_a_limited_round_ends(game):
    """Play that avoids the deck: no ply is a pile draw from the limit on, and max_length holds."""
    limit = game.parameters["deck_only_after"]
    for seed in range(20):
        state = game.new_initial_state(seed=seed)
        plies = 0
        while not state.is_terminal():
            actions = state.legal_actions()
            if state.position()["phase"] == "DRAW" and plies >= limit:
                assert texts(state) == ["draw deck"]
            discards = [action for action in actions if "discard" in state.action_to_string(action)]
            state.apply_action(discards[seed % len(discards)] if discards else actions[-1])
            plies += 1
        assert limit < plies <= game.max_length
    assert OFFICIAL.max_length == 0 and OFFICIAL.max_game_length() is None
    assert FULL.max_game_length() == 400 + 2 * 44


@each_game
def test_payoffs_are_zero_sum_and_bounded(game):
    for seed in range(3):
        state, table = list(rounds_beside_twin(game, seed))[-1]  # one state, played on: all the pairs are its end
        assert state.is_terminal() or not game.max_length
        if state.is_terminal():
            assert state.returns() == [table.score(0) - table.score(1), table.score(1) - table.score(0)]
            assert abs(state.returns()[0]) <= game.max_payoff


def test_chance_is_explicit_and_weighs_kinds_by_copies():
    state = OFFICIAL.new_initial_state()
    assert state.current_player() == -1
    outcomes = dict(state.chance_outcomes())
    assert len(outcomes) == 50 == OFFICIAL.max_chance
    assert outcomes[OFFICIAL.outcome("RH")] == pytest.approx(3 / 60)
    assert outcomes[OFFICIAL.outcome("R2")] == pytest.approx(1 / 60)
    state.apply_action(OFFICIAL.outcome("RH"))
    assert dict(state.chance_outcomes())[OFFICIAL.outcome("RH")] == pytest.approx(2 / 59)
    assert state.action_to_string(0) == "deal RH"
    assert state.position()["hands"] == [["RH"], []]


def test_sampled_chance_follows_the_probabilities():
    stream = Stream(5, "state")
    drawn = Counter()
    for _ in range(6000):
        state = TINY.new_initial_state()
        outcome = state.sample_chance(stream)
        drawn[outcome] += 1
        assert len(state.history()) == 1 and sum(map(len, state.position()["hands"])) == 1
    for outcome, probability in TINY.new_initial_state().chance_outcomes():
        assert abs(drawn[outcome] / 6000 - probability) < 4 * (probability / 6000) ** 0.5


def test_cards_are_dealt_alternately_and_drawn_from_the_top():
    deck = all_cards(SMALL.parameters)
    state = SMALL.new_initial_state(deck=deck)
    position = state.position()
    assert sorted(position["hands"][0]) == sorted(deck[-1:-7:-2])
    assert sorted(position["hands"][1]) == sorted(deck[-2:-8:-2])
    assert position["deck_bottom_to_top"] == deck[:-6]


# ---- what a row holds


@each_game
def test_a_row_holds_all_that_is_seen_and_nothing_else(game):
    """Reading a row back gives the position as seen, colours unnamed: so rows are equal only where that is."""
    for seed in range(4):
        for state, table in rounds_beside_twin(game, seed):
            for player in range(2):
                places, rest = read_row(game.parameters, state.row(player))
                colours, seen_rest = table.seen(player)
                assert sorted(places) == sorted(colours)
                assert rest == seen_rest


@each_game
def test_actions_are_placed_with_their_colour(game):
    width = game.parameters["ranks"] + 1
    kinds = game.parameters["colours"] * width
    for seed in range(4):
        for state, table in rounds_beside_twin(game, seed):
            player = state.current_player()
            if player < 0:
                continue
            places, _ = read_row(game.parameters, state.row(player))
            outputs = state.outputs()
            assert len({slot for slot, *_ in outputs}) == len(outputs)
            for action, (slot, first, ties, stride) in zip(state.legal_actions(), outputs, strict=True):
                text = state.action_to_string(action)
                if text == "draw deck":
                    assert (slot, first, ties) == (action, action, 1)
                    continue
                if text.startswith("draw"):
                    letter, start, step = text[-1], 2 * kinds + 1, 1
                else:
                    letter, start, step = text.split()[1][0], action - LETTERS.index(text.split()[1][0]) * width, width
                seen = table.seen_colour(player, letter)
                equal = [start + place * step for place, there in enumerate(places) if there == seen]
                assert [first + k * stride for k in range(ties)] == equal
                assert slot in equal


@given(any_game, seeds, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_permuting_colours_permutes_outputs_only(game, seed, chooser):
    state, _ = reached(game, seed)
    letters = LETTERS[: game.parameters["colours"]]
    renamed = dict(zip(letters, chooser.sample(letters, len(letters)), strict=True))
    other = game.state_from(rename(state.position(), renamed))
    state = game.state_from(state.position())
    for player in range(2):
        assert (state.row(player) == other.row(player)).all()
    if state.is_terminal():
        return
    there = dict(zip(map(other.action_to_string, other.legal_actions()), other.outputs(), strict=True))
    for action, output in zip(state.legal_actions(), state.outputs(), strict=True):
        verb, what = state.action_to_string(action).split()
        moved = there[f"{verb} {what if what == 'deck' else renamed[what[0]] + what[1:]}"]
        assert output[1:] == moved[1:]
        assert output[2] > 1 or output[0] == moved[0]


def rename(value, renamed):
    """A position with its colours renamed."""
    if isinstance(value, dict):
        return {renamed.get(key, key): rename(part, renamed) for key, part in value.items()}
    if isinstance(value, list):
        return [rename(part, renamed) for part in value]
    if isinstance(value, str) and value not in ("CARD", "DRAW"):
        return renamed[value[0]] + value[1:]
    return value


def test_at_the_start_untouched_colours_tie():
    state = OFFICIAL.state_from({"hands": [["R5", "G5", "W7"], []], "deck_bottom_to_top": ["B2"]})
    outputs = dict(zip(texts_in_order(state), state.outputs(), strict=True))
    assert outputs["play R5"][1:] == outputs["play G5"][1:] and outputs["play R5"][2] == 2
    assert {outputs["play R5"][0], outputs["play G5"][0]} == {outputs["play R5"][1], outputs["play R5"][1] + 10}
    assert outputs["play W7"][2] == 1


def texts_in_order(state):
    return [state.action_to_string(action) for action in state.legal_actions()]


@given(any_game, seeds, st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_hidden_cards_do_not_show(game, seed, chooser):
    """Deal what a player does not see anew: its row, its outputs and its information state stay the same."""
    state, _ = reached(game, seed)
    position = state.position()
    me = position["player_to_act"]
    sure = Counter(position.get("known", [[], []])[1 - me])
    free = list((Counter(position["hands"][1 - me]) - sure).elements())
    hidden = free + position["deck_bottom_to_top"]
    chooser.shuffle(hidden)
    other = json.loads(json.dumps(position))
    other["hands"][1 - me] = list(sure.elements()) + hidden[: len(free)]
    other["deck_bottom_to_top"] = hidden[len(free) :]
    here, there = game.state_from(position), game.state_from(other)
    assert (here.row(me) == there.row(me)).all()
    assert here.information_state_string(me) == there.information_state_string(me)
    assert here.legal_actions() == there.legal_actions()
    if not here.is_terminal():
        assert here.outputs() == there.outputs()
    same_hand = Counter(other["hands"][1 - me]) == Counter(position["hands"][1 - me])
    assert (here.information_state_string(1 - me) == there.information_state_string(1 - me)) == same_hand


def test_a_card_seen_picked_up_shows_until_it_leaves():
    """To both: the opponent knows it is there, and its owner knows that it is known."""
    state = OFFICIAL.state_from(
        {"hands": [["R2", "G4"], ["B3", "B4"]], "piles": {"Y": ["Y6"]}, "deck_bottom_to_top": ["W2", "W3", "W4"]}
    )
    act(state, "play R2")
    act(state, "draw Y")
    position = state.position()
    assert position["known"] == [["Y6"], []]
    forgotten = {key: value for key, value in position.items() if key != "known"}
    for player in range(2):
        assert (state.row(player) == OFFICIAL.state_from(position).row(player)).all()
        assert (state.row(player) != OFFICIAL.state_from(forgotten).row(player)).any()
    for text in ("play B3", "draw deck", "discard Y6"):
        act(state, text)
    assert "known" not in state.position()


@pytest.mark.parametrize("game", [TINY, NO_WAGERS, SMALL], ids=["tiny", "no_wagers", "small"])
def test_rows_and_strings_are_equal_exactly_where_positions_as_seen_are(game):
    rows, strings = {}, {}
    for seed in range(150 if game is SMALL else 400):
        for state, table in rounds_beside_twin(game, seed):
            if table.over():
                continue
            made = game.state_from(state.position())
            for player in range(2):
                colours, rest = table.seen(player)
                canonical = tuple(sorted(colours)), rest
                assert rows.setdefault(state.row(player).tobytes(), canonical) == canonical
                seen = player, colours, rest
                assert strings.setdefault(made.information_state_string(player), seen) == seen
    assert len(rows) == len(set(rows.values()))
    assert len(strings) == len(set(strings.values()))


@pytest.mark.parametrize("game", [TINY, NO_WAGERS, SMALL], ids=["tiny", "no_wagers", "small"])
def test_information_states_are_equal_exactly_where_a_player_saw_the_same(game):
    seen_by_string = {}
    for seed in range(600):
        for state, table in rounds_beside_twin(game, seed):
            for player in range(2):
                seen = player, *table.log[player]
                assert seen_by_string.setdefault(state.information_state_string(player), seen) == seen
    assert len(seen_by_string) == len(set(seen_by_string.values()))


@pytest.mark.parametrize("game", [TINY, SMALL], ids=["tiny", "small"])
def test_a_row_is_a_function_of_the_information_state_at_chance_too(game):
    rows = {}
    for seed in range(300):
        chooser = random.Random(seed)
        state = game.new_initial_state()
        while True:
            for player in range(2):
                row = state.row(player).tobytes()
                assert rows.setdefault(state.information_state_string(player), row) == row
            if state.is_terminal():
                break
            state.apply_action(chooser.choice(state.legal_actions()))


def test_every_opening_hand_has_its_own_sight():
    """All deals of a small game: the string at the first decision names the hand as a multiset, no more."""
    game = load_game("lost_cities", colours=2, ranks=2, wagers=2, hand_size=2)
    hands = {}
    for deal in set(permutations(all_cards(game.parameters), 4)):
        state = game.new_initial_state(deck=deal)
        for player in range(2):
            hand = player, *state.position()["hands"][player]
            assert hands.setdefault(state.information_state_string(player), hand) == hand
    assert len(hands) == len(set(hands.values())) == 2 * (15 + 2)  # two kinds of six, or both wagers of a colour


def test_the_largest_hands_still_fit_a_sight():
    game = load_game("lost_cities", colours=6, hand_size=32)
    hands = {}
    for seed in range(300):
        deck = all_cards(game.parameters)
        random.Random(seed).shuffle(deck)
        state = game.new_initial_state(deck=deck)
        for player in range(2):
            hand = player, *state.position()["hands"][player]
            assert hands.setdefault(state.information_state_string(player), hand) == hand
    assert len(hands) == 600


# ---- from Python


@each_game
def test_texts_are_the_inverse_of_actions(game):
    for action in range(game.num_distinct_actions()):
        assert game.string_to_action(game.action_to_string(0, action)) == action
    for kind, _ in game.new_initial_state().chance_outcomes():
        assert game.outcome(game.card(kind)) == kind == game.outcome(kind)
    with pytest.raises(ValueError, match="near it are.*play R2"):
        game.string_to_action("play R22")


@given(any_game, seeds)
@settings(max_examples=40, deadline=None)
def test_a_position_gives_the_state_back(game, seed):
    state, _ = reached(game, seed)
    again = game.state_from(state.position())
    assert again.position() == state.position() and str(again) == str(state)
    for player in range(2):
        assert (again.row(player) == state.row(player)).all()
    if not state.is_terminal():
        action = state.legal_actions()[seed % len(state.legal_actions())]
        assert again.child(action).position() == state.child(action).position()
        assert again.child(action).history_strings()[0] == state.action_to_string(action)
        assert again.history() == []


def test_a_clone_goes_its_own_way():
    dealt = OFFICIAL.new_initial_state(seed=4)
    for start in (dealt, OFFICIAL.state_from(dealt.position())):
        before, history = start.position(), start.history()
        clone = start.clone()
        for _ in range(5):
            clone.apply_action(clone.legal_actions()[0])
        assert start.position() == before and start.history() == history
        assert clone.history()[: len(history)] == history
        assert clone.information_state_string(0).startswith(start.information_state_string(0))
        assert len(clone.history_strings()) == len(clone.history())


def test_games_pickle():
    again = pickle.loads(pickle.dumps(SMALL))
    assert again.parameters == SMALL.parameters and again.n_features == SMALL.n_features


def test_rows_of_the_full_game_are_88_bytes():
    assert (FULL.n_features, FULL.row_bytes, FULL.n_actions) == (703, 88, 106)
    state = FULL.new_initial_state(seed=1)
    assert len(state.information_state_tensor(0)) == 703


@pytest.mark.parametrize(
    "parameters, names",
    [
        ({"colours": 7}, "colours is 7"),
        ({"colours": 0}, "colours is 0"),
        ({"ranks": 10}, "ranks is 10"),
        ({"wagers": 4}, "wagers is 4"),
        ({"wagers": -1}, "wagers is -1"),
        ({"hand_size": 0}, "hand_size is 0"),
        ({"hand_size": 30}, "hand_size 30.*at most 29"),
        ({"colours": 6, "hand_size": 33}, "at most 32"),
        ({"colours": 2.5}, "colours is 2.5"),
        ({"ranks": True}, "ranks is True"),
        ({"ranks": "9"}, "ranks is '9'"),
        ({"deck_only_after": -1}, "deck_only_after is -1"),
        ({"colors": 5}, "colors"),
    ],
)
def test_impossible_parameters_are_refused(parameters, names):
    with pytest.raises(ValueError, match=names):
        load_game("lost_cities", **parameters)


@pytest.mark.parametrize(
    "cards, names",
    [
        (["R5", "R4"], "R4 comes too late"),
        (["R5", "RH"], "RH comes too late"),
        (["R5", "R5"], "R5 2 times"),
        (["R5", "G6"], "G6 is in a column of R"),
        (["X5"], "'X5'"),
        (["R11"], "'R11'"),
        (["R1"], "'R1'"),
        (["R"], "'R'"),
        ([""], "''"),
        ([None], "None"),
        (["r5"], "'r5'"),
        (["RH"] * 4, "RH 4 times"),
        (["R²"], "'R²'"),
        ([-1], "-1"),
        (["R05"], "'R05'"),
        ([True], "True"),
        ([50], "50"),
    ],
)
def test_impossible_columns_are_refused(cards, names):
    with pytest.raises(ValueError, match=names):
        OFFICIAL.column_score(cards)


@pytest.mark.parametrize(
    "change, names",
    [
        ({"hands": [["Q5"], []]}, "'Q5'"),
        ({"hands": [["R5"]]}, "pair"),
        ({"hands": ["R5", "R6"]}, "list of cards"),
        ({"hand": [[], []]}, "did you mean 'hands'"),
        ({"phase": "DECK"}, "phase 'DECK'"),
        ({"player_to_act": 2}, "is 2"),
        ({"hands": [["R5", "R5"], []]}, "R5 2 times"),
        ({"piles": {"R": ["R5"]}}, "R5 2 times"),
        ({"piles": {"R": ["G5"]}}, "put it under G"),
        ({"piles": {"Q": []}}, "'Q'"),
        ({"piles": [["R6"]]}, "by colour"),
        ({"boards": [{"R": ["R7", "R6"]}, {}]}, "too late"),
        ({"ply": -1}, "ply is -1"),
        ({"ply": 1.5}, "ply is 1.5"),
        ({"discarded_this_turn": "R"}, "for phase DRAW"),
        ({"discarded_this_turn": "R", "phase": "DRAW"}, "a card"),
        ({"discarded_this_turn": "Z", "phase": "DRAW"}, "'Z'"),
        ({"known": [[], ["R5"]]}, "not there"),
        ({"hands": [["R2", "R3", "R4", "G2", "G3", "G4", "W2", "W3", "W4"], []]}, "9 cards"),
        ({"deck_bottom_to_top": "R6"}, "list of cards"),
        ({"phase": None}, "None"),
    ],
)
def test_impossible_positions_are_refused(change, names):
    with pytest.raises(ValueError, match=names):
        OFFICIAL.state_from({"hands": [["R5"], []], "deck_bottom_to_top": ["B2"], **change})
    with pytest.raises(ValueError, match="dict"):
        OFFICIAL.state_from([change])


def test_impossible_decks_are_refused():
    with pytest.raises(ValueError, match="R5 2 times"):
        OFFICIAL.new_initial_state(deck=["R5"] * 2)
    with pytest.raises(ValueError, match="'R55'"):
        OFFICIAL.new_initial_state(deck=["R55"])
    with pytest.raises(ValueError, match="used up"):
        OFFICIAL.new_initial_state(deck=["R5"])


def test_illegal_calls_name_what_is_legal():
    state = OFFICIAL.new_initial_state(seed=1)
    with pytest.raises(ValueError, match="not legal here; legal"):
        state.apply_action(OFFICIAL.string_to_action("draw deck"))
    with pytest.raises(ValueError, match="no chance node"):
        state.chance_outcomes()
    with pytest.raises(ValueError, match="players are 0 and 1"):
        state.information_state_string(2)
    with pytest.raises(ValueError, match="does not exist"):
        OFFICIAL.action_to_string(0, 106)
