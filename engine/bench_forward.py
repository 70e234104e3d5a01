"""`freecfr bench forward`: a bare loop of forward passes, the most that traversals with this network could reach.

The network's own module in the inference dtype, inference mode, input allocated before, torch's own threads at 1,
warm; the threads of a pool run it side by side, each on an input of its own. Beside it this machine's best rate of
large matrix products by the same threads, and how many rows traversals supply.
"""

from __future__ import annotations

import copy
import functools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn

from engine.bench import say, summary, thread_counts
from engine.bench_networks import played_network
from engine.collect import collect
from engine.collectors import ThreadCollector
from engine.config import Config
from engine.hardware import cpu_has_bf16
from engine.inference import DTYPES, PublishedNetwork
from engine.networks import default_factory, make_network
from threading_runtime.pool import Pool
from threading_runtime.streams import use_own_stream

BATCHES = (1, 4, 16, 64, 256, 1024, 4096)
REPEATS = 5
SECONDS = 0.2  # of one loop

# A published 512x3 network on an RTX 3090: microseconds a state by batch, at a nearly constant 90 a call.
PUBLISHED = {1: 80.0, 4: 20.3, 64: 1.46, 256: 0.34}

# A batch is enough where larger ones gain less than this.
ENOUGH = 0.95
PEAK_SIZES = {"cpu": 2048, "cuda": 8192}  # of the square matrices whose product is this machine's peak

# Of the features of a Lost Cities row about this share is 1.
ONES = 0.12


BENCHED = {**DTYPES, "float16": torch.float16}


class Rate(NamedTuple):
    """States a second of all threads together, and a second of processor time: what others leave of a machine."""

    wall: float
    cpu: float


class BareForward:
    """The loop over one network.

    Owned by: the thread that measures. Safe to call from: that thread.
    """

    def __init__(self, module: nn.Module, n_features: int, dtype: torch.dtype, device: str = "cpu") -> None:
        self._module = copy.deepcopy(module).to(device, dtype).eval().requires_grad_(False)
        self._n_features, self._dtype, self._device = n_features, dtype, torch.device(device)
        self._inputs: dict[tuple[int, int], torch.Tensor] = {}
        self.flop = 2 * sum(weight.numel() for weight in self._module.parameters() if weight.dim() > 1)  # of a state

    def rate(self, pool: Pool, batch: int, seconds: float) -> Rate:
        """Of all threads of `pool`, each looping for about `seconds`."""
        calls = [functools.partial(self._module, self._input(batch, index)) for index in range(pool.threads)]
        rate = call_rate(pool, calls, self._device, seconds)
        return Rate(rate.wall * batch, rate.cpu * batch)

    def peak(self, pool: Pool, seconds: float) -> float:
        """GFLOP a second of large square matrix products in the same dtype by the same threads, each on its own."""
        size = PEAK_SIZES[self._device.type]
        matrices = [torch.ones(size, size, dtype=self._dtype, device=self._device) for _ in range(pool.threads)]
        outputs = [torch.empty_like(matrix) for matrix in matrices]
        calls = [
            functools.partial(torch.mm, matrix, matrix, out=out) for matrix, out in zip(matrices, outputs, strict=True)
        ]
        return 2e-9 * size**3 * call_rate(pool, calls, self._device, seconds).wall

    def _input(self, batch: int, index: int) -> torch.Tensor:
        key = batch, index
        if key not in self._inputs:
            random = torch.Generator().manual_seed(index)
            bits = torch.rand(batch, self._n_features, generator=random) < ONES
            self._inputs[key] = bits.to(self._device, self._dtype)
        return self._inputs[key]


def call_rate(pool: Pool, calls: Sequence[Callable[[], object]], device: torch.device, seconds: float) -> Rate:
    """Calls a second, one of `calls` on each thread again and again, each ended before the next begins."""
    together = threading.Barrier(len(calls))

    def finish() -> None:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()

    def loop(call: Callable[[], object]) -> tuple[int, float, float]:
        with torch.inference_mode():
            for _ in range(2):  # the first call of a shape compiles its product
                call()
            finish()
            together.wait(60)
            count, start, cpu_start = 0, time.perf_counter(), time.thread_time()
            while (now := time.perf_counter()) < start + seconds or not count:
                call()
                finish()
                count += 1
            return count, now - start, time.thread_time() - cpu_start

    counts, walls, cpus = zip(*pool.map(loop, calls), strict=True)
    return Rate(sum(n / wall for n, wall in zip(counts, walls, strict=True)), sum(counts) / sum(cpus))


def dtypes_of(config: Config) -> list[str]:
    """What is measured where the config leaves it open: float32, and bfloat16 where the processor has it."""
    if config.inference_dtype != "auto":
        return [config.inference_dtype]
    if config.device.startswith("cuda"):
        return list(BENCHED)
    return ["float32", "bfloat16"] if cpu_has_bf16() else ["float32"]


def measure(threads: Sequence[int], overrides: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each thread count, dtype and batch.

    peak_share: of large matrix products. enough_batch: the least beyond which less than 5 % is gained.
    supply_*: rows that traversals ask for, with networks that play as trained ones do.
    """
    config = Config().with_overrides(overrides)
    config = config.with_overrides([f"device={config.resolved().device}"])
    game = config.load_game()
    module = make_network(default_factory, game, config, number=0, iteration=0)
    loops = {dtype: BareForward(module, game.n_features, BENCHED[dtype], config.device) for dtype in dtypes_of(config)}
    with ExitStack() as stack:
        device = torch.device(config.device)
        pools = [
            stack.enter_context(Pool(count, initialise=lambda: use_own_stream(device)))
            for count in thread_counts(threads, config.threads)
        ]
        rows = _rows(pools, loops)
        say("what traversals supply")
        supply = _supply(pools[-1], game, config)
    return [row | supply | _enough(row, rows) for row in rows]


def _rows(pools: list[Pool], loops: dict[str, BareForward]) -> list[dict[str, Any]]:
    settings = [(pool, dtype, batch) for pool in pools for dtype in loops for batch in BATCHES]
    rates: list[list[Rate]] = [[] for _ in settings]
    peaks: dict[tuple[int, str], list[float]] = {}
    for repeat in range(REPEATS):
        say(f"repeat {repeat + 1} of {REPEATS}")
        for (pool, dtype, batch), found in zip(settings, rates, strict=True):
            found.append(loops[dtype].rate(pool, batch, SECONDS))
        for pool in pools:
            for dtype, loop in loops.items():
                peaks.setdefault((pool.threads, dtype), []).append(loop.peak(pool, SECONDS))
    rows = []
    for (pool, dtype, batch), found in zip(settings, rates, strict=True):
        walls = [each.wall for each in found]
        rate, peak = median(walls), median(peaks[pool.threads, dtype])
        row = {
            "threads": pool.threads,
            "inference_dtype": dtype,
            "batch": batch,
            "states_per_second": rate,
            "core_microseconds_per_state": 1e6 * pool.threads / rate,
            "cpu_microseconds_per_state": 1e6 / median(each.cpu for each in found),
            "microseconds_per_call": 1e6 * pool.threads * batch / rate,
            "gflop_per_second": 1e-9 * loops[dtype].flop * rate,
            "peak_gflop_per_second": peak,
            "peak_share": 1e-9 * loops[dtype].flop * rate / peak,
            **summary("states_per_second", walls),
        }
        if batch in PUBLISHED:
            row["published_gpu_microseconds_per_state"] = PUBLISHED[batch]
        rows.append(row)
    return rows


def _enough(row: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, int]:
    """The least batch that gives nearly the best rate of the same threads and dtype."""
    same = [other for other in rows if all(other[key] == row[key] for key in ("threads", "inference_dtype"))]
    best = max(other["states_per_second"] for other in same)
    return {"enough_batch": min(other["batch"] for other in same if other["states_per_second"] >= ENOUGH * best)}


def _supply(pool: Pool, game: Any, config: Config) -> dict[str, float]:
    config = config.resolved()
    device, dtype = torch.device(config.device), DTYPES[config.inference_dtype]
    networks = [
        PublishedNetwork(played_network(game, config, player).to(device), game.n_features, dtype) for player in (0, 1)
    ]
    counts = collect(pool, ThreadCollector(game, config, networks), config, 1).stats.as_dict()
    return {"supply_per_traversal": counts["rows"] / counts["traversals"], "supply_per_iteration": counts["rows"]}
