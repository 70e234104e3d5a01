"""run_chains: equal bits at any number of threads, no idle thread, errors and interrupts."""

import os
import random
import signal
import threading
import time
import traceback

import pytest
import torch

from threading_runtime.pool import Pool, Stopped
from threading_runtime.tasks import BesideChains, run_chains

THREADS = [1, 2, 3, 8]


class Sums:
    """A small "training": shard gradients of values far apart in size, summed in shard order."""

    def __init__(self, seed, steps, shards, pause=0.0):
        self.seed, self.steps, self.shards, self.pause = seed, steps, shards, pause
        self.weight = torch.ones(5)
        self.slots = [None] * shards
        self.threads = set()

    def sleep(self):
        if self.pause:
            time.sleep(random.random() * self.pause)

    def shard(self, step, index):
        self.sleep()
        self.threads.add(threading.current_thread())
        generator = torch.Generator().manual_seed(self.seed * 1_000_000 + step * 1000 + index)
        self.slots[index] = self.weight * torch.randn(5, generator=generator) * 10.0 ** (index % 7)
        self.sleep()

    def finish(self, step):
        self.sleep()
        total = torch.zeros(5)
        for index, gradient in enumerate(self.slots):
            total += gradient
            self.slots[index] = None
        self.weight = self.weight - 1e-9 * total


def chains(pause=0.0):
    return [Sums(1, 12, 4, pause), Sums(2, 7, 3, pause), Sums(3, 20, 1, pause), Sums(4, 0, 2, pause)]


@pytest.fixture(scope="module")
def expected():
    """The same chains, one after another, with no executor."""
    alone = chains()
    for chain in alone:
        for step in range(chain.steps):
            for index in range(chain.shards):
                chain.shard(step, index)
            chain.finish(step)
    return [chain.weight for chain in alone]


@pytest.mark.parametrize("repeat", range(3))
@pytest.mark.parametrize("threads", THREADS)
def test_the_same_bits_at_any_number_of_threads(threads, repeat, expected):
    made = chains(pause=0.002)
    with Pool(threads) as pool:
        run_chains(pool, made)
        workers = set(pool._workers)
    assert all(torch.equal(chain.weight, weight) for chain, weight in zip(made, expected, strict=True))
    assert set().union(*(chain.threads for chain in made)) <= workers  # never in the caller's thread


class Log:
    """Records what happened in what order; `events` may be shared."""

    def __init__(self, name, steps, shards, events):
        self.name, self.steps, self.shards, self.events = name, steps, shards, events

    def shard(self, step, index):
        self.events.append((self.name, step, "begin"))
        time.sleep(random.random() * 0.0005)
        self.events.append((self.name, step, "end"))

    def finish(self, step):
        self.events.append((self.name, step, "finish"))


@pytest.mark.parametrize("threads", THREADS)
def test_finish_follows_all_shards_of_its_step_and_precedes_the_next(threads):
    events = []
    with Pool(threads) as pool:
        run_chains(pool, [Log(name, 10, 3, events) for name in "ab"])
    for name in "ab":
        own = [(step, what) for owner, step, what in events if owner == name]
        for step in range(10):
            part = own[7 * step : 7 * step + 7]
            assert sorted(part) == sorted([(step, "begin")] * 3 + [(step, "end")] * 3 + [(step, "finish")])
            assert part[-1] == (step, "finish")


def test_one_thread_takes_the_chain_with_the_most_steps_left():
    events = []
    with Pool(1) as pool:
        run_chains(pool, [Log("short", 2, 1, events), Log("long", 4, 1, events)])
    finished = [(name, step) for name, step, what in events if what == "finish"]
    assert finished == [
        *[("long", 0), ("long", 1), ("short", 0), ("long", 2), ("short", 1), ("long", 3)],
    ]


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_no_thread_idles_while_a_shard_is_available(threads, monkeypatch):
    monkeypatch.setattr("threading_runtime.tasks._LOOK_UP", 1000)  # only a notification wakes an idle thread
    together = threading.Barrier(threads)

    class Meet:
        steps, shards = 30, threads

        def shard(self, step, index):
            together.wait(20)  # passes only when every thread runs a shard of this step

        def finish(self, step):
            pass

    with Pool(threads) as pool:
        run_chains(pool, [Meet()])


def test_an_exception_in_a_shard_or_a_finish_comes_through():
    class Bad(Sums):
        def shard(self, step, index):
            if self.seed == 1 and step == 3 and index == 2:
                raise LookupError("bad shard")
            super().shard(step, index)

        def finish(self, step):
            if self.seed == 2 and step == 5:
                raise ArithmeticError("bad finish")
            super().finish(step)

    for threads in THREADS:
        with Pool(threads) as pool:
            for seed, error, where in [(1, LookupError, "shard"), (2, ArithmeticError, "finish")]:
                with pytest.raises(error) as raised:
                    run_chains(pool, [Bad(seed, 10, 4, 0.001), Sums(7, 10, 4)])
                frames = traceback.extract_tb(raised.value.__traceback__)
                assert frames[-1].name == where and frames[-1].filename == __file__
            run_chains(pool, [Sums(1, 2, 2)])


@pytest.mark.thread_unsafe(reason="signals, which only the main thread is given")
@pytest.mark.parametrize("threads", THREADS)
def test_ctrl_c_ends_the_chains_within_a_second(threads):
    begun = threading.Event()

    class Slow:
        steps, shards = 1_000_000, 1  # one shard: all other threads are idle

        def shard(self, step, index):
            begun.set()
            time.sleep(0.001)

        def finish(self, step):
            pass

    def interrupt():
        begun.wait(60)
        time.sleep(0.02)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    sent = []
    sender = threading.Thread(target=interrupt)
    with Pool(threads) as pool:
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            run_chains(pool, [Slow()])
    assert time.monotonic() - sent[0] < 1
    sender.join()


def test_stop_ends_the_chains():
    with Pool(2) as pool:
        chain = Sums(1, 1_000_000, 2)
        stopper = threading.Timer(0.05, pool.stop)
        stopper.start()
        with pytest.raises(Stopped):
            run_chains(pool, [chain])
        stopper.join()


@pytest.mark.parametrize(("steps", "shards"), [(-1, 1), (1, 0)])
def test_impossible_chains_are_refused(steps, shards):
    with Pool(1) as pool, pytest.raises(ValueError, match=f"{steps} steps of {shards} shards"):
        run_chains(pool, [Sums(1, steps, shards)])


def test_no_chains_and_no_steps_are_no_error():
    with Pool(2) as pool:
        run_chains(pool, [])
        run_chains(pool, [Sums(1, 0, 3)])


@pytest.mark.parametrize("threads", THREADS)
def test_chains_beside_jobs_leave_what_they_leave_alone(threads):
    alone, beside = Sums(5, 40, 3), Sums(5, 40, 3)
    with Pool(threads) as pool:
        run_chains(pool, [alone])
        both = BesideChains(pool, [beside])
        assert both.map(lambda job: job * job, range(50)) == [job * job for job in range(50)]
        assert 1 <= both.threads <= max(1, threads // 2)
    assert torch.equal(beside.weight, alone.weight)
    assert 0 < both.chains_seconds and 0 < both.jobs_seconds


class Meeting:
    """A chain of one step whose shards wait for one another."""

    steps = 1

    def __init__(self, shards):
        self.shards, self.together = shards, threading.Barrier(shards)

    def shard(self, step, index):
        self.together.wait(60)

    def finish(self, step):
        pass


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_without_jobs_help_with_the_chains(threads):
    with Pool(threads) as pool:
        assert BesideChains(pool, [Meeting(threads)]).map(abs, [-1] * 20) == [1] * 20


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_whose_chains_have_ended_take_jobs(threads):
    together = threading.Barrier(threads)
    with Pool(threads) as pool:
        BesideChains(pool, [Sums(1, 3, 2)]).map(lambda job: together.wait(60), range(threads))


@pytest.mark.parametrize("threads", [2, 3])
def test_chains_and_jobs_run_at_the_same_time(threads):
    job_runs, step_runs = threading.Event(), threading.Event()

    class Waits:
        steps, shards = 1, 1

        def shard(self, step, index):
            step_runs.set()
            assert job_runs.wait(60)

        def finish(self, step):
            pass

    def job(_):
        job_runs.set()
        assert step_runs.wait(60)

    with Pool(threads) as pool:
        BesideChains(pool, [Waits()]).map(job, [None])


@pytest.mark.parametrize("where", ["job", "shard"])
def test_a_failure_on_either_side_ends_both(where):
    class Fails:
        steps, shards = 1_000_000, 2

        def shard(self, step, index):
            if where == "shard" and step == 20:
                raise LookupError(where)

        def finish(self, step):
            pass

    with Pool(2) as pool:
        beside = BesideChains(pool, [Fails()])

        def job(number):
            if where == "job":
                raise LookupError(where)
            while True:
                beside.raise_if_stopping()

        with pytest.raises(LookupError, match=where):
            beside.map(job, range(3))
