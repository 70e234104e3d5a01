"""Lost Cities opponents: strength against the reference table, behaviour rule by rule, and nothing hidden seen."""

import itertools
import random

import pytest

from pyx.bots import BOTS, make_bot
from pyx.match import MatchBlock
from pyx.registry import load_game
from pyx.rng import Stream

# Mean score difference and share of wins of the row against the column, 500 games a pair in the reference.
TABLE = {
    ("discard_only", "random"): (55.8, 1.00),
    ("random_player", "random"): (51.9, 0.95),
    ("random_player", "discard_only"): (-32.7, 0.03),
    ("greedy_lowest", "random"): (97.0, 1.00),
    ("greedy_lowest", "discard_only"): (2.7, 0.57),
    ("greedy_lowest", "random_player"): (36.1, 0.84),
    ("gap_player", "random"): (147.1, 1.00),
    ("gap_player", "discard_only"): (84.4, 1.00),
    ("gap_player", "random_player"): (53.5, 0.93),
    ("gap_player", "greedy_lowest"): (-0.6, 0.49),
    ("threshold", "random"): (108.2, 1.00),
    ("threshold", "discard_only"): (19.6, 0.92),
    ("threshold", "random_player"): (45.8, 0.98),
    ("threshold", "greedy_lowest"): (8.7, 0.59),
    ("threshold", "gap_player"): (1.3, 0.47),
    ("opener", "random"): (135.7, 1.00),
    ("opener", "discard_only"): (47.9, 0.98),
    ("opener", "random_player"): (58.9, 0.99),
    ("opener", "greedy_lowest"): (16.3, 0.68),
    ("opener", "gap_player"): (10.0, 0.57),
    ("opener", "threshold"): (16.6, 0.74),
}
BANDS = {
    ("opener", "threshold"): 0.65,
    ("threshold", "discard_only"): 0.85,
    ("gap_player", "random_player"): 0.90,
}


@pytest.fixture(scope="module")
def game():
    return load_game("lost_cities")


def play(game, first, second, games=4000, seed=0):
    block = MatchBlock(game, make_bot(first), make_bot(second), 0, games, lanes=1, seed=seed)
    assert block.advance() == 0
    return block.results


def win_rate(results):
    return (results["difference"] > 0).mean() + (results["difference"] == 0).mean() / 2


@pytest.mark.parametrize("pair", TABLE, ids="-".join)
def test_strength_is_near_the_reference_table(game, pair):
    difference, wins = TABLE[pair]
    results = play(game, *pair)
    # The reference's standard error is up to 2.3 points; its bots are described in words, not move for move.
    assert results["difference"].mean() == pytest.approx(difference, abs=3.5, rel=0.11)
    assert win_rate(results) == pytest.approx(wins, abs=0.05)
    assert win_rate(results) >= BANDS.get(pair, 0.0)


def test_opener_scores_24_to_31_against_itself(game):
    assert 24 <= play(game, "opener", "opener")["points"].mean() <= 31


def test_random_play_is_as_measured_by_the_reference():
    results = play(load_game("lost_cities", deck_only_after=2000), "random", "random", games=20_000)
    assert results["points"].mean() == pytest.approx(-33.9, abs=0.6)
    assert results["points"].std() == pytest.approx(20.2, abs=0.6)
    assert results["plies"].mean() == pytest.approx(286.0, abs=1.5)
    assert results["plies"].std() == pytest.approx(40, abs=1.5)
    # 44 of a game's draws are from the deck.
    assert results["pile_draws"].sum() / (results["plies"].sum() / 2) == pytest.approx(0.69, abs=0.01)
    assert results["limited"].sum() == 0


def test_discard_only_scores_nothing_and_random_player_never_draws_from_piles(game):
    results = play(game, "discard_only", "random_player", games=500)
    assert (results["points"][:, 0] == 0).all() and (results["columns"][:, 0] == 0).all()
    assert (results["plies"] == 88).all() and (results["pile_draws"] == 0).all()


def positions(game, count, seed=0):
    """States met by noisy bots, at decisions of either phase."""
    chooser = random.Random(seed)
    bots = [make_bot(f"noisy({name},0.2)") for name in BOTS]
    for number in range(count):
        state = game.new_initial_state(seed=1000 * seed + number)
        stream = Stream(number, "match")
        for _ in range(chooser.randrange(1, 70)):
            action = chooser.choice(bots).action(state, stream)
            last = state.clone()
            state.apply_action(action)
            if state.is_terminal():
                state = last
                break
        yield state


def with_other_hidden_cards(game, state, chooser):
    """The same position as its player to act sees it, with the cards that player cannot see dealt anew."""
    position = state.position()
    player = position["player_to_act"]
    hand = list(position["hands"][1 - player])
    known = position.get("known", [[], []])[1 - player]
    for card in known:
        hand.remove(card)
    unseen = hand + position["deck_bottom_to_top"]
    chooser.shuffle(unseen)
    position["hands"][1 - player] = [*known, *unseen[: len(hand)]]
    position["deck_bottom_to_top"] = unseen[len(hand) :]
    return game.state_from(position)


@pytest.mark.parametrize("name", [*BOTS, "noisy(opener,0.5)"])
def test_hidden_cards_change_no_action(game, name):
    bot, chooser, changed = make_bot(name), random.Random(1), 0
    for number, state in enumerate(positions(game, 150)):
        other = with_other_hidden_cards(game, state, chooser)
        changed += other.position() != state.position()
        actions = [bot.action(seen, Stream(7, "match", index=number)) for seen in (state, other)]
        assert actions[0] == actions[1]
    assert changed > 140


SMALL = [
    {"colours": 2, "ranks": 3, "wagers": 1, "hand_size": 3, "deck_only_after": 12},
    {"colours": 6, "ranks": 9, "wagers": 3, "hand_size": 8, "deck_only_after": 200},
    {"colours": 3, "ranks": 5, "wagers": 0, "hand_size": 2, "deck_only_after": 30},
    {"colours": 1, "ranks": 2, "wagers": 2, "hand_size": 1, "deck_only_after": 8},
]


@pytest.mark.parametrize("parameters", SMALL)
@pytest.mark.parametrize("name", [*BOTS, "noisy(opener,0.1)"])
def test_actions_are_legal_in_games_of_any_size(parameters, name):
    game, bot = load_game("lost_cities", **parameters), make_bot(name)
    for number in range(30):
        state, stream = game.new_initial_state(seed=number), Stream(number, "match")
        while not state.is_terminal():
            action = bot.action(state, stream)
            assert action in state.legal_actions()
            state.apply_action(action)


def test_bots_open_columns_in_a_smaller_game():
    # Their point limits follow the cost of a column, so that they are opponents there too.
    game = load_game("lost_cities", colours=4, ranks=6, wagers=1, hand_size=5, cost=10, deck_only_after=100)
    for name in ("threshold", "opener"):
        assert play(game, name, "random_player", games=200)["columns"][:, 0].mean() > 0.5


def action_of(game, name, **position):
    state = game.state_from({"deck_bottom_to_top": DECK, **position})
    bot = make_bot(name)
    return state.action_to_string(bot.action(state, Stream(0, "match")))


# Cards that no position below uses otherwise.
DECK = ["P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10", "PH", "PH", "PH",
        "Y2", "Y3", "Y4", "Y5", "Y6", "Y7", "Y8", "Y9", "Y10", "YH", "YH", "YH"]  # fmt: skip
# A deck that counts as full; the limits of the full game's 44 cards grow to its 56.
WHOLE = DECK + [f"{colour}{number}" for colour in "WB" for number in range(2, 11)]


@pytest.fixture(scope="module")
def wide():
    return load_game("lost_cities", colours=6)


def test_greedy_lowest_plays_wagers_first_then_the_lowest_and_discards_the_lowest(wide):
    hand = [["R9", "G3", "BH", "W4"], []]
    assert action_of(wide, "greedy_lowest", hands=hand) == "play BH"
    assert action_of(wide, "greedy_lowest", hands=[["R9", "G3", "W4"], []]) == "play G3"
    boards = [{"R": ["R10"], "G": ["G8"]}, {}]
    assert action_of(wide, "greedy_lowest", hands=[["R9", "G3", "G7"], []], boards=boards) == "discard G3"


def test_gap_player_skips_the_fewest_live_numbers_and_its_own_wagers(wide):
    assert action_of(wide, "gap_player", hands=[["R4", "G3"], []]) == "play G3"
    # G2 is live, R2 and R3 are not: the rival played one, the other is buried.
    seen = {"boards": [{}, {"R": ["R2"]}], "piles": {"R": ["R3", "R10"]}}
    assert action_of(wide, "gap_player", hands=[["R4", "G3"], []], **seen) == "play R4"
    held = [["R2", "RH", "RH", "G3"], []]
    assert action_of(wide, "gap_player", hands=held) == "play RH"
    # The rival could play G9 and has no use for W2.
    boards = [{"G": ["G10"], "W": ["W10"]}, {"G": ["G2"]}]
    assert action_of(wide, "gap_player", hands=[["G9", "W2"], []], boards=boards) == "discard W2"


def test_gap_player_takes_a_pile_top_worth_5_on_an_open_colour(wide):
    def drawn(top, column):
        return action_of(wide, "gap_player", phase="DRAW", hands=[["G2"] * 1, []], boards=[{"R": column}, {}],
                         piles={"R": [top]})  # fmt: skip

    assert drawn("R5", ["R2"]) == "draw R"
    assert drawn("R4", ["R2"]) == "draw deck"
    assert drawn("R3", ["RH", "R2"]) == "draw R"
    assert drawn("R5", ["R6"]) == "draw deck"
    assert drawn("R9", []) == "draw deck"


def test_threshold_opens_at_18_points_or_24_late_and_keeps_gaps_small(wide):
    assert action_of(wide, "threshold", hands=[["R8", "R10", "G2"], []], deck_bottom_to_top=WHOLE) == "play R8"
    assert action_of(wide, "threshold", hands=[["R7", "R10", "G2"], []], deck_bottom_to_top=WHOLE) == "discard G2"
    assert action_of(wide, "threshold", hands=[["RH", "R7", "R8", "R9"], []], deck_bottom_to_top=WHOLE) == "play RH"
    assert action_of(wide, "threshold", hands=[["RH", "R6", "R8", "R9"], []], deck_bottom_to_top=WHOLE) == "play R6"
    assert action_of(wide, "threshold", hands=[["R8", "R10", "G2"], []], deck_bottom_to_top=DECK[:18]) == "discard G2"
    boards = [{"R": ["R2"]}, {}]
    assert action_of(wide, "threshold", hands=[["R5", "G2"], []], boards=boards) == "play R5"
    assert action_of(wide, "threshold", hands=[["R6", "G2"], []], boards=boards) == "discard G2"
    assert action_of(wide, "threshold", hands=[["R6", "G2"], []], boards=boards, deck_bottom_to_top=["P2"]) == "play R6"


def test_opener_wants_three_numbers_and_16_points(wide):
    assert action_of(wide, "opener", hands=[["R2", "R5", "R9", "G2"], []], deck_bottom_to_top=WHOLE) == "play R2"
    assert action_of(wide, "opener", hands=[["R7", "R10", "G2"], []], deck_bottom_to_top=WHOLE) == "discard G2"
    assert action_of(wide, "opener", hands=[["R2", "R4", "R9", "G2"], []], deck_bottom_to_top=WHOLE) == "discard G2"
    assert action_of(wide, "opener", hands=[["RH", "R3", "R4", "R9"], []], deck_bottom_to_top=WHOLE) == "play RH"
    assert action_of(wide, "opener", hands=[["R2", "R5", "R9", "G2"], []], deck_bottom_to_top=DECK[:12]) == "discard G2"


def test_noise_is_the_share_of_random_actions(game):
    states = list(itertools.islice(positions(game, 400, seed=3), 400))
    states = [state for state in states if len(state.legal_actions()) > 1]
    for name in ("opener", "greedy_lowest"):
        plain, never, half = make_bot(name), make_bot(f"noisy({name},0)"), make_bot(f"noisy({name}, 0.5)")
        other, expected = 0, 0.0
        for number, state in enumerate(states):
            action = plain.action(state, Stream(1, "match"))
            assert never.action(state, Stream(number, "match")) == action
            for draw in range(20):
                other += half.action(state, Stream(number, "match", index=draw)) != action
            expected += 20 * 0.5 * (1 - 1 / len(state.legal_actions()))
        assert other == pytest.approx(expected, rel=0.06)


def test_names():
    for name in BOTS:
        assert make_bot(name).name == name
        assert make_bot(f"noisy({name}, 0.25)").name == f"noisy({name},0.25)"
    assert make_bot("noisy(noisy(random,0.5),0.1)").name == "noisy(noisy(random,0.5),0.1)"


@pytest.mark.parametrize(
    "name, says",
    [
        ("opner", "did you mean opener"),
        ("greedy", "there are: random"),
        ("noisy(opner,0.1)", "did you mean opener"),
        ("noisy(opener,1.5)", "no probability"),
        ("noisy(opener,nan)", "no probability"),
        ("noisy(opener,much)", "no probability"),
        ("noisy(opener)", "no bot"),
        ("", "there are"),
        (None, "no bot"),
    ],
)
def test_wrong_names_are_refused(name, says):
    with pytest.raises(ValueError, match=says):
        make_bot(name)


def test_bots_refuse_what_they_cannot_play(game):
    kuhn = load_game("kuhn")
    state = kuhn.new_initial_state(seed=1)
    assert make_bot("random").action(state, Stream(0, "match")) in state.legal_actions()
    for name in ("opener", "noisy(opener,0.5)"):
        with pytest.raises(ValueError, match="plays lost_cities, not kuhn"):
            make_bot(name).action(state, Stream(0, "match"))
    with pytest.raises(ValueError, match="chance"):
        make_bot("random").action(game.new_initial_state(), Stream(0, "match"))
