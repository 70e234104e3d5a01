"""Work side by side: results in the order of the tasks, errors handed on, in threads and in processes."""

import os
import signal
import time

import pytest

from audit.errors import BadInput
from audit.workers import each


def square(number, wait=0.0):
    time.sleep(wait)
    if number < 0:
        raise ValueError(number)
    return number * number


@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("jobs", [0, 1, 3, 50])
def test_order(kind, jobs):
    tasks = [(number, 0.002 * (number % 3)) for number in range(20)]
    assert each(square, tasks, jobs, kind) == [number * number for number in range(20)]


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_errors_come_through(kind):
    with pytest.raises(ValueError, match="-1"):
        each(square, [(1,), (2,), (-1,), (3,), (4,)], 2, kind)


def test_nothing_to_do():
    assert each(square, []) == []


def test_threads_are_side_by_side():
    start = time.perf_counter()
    each(square, [(1, 0.2)] * 4, 4, "threads")
    assert time.perf_counter() - start < 0.6


def killed(number):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_is_a_sentence():
    with pytest.raises(BadInput, match="was killed"):
        each(killed, [(number,) for number in range(10)], 2, "processes")
