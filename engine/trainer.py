"""The loop: collect -> remember -> train -> publish weights -> evaluate -> record."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.checkpoint import Boundary, CheckpointStore
from engine.collect import Collected, collect
from engine.collectors import make_collector
from engine.config import Config
from engine.digests import canonical
from engine.errors import CheckpointError
from engine.hardware import give_back_memory, peak_rss_mib
from engine.judge import Judge
from engine.learner import Learner
from engine.memory import Memory
from engine.metrics import MetricsLog
from engine.networks import Factory, default_factory, make_network
from engine.saving import Saver
from engine.untrusted import refuse_unlike
from pyx.encoding import RecordLayout
from pyx.stats import TraversalStats
from threading_runtime.gil import gil_enabled, keep_gil_off, threads_default
from threading_runtime.pool import Pool, Workers
from threading_runtime.streams import only_deterministic, use_own_stream
from threading_runtime.tasks import BesideChains, Chain, run_chains

# Numbers of networks and memories; part of the keys of their random streams.
NUMBERS = {"advantage0": 0, "advantage1": 1, "strategy": 2}
ADVANTAGES = ("advantage0", "advantage1")
# Who updates at the same time. Alternating, player 1 meets what player 0 has just learned: exact linear CFR on Leduc
# comes to exploitability 0.034 in 100 iterations that way, to 0.180 when both update at once.
PHASES = {"alternating": ((0,), (1,)), "simultaneous": ((0, 1),)}
# With a player's number, a boundary's name for what that player played by in the traversals that ran ahead.
_PLAYED = "played"


class Trainer:
    """One training run.

    Owned by: the thread that made it, which calls `run` once.
    Guarantees: the same settings give the same memories, weights and metrics (timings aside) at any number of
    threads and after any number of interruptions; whatever ends `run`, the last completed iteration is on disk, or
    `run` raises CheckpointError.
    Does not guarantee: the same bits on another processor or with another torch.
    """

    def __init__(
        self,
        config: Config,
        *,
        run_dir: Path | None = None,
        resume: bool = False,
        replay: Path | None = None,
        network: Factory | None = None,
        on_iteration: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        """run_dir: where metrics and checkpoints go, already made; None keeps nothing. resume: go on from what it has.

        replay: a checkpoint to start from, which stays as it is, without a run_dir.
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
        self._ahead: _Ahead | None = None
        self._published: dict[int, dict[str, Any]] = {}  # by player, what is played
        self._outdated: dict[int, dict[str, Any]] = {}  # by player, what the traversals that ran ahead were played by
        self._behind: list[int] = []  # who still plays by it, in a resumed run that has to collect them again
        self._log = MetricsLog(run_dir / "metrics.jsonl") if run_dir else None
        self.store = CheckpointStore(run_dir, config.checkpoint.keep, self.memories, config.flat())
        self._saver = Saver(self.store, self._log)
        boundary = self.store.resume() if resume else self.store.replay(replay) if replay else None
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
                    self._publish(player, self._outdated.get(player))
                self.startup_seconds = time.perf_counter() - started
                self._loop(pool)
        except BaseException:
            self._saver.end(failed=True)
            raise
        self._saver.end()
        return self.metrics

    def wait_for_checkpoint(self) -> None:
        """Wait until the checkpoint that is being written, if any, is on disk."""
        self._saver.wait()

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
        for number in range(len(PHASES[self.config.order])):
            stats.merge(self._update(pool, iteration, number, clock))
        self._remember_networks(iteration)
        clock.lap("publish")
        judged = self.judge.judge(pool, iteration, self.learners, self.store.sequence)
        clock.lap("evaluate")

        counts = stats.as_dict()
        states = {name: learner.state() for name, learner in self.learners.items()}
        played = {f"{_PLAYED}{player}": state for player, state in self._outdated.items()}
        boundary = Boundary(
            iteration,
            networks={name: network for name, (network, _) in states.items()} | played,
            optimizers={name: optimizer for name, (_, optimizer) in states.items()},
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
            "overlap": self.config.overlap,
            "gil_enabled": gil_enabled(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "peak_rss_mib": peak_rss_mib(),
        }
        # The line before the boundary: a resumed run drops a line too many, but could not make up one that is missing.
        self._saver.append(self.metrics)
        self.store.complete(boundary)
        self.iteration, self.totals = iteration, boundary.totals
        if iteration % self.config.checkpoint.every == 0:
            self._saver.begin()

    def _update(self, pool: Pool, iteration: int, number: int, clock: _Clock) -> TraversalStats:
        """One of an iteration's phases: collect, remember, train and publish for its players.

        With overlap its samples were collected while the networks of the phase before trained, and those of the next
        are collected while its own train.
        """
        traversers = PHASES[self.config.order][number]
        ahead, self._ahead = self._ahead or self._collect(pool, iteration, number), None
        clock.spent(ahead.collected.stats.seconds() | {"merge": ahead.collected.merge_seconds})
        clock.lap("collect", ahead.seconds)
        for player in self._behind:
            self._publish(player)
        self._behind = []
        advantages = [ADVANTAGES[player] for player in traversers]
        records = ahead.collected.records
        pool.map(lambda name: self._remember(name, records[name]), [name for name in self.memories if name in records])
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
        following = self._after(iteration, number)
        if following is None:
            run_chains(pool, learners)
            clock.lap("train")
        else:
            beside = BesideChains(pool, [self._chain(learner) for learner in learners])
            self._ahead = self._collect(beside, *following)
            clock.lap("train", beside.chains_seconds)
        clock.spent({f"train_{learner.name}": learner.thread_seconds for learner in learners})
        if self.config.overlap == "pipelined":
            self._outdated = {player: self._published[player] for player in traversers}
        for player in traversers:
            self._publish(player)
        clock.lap("publish")
        return ahead.collected.stats

    def _collect(self, workers: Workers, iteration: int, number: int) -> _Ahead:
        """A phase's samples, by the strategies that are published."""
        began = time.perf_counter()
        collected = collect(workers, self.collector, self.config, iteration, PHASES[self.config.order][number])
        seconds = workers.jobs_seconds if isinstance(workers, BesideChains) else time.perf_counter() - began
        return _Ahead(collected, seconds)

    def _after(self, iteration: int, number: int) -> tuple[int, int] | None:
        """Iteration and number of the phase that is collected while this one's networks train; None: there is none."""
        if self.config.overlap == "none":
            return None
        if number + 1 < len(PHASES[self.config.order]):
            return iteration, number + 1
        return (iteration + 1, 0) if iteration < self.config.iterations else None

    def _chain(self, learner: Learner) -> Chain:
        """What trains a network; with overlap = "free" it is published by the thread that ends its training."""
        if self.config.overlap == "free" and learner.name in ADVANTAGES:
            return _ThenPublish(learner, lambda: self._publish(ADVANTAGES.index(learner.name)))
        return learner

    def _publish(self, player: int, state: dict[str, Any] | None = None) -> None:
        """From now on this player plays by a state_dict, or by what its network has learned."""
        with self.learners[ADVANTAGES[player]].model.reading() as module:
            state = module.state_dict() if state is None else state
            self.collector.publish(player, state)
            if self.config.overlap == "pipelined":
                self._published[player] = canonical(state)

    def _remember(self, name: str, blocks: Sequence[np.ndarray]) -> None:
        """Offer samples to one memory, in block order."""
        for records in blocks:
            self.store.record(name, self.memories[name].add(records), records)

    def _remember_networks(self, iteration: int) -> None:
        """Keep the strategies that the next iteration plays, where the average is made of them."""
        if self.config.average == "advantage_sequence":
            for name in ADVANTAGES:
                with self.learners[name].model.reading() as module:
                    self.store.add_network(name, iteration, module.state_dict())

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
        for name, memory in self.memories.items():
            if (latest := memory.latest()) > boundary.iteration:
                raise CheckpointError(
                    f"memory {name} has a sample of iteration {latest}, but the checkpoint is of {boundary.iteration}: "
                    "it is none of this engine's; start a new run."
                )
        where = f"the checkpoint of iteration {boundary.iteration}"
        if boundary.totals.keys() != self.totals.keys() or not all(
            type(total) is int and total >= 0 for total in boundary.totals.values()
        ):
            raise CheckpointError(f"{where} counts {boundary.totals}, but a run {sorted(self.totals)}, whole numbers.")
        for kind in ("networks", "optimizers"):
            states = getattr(boundary, kind)
            if not isinstance(states, dict) or not self.learners.keys() <= states.keys():
                raise CheckpointError(f"{where} lacks {kind} of {sorted(self.learners)}; start a new run.")
        self.iteration, self.totals = boundary.iteration, dict(boundary.totals)
        for name, learner in self.learners.items():
            learner.restore(boundary.networks[name], boundary.optimizers[name], f"{where}, {name},")
        if self.config.overlap == "pipelined":
            self._behind = [player for player in (0, 1) if f"{_PLAYED}{player}" in boundary.networks]
            self._outdated = {player: boundary.networks[f"{_PLAYED}{player}"] for player in self._behind}
            for player, state in self._outdated.items():
                own, _ = self.learners[ADVANTAGES[player]].state()
                refuse_unlike(state, own, f"{where}, {_PLAYED}{player},")


@dataclass(frozen=True)
class _Ahead:
    """A phase's samples that are not in the memories yet."""

    collected: Collected
    seconds: float  # that collecting took


class _ThenPublish:
    """A chain of updates whose last one publishes."""

    def __init__(self, learner: Learner, publish: Callable[[], None]) -> None:
        self.steps, self.shards, self.shard = learner.steps, learner.shards, learner.shard
        self._learner, self._publish = learner, publish

    def finish(self, step: int) -> None:
        self._learner.finish(step)
        if step + 1 == self.steps:
            self._publish()


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

    def lap(self, phase: str, seconds: float | None = None) -> None:
        """What passed since the last lap went to `phase`, or so many seconds did, where something ran beside it."""
        last, self._last = self._last, time.perf_counter()
        more = self._last - last if seconds is None else seconds
        self.seconds[phase] = self.seconds.get(phase, 0.0) + more

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
