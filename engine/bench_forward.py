"""`freecfr bench forward`: a bare loop of forward passes, the most that traversals with this network could reach.

The network's own module in the inference dtype, inference mode, input allocated before, torch's own threads at 1,
warm; the threads of a pool run it side by side, each on an input of its own.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn

from engine.bench import say, summary, thread_counts
from engine.config import Config
from engine.hardware import cpu_has_bf16
from engine.inference import DTYPES
from engine.networks import default_factory, make_network
from threading_runtime.pool import Pool

BATCHES = (1, 4, 16, 64, 256, 1024, 4096)
REPEATS = 5
SECONDS = 0.2  # of one loop

# Of the features of a Lost Cities row about this share is 1.
ONES = 0.12


class Rate(NamedTuple):
    """States a second of all threads together, and a second of processor time: what others leave of a machine."""

    wall: float
    cpu: float


class BareForward:
    """The loop over one network.

    Owned by: the thread that measures. Safe to call from: that thread.
    """

    def __init__(self, module: nn.Module, n_features: int, dtype: torch.dtype) -> None:
        self._module = copy.deepcopy(module).to(dtype).eval().requires_grad_(False)
        self._n_features, self._dtype = n_features, dtype
        self._inputs: dict[tuple[int, int], torch.Tensor] = {}
        self.flop = 2 * sum(weight.numel() for weight in self._module.parameters() if weight.dim() > 1)  # of a state

    def rate(self, pool: Pool, batch: int, seconds: float) -> Rate:
        """Of all threads of `pool`, each looping for about `seconds`."""
        inputs = [self._input(batch, index) for index in range(pool.threads)]
        together = threading.Barrier(pool.threads)

        def loop(x: torch.Tensor) -> tuple[int, float, float]:
            with torch.inference_mode():
                for _ in range(2):  # the first call of a shape compiles its product
                    self._module(x)
                together.wait(60)
                calls, start, cpu_start = 0, time.perf_counter(), time.thread_time()
                while (now := time.perf_counter()) < start + seconds or not calls:
                    self._module(x)
                    calls += 1
                return calls * batch, now - start, time.thread_time() - cpu_start

        states, walls, cpus = zip(*pool.map(loop, inputs), strict=True)
        return Rate(sum(n / wall for n, wall in zip(states, walls, strict=True)), sum(states) / sum(cpus))

    def _input(self, batch: int, index: int) -> torch.Tensor:
        key = batch, index
        if key not in self._inputs:
            random = torch.Generator().manual_seed(index)
            bits = torch.rand(batch, self._n_features, generator=random) < ONES
            self._inputs[key] = bits.to(self._dtype)
        return self._inputs[key]


def dtypes_of(config: Config) -> list[str]:
    """What is measured where the config leaves it open: float32, and bfloat16 where the processor has it."""
    if config.inference_dtype != "auto":
        return [config.inference_dtype]
    return ["float32", "bfloat16"] if cpu_has_bf16() else ["float32"]


def measure(threads: Sequence[int], overrides: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each thread count, dtype and batch."""
    config = Config().with_overrides(overrides)
    game = config.load_game()
    module = make_network(default_factory, game, config, number=0, iteration=0)
    loops = {dtype: BareForward(module, game.n_features, DTYPES[dtype]) for dtype in dtypes_of(config)}
    with ExitStack() as stack:
        pools = [stack.enter_context(Pool(count)) for count in thread_counts(threads, config.threads)]
        return _rows(pools, loops)


def _rows(pools: list[Pool], loops: dict[str, BareForward]) -> list[dict[str, Any]]:
    settings = [(pool, dtype, batch) for pool in pools for dtype in loops for batch in BATCHES]
    rates: list[list[Rate]] = [[] for _ in settings]
    for repeat in range(REPEATS):
        say(f"repeat {repeat + 1} of {REPEATS}")
        for (pool, dtype, batch), found in zip(settings, rates, strict=True):
            found.append(loops[dtype].rate(pool, batch, SECONDS))
    rows = []
    for (pool, dtype, batch), found in zip(settings, rates, strict=True):
        walls = [each.wall for each in found]
        rate = median(walls)
        rows.append(
            {
                "threads": pool.threads,
                "inference_dtype": dtype,
                "batch": batch,
                "states_per_second": rate,
                "core_microseconds_per_state": 1e6 * pool.threads / rate,
                "cpu_microseconds_per_state": 1e6 / median(each.cpu for each in found),
                "microseconds_per_call": 1e6 * pool.threads * batch / rate,
                "gflop_per_second": 1e-9 * loops[dtype].flop * rate,
                **summary("states_per_second", walls),
            }
        )
    return rows
