"""`freecfr bench schedulers`: who batches, by threads, lanes a block and network size; and what a hand-over costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy as np

from engine.bench import say, summary, thread_counts
from engine.bench_forward import BareForward
from engine.bench_networks import played_network
from engine.bench_traversal import ROOFLINE_BATCHES, ROOFLINE_SECONDS, paired
from engine.collect import collect
from engine.collectors import SCHEDULERS
from engine.config import Config
from engine.handover import handover_rows
from engine.inference import DTYPES, PublishedNetwork
from threading_runtime.pool import Pool

LANES: tuple[int, ...] = (32, 256)
NETWORKS: tuple[tuple[int, int], ...] = ((512, 3), (1024, 4), (1536, 6))
REPEATS = 3

# The batch that a published inference server realised between processes; the hand-over is timed at its size.
PUBLISHED_BATCH = 7.2


class Metered:
    """A network that notes its batches and how long they took. Safe to call from: any thread."""

    def __init__(self, network: PublishedNetwork) -> None:
        self._network = network
        self.calls: list[tuple[int, float]] = []  # rows, seconds

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        started = time.perf_counter()
        outputs = self._network(rows)
        self.calls.append((len(rows), time.perf_counter() - started))
        return outputs


def measure(threads: Sequence[int], overrides: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each network, thread count, number of lanes and scheduler; last, two rows of hand-overs.

    --set of network.* or traversal.lanes measures that one alone. Shares are of a bare forward loop on as many threads,
    turn by turn, at its best batch and at the realised mean batch; shortcuts may bring them above 1. waiting_share: of
    the threads' time, waiting for answers.
    """
    chosen = Config().with_overrides(overrides)
    given = {override.partition("=")[0] for override in overrides}
    networks = NETWORKS
    if given & {"network.hidden", "network.layers"}:
        networks = ((chosen.network.hidden, chosen.network.layers),)
    lanes = LANES if chosen.traversal.lanes is None else (chosen.traversal.lanes,)
    counts = thread_counts(threads, chosen.threads)
    rows: list[dict[str, Any]] = []
    for hidden, layers in networks:
        for count in counts:
            for lane_count in lanes:
                sizes = [f"network.hidden={hidden}", f"network.layers={layers}", f"threads={count}"]
                sizes += [f"traversal.lanes={lane_count}", f"traversal.block={2 * lane_count}"]
                sizes += [] if "traversal.count" in given else [f"traversal.count={2 * lane_count * count}"]
                rows += _rows([*overrides, *sizes])
    game = chosen.load_game()
    say("hand-overs between threads and between processes")
    return rows + handover_rows(game.row_bytes, game.n_actions, counts[-1], round(PUBLISHED_BATCH))


def _rows(overrides: Sequence[str]) -> list[dict[str, Any]]:
    configs = {name: Config().with_overrides([*overrides, f"scheduler={name}"]).resolved() for name in SCHEDULERS}
    config = configs["block"]
    assert config.threads is not None and config.traversal.lanes is not None
    network = f"{config.network.hidden}x{config.network.layers}"
    say(f"{network}, {config.threads} threads, {config.traversal.lanes} lanes")
    game, dtype = config.load_game(), DTYPES[config.inference_dtype]
    modules = [played_network(game, config, player) for player in (0, 1)]
    networks = [PublishedNetwork(module, game.n_features, dtype) for module in modules]
    bare = BareForward(modules[0], game.n_features, dtype)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEDULERS}
    walls: dict[int, list[float]] = {}
    with ExitStack() as stack:
        pool = stack.enter_context(Pool(config.threads))
        for name in SCHEDULERS:
            _run(pool, configs[name], game, networks)  # warms up
        same = {name: round(_run(pool, configs[name], game, networks)["batch_mean"]) for name in SCHEDULERS}
        for _ in range(REPEATS):
            for batch in {*ROOFLINE_BATCHES, *same.values()}:
                walls.setdefault(batch, []).append(bare.rate(pool, batch, ROOFLINE_SECONDS).wall)
            for name, found in runs.items():
                found.append(_run(pool, configs[name], game, networks))
    best = max(ROOFLINE_BATCHES, key=lambda batch: median(walls[batch]))
    rows = []
    for name, found in runs.items():
        rates = [run["rows_per_second"] for run in found]
        rows.append(
            {
                "scheduler": name,
                "network": network,
                "threads": config.threads,
                "lanes": config.traversal.lanes,
                "inference_dtype": config.inference_dtype,
                **{key: median(run[key] for run in found) for key in found[0]},
                "forward_share": paired(rates, walls[best]),
                "forward_best_batch": best,
                "forward_share_same_batch": paired(rates, walls[same[name]]),
                **summary("nodes_per_second", [run["nodes_per_second"] for run in found]),
            }
        )
    return rows


def _run(pool: Pool, config: Config, game: Any, networks: Sequence[PublishedNetwork]) -> dict[str, float]:
    """One iteration's traversals."""
    metered = [Metered(network) for network in networks]
    collector = SCHEDULERS[config.scheduler](game, config, metered)
    started = time.perf_counter()
    counts = collect(pool, collector, config, 1).stats.as_dict()
    seconds = time.perf_counter() - started
    batches = np.array([rows for network in metered for rows, _ in network.calls])
    evaluating = sum(spent for network in metered for _, spent in network.calls)
    asking = pool.threads if config.scheduler != "vectorised" else 1
    return {
        "nodes_per_second": counts["nodes"] / seconds,
        "rows_per_second": counts["rows"] / seconds,
        "batch_mean": float(batches.mean()),
        "batch_p10": float(np.percentile(batches, 10)),
        "batch_p90": float(np.percentile(batches, 90)),
        "waiting_share": getattr(collector, "waited_seconds", evaluating) / (asking * seconds),
    }
