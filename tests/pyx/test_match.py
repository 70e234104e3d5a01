"""Blocks of whole games: paired deals, swapped seats, results, and what does not change them."""

import numpy as np
import pytest

from pyx.bots import BOTS, make_bot
from pyx.match import RESULT, Answered, MatchBlock
from pyx.registry import load_game

DETERMINISTIC = ["discard_only", "greedy_lowest", "gap_player", "threshold", "opener"]


@pytest.fixture(scope="module")
def game():
    return load_game("lost_cities")


def play(game, first, second, games=400, *, start=0, lanes=16, seed=0, evaluate=None, seen=None):
    """Results of a block; names are bots, and `evaluate` answers for everything else."""
    policies = [make_bot(policy) if isinstance(policy, str) else policy for policy in (first, second)]
    block = MatchBlock(game, *policies, start, games, lanes=lanes, seed=seed)
    while waiting := block.advance():
        assert waiting == sum(len(block.rows(group)) for group in block.groups())
        for group in block.groups():
            if seen is not None:
                seen.setdefault(group, []).append(block.rows(group).copy())
            block.answer(group, evaluate(block.rows(group)))
    return block.results


def constant(game):
    """A network whose outputs are all equal: uniform over the legal actions."""
    return lambda rows: np.zeros((len(rows), game.n_actions), np.float32)


def row_hash(game):
    """A stand-in for a trained network: outputs that depend on the row alone."""
    weights = np.random.default_rng(5).standard_normal((game.row_bytes, game.n_actions)).astype(np.float32)

    def evaluate(rows):
        # einsum without BLAS: a row's output does not depend on the batch it came in
        return np.ascontiguousarray(np.einsum("nb,ba->na", rows.astype(np.float32), weights, optimize=False))

    return evaluate


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_a_pair_is_one_deal_with_seats_swapped(game, name):
    results = play(game, name, name)
    assert (results["difference"][0::2] == -results["difference"][1::2]).all()
    assert (results["points"][0::2] == results["points"][1::2, ::-1]).all()
    assert (results["plies"][0::2] == results["plies"][1::2]).all()


def test_both_games_of_a_pair_have_the_same_deck(game):
    # greedy_lowest looks at nothing but its own cards, so its points are a function of what it is dealt.
    results = play(game, "greedy_lowest", "discard_only")
    mirror = play(game, "greedy_lowest", "greedy_lowest")
    assert (results["points"][:, 0] == mirror["points"][:, 0]).all()
    other = play(game, "random_player", "greedy_lowest")
    assert (other["points"][:, 1] == mirror["points"][:, 1]).all()


def test_deals_differ_between_pairs_and_seeds(game):
    points = play(game, "greedy_lowest", "greedy_lowest")["points"]
    assert len(np.unique(points[0::2], axis=0)) > 150
    assert (points != play(game, "greedy_lowest", "greedy_lowest", seed=1)["points"]).any()


def test_results_are_consistent(game):
    results = play(game, "opener", "noisy(random_player,0.3)")
    assert results.dtype == RESULT
    assert (results["difference"] == results["points"][:, 0] - results["points"][:, 1]).all()
    assert ((results["columns"] >= 0) & (results["columns"] <= 5)).all()
    # Every turn is two plies, and 44 of the draws are from the deck.
    assert (results["plies"] == 88 + 2 * results["pile_draws"].sum(1)).all()


def test_swapping_the_policies_swaps_the_results(game):
    results = play(game, "opener", "threshold")
    swapped = play(game, "threshold", "opener")
    assert (results["difference"][0::2] == -swapped["difference"][1::2]).all()
    assert (results["difference"][1::2] == -swapped["difference"][0::2]).all()


@pytest.mark.parametrize("lanes", [1, 7, 64])
def test_lanes_and_blocks_change_nothing(game, lanes):
    def run(start, games, lanes):
        return play(game, Answered("strategy"), "noisy(opener,0.2)", games, start=start, lanes=lanes,
                    evaluate=row_hash(game))  # fmt: skip

    whole = run(0, 60, 3)
    assert (run(0, 60, lanes) == whole).all()
    assert (np.concatenate([run(0, 22, lanes), run(22, 38, lanes)]) == whole).all()


def test_an_agent_with_equal_outputs_is_random(game):
    for policy in (Answered("advantage", "uniform"), Answered("advantage", "best"), Answered("strategy")):
        agent = play(game, policy, "greedy_lowest", 2000, lanes=500, evaluate=constant(game))
        bot = play(game, "random", "greedy_lowest", 2000, seed=1)
        for field, tolerance in (("difference", 4.0), ("plies", 1.5)):
            assert agent[field].mean() == pytest.approx(bot[field].mean(), abs=tolerance)
            assert agent[field].std() == pytest.approx(bot[field].std(), rel=0.1)


def test_an_agent_that_prefers_the_deck_and_discards_is_discard_only(game):
    def evaluate(rows):
        outputs = np.full((len(rows), game.n_actions), -1.0, np.float32)
        outputs[:, game.n_actions - 6] = 1.0  # the deck
        outputs[:, 50:100] = 0.0  # any discard, where there is no draw
        return outputs

    results = play(game, Answered("advantage", "best"), "greedy_lowest", evaluate=evaluate)
    mirror = play(game, "discard_only", "greedy_lowest")
    assert (results["points"] == mirror["points"]).all()


def test_each_group_gets_the_rows_of_its_own_seat(game):
    seen = {}
    play(game, Answered("strategy"), Answered("strategy"), 40, lanes=40, evaluate=constant(game), seen=seen)
    assert set(seen) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    # Player 0 opens every game: of each pair the first rows of both policies are of one deal.
    assert len(seen[0, 0][0]) == len(seen[1, 0][0]) == 20
    assert (seen[0, 0][0] == seen[1, 0][0]).all()


@pytest.mark.parametrize("name", ["kuhn", "leduc"])
def test_any_game_between_agents(name):
    game = load_game(name)
    results = play(game, Answered("strategy"), Answered("advantage", "uniform"), 2000, evaluate=row_hash(game))
    assert (np.abs(results["difference"]) <= game.max_payoff).all() and (results["difference"] != 0).any()
    assert (results["plies"] >= 2).all() and (results["plies"] <= game.max_length).all()
    assert not results["points"].any() and not results["limited"].any()
    bot = play(game, "random", Answered("strategy"), 2000, evaluate=constant(game))
    assert abs(bot["difference"].mean()) < 5 * bot["difference"].std() / np.sqrt(2000)


def test_games_that_reach_the_limit_are_counted():
    def run(limit):
        return play(load_game("lost_cities", deck_only_after=limit), "random", "random", 2000)

    long = run(1000)
    for limit in (250, 300):
        results = run(limit)
        # Up to the limit a game goes the same way, so the games that would have gone on are those that reach it.
        assert (results["limited"] == (long["plies"] > limit)).all()
        assert (results["plies"][results["limited"] == 0] == long["plies"][results["limited"] == 0]).all()
        assert 0.05 < results["limited"].mean() < 0.95


def test_a_game_without_an_end_is_refused():
    with pytest.raises(ValueError, match="deck_only_after"):
        MatchBlock(load_game("lost_cities", deck_only_after=0), make_bot("opener"), make_bot("opener"), 0, 2,
                   lanes=1, seed=0)  # fmt: skip


@pytest.mark.parametrize("name", BOTS)
def test_bots_of_lost_cities_refuse_other_games(name):
    if name == "random":
        return
    with pytest.raises(ValueError, match="plays lost_cities"):
        MatchBlock(load_game("kuhn"), make_bot("random"), make_bot(name), 0, 2, lanes=1, seed=0)


def test_misuse_is_refused(game):
    bot = make_bot("random")
    for first, count, lanes in ((1, 2, 1), (0, 3, 1), (0, 0, 1), (-2, 2, 1), (0, 2, 0)):
        with pytest.raises(ValueError, match="pairs"):
            MatchBlock(game, bot, bot, first, count, lanes=lanes, seed=0)
    with pytest.raises(ValueError, match="2\\*\\*32"):
        MatchBlock(game, bot, bot, 2**32, 2, lanes=1, seed=0)
    with pytest.raises(ValueError, match="plays no match"):
        MatchBlock(game, bot, "random", 0, 2, lanes=1, seed=0)
    with pytest.raises(ValueError, match="mode"):
        Answered("logits")
    with pytest.raises(ValueError, match="fallback"):
        Answered("advantage", "first")

    block = MatchBlock(game, Answered(), bot, 0, 4, lanes=4, seed=0)
    assert block.advance() == 4
    group = block.groups()[0]
    with pytest.raises(ValueError, match="wait for answers"):
        block.advance()
    with pytest.raises(ValueError, match="outputs a row"):
        block.answer(group, np.zeros((len(block.rows(group)), 3), np.float32))
    with pytest.raises(ValueError, match="no row of group"):
        block.answer((1, 0), np.zeros((1, game.n_actions), np.float32))
