"""Losses and their gradients beside torch's autograd."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.parameters import array
from pyx.losses import advantage_loss, strategy_loss

NO_SLOT = 0xFFFF


def squares(outputs, targets, mask, weights):
    return (((outputs - targets) ** 2 * mask).sum(1) * weights).sum()


def cross_entropy(outputs, targets, mask, weights):
    logarithms = outputs.masked_fill(mask == 0, -torch.inf).log_softmax(1).masked_fill(mask == 0, 0.0)
    return -((targets * logarithms).sum(1) * weights).sum()


def batch(seed, n, n_actions, max_legal, scale):
    """Outputs, slots, targets, weights; and targets and mask as a row an action."""
    draw = np.random.default_rng(seed)
    outputs = torch.from_numpy(draw.normal(0, scale, (n, n_actions)).astype(np.float32))
    slots = np.full((n, max_legal), NO_SLOT, np.uint16)
    targets = np.zeros((n, max_legal), np.float32)
    dense, mask = np.zeros((2, n, n_actions), np.float32)
    for i in range(n):
        legal = draw.permutation(n_actions)[: draw.integers(1, max_legal + 1)]
        slots[i, : len(legal)] = legal
        targets[i, : len(legal)] = draw.dirichlet(np.ones(len(legal)))
        dense[i, legal], mask[i, legal] = targets[i, : len(legal)], 1
    weights = draw.gamma(0.3, 100, n).astype(np.float32)
    return outputs, slots, targets, weights, torch.from_numpy(dense), torch.from_numpy(mask)


@pytest.mark.parametrize("kernel, twin", [(advantage_loss, squares), (strategy_loss, cross_entropy)])
@given(st.integers(0, 1 << 30), st.integers(1, 40), st.integers(1, 20), st.sampled_from([0.0, 1.0, 50.0]))
@settings(deadline=None, max_examples=60)
def test_losses_and_gradients(kernel, twin, seed, n, n_actions, scale):
    outputs, slots, targets, weights, dense, mask = batch(seed, n, n_actions, min(n_actions, 7), scale)
    gradient = torch.full_like(outputs, torch.nan)
    loss = kernel(array(outputs), slots, targets, weights, array(gradient))
    exact = outputs.double().requires_grad_()
    expected = twin(exact, dense.double(), mask.double(), torch.from_numpy(weights).double())
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5, abs=1e-5 * float(weights.max()))
    torch.testing.assert_close(gradient.double(), exact.grad, rtol=1e-5, atol=1e-5 * float(weights.max()))
    assert (gradient[mask == 0] == 0).all()


@pytest.mark.parametrize("kernel", [advantage_loss, strategy_loss])
def test_bfloat16_is_the_same_rounded(kernel):
    outputs, slots, targets, weights, *_ = batch(1, 50, 9, 5, 3.0)
    half = outputs.bfloat16()
    gradient, exact = torch.empty_like(half), torch.empty_like(outputs)
    loss = kernel(array(half), slots, targets, weights, array(gradient))
    assert loss == kernel(array(half.float()), slots, targets, weights, array(exact))
    assert torch.equal(gradient, exact.bfloat16())


@pytest.mark.parametrize("kernel", [advantage_loss, strategy_loss])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_finite_shows(kernel, wrong, dtype):
    outputs, slots, targets, weights, *_ = batch(2, 4, 5, 5, 1.0)
    outputs[2, int(slots[2, 0])] = wrong
    targets[2, 0] = 1.0
    gradient = torch.empty(outputs.shape, dtype=dtype)
    assert not np.isfinite(kernel(array(outputs.to(dtype)), slots, targets, weights, array(gradient)))


def test_shapes_that_do_not_fit_are_refused():
    outputs, slots, targets, weights, *_ = batch(3, 4, 5, 3, 1.0)
    for wrong in ((outputs[:3], slots, targets, weights), (outputs, slots, targets[:, :2].copy(), weights)):
        with pytest.raises(ValueError, match="do not fit"):
            advantage_loss(array(wrong[0]), *wrong[1:], np.empty_like(array(wrong[0])))
