"""Work side by side: results in the order of the tasks, errors handed on, in threads and in processes."""

import os
import signal
import subprocess
import sys
import threading
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


@pytest.mark.filterwarnings("error")  # Python warns of forks beside threads
def test_processes_beside_other_threads():
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    assert each(square, [(number,) for number in range(8)], 2) == [number * number for number in range(8)]
    done.set()
    other.join()


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


def test_where_an_error_came_from_is_kept():
    with pytest.raises(ValueError) as caught:
        each(square, [(-1,)] * 8, 2, "processes")
    assert "in square" in "".join(caught.value.__notes__)


def endless():
    """A program that has just begun to do endless work in four processes."""
    code = """import time
from audit.workers import each
print(flush=True)
each(time.sleep, [(0.01,)] * 1000000, 4, "processes")"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    process.stdout.readline()
    return process


@pytest.mark.parametrize("everybody", [False, True], ids=["the program", "as a terminal does"])
def test_an_interrupt_ends_them_at_any_moment(everybody):
    for turn in range(10):
        process = endless()
        time.sleep(0.03 * turn)  # before the processes start, while they do, and after
        (os.killpg if everybody else os.kill)(process.pid, signal.SIGINT)
        err = process.communicate(timeout=60)[1]
        assert process.returncode == -signal.SIGINT and err.count("Traceback") == 1, err
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)


def test_they_end_with_a_caller_that_is_killed():
    process = endless()
    time.sleep(1)
    process.kill()
    assert process.communicate(timeout=60)[1] == ""  # they hold stderr until they end
