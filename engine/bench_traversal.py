"""`freecfr bench traversal`: rows that traversals evaluate in a second, against a bare loop of the same forward passes.

Both are measured in turns on the same pools, thread counts side by side, and compared within a turn. Shares of
processor time (cpu) say what those of time would be on a machine that does nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from engine.bench import say, summary, thread_counts
from engine.bench_forward import BareForward, Rate, dtypes_of
from engine.bench_networks import played_network
from engine.collect import collect
from engine.collectors import ThreadCollector
from engine.config import Config
from engine.inference import DTYPES, PublishedNetwork
from threading_runtime.pool import Pool

# Unless set otherwise each thread has 2 blocks, long enough for lanes to be full most of the time.
BLOCK, LANES = 1024, 512

ROOFLINE_BATCHES = (64, 128, 256, 512, 1024, 2048, 4096)
ROOFLINE_SECONDS = 0.2  # a batch and turn
REPEATS, LEAST_REPEATS = 5, 3
ENOUGH_SECONDS = 120.0  # after so long no turn beyond LEAST_REPEATS begins


@dataclass(frozen=True)
class Traversed:
    """One iteration's traversals."""

    counts: dict[str, Any]
    seconds: float
    cpu_seconds: float

    def rate(self, count: str) -> float:
        return self.counts[count] / self.seconds


@dataclass(frozen=True)
class Variant:
    """Both players' networks in one dtype, as traversals evaluate them."""

    dtype: str
    shortcuts: bool
    networks: list[PublishedNetwork]


def measure(threads: Sequence[int], overrides: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each thread count, dtype, and shortcuts off and on."""
    chosen = Config().with_overrides(overrides)
    counts = thread_counts(threads, chosen.threads)
    configs = {count: sized(count, overrides) for count in counts}
    game = chosen.load_game()
    modules = [played_network(game, chosen, player) for player in (0, 1)]
    dtypes = dtypes_of(chosen)
    bare = {dtype: BareForward(modules[0], game.n_features, DTYPES[dtype]) for dtype in dtypes}
    variants = [
        Variant(
            dtype,
            shortcuts,
            [PublishedNetwork(module, game.n_features, DTYPES[dtype], shortcuts=shortcuts) for module in modules],
        )
        for dtype in dtypes
        for shortcuts in (False, True)
    ]
    with ExitStack() as stack:
        pools = [stack.enter_context(Pool(count)) for count in counts]
        turns = Turns(configs, game, pools, bare, variants)
        turns.take()
    return turns.rows()


def sized(threads: int, overrides: Sequence[str]) -> Config:
    """As much for each thread whatever their number: both players' traversals make 2 blocks a thread."""
    sizes = [f"traversal.block={BLOCK}", f"traversal.count={BLOCK * threads}", f"traversal.lanes={LANES}"]
    return Config().with_overrides([*sizes, *overrides]).resolved()


class Turns:
    """The measurements, and the rows they make.

    Owned by: the thread that measures. Safe to call from: that thread.
    """

    def __init__(
        self,
        configs: dict[int, Config],
        game: Any,
        pools: list[Pool],
        bare: dict[str, BareForward],
        variants: list[Variant],
    ) -> None:
        """configs: by thread count."""
        self.configs, self.game, self.pools, self.bare, self.variants = configs, game, pools, bare, variants
        # By (threads, dtype, shortcuts) and by (threads, dtype, batch): one entry a turn.
        self.traversed: dict[tuple[int, str, bool], list[Traversed]] = {}
        self.forward: dict[tuple[int, str, int], list[Rate]] = {}
        self.mean_batch: dict[str, int] = {}

    def take(self) -> None:
        """Warm up, then measure turn by turn."""
        began = time.perf_counter()
        say("warming up")
        for variant in self.variants:
            for pool in self.pools:
                counts = self._traverse(pool, variant).counts
            self.mean_batch[variant.dtype] = max(1, round(counts["rows"] / max(1, counts["batches"])))
        for turn in range(REPEATS):
            if turn >= LEAST_REPEATS and time.perf_counter() - began > ENOUGH_SECONDS:
                break
            say(f"repeat {turn + 1} of {LEAST_REPEATS} to {REPEATS}")
            self._turn()

    def _turn(self) -> None:
        for variant in self.variants:
            for pool in self.pools:
                if not variant.shortcuts:
                    self._loop(pool, variant.dtype)
                key = pool.threads, variant.dtype, variant.shortcuts
                self.traversed.setdefault(key, []).append(self._traverse(pool, variant))

    def _traverse(self, pool: Pool, variant: Variant) -> Traversed:
        config = self.configs[pool.threads]
        collector = ThreadCollector(self.game, config, variant.networks)
        start, cpu_start = time.perf_counter(), time.process_time()
        collected = collect(pool, collector, config, 1)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        return Traversed(collected.stats.as_dict(), seconds, cpu_seconds)

    def _loop(self, pool: Pool, dtype: str) -> None:
        for batch in {*ROOFLINE_BATCHES, self.mean_batch[dtype]}:
            rate = self.bare[dtype].rate(pool, batch, ROOFLINE_SECONDS)
            self.forward.setdefault((pool.threads, dtype, batch), []).append(rate)

    def rows(self) -> list[dict[str, Any]]:
        """One flat object a thread count, dtype, and shortcuts off and on."""
        return [self._row(*key) for key in self.traversed]

    def _row(self, threads: int, dtype: str, shortcuts: bool) -> dict[str, Any]:
        traversed = self.traversed[threads, dtype, shortcuts]
        rates = [each.rate("rows") for each in traversed]
        best = self._best_batch(threads, dtype)
        forward, same = self._walls(threads, dtype, best), self._walls(threads, dtype, self.mean_batch[dtype])
        cpu_rates = [each.counts["rows"] / each.cpu_seconds for each in traversed]
        forward_cpu = [rate.cpu for rate in self.forward[threads, dtype, best]]
        counts = traversed[0].counts
        return {
            "threads": threads,
            "inference_dtype": dtype,
            "shortcuts": shortcuts,
            "nodes_per_second": median(each.rate("nodes") for each in traversed),
            "forced_nodes_per_second": median(each.rate("forced_nodes") for each in traversed),
            "rows_per_second": median(rates),
            "core_microseconds_per_state": 1e6 * threads / median(rates),
            "forward_share": paired(rates, forward),
            "forward_share_same_batch": paired(rates, same),
            "forward_cpu_share": paired(cpu_rates, forward_cpu),
            "forward_per_second": median(forward),
            "forward_core_microseconds_per_state": 1e6 * threads / median(forward),
            "forward_best_batch": best,
            "forward_same_batch": self.mean_batch[dtype],
            **self._speed_up(threads, dtype, shortcuts),
            "nodes_per_traversal": counts["nodes"] / counts["traversals"],
            "traversals": counts["traversals"],
            "lanes": self.configs[threads].traversal.lanes,
            **summary("rows_per_second", rates),
        }

    def _best_batch(self, threads: int, dtype: str) -> int:
        """Of the whole run, so that no turn's luck chooses."""
        return max(ROOFLINE_BATCHES, key=lambda batch: median(self._walls(threads, dtype, batch)))

    def _walls(self, threads: int, dtype: str, batch: int) -> list[float]:
        return [rate.wall for rate in self.forward[threads, dtype, batch]]

    def _speed_up(self, threads: int, dtype: str, shortcuts: bool) -> dict[str, Any]:
        """What more threads gain over the fewest measured, beside what they gain the bare loop."""
        fewest = min(pool.threads for pool in self.pools)
        if threads == fewest:
            return {}
        more, few = (
            [each.rate("rows") for each in self.traversed[count, dtype, shortcuts]] for count in (threads, fewest)
        )
        bare_more, bare_few = (self._walls(count, dtype, self._best_batch(count, dtype)) for count in (threads, fewest))
        speed_up, forward_speed_up = paired(more, few), paired(bare_more, bare_few)
        return {
            "speed_up_over_threads": fewest,
            "speed_up": speed_up,
            "forward_speed_up": forward_speed_up,
            "speed_up_share": speed_up / forward_speed_up,
        }


def paired(values: Sequence[float], others: Sequence[float]) -> float:
    """Median over turns of a value's ratio to the other of its turn."""
    return median(value / other for value, other in zip(values, others, strict=True))
