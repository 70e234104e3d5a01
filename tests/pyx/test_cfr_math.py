"""Kernels of regret minimisation beside slow, obvious twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pyx.cfr_math import draw, iteration_weights, match_regrets, mix, sampled_targets, strategy_of

# Everything a float64 can be but infinite; float32 outputs likewise.
advantages = arrays(np.float64, st.integers(1, 64), elements=st.floats(-1e300, 1e300, allow_nan=False))
outputs = arrays(np.float32, 24, elements=st.floats(allow_nan=False, allow_infinity=False, width=32))


def regret_matching_twin(advantages, fallback):
    positive = np.maximum(advantages, 0.0)
    # Dividing first keeps a sum of huge advantages finite.
    if positive.max() > 0:
        scaled = positive / positive.max()
        return scaled / scaled.sum(), False
    if fallback == "uniform":
        return np.full(len(advantages), 1 / len(advantages)), True
    best = advantages == advantages.max()
    return best / best.sum(), True


@given(advantages, st.sampled_from(["best", "uniform"]))
def test_regret_matching(values, fallback):
    strategy, fell = match_regrets(values, fallback)
    expected, expected_fell = regret_matching_twin(values, fallback)
    assert fell == expected_fell
    np.testing.assert_allclose(strategy, expected, rtol=1e-12, atol=1e-300)
    assert np.isfinite(strategy).all() and strategy.sum() == pytest.approx(1)


def test_no_positive_advantage_plays_the_best_and_ties_share():
    assert match_regrets(np.array([-3.0, -1.0, -1.0, -2.0]))[0].tolist() == [0, 0.5, 0.5, 0]
    assert match_regrets(np.zeros(4))[0].tolist() == [0.25] * 4
    assert match_regrets(np.array([-3.0, -1.0]), "uniform")[0].tolist() == [0.5, 0.5]


def places_of(draw_slots):
    return [(slot, slot, 1, 0) for slot in draw_slots]


@given(outputs, st.lists(st.integers(0, 23), min_size=1, max_size=24, unique=True))
def test_strategies_of_outputs(row, slots):
    values = row[slots].astype(np.float64)
    np.testing.assert_allclose(
        strategy_of(row, places_of(slots), "advantage"), regret_matching_twin(values, "best")[0], rtol=1e-6, atol=1e-12
    )
    powers = np.exp(values - values.max())
    soft = strategy_of(row, places_of(slots), "strategy")
    np.testing.assert_allclose(soft, powers / powers.sum(), rtol=1e-9, atol=1e-300)
    assert soft.sum() == pytest.approx(1)


def test_interchangeable_actions_share_the_mean_of_their_outputs():
    row = np.array([4.0, 0, 0, 2.0, 0, 0, 9.0], np.float32)
    # Outputs 0 and 3 are one group; 6 stands alone.
    strategy = strategy_of(row, [(0, 0, 2, 3), (3, 0, 2, 3), (6, 6, 1, 0)])
    np.testing.assert_allclose(strategy, np.array([3, 3, 9]) / 15)


@given(st.integers(1, 64), st.floats(0, 1), st.integers(0, 2**32))
def test_exploration_mixes(n, exploration, seed):
    strategy = np.random.default_rng(seed).dirichlet(np.ones(n))
    sampling = mix(strategy, exploration)
    np.testing.assert_allclose(sampling, (1 - exploration) * strategy + exploration / n)
    assert sampling.sum() == pytest.approx(1)


def test_drawing_follows_the_strategy_and_never_takes_probability_zero():
    strategy = np.array([0.0, 0.5, 0.0, 0.3, 0.2, 0.0])
    counts = np.bincount(draw(strategy, 50_000), minlength=6)
    assert counts[[0, 2, 5]].tolist() == [0, 0, 0]
    expected = 50_000 * strategy[[1, 3, 4]]
    assert ((counts[[1, 3, 4]] - expected) ** 2 / expected).sum() < 20  # chi-square of 2 degrees


@given(
    st.floats(-1e6, 1e6), st.integers(1, 64), st.data(), st.floats(0, 1), st.floats(1e-6, 1)
)  # fmt: skip
def test_targets_of_outcome_sampling(tail, n, data, strategy, sampling):
    sampled = data.draw(st.integers(0, n - 1))
    targets, before = sampled_targets(tail, n, sampled, strategy, sampling)
    values = np.zeros(n)
    values[sampled] = tail / sampling
    node = strategy * values[sampled]
    np.testing.assert_allclose(targets, values - node, rtol=1e-6, atol=1e-30)
    assert before == pytest.approx(node)


def test_iteration_weights():
    assert iteration_weights(4, "uniform").tolist() == [0, 1, 1, 1, 1]
    np.testing.assert_allclose(iteration_weights(4, "linear"), np.array([0, 1, 2, 3, 4]) * 4 / 10)
    alpha, last = 1.5, 6
    raw = np.array([np.prod([k**alpha / (k**alpha + 1) for k in range(t, last)]) for t in range(1, last + 1)])
    np.testing.assert_allclose(iteration_weights(last, "discounted", alpha)[1:], raw * last / raw.sum())
    for kind in ("uniform", "linear", "discounted"):
        assert np.isfinite(iteration_weights(1, kind)).all()
        assert iteration_weights(1, kind)[1] == 1


def test_unknown_names_are_refused():
    row = np.zeros(2, np.float32)
    with pytest.raises(ValueError, match="there are: advantage, strategy"):
        strategy_of(row, [(0, 0, 1, 0)], "best")
    with pytest.raises(ValueError, match="there are: uniform, linear, discounted"):
        iteration_weights(3, "quadratic")
    with pytest.raises(ValueError, match="legal actions"):
        strategy_of(row, [])
