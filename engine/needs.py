"""What memory a run will come to need, by part, and whether this machine has it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine import hardware
from engine.config import Config
from engine.errors import ConfigError
from pyx.encoding import RecordLayout

GIB = 1 << 30

# What a worker process costs beyond the memories (`freecfr bench baseline`: 318 and 364 MiB with one and two of them).
PROCESS = 340 << 20
# What threads, libraries that come to work and whatever has no part of its own cost: 205 MiB in a run of Leduc poker.
REST = 230 << 20
# Past networks that an agent keeps ready for a match: agent.KEPT_BYTES.
KEPT = 1 << 28


@dataclass(frozen=True)
class Part:
    """bytes: how much. setting: what to lower for less; empty where nothing would help."""

    name: str
    bytes: int
    setting: str = ""


def parts_of(config: Config) -> list[Part]:
    """What a run with these settings, resolved, needs once its memories are full, beyond an idle process.

    Memories count as full where the run can offer them so many samples, which is at most one for each decision of each
    traversal. Networks are the config's own kind.
    """
    game = config.load_game()
    layout = RecordLayout(game)
    memories = 3 if config.average == "strategy_network" else 2
    samples = min(config.memory.capacity, _most_samples(config, game))
    weights = config.products_per_sample()  # not counted on a network, which may not fit
    half = 2 if config.training.autocast else 4
    batch, hidden, layers = config.training.batch_size, config.network.hidden, config.network.layers
    assert config.training.shards is not None and config.threads is not None
    # Weights, gradients and Adam's two moments; a shard's gradients each; a copy in the products' type.
    trained = weights * (16 + half * config.training.shards + half)
    # A boundary's copy of weights and moments, its bytes as a file, and while their buffer grows the one before it.
    saved = weights * 36
    played = 2 * weights * (4 + 4)
    if config.average == "advantage_sequence":
        played += 2 * 2 * weights * config.checkpoint.every + KEPT * (game.max_game_length() is None or weights > 10**6)
    rows = batch * (layout.n_features * half + 2 * hidden * layers * half + 12 * game.max_legal)
    workers = PROCESS * config.threads if config.workers != "threads" else 0
    size = "network.hidden" if hidden >= 64 * layers else "network.layers"
    return [
        Part("sample memories", memories * samples * layout.record_bytes, "memory.capacity"),
        Part("networks in training", memories * trained, size),
        Part("networks in checkpoints", memories * saved, size),
        Part("networks that play", played, size),
        Part("batches", memories * rows, "training.batch_size"),
        Part("worker processes", workers, "threads"),
        Part("threads and libraries", REST),
    ]


def _most_samples(config: Config, game: object) -> int:
    """How many samples a memory can be offered in the whole run, at most; a large number where nothing bounds it."""
    length = game.max_game_length()  # type: ignore[attr-defined]
    if length is None:
        return 1 << 62
    each = length
    if config.algorithm == "external_sampling":  # every action of the traverser, at each of its decisions
        each = min(1 << 62, game.max_legal ** math.ceil(length / 2) * length)  # type: ignore[attr-defined]
    return config.iterations * 2 * config.traversal.count * each


def needed(config: Config) -> int:
    """Bytes of all parts together."""
    return sum(part.bytes for part in parts_of(config))


def refuse_too_large(config: Config) -> None:
    """Raise ConfigError, one sentence, where this machine has less memory than the run will come to need."""
    parts = parts_of(config)
    total, there = sum(part.bytes for part in parts), hardware.memory_available()
    if total <= there.bytes:
        return
    largest = max((part for part in parts if part.setting), key=lambda part: part.bytes)
    value = config.flat()[largest.setting]
    left = there.bytes - (total - largest.bytes)
    fits = "lower it"
    if left > 0 and largest.setting in ("memory.capacity", "training.batch_size"):  # which bytes are in proportion to
        fits = f"lower it to {_rounded(int(value * left / largest.bytes))} or less"
    raise ConfigError(
        f"{largest.setting} is {value}, so that this run will need {total / GIB:,.1f} GiB ({largest.name} "
        f"{largest.bytes / GIB:,.1f}), but this machine has {there.bytes / GIB:,.1f} GiB left ({there.of}); {fits}."
    )


def _rounded(value: int) -> int:
    """Down to two digits."""
    unit = 10 ** max(0, len(str(value)) - 2)
    return value // unit * unit
