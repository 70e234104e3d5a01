"""The estimator check itself: a slow twin passes it, and two well-known mistakes do not.

The twin draws from the same streams as a block, so that it also says what a block's records must be, bit for bit.
"""

import numpy as np
import pytest

from pyx.cfr_math import mix, strategy_of
from pyx.registry import load_game
from pyx.rng import Stream
from pyx.tree import GameTree
from tests.pyx.estimators import NO_SLOT, check, run, table_policy

SEED, ITERATION, EXPLORATION = 11, 3, 0.6


def pick(strategy, stream):
    """An index drawn from a strategy, as pyx.cfr_math.sample_strategy draws it."""
    point, last = stream.double(), 0
    for index, probability in enumerate(strategy):
        if probability > 0:
            last = index
            point -= probability
            if point < 0:
                return index
    return last


def outcome_sampling(game, player, evaluate, traversals, *, unsampled_zero=False):
    """Outcome sampling's advantage records as columns, by the book.

    unsampled_zero: the mistake of giving actions that were not sampled a target of zero.
    """
    rows, targets, weights, slots = [], [], [], []
    for index in range(traversals):
        stream = Stream(SEED, "traversal", iteration=ITERATION, player=player, index=index)
        state, path, weight = game.new_initial_state(), [], 1.0
        while not state.is_terminal():
            if state.is_chance_node():
                state.sample_chance(stream)
                continue
            legal, seat = state.legal_actions(), state.current_player()
            if len(legal) == 1:
                state.apply_action(legal[0])
                continue
            row, places = state.row(seat), state.outputs()
            strategy = strategy_of(evaluate(row[None])[0], places)
            if seat == player:
                sampling = mix(strategy, EXPLORATION)
                chosen = pick(sampling, stream)
                path.append((row, places, weight, strategy[chosen], sampling[chosen], chosen))
                weight *= 1 / (len(legal) * sampling[chosen])
            else:
                chosen = pick(strategy, stream)
            state.apply_action(legal[chosen])
        tail, back = state.returns()[player], []
        for row, places, weight, strategy, sampling, chosen in reversed(path):
            value = tail / sampling
            tail = strategy * value
            target = np.full(game.max_legal, 0.0)
            target[: len(places)] = 0.0 if unsampled_zero else -tail
            target[chosen] = value - tail
            slot = np.full(game.max_legal, NO_SLOT, np.uint16)
            slot[: len(places)] = [place[0] for place in places]
            back.append((row, target, weight, slot))
        for row, target, weight, slot in reversed(back):
            rows.append(row)
            targets.append(target)
            weights.append(weight)
            slots.append(slot)
    return {"row": np.array(rows), "targets": np.array(targets), "weight": np.array(weights), "slots": np.array(slots)}


@pytest.fixture(scope="module")
def kuhn():
    return GameTree(load_game("kuhn"))


def test_a_block_records_what_the_twin_does():
    tree = GameTree(load_game("leduc"))
    evaluate = table_policy(tree, "random")
    for player in (0, 1):
        twin = outcome_sampling(tree.game, player, evaluate, 300)
        block = run(tree.game, "outcome_sampling", player, evaluate, 300, seed=SEED)

        def in_order(samples):
            """Lanes meet samples in an order of their own."""
            keys = np.column_stack([samples["row"], samples["targets"].astype(np.float32).view(np.uint8)])
            order = np.lexsort(keys.T)
            return {name: column[order] for name, column in samples.items()}

        twin, block = in_order(twin), in_order(block)
        assert (twin["row"] == block["row"]).all() and (twin["slots"] == block["slots"]).all()
        assert (twin["targets"].astype(np.float32) == block["targets"].astype(np.float32)).all()
        assert (twin["weight"].astype(np.float32) == block["weight"].astype(np.float32)).all()


@pytest.mark.parametrize("player", [0, 1])
def test_zero_for_unsampled_actions_fails_the_check(kuhn, player):
    evaluate, traversals = table_policy(kuhn, "random"), 6000
    strategy = kuhn.from_outputs(evaluate(kuhn.rows))
    right = outcome_sampling(kuhn.game, player, evaluate, traversals)
    wrong = outcome_sampling(kuhn.game, player, evaluate, traversals, unsampled_zero=True)
    assert np.abs(check(kuhn, player, strategy, right, traversals, scaled=True, least=300).z).max() <= 5
    assert np.abs(check(kuhn, player, strategy, wrong, traversals, scaled=True, least=300).z).max() > 10


@pytest.mark.parametrize("player", [0, 1])
def test_leaving_out_the_own_sampling_fails_the_check(kuhn, player):
    evaluate, traversals = table_policy(kuhn, "random"), 50_000
    strategy = kuhn.from_outputs(evaluate(kuhn.rows))
    samples = run(kuhn.game, "outcome_sampling", player, evaluate, traversals)
    right = check(kuhn, player, strategy, samples, traversals, scaled=True)
    wrong = check(kuhn, player, strategy, samples, traversals, scaled=True, weighted=False)
    assert np.abs(right.z).max() <= 5
    if player == 0:  # in Kuhn poker only player 0 may act twice
        assert np.abs(wrong.z).max() > 10
