"""Who runs blocks: the pool's own threads, or a worker process behind each of them."""

from __future__ import annotations

import functools
import pickle
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from engine.collect import Blocks, Collector, Evaluate, Job, Samples, run_block, run_together
from engine.config import Config
from engine.errors import BadInput
from engine.hardware import give_back_memory
from engine.inference import DTYPES, PublishedNetwork
from engine.networks import Factory, make_network
from pyx.game import Game
from pyx.stats import TraversalStats
from threading_runtime.batching import BatchServer
from threading_runtime.pool import Workers
from threading_runtime.processes import Moved, Processes

TRANSPORTS = {"processes-pickle": "pickle", "processes-shared-memory": "shared_memory"}


def make_collector(game: Game, config: Config, factory: Factory) -> Collector:
    """What config.workers and config.scheduler name. Its networks are new: publish before the first run."""
    if config.workers != "threads":
        return ProcessCollector(config, factory)
    return SCHEDULERS[config.scheduler](game, config, new_networks(game, config, factory))


def new_networks(game: Game, config: Config, factory: Factory) -> list[PublishedNetwork]:
    """A network a player, in the inference dtype and on the device of the config."""
    device, dtype = torch.device(config.device), DTYPES[config.inference_dtype]
    modules = [make_network(factory, game, config, number=player, iteration=0) for player in (0, 1)]
    return [PublishedNetwork(module.to(device), game.n_features, dtype) for module in modules]


class ThreadCollector:
    """Blocks on the pool's threads, which evaluate networks that all of them share.

    Owned by: the trainer.
    """

    def __init__(self, game: Game, config: Config, networks: Sequence[Evaluate]) -> None:
        """networks: one a player; PublishedNetworks where `publish` is to be called."""
        self._config, self.networks = config, networks
        self._blocks = Blocks(game, config)
        self._lock = threading.Lock()  # guards the next
        self._moved = Moved(0, 0.0)

    def __enter__(self) -> ThreadCollector:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def publish(self, player: int, state: Mapping[str, torch.Tensor]) -> None:
        """See Collector. Also while blocks run, which take the new weights up with their next batch."""
        network = self.networks[player]
        assert isinstance(network, PublishedNetwork)
        started = time.perf_counter()
        network.publish_state(state)
        copied = sum(value.numel() for value in state.values()) * DTYPES[self._config.inference_dtype].itemsize
        with self._lock:
            self._moved = Moved(self._moved.bytes + copied, self._moved.seconds + time.perf_counter() - started)

    def run(self, pool: Workers, jobs: Sequence[Job]) -> list[Samples]:
        """See Collector."""

        def run(place: int) -> Samples:
            return run_block(self._blocks.begin(place, jobs[place]), self.networks, pool.raise_if_stopping)

        return pool.map(run, range(len(jobs)))

    def take_moved(self) -> Moved:
        """See Collector: weights are copied once for all threads, samples not at all."""
        moved, self._moved = self._moved, Moved(0, 0.0)
        return moved


class ServerCollector(ThreadCollector):
    """Blocks on the pool's threads, whose rows one more thread evaluates, in batches over all of them.

    That thread gives each product as many cores as the pool has threads, which wait meanwhile.
    """

    def run(self, pool: Workers, jobs: Sequence[Job]) -> list[Samples]:
        """See Collector."""
        batching, batches = self._config.batching, TraversalStats()
        with BatchServer(
            self.networks,
            pool.threads,
            limit=batching.limit,
            wait_seconds=1e-6 * batching.wait_microseconds,
            queue=batching.queue,
            on_batch=batches.add_batch,
            initialise=lambda: torch.set_num_threads(pool.threads),
        ) as server:

            def run(place: int) -> Samples:
                ask = [
                    lambda rows, player=player: server.ask(player, rows, pool.raise_if_stopping) for player in (0, 1)
                ]
                block = self._blocks.begin(place, jobs[place])
                return run_block(block, ask, pool.raise_if_stopping, is_batch=False)

            samples = pool.map(run, range(len(jobs)))
        samples[0].stats.merge(batches)  # of all blocks; merged into one sum anyway
        self.waited_seconds = sum(server.waits)
        return samples


class VectorisedCollector(ThreadCollector):
    """All blocks advanced by one thread, with one batch over all of them; each product uses as many cores as the pool
    has threads."""

    def run(self, pool: Workers, jobs: Sequence[Job]) -> list[Samples]:
        """See Collector."""

        def run(jobs: Sequence[Job]) -> list[Samples]:
            before = torch.get_num_threads()
            torch.set_num_threads(pool.threads)
            try:
                blocks = [self._blocks.begin(place, job) for place, job in enumerate(jobs)]
                return run_together(blocks, self.networks, pool.raise_if_stopping)
            finally:
                torch.set_num_threads(before)

        (samples,) = pool.map(run, [jobs])
        return samples


# By the config's `scheduler`.
SCHEDULERS = {"block": ThreadCollector, "server": ServerCollector, "vectorised": VectorisedCollector}


class ProcessCollector:
    """Blocks in worker processes. Each of the pool's threads has one and waits for it.

    Owned by: the trainer. Safe to call from: the thread that entered it.
    """

    def __init__(self, config: Config, factory: Factory) -> None:
        """BadInput where the factory cannot be sent to another process."""
        make = functools.partial(BlockWorker, config, factory)
        try:
            pickle.dumps(make)
        except (pickle.PicklingError, AttributeError, TypeError) as problem:
            raise BadInput(
                f"workers is {config.workers!r}, but the network factory cannot be sent to a process ({problem}); "
                'give a function of a module, or set workers = "threads".'
            ) from None
        assert config.threads is not None
        self._dtype = DTYPES[config.inference_dtype]
        self.processes = Processes(config.threads, make, TRANSPORTS[config.workers])

    def __enter__(self) -> ProcessCollector:
        self.processes.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.close()

    def publish(self, player: int, state: Mapping[str, torch.Tensor]) -> None:
        """See Collector. Weights go in the inference dtype: half the bytes in bfloat16."""
        rounded = {name: value.to(self._dtype) if value.is_floating_point() else value for name, value in state.items()}
        self.processes.publish(str(player), rounded)

    def run(self, pool: Workers, jobs: Sequence[Job]) -> list[Samples]:
        """See Collector."""
        self.processes.begin()

        def run(job: Job) -> Samples:
            (advantage, strategy), stats = self.processes.run(job, pool.raise_if_stopping)
            return Samples(advantage, strategy, stats)

        return pool.map(run, jobs)

    def take_moved(self) -> Moved:
        """See Collector."""
        return self.processes.take_moved()


class BlockWorker:
    """What runs in a worker process: blocks as threads run them, with networks of its own."""

    def __init__(self, config: Config, factory: Factory) -> None:
        game = config.load_game()
        self._blocks = Blocks(game, config)
        self._networks = new_networks(game, config, factory)

    def publish(self, name: str, state: Mapping[str, torch.Tensor]) -> None:
        """Take over a player's weights; the name is the player's number."""
        self._networks[int(name)].publish_state(state)
        give_back_memory()

    def run(self, job: Job) -> tuple[list[Any], Any]:
        """A block's records, which live until the next job, and its stats."""
        samples = run_block(self._blocks.begin(0, job), self._networks, lambda: None)
        return [samples.advantage, samples.strategy], samples.stats
