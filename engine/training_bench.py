"""Training beside its roofline: the matrix products of the same updates, and nothing else."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch

from engine.collect import collect
from engine.config import Config
from engine.gradients import input_gradient, linear, weight_gradient
from engine.trainer import Trainer
from threading_runtime.pool import Pool
from threading_runtime.tasks import run_chains

# Each memory holds at least this many samples, so that batches do not come out of the processor's cache.
SAMPLES = 200_000


def training_rows(
    threads: int | None = None, overrides: Iterable[str] = (), *, updates: int = 16, pairs: int = 7
) -> list[dict[str, Any]]:
    """Seconds of one update of every network, all trained at the same time, and of its matrix products alone.

    One row for float32 and one for bfloat16 products. Training and the products, by the same calls on the same
    shapes and threads, take turns; figures are medians over `pairs` turns of `updates` updates, after one that does
    not count; shares are medians of the pairs' own. Shares of processor time (cpu_) say what those of time would be
    on a machine that does nothing else. overrides: KEY=VALUE texts that change the default settings.
    """
    settings = [*overrides, f"training.updates={updates}", *([f"threads={threads}"] if threads else [])]
    precisions = ([*settings, f"training.autocast={half}"] for half in ("false", "true"))
    return [_row(Config().with_overrides(precision), pairs) for precision in precisions]


def _row(config: Config, pairs: int) -> dict[str, Any]:
    trainer = Trainer(config)
    config = trainer.config
    with Pool(config.threads or 1) as pool:
        _fill(pool, trainer)
        products, training = Products(trainer), _training(pool, trainer)
        turns = [(_timed(training), _timed(lambda: products.run(pool))) for _ in range(pairs + 1)][1:]
    own, roof = ([statistics.median(turn[side][kind] for turn in turns) for kind in (0, 1)] for side in (0, 1))
    shares = [statistics.median(turn[1][kind] / turn[0][kind] for turn in turns) for kind in (0, 1)]
    steps = config.training.updates
    return {
        "game": config.game.name,
        "network": f"{config.network.hidden}x{config.network.layers}",
        "networks": len(trainer.learners),
        "batch_size": config.training.batch_size,
        "shards": config.training.shards,
        "threads": pool.threads,
        "dtype": "bfloat16" if config.training.autocast else "float32",
        "update_seconds": own[0] / steps,
        "roofline_seconds": roof[0] / steps,
        "roofline_share": shares[0],
        "update_cpu_seconds": own[1] / steps,
        "roofline_cpu_seconds": roof[1] / steps,
        "roofline_cpu_share": shares[1],
    }


class Products:
    """The matrix products of an iteration's updates, one set of operands a network."""

    def __init__(self, trainer: Trainer) -> None:
        training, network, game = trainer.config.training, trainer.config.network, trainer.game
        shards = training.shards or 1  # a trainer's config has it decided
        self._sets = training.updates * shards
        dtype = torch.bfloat16 if training.autocast else torch.float32
        widths = [game.n_features] + [network.hidden] * network.layers + [game.n_actions]
        rows = training.batch_size // shards

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape).to(dtype)

        self._networks = [
            [(random(rows, a), random(b, a), random(b), random(rows, b)) for a, b in pairwise(widths)]
            for _ in trainer.learners
        ]

    def run(self, pool: Pool) -> None:
        """An equal part on each thread."""
        jobs = [network for _ in range(self._sets) for network in self._networks]
        pool.map(lambda first: [_products(network) for network in jobs[first :: pool.threads]], range(pool.threads))


@torch.inference_mode()
def _products(network: list[tuple[torch.Tensor, ...]]) -> None:
    for inputs, weight, bias, _ in network[:-1]:
        linear(inputs, weight, bias, relu=True)
    inputs, weight, bias, _ = network[-1]
    linear(inputs, weight, bias)
    for number in reversed(range(len(network))):
        inputs, weight, _, gradient = network[number]
        weight_gradient(gradient, inputs)
        if number:
            input_gradient(gradient, weight)


def _training(pool: Pool, trainer: Trainer) -> Callable[[], None]:
    learners = list(trainer.learners.values())

    def run() -> None:
        pool.map(lambda learner: learner.begin(1), learners)
        run_chains(pool, learners)

    return run


def _fill(pool: Pool, trainer: Trainer) -> None:
    collected = collect(pool, trainer.collector, trainer.config, 1)
    for name, memory in trainer.memories.items():
        while memory.seen < min(SAMPLES, memory.capacity):
            for records in collected.records[name]:
                memory.add(records)


def _timed(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds, and seconds of processor time, that it took."""
    start, cpu_start = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - cpu_start
