"""Passes over gradients beside torch's own operations."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.parameters import array
from pyx.gradients import relu_back, sum_shards

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@DTYPES
@given(st.integers(0, 1 << 30), st.integers(0, 70), st.integers(0, 70))
@settings(deadline=None, max_examples=60)
def test_back_through_a_relu(dtype, seed, n, width):
    generator = torch.Generator().manual_seed(seed)
    gradient, outputs = torch.randn(2, n, width, generator=generator).to(dtype)
    outputs = torch.where(outputs > 0, outputs, -0.0 * torch.rand(n, width, generator=generator).round().to(dtype))
    expected = torch.where(outputs > 0, gradient, 0.0)
    totals = np.full(width, np.nan, np.float32)
    relu_back(array(gradient), array(outputs), totals)
    assert torch.equal(gradient, expected)
    np.testing.assert_allclose(totals, expected.double().sum(0).numpy(), rtol=1e-5, atol=1e-4)


@given(st.integers(0, 1 << 30), st.integers(1, 9), st.lists(st.integers(0, 5000), min_size=1, max_size=4))
@settings(deadline=None, max_examples=60)
def test_shards_are_summed_in_order(seed, n_shards, sizes):
    generator = torch.Generator().manual_seed(seed)
    dtypes = [torch.bfloat16 if number % 2 else torch.float32 for number in range(len(sizes))]
    shards = [
        [torch.randn(size, generator=generator).to(dtype) for size, dtype in zip(sizes, dtypes, strict=True)]
        for _ in range(n_shards)
    ]
    outputs = [np.full(size, np.nan, np.float32) for size in sizes]
    norm = sum_shards([[array(gradient) for gradient in shard] for shard in shards], outputs, 0.3)
    for output, first, *others in zip(outputs, *shards, strict=True):
        total = first.float()
        for other in others:
            total = total + other.float()
        assert (output == (total * np.float32(0.3)).numpy()).all()
    assert norm == pytest.approx(np.sqrt(sum((output.astype(float) ** 2).sum() for output in outputs)), rel=1e-5)


@DTYPES
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 40, 4999])
def test_a_norm_shows_what_is_not_finite(dtype, wrong, place):
    gradient = torch.zeros(5000, dtype=dtype)
    gradient[place] = wrong
    assert not np.isfinite(sum_shards([[array(gradient)]], [np.empty(5000, np.float32)], 1.0))


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="parameter 0 has 3 elements, but its gradient in shard 1 has 2"):
        sum_shards([[np.zeros(3, np.float32)], [np.zeros(2, np.float32)]], [np.zeros(3, np.float32)], 1.0)
    with pytest.raises(ValueError, match="do not fit"):
        relu_back(np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32), np.zeros(3, np.float32))
