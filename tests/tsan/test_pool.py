"""The threading runtime running compiled work: blocks of a pool, merged in block order; a server; chains; locks."""

import numpy as np
import pytest
from setting import THREADS, at_once, digest, network, settings

from engine.collect import Blocks, collect, run_block
from engine.memory import Memory
from pyx.encoding import RecordLayout, scatter
from pyx.gradients import sum_shards
from pyx.registry import load_game
from threading_runtime.batching import BatchServer
from threading_runtime.fair_lock import FairLock
from threading_runtime.pool import Pool
from threading_runtime.tasks import run_chains
from threading_runtime.weights import Snapshots


class OnThreads:
    """Runs blocks on the pool's threads; the block of a place in the list is used again by whatever thread comes."""

    def __init__(self, game, config, evaluate):
        self._blocks, self._evaluate = Blocks(game, config), evaluate

    def run(self, pool, jobs):
        def run(place):
            return run_block(self._blocks.begin(place, jobs[place]), self._evaluate, pool.raise_if_stopping)

        return pool.map(run, range(len(jobs)))


def iterations(game, config, evaluate, threads, count=2):
    """Collect that many iterations into a memory; a digest of all that they left, and the counters."""
    memory = Memory(RecordLayout(game), 500, seed=5, number=0)
    found, stats = [], []
    collector = OnThreads(game, config, evaluate)
    with Pool(threads) as pool:
        for iteration in range(1, count + 1):
            collected = collect(pool, collector, config, iteration)
            for name in sorted(collected.records):
                for records in collected.records[name]:
                    found.append(memory.add(records))
            stats.append(collected.stats.as_dict())
    return digest([*found, memory.rows[: memory.size]]), stats


@pytest.mark.parametrize(
    "name, algorithm, count, block",
    [("leduc", "external_sampling", 100, 13), ("lost_cities", "outcome_sampling", 48, 8)],
)
def test_what_blocks_leave_is_the_same_at_any_number_of_threads(name, algorithm, count, block):
    game, config = load_game(name), settings(algorithm, count, block)
    evaluate = [network(game, player) for player in (0, 1)]
    found = [iterations(game, config, evaluate, threads) for threads in THREADS]
    assert all(each == found[0] for each in found)
    assert found[0][1][0]["traversals"] == 2 * count


def test_a_server_answers_blocks_of_all_threads():
    game, config = load_game("leduc"), settings("outcome_sampling", 120, 10)
    evaluate = [network(game, player) for player in (0, 1)]
    found = []
    for threads in THREADS:
        with BatchServer(evaluate, threads, limit=64, wait_seconds=0.001, queue=8) as server:
            ask = [lambda rows, player=player: server.ask(player, rows) for player in (0, 1)]  # noqa: B023
            found.append(iterations(game, config, ask, threads, count=1))
    assert all(each == found[0] for each in found)
    assert found[0][0] == iterations(game, config, evaluate, 2, count=1)[0]


def test_versions_that_are_published_while_blocks_run():
    game, config = load_game("leduc"), settings("outcome_sampling", 200, 10)
    snapshots = Snapshots("cpu", [network(game, player) for player in (0, 1)])

    def publish():
        for number in range(10):
            snapshots.publish([network(game, 2 * number + player) for player in (0, 1)])

    evaluate = [lambda rows, player=player: snapshots.newest().weights[player](rows) for player in (0, 1)]
    _, (_, stats) = at_once(publish, lambda: iterations(game, config, evaluate, 3, count=1))
    assert stats[0]["traversals"] == 400 and snapshots.newest().version == 10


class Summed:
    """A chain whose steps sum what its shards wrote, into what the shards of the next step read."""

    def __init__(self, number, steps=10, shards=3):
        self.steps, self.shards = steps, shards
        self.total = np.full(100, number, np.float32)
        self.parts = np.zeros((shards, 100), np.float32)

    def shard(self, step, index):
        sum_shards([[self.total], [np.full(100, index, np.float32)]], [self.parts[index]], 0.5)

    def finish(self, step):
        sum_shards([[part] for part in self.parts], [self.total], 0.5)


def test_chains_leave_the_same_at_any_number_of_threads():
    found = []
    for threads in THREADS:
        chains = [Summed(number) for number in range(3)]
        with Pool(threads) as pool:
            run_chains(pool, chains)
        found.append(digest(chain.total for chain in chains))
    assert len(set(found)) == 1


def test_a_lock_keeps_writers_in_place_from_readers():
    lock, shared, slots = FairLock(), np.zeros((20, 16), np.uint8), np.arange(20)

    def write(value):
        rows = np.full((20, 16), value, np.uint8)
        for _ in range(20):
            lock.acquire_write()
            scatter(rows, slots, shared)
            lock.release_write()

    def read():
        seen, copy = True, np.zeros_like(shared)
        for _ in range(40):
            lock.acquire_read()
            scatter(shared, slots, copy)
            lock.release_read()
            seen = seen and bool((copy == copy[0, 0]).all())
        return seen

    assert at_once(lambda: write(1), lambda: write(2), read, read)[2:] == [True, True]


def test_a_job_that_fails_ends_the_blocks_beside_it():
    game, config = load_game("leduc"), settings("outcome_sampling", 400, 40)
    good = network(game)

    def evaluate(rows):
        if len(rows) < 13:
            raise ValueError("the batch is small")
        return good(rows)

    for _ in range(5):
        with pytest.raises(ValueError, match="the batch is small"), Pool(4) as pool:
            collect(pool, OnThreads(game, config, [evaluate] * 2), config, 1)
