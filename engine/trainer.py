"""The loop: collect -> remember -> train -> publish weights -> evaluate -> record."""

from __future__ import annotations

import platform
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint import Boundary, CheckpointStore
from engine.collect import Collected, collect
from engine.collectors import make_collector
from engine.config import Config
from engine.hardware import give_back_memory
from engine.judge import Judge
from engine.learner import Learner
from engine.memory import Memory
from engine.metrics import MetricsLog
from engine.networks import Factory, default_factory, make_network
from pyx.encoding import RecordLayout
from pyx.stats import TraversalStats
from threading_runtime.gil import gil_enabled, keep_gil_off, threads_default
from threading_runtime.pool import Pool
from threading_runtime.streams import only_deterministic, use_own_stream
from threading_runtime.tasks import run_chains

# Numbers of networks and memories; part of the keys of their random streams.
NUMBERS = {"advantage0": 0, "advantage1": 1, "strategy": 2}
ADVANTAGES = ("advantage0", "advantage1")
# Who updates at the same time. Alternating, player 1 meets what player 0 has just learned: exact linear CFR on Leduc
# comes to exploitability 0.034 in 100 iterations that way, to 0.180 when both update at once.
PHASES = {"alternating": ((0,), (1,)), "simultaneous": ((0, 1),)}


class Trainer:
    """One training run.

    Owned by: the thread that made it, which calls `run` once.
    Guarantees: the same settings give the same memories, weights and metrics (timings aside) at any number of
    threads and after any number of interruptions; whatever ends `run`, the last completed iteration is on disk.
    Does not guarantee: the same bits on another processor or with another torch.
    """

    def __init__(
        self,
        config: Config,
        *,
        run_dir: Path | None = None,
        resume: bool = False,
        network: Factory | None = None,
        on_iteration: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        """run_dir: where metrics and checkpoints go, already made; None keeps nothing.

        network: factory(n_features, n_actions, config) -> module, in place of the config's own.
        on_iteration: called with each iteration's metrics; the run ends where it returns False.
        """
        keep_gil_off()
        self.config = config = config.resolved()
        self.threads = config.threads or threads_default()
        self._device = torch.device(config.device)
        if config.deterministic and self._device.type != "cpu":
            only_deterministic()
        self.game = config.load_game()
        self._factory = network or default_factory
        self._on_iteration = on_iteration
        layout = RecordLayout(self.game)
        names = [*ADVANTAGES] + ["strategy"] * (config.average == "strategy_network")
        self.memories = {
            name: Memory(layout, config.memory.capacity, seed=config.seed, number=NUMBERS[name]) for name in names
        }
        self.learners = {
            name: Learner(name, NUMBERS[name], self._new_network(name, 0), self.memories[name], config, self.game)
            for name in names
        }
        self.collector = make_collector(self.game, config, self._factory)
        self.judge = Judge(self.game, config, self._factory)
        self.iteration = 0
        self.totals = {"nodes": 0, "traversals": 0}
        self.metrics: dict[str, Any] = {}
        self.startup_seconds = 0.0  # from the first thread to where blocks can run
        self._log = MetricsLog(run_dir / "metrics.jsonl") if run_dir else None
        self.store = CheckpointStore(run_dir, config.checkpoint.keep, self.memories, config.flat())
        boundary = self.store.resume() if resume else None
        if boundary is not None:
            self._restore(boundary)
        else:
            self._remember_networks(0)
        if resume and self._log is not None:
            self._log.cut(self.iteration)

    def run(self) -> dict[str, Any]:
        """Train up to the config's last iteration; the last iteration's metrics."""
        started = time.perf_counter()
        try:
            with Pool(self.threads, initialise=lambda: use_own_stream(self._device)) as pool, self.collector:
                pool.map(self.judge.start, [self.store.sequence])
                for player in (0, 1):
                    self._publish(player)
                self.startup_seconds = time.perf_counter() - started
                self._loop(pool)
        finally:
            self.store.save()
        return self.metrics

    def _loop(self, pool: Pool) -> None:
        """Iterate to the end. A function of its own, so that no interrupt is missed: see Pool."""
        while self.iteration < self.config.iterations:
            self._iterate(pool)
            if self._on_iteration is not None and self._on_iteration(self.metrics) is False:
                break

    def _iterate(self, pool: Pool) -> None:
        iteration = self.iteration + 1
        clock = _Clock()
        stats = TraversalStats()
        for traversers in PHASES[self.config.order]:
            stats.merge(self._update(pool, iteration, traversers, clock))
        self._remember_networks(iteration)
        clock.lap("publish")
        judged = self.judge.judge(pool, iteration, self.learners, self.store.sequence)
        clock.lap("evaluate")

        counts = stats.as_dict()
        boundary = Boundary(
            iteration,
            networks={name: _state_of(learner) for name, learner in self.learners.items()},
            optimizers={name: learner.optimizer.state_dict() for name, learner in self.learners.items()},
            totals={name: total + counts[name] for name, total in self.totals.items()},
        )
        digest = self.store.digest(boundary)
        give_back_memory()
        clock.lap("boundary")
        self.metrics = {
            "iteration": iteration,
            **boundary.totals,
            "digest": digest,
            **{f"iteration_{name}": count for name, count in counts.items() if name not in boundary.totals},
            **{f"{name}_samples": memory.size for name, memory in self.memories.items()},
            **self._losses(),
            **judged,
            "nodes_per_second": counts["nodes"] / clock.seconds["collect"],
            **{f"{phase}_seconds": seconds for phase, seconds in clock.seconds.items()},
            **{f"{part}_thread_seconds": seconds for part, seconds in clock.thread_seconds.items()},
            "iteration_seconds": clock.total(),
            "threads": self.threads,
            "workers": self.config.workers,
            "gil_enabled": gil_enabled(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        # The line before the boundary: a resumed run drops a line too many, but could not make up one that is missing.
        if self._log is not None:
            self._log.append(self.metrics)
        self.store.complete(boundary)
        self.iteration, self.totals = iteration, boundary.totals
        if iteration % self.config.checkpoint.every == 0:
            self.store.save()

    def _update(self, pool: Pool, iteration: int, traversers: tuple[int, ...], clock: _Clock) -> TraversalStats:
        """Collect, remember, train and publish for these players."""
        collected = collect(pool, self.collector, self.config, iteration, traversers)
        clock.lap("collect")
        clock.spent({**collected.stats.seconds(), "merge": collected.merge_seconds})
        advantages = [ADVANTAGES[player] for player in traversers]
        filled = [name for name in self.memories if name in collected.records]
        pool.map(lambda name: self._remember(name, collected), filled)
        clock.lap("remember")
        if self.config.network.reset == "reset":
            for name in advantages:
                self.learners[name].reset(self._new_network(name, iteration))
        # Nothing that plays waits for the strategy network, so that it trains beside each of the others: threads that
        # have one network alone wait for one another at each update.
        shares = {name: range(self.config.training.updates) for name in advantages}
        if "strategy" in self.learners:
            shares["strategy"] = _share(self.config.training.updates, PHASES[self.config.order], traversers)
        learners = [self.learners[name] for name, share in shares.items() if share and self.memories[name].size]
        pool.map(lambda learner: learner.begin(iteration, shares[learner.name]), learners)
        run_chains(pool, learners)
        clock.lap("train")
        clock.spent({f"train_{learner.name}": learner.thread_seconds for learner in learners})
        for player in traversers:
            self._publish(player)
        clock.lap("publish")
        return collected.stats

    def _publish(self, player: int) -> None:
        with self.learners[ADVANTAGES[player]].model.reading() as module:
            self.collector.publish(player, module)

    def _remember(self, name: str, collected: Collected) -> None:
        """Offer samples to one memory, in block order."""
        for records in collected.records[name]:
            self.store.record(name, self.memories[name].add(records), records)

    def _remember_networks(self, iteration: int) -> None:
        """Keep the strategies that the next iteration plays, where the average is made of them."""
        if self.config.average == "advantage_sequence":
            for name in ADVANTAGES:
                self.store.add_network(name, iteration, _state_of(self.learners[name]))

    def _losses(self) -> dict[str, float]:
        losses = {name: learner.loss for name, learner in self.learners.items()}
        summary = {"advantage_loss": sum(losses[name] for name in ADVANTAGES) / len(ADVANTAGES)}
        if "strategy" in losses:
            summary["policy_loss"] = losses["strategy"]
        return summary

    def _new_network(self, name: str, iteration: int) -> torch.nn.Module:
        module = make_network(self._factory, self.game, self.config, number=NUMBERS[name], iteration=iteration)
        return module.to(self._device)

    def _restore(self, boundary: Boundary) -> None:
        self.iteration, self.totals = boundary.iteration, dict(boundary.totals)
        for name, learner in self.learners.items():
            with learner.model.writing() as module:
                module.load_state_dict(boundary.networks[name])
            learner.optimizer.load_state_dict(boundary.optimizers[name])


def _state_of(learner: Learner) -> dict[str, torch.Tensor]:
    with learner.model.reading() as module:
        return module.state_dict()


def _share(updates: int, phases: tuple[tuple[int, ...], ...], phase: tuple[int, ...]) -> range:
    """Which of an iteration's updates belong to a phase, where each has as many."""
    number = phases.index(phase)
    return range(updates * number // len(phases), updates * (number + 1) // len(phases))


class _Clock:
    """Seconds of one iteration, by name: of its phases, and of their parts, in which threads work side by side.

    Those of parts are sums over threads: of collecting see pyx.stats.Spent, of training one of each network.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.thread_seconds: dict[str, float] = {}
        self._start = self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """What passed since the last lap went to `phase`."""
        last, self._last = self._last, time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + self._last - last

    def spent(self, seconds: dict[str, float]) -> None:
        """What threads spent on parts of the last phase."""
        for part, more in seconds.items():
            self.thread_seconds[part] = self.thread_seconds.get(part, 0.0) + more

    def total(self) -> float:
        return time.perf_counter() - self._start


def train(
    config: Config,
    *,
    on_iteration: Callable[[dict[str, Any]], object] | None = None,
    network: Factory | None = None,
    run_dir: str | Path | None = None,
) -> dict[str, Any]:
    """Train from Python: the last iteration's metrics. Without run_dir nothing is written.

    on_iteration(metrics) is called after each iteration and ends the run by returning False; network is a
    factory(n_features, n_actions, config) -> torch.nn.Module.
    """
    return Trainer(config, run_dir=Path(run_dir) if run_dir else None, network=network, on_iteration=on_iteration).run()
