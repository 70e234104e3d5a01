"""`freecfr bench streams`: how threads are to share a CUDA device: one stream for all, a stream each, or one server.

Every thread asks a published network for the outputs of rows, as traversals do: rows are expanded into memory of its
own, go out, are evaluated, and come back before it asks again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy as np
import torch

from engine import hardware
from engine.bench import say, summary
from engine.bench_networks import played_network
from engine.config import Config
from engine.errors import BadInput
from engine.inference import DTYPES, PublishedNetwork
from threading_runtime.batching import BatchServer
from threading_runtime.pool import Pool
from threading_runtime.streams import use_own_stream

THREADS = (1, 2, 4, 8)
BATCHES = (16, 64, 256, 1024)
REPEATS = 3
SECONDS = 0.5  # of one loop

Ask = Callable[[np.ndarray], np.ndarray]


def measure(threads: Sequence[int], overrides: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each way, thread count and batch.

    overlap: of the device, the sum of its kernels' times over the time in which any ran; 1 where none overlap.
    Raises BadInput where there is no CUDA device.
    """
    if not hardware.cuda_devices():
        raise BadInput(
            "bench 'streams' measures how threads share a CUDA device, but torch sees none here; run it where there is "
            "one, or compare schedulers on the CPU with: freecfr bench schedulers."
        )
    config = Config().with_overrides(["device=cuda", *overrides]).resolved()
    return rows(config, sorted({*threads}) or THREADS, BATCHES)


def rows(config: Config, counts: Sequence[int], batches: Sequence[int]) -> list[dict[str, Any]]:
    """The rows, on the config's device; its ways take turns."""
    game, device = config.load_game(), torch.device(config.device)
    network = PublishedNetwork(
        played_network(game, config, 0).to(device), game.n_features, DTYPES[config.inference_dtype]
    )
    found: list[dict[str, Any]] = []
    for count in counts:
        say(f"{count} threads")
        for batch in batches:
            asked = [_packed_rows(batch, game.row_bytes, index) for index in range(count)]
            rates: dict[str, list[float]] = {name: [] for name in WAYS}
            overlaps: dict[str, float | None] = {}
            for repeat in range(REPEATS):
                for name, way in WAYS.items():
                    with ExitStack() as stack:
                        pool, ask = way(stack, count, network, device)
                        _loop(pool, ask, asked, SECONDS / 5)  # warms up
                        rates[name].append(batch * _loop(pool, ask, asked, SECONDS))
                        if not repeat:
                            overlaps[name] = _overlap(device, lambda: _loop(pool, ask, asked, SECONDS / 5))  # noqa: B023
            for name, values in rates.items():
                about = {"way": name, "threads": count, "batch": batch, "inference_dtype": config.inference_dtype}
                about |= {"overlap": overlaps[name], "rows_per_second": median(values)}
                found.append(about | summary("rows_per_second", values))
    return found


def _on_one_stream(stack: ExitStack, count: int, network: PublishedNetwork, device: torch.device) -> tuple[Pool, Ask]:
    """All threads on the device's default stream."""
    return stack.enter_context(Pool(count)), network


def _on_own_streams(stack: ExitStack, count: int, network: PublishedNetwork, device: torch.device) -> tuple[Pool, Ask]:
    """A stream a thread, as training runs have it."""
    return stack.enter_context(Pool(count, initialise=lambda: use_own_stream(device))), network


def _of_one_server(stack: ExitStack, count: int, network: PublishedNetwork, device: torch.device) -> tuple[Pool, Ask]:
    """One thread that batches over all others, with the defaults of scheduler = "server"."""
    batching = Config().batching
    server = stack.enter_context(
        BatchServer(
            [network],
            count,
            limit=batching.limit,
            wait_seconds=1e-6 * batching.wait_microseconds,
            queue=batching.queue,
            initialise=lambda: use_own_stream(device),
        )
    )
    return stack.enter_context(Pool(count)), lambda asked: server.ask(0, asked)


WAYS = {"default_stream": _on_one_stream, "stream_per_thread": _on_own_streams, "server": _of_one_server}


def _loop(pool: Pool, ask: Ask, asked: Sequence[np.ndarray], seconds: float) -> float:
    """Answers a second of all threads together, each asking for its own rows again and again."""
    together = threading.Barrier(len(asked))

    def loop(mine: np.ndarray) -> tuple[int, float]:
        ask(mine)
        together.wait(60)
        count, start = 0, time.perf_counter()
        while (now := time.perf_counter()) < start + seconds or not count:
            ask(mine)
            count += 1
        return count, now - start

    return sum(count / passed for count, passed in pool.map(loop, asked))


def _packed_rows(n: int, row_bytes: int, seed: int) -> np.ndarray:
    """Rows with about as many features set as those of Lost Cities have."""
    bits = np.random.default_rng(seed).random((n, 8 * row_bytes)) < 0.12
    return np.packbits(bits, axis=1, bitorder="little")


def _overlap(device: torch.device, run: Callable[[], object]) -> float | None:
    """How many kernels run at once while any does; None on a device that has none."""
    if device.type != "cuda":
        run()
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize(device)
    return overlap_of(
        (event.time_range.start, event.time_range.end)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )


def overlap_of(spans: Iterable[tuple[float, float]]) -> float | None:
    """The sum of spans over the length of what they cover together; None where there are none."""
    total = covered = 0.0
    last = float("-inf")
    for start, end in sorted(spans):
        total += end - start
        covered += max(0.0, end - max(start, last))
        last = max(last, end)
    return total / covered if covered else None
