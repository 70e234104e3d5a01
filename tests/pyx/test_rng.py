"""The counter-based generator: published vectors, independence of streams, uniformity."""

import numpy as np
import pytest

from pyx.rng import STREAMS, Stream, philox

ONES = 0xFFFFFFFF

# Known answers of Random123 (kat_vectors, philox4x32 10): counter, key, result.
VECTORS = [
    ([0] * 4, [0] * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ([ONES] * 4, [ONES] * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), VECTORS)
def test_published_vectors(counter, key, answer):
    assert philox(counter, key) == answer


def test_a_stream_is_philox_of_its_key():
    seed, iteration, player, index = 0x0123456789ABCDEF, 7, 1, 42
    stream = Stream(seed, "match", iteration=iteration, player=player, index=index)
    drawn = [stream.u32() for _ in range(8)]
    key = [seed & ONES, seed >> 32]
    expected = [
        word for block in range(2) for word in philox([block, index, iteration, STREAMS["match"] << 8 | player], key)
    ]
    assert drawn == expected


def test_every_part_of_the_key_changes_the_stream():
    base = {"seed": 1, "stream": "traversal", "iteration": 2, "player": 0, "index": 3}
    changes = [{}, {"seed": 2}, {"seed": 1 | 1 << 40}, {"stream": "match"}]
    changes += [{"iteration": 3}, {"player": 1}, {"index": 4}]
    firsts = {Stream(**{**base, **change}).u32() for change in changes}
    assert len(firsts) == len(changes)


def test_doubles_are_uniform():
    stream = Stream(3)
    values = np.array([stream.double() for _ in range(20_000)])
    assert 0 <= values.min() and values.max() < 1
    counts = np.histogram(values, 20, (0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 45  # chi-square of 19 degrees: 0.07 % above


@pytest.mark.parametrize("n", [1, 2, 3, 7, 60, 1 << 31, ONES])
def test_below_stays_below(n):
    stream = Stream(n)
    assert all(stream.below(n) < n for _ in range(1000))


def test_below_is_unbiased():
    stream = Stream(5)
    counts = np.bincount([stream.below(6) for _ in range(60_000)], minlength=6)
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 25  # chi-square of 5 degrees: 0.01 % above


def test_below_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        Stream(1).below(0)
