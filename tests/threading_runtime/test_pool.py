"""Pool: order, errors, interrupts, and threads that end with it."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback

import pytest
import torch

from threading_runtime.pool import Pool, Stopped

THREADS = [1, 2, 3, 8]

signals = pytest.mark.thread_unsafe(reason="signals, which only the main thread is given")


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def no_thread_outlives():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("count", [0, 1, 2, 7, 40])
def test_results_are_in_job_order(threads, count):
    def job(number):
        time.sleep(random.random() * 0.002)
        return number * number

    with Pool(threads) as pool:
        for _ in range(2):
            assert pool.map(job, iter(range(count))) == [number * number for number in range(count)]


@pytest.mark.parametrize("threads", THREADS)
def test_jobs_begin_in_order_on_all_threads_at_once(threads):
    begun = []
    together = threading.Barrier(threads)

    def job(number):
        begun.append(number)
        together.wait(60)  # passes only when `threads` jobs are in progress at the same time
        return threading.get_ident()

    with Pool(threads) as pool:
        ran_by = pool.map(job, range(3 * threads))
    assert len(set(ran_by)) == threads
    for first in range(0, 3 * threads, threads):
        assert sorted(begun[first : first + threads]) == list(range(first, first + threads))


def test_threads_persist_and_are_not_daemons():
    with Pool(2) as pool:
        together = threading.Barrier(2)

        def who(_):
            together.wait(60)
            return threading.current_thread()

        first, second = set(pool.map(who, range(2))), set(pool.map(who, range(2)))
        assert first == second and len(first) == 2
        assert not any(worker.daemon for worker in first)
        assert threading.main_thread() not in first
    assert not any(worker.is_alive() for worker in first)


@pytest.mark.parametrize("threads", [0, -1])
def test_too_few_threads_are_refused(threads):
    with pytest.raises(ValueError, match=rf"^threads is {threads}, but a pool needs at least 1 thread\.$"):
        Pool(threads)


def fail_at_three(number):
    if number == 3:
        raise LookupError("no third job")
    return number


@pytest.mark.parametrize("threads", THREADS)
def test_an_exception_comes_through_with_the_workers_traceback(threads):
    with Pool(threads) as pool:
        with pytest.raises(LookupError, match="no third job") as raised:
            pool.map(fail_at_three, range(10))
        assert "fail_at_three" in [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
        assert pool.map(str, range(3)) == ["0", "1", "2"]  # the pool is as good as new
        assert not pool.stopping


@pytest.mark.parametrize("threads", THREADS)
def test_after_an_exception_no_job_begins_and_those_in_progress_are_asked_to_stop(threads):
    begun = []
    together = threading.Barrier(threads)
    error = ZeroDivisionError("first")

    def job(number):
        begun.append(number)
        together.wait(60)
        if number == threads - 1:
            raise error
        wait_until(lambda: pool.stopping)
        pool.raise_if_stopping()

    with Pool(threads) as pool:
        with pytest.raises(ZeroDivisionError) as raised:
            pool.map(job, range(10 * threads))
    assert raised.value is error  # and not the Stopped of an earlier job
    assert sorted(begun) == list(range(threads))


def test_of_several_failures_the_first_in_job_order_is_raised():
    def job(number):
        together.wait(60)
        raise ValueError(number)

    for _ in range(20):
        together = threading.Barrier(4)
        with Pool(4) as pool, pytest.raises(ValueError, match="^0$"):
            pool.map(job, range(4))


def test_system_exit_in_a_job_reaches_the_caller():
    with Pool(2) as pool, pytest.raises(SystemExit):
        pool.map(sys.exit, [3])


@signals
@pytest.mark.parametrize("polls", [True, False])
@pytest.mark.parametrize("threads", THREADS)
def test_ctrl_c_stops_the_workers_within_a_second(threads, polls):
    begun = []
    ended = []

    def job(number):
        begun.append(number)
        try:
            for _ in range(10_000 if polls else 20):
                time.sleep(0.005)
                if polls:
                    pool.raise_if_stopping()
        finally:
            ended.append(number)

    def interrupt():
        wait_until(lambda: len(begun) == threads)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    sent = []
    sender = threading.Thread(target=interrupt)
    with Pool(threads) as pool:
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            pool.map(job, range(100))
        assert time.monotonic() - sent[0] < 1
        assert sorted(begun) == sorted(ended) == list(range(threads))
        assert pool.map(str, [1]) == ["1"]
        sender.join()


@signals
def test_a_second_ctrl_c_does_not_wait_for_a_stuck_job():
    begun, release = threading.Event(), threading.Event()

    def job(_):
        begun.set()
        release.wait(60)

    def interrupt():
        begun.wait(60)
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: pool.stopping)
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    with Pool(1) as pool:
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            pool.map(job, [0])
        assert not release.is_set()
        with pytest.raises(RuntimeError, match="busy"):
            pool.map(job, [0])
        release.set()
        sender.join()


@signals
def test_an_exception_of_a_signal_handler_stops_the_run_as_ctrl_c_does():
    class Terminated(Exception):
        pass

    def terminate(*_):
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with Pool(2) as pool:
            with pytest.raises(Terminated):
                pool.map(lambda _: os.kill(os.getpid(), signal.SIGTERM) or time.sleep(0.05), range(100))
    finally:
        signal.signal(signal.SIGTERM, before)


@signals
def test_interrupts_at_any_moment_leave_nothing_behind():
    """A storm of signals at random moments: every run ends, the pool closes, no thread is left."""

    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    def storm():
        while not calm:
            time.sleep(random.random() * 0.003)
            if armed:
                armed.clear()
                os.kill(os.getpid(), signal.SIGUSR1)

    def map_until_interrupted():
        deadline = time.monotonic() + 60
        armed.append(True)
        while time.monotonic() < deadline:
            assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]

    calm, armed = [], []  # not events: setting one is itself not safe from interrupts
    sender = threading.Thread(target=storm)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        sender.start()
        with Pool(3) as pool:
            for _ in range(150):
                with pytest.raises(Interrupted):
                    map_until_interrupted()
            assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]
    finally:
        calm.append(True)
        sender.join()
        signal.signal(signal.SIGUSR1, before)


def test_stop_from_elsewhere_raises_stopped():
    begun = threading.Event()

    def job(_):
        begun.set()
        wait_until(lambda: pool.stopping)
        return "ended in its own time"

    with Pool(2) as pool:
        run = pool.start(job, range(10))
        begun.wait(60)
        pool.stop()
        with pytest.raises(Stopped):
            run.result()
        assert run.over


def test_stop_when_nothing_runs_does_nothing():
    with Pool(2) as pool:
        pool.stop()
        run = pool.start(str, [1, 2])
        assert run.result() == ["1", "2"]
        pool.stop()
        assert not pool.stopping and run.result() == ["1", "2"]


def test_start_lets_two_pools_work_at_the_same_time():
    together = threading.Barrier(2)
    with Pool(1) as one, Pool(1) as other:
        runs = [pool.start(lambda _: together.wait(60), [0]) for pool in (one, other)]
        assert sorted(run.result()[0] for run in runs) == [0, 1]


def test_leaving_the_block_stops_a_run_that_nobody_waits_for():
    def job(_):
        wait_until(lambda: pool.stopping)

    with Pool(2) as pool:
        run = pool.start(job, range(100))
    assert run.over


def test_a_job_cannot_use_its_own_pool():
    with Pool(2) as pool:
        with pytest.raises(RuntimeError, match="its own pool"):
            pool.map(lambda _: pool.map(str, [1]), [0])
        with pytest.raises(RuntimeError, match="its own pool"):
            pool.map(lambda _: pool.close(), [0])
        assert pool.map(str, [1]) == ["1"]


def test_one_run_at_a_time():
    release = threading.Event()
    with Pool(2) as pool:
        run = pool.start(lambda _: release.wait(60), [0])
        with pytest.raises(RuntimeError, match="busy"):
            pool.map(str, [1])
        release.set()
        assert run.result() == [True]


def test_outside_its_block_a_pool_runs_nothing():
    pool = Pool(2)
    with pytest.raises(RuntimeError, match="with"):
        pool.map(str, [1])
    with pool:
        pass
    with pytest.raises(RuntimeError, match="with"):
        pool.map(str, [1])
    with pytest.raises(RuntimeError, match="entered before"), pool:
        pass


def test_initialise_runs_once_in_every_worker_before_its_first_job():
    here = threading.local()

    def initialise():
        here.count = getattr(here, "count", 0) + 1

    with Pool(3, initialise=initialise) as pool:
        assert pool.map(lambda _: here.count, range(30)) == [1] * 30
    assert not hasattr(here, "count")


def test_a_failing_initialise_is_raised_on_entry():
    def initialise():
        raise LookupError("no device")

    with pytest.raises(LookupError, match="no device"), Pool(3, initialise=initialise):
        pytest.fail("entered")


def test_an_idle_pool_keeps_no_job_alive():
    import gc
    import weakref

    class Job:
        pass

    def fail(job):
        raise ValueError(job)

    with Pool(2) as pool:
        jobs = [Job()]
        watched = weakref.ref(jobs[0])
        try:
            pool.map(fail, jobs)
        except ValueError:
            pass
        jobs.clear()
        pool.map(str, range(10))
        gc.collect()
        assert watched() is None


def test_intra_op_is_one_in_workers_and_untouched_elsewhere():
    here = torch.get_num_threads()
    with Pool(3) as pool:
        assert set(pool.map(lambda _: torch.get_num_threads(), range(30))) == {1}
    assert torch.get_num_threads() == here


def sums(seed):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(300, 300, generator=generator)
    return torch.get_num_threads(), float((a @ a).sum()), float(a.double().pow(3).sum())


SCRIPT = """
from test_pool import Pool, sums
with Pool(2) as pool:
    print(pool.map(sums, range(4)))
Pool(2).__enter__()  # never closed: its idle workers must not keep the process
"""


def test_intra_op_is_one_in_workers_whatever_the_environment_asks():
    environment = os.environ | {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}
    environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), *filter(None, sys.path)])
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with Pool(3) as pool:
        here = pool.map(sums, range(4))
    assert [count for count, *_ in here] == [1] * 4
    assert done.stdout.strip() == str(here)
