"""The first layer as a sum of set bits, beside the product that it stands for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyx.first_layer import MAX_FEATURES, FirstLayer


def rows_of(rng, n, n_features, share):
    """Random packed rows, and the same as float32 (n, n_features)."""
    bits = rng.random((n, n_features)) < share
    rows = np.zeros((n, (n_features + 63) // 64 * 8), np.uint8)
    packed = np.packbits(bits, axis=1, bitorder="little")
    rows[:, : packed.shape[1]] = packed
    return rows, bits.astype(np.float32)


def bfloat(values):
    """float32 values rounded to nearest even bfloat16, as its bits."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def widened(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def twin(weight, bias, features):
    """Added in float32, output by output, bit by bit upwards: the very bits that must come out."""
    sums = np.tile(bias.astype(np.float32), (len(features), 1))
    for row, out in zip(features, sums, strict=True):
        for j in np.flatnonzero(row):
            out += weight[:, j]
    return np.where(sums < 0, np.float32(0), sums)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 80),
    n_features=st.integers(1, 200),
    width=st.integers(1, 200),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_float32_is_the_chain_of_additions(n, n_features, width, share, seed):
    rng = np.random.default_rng(seed)
    rows, features = rows_of(rng, n, n_features, share)
    weight, bias = rng.normal(size=(width, n_features)).astype(np.float32), rng.normal(size=width).astype(np.float32)
    out = np.full((n + 1, width), 7, np.float32)
    FirstLayer(weight, bias)(rows, out)
    np.testing.assert_array_equal(out[:n], twin(weight, bias, features))
    assert (out[n] == 7).all()  # nothing is written beyond the rows given


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 80),
    n_features=st.integers(1, 200),
    width=st.integers(1, 200),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_bfloat16_is_rounded_once_at_the_end(n, n_features, width, share, seed):
    rng = np.random.default_rng(seed)
    rows, features = rows_of(rng, n, n_features, share)
    weight = widened(bfloat(rng.normal(size=(width, n_features))))
    bias = widened(bfloat(rng.normal(size=width)))
    out = np.full((n + 1, width), 7, np.uint16)
    FirstLayer(weight, bias, bfloat=True)(rows, out)
    np.testing.assert_array_equal(out[:n], bfloat(twin(weight, bias, features)))
    assert (out[n] == 7).all()


def test_large_layers_go_through_in_tiles():
    rng = np.random.default_rng(5)
    rows, features = rows_of(rng, 100, 3000, 0.9)  # about 6 rows a tile
    weight, bias = rng.normal(size=(70, 3000)).astype(np.float32), np.zeros(70, np.float32)
    out = np.empty((100, 70), np.float32)
    FirstLayer(weight, bias)(rows, out)
    np.testing.assert_array_equal(out, twin(weight, bias, features))


def test_set_padding_counts_for_nothing():
    weight, bias = np.ones((3, 5), np.float32), np.zeros(3, np.float32)
    out = np.empty((1, 3), np.float32)
    FirstLayer(weight, bias)(np.full((1, 8), 255, np.uint8), out)
    assert (out == 5).all()


def test_not_a_number_comes_through():
    weight, bias = np.full((2, 8), np.nan, np.float32), np.zeros(2, np.float32)
    for is_bfloat, dtype in ((False, np.float32), (True, np.uint16)):
        out = np.zeros((1, 2), dtype)
        FirstLayer(weight, bias, bfloat=is_bfloat)(np.full((1, 8), 1, np.uint8), out)
        assert np.isnan(widened(out) if is_bfloat else out).all()


def test_what_does_not_fit_is_refused():
    layer = FirstLayer(np.zeros((4, 70), np.float32), np.zeros(4, np.float32))
    assert (layer.row_bytes, layer.width, layer.n_features) == (16, 4, 70)
    with pytest.raises(ValueError, match="maps 16 bytes to 4 outputs"):
        layer(np.zeros((2, 8), np.uint8), np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match="maps 16 bytes to 4 outputs"):
        layer(np.zeros((2, 16), np.uint8), np.zeros((1, 4), np.float32))
    with pytest.raises(ValueError):
        layer(np.zeros((2, 16), np.uint8), np.zeros((2, 4), np.uint16))
    with pytest.raises(ValueError, match="at most"):
        FirstLayer(np.zeros((1, MAX_FEATURES + 1), np.float32), np.zeros(1, np.float32))
