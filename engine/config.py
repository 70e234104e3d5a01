"""The settings of a run: typed, validated, frozen; read from TOML and written as TOML."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from engine import config_text, hardware
from engine.errors import ConfigError

# External sampling visits every action of the traverser, so its cost grows as branching ** decisions.
LONGEST_EXTERNAL = 64

# Named by the command line's contract, refused by name until they exist.
NOT_BUILT = {
    "algorithm": ("dream", "escher", "expand", "mmd"),
}

# What may change when a run goes on, iterations only upwards; no bit of a checkpoint depends on it.
MAY_CHANGE = ("threads", "workers", "iterations")

MAX_BLOCKS = 1 << 20
# Files that no person wrote: a key of many parts takes memory by the square of their number to read.
LARGEST_FILE = 1 << 16
MOST_DOTS = 1000


def _whole(default: int | None, low: int, high: int, meaning: str) -> Any:
    rule: dict[str, Any] = {"rule": f"a whole number from {low} to {high}"}
    return Field(default, ge=low, le=high, description=meaning, json_schema_extra=rule)


def _number(default: float, low: float, high: float, meaning: str) -> Any:
    rule: dict[str, Any] = {"rule": f"a number from {low:g} to {high:g}"}
    return Field(default, ge=low, le=high, allow_inf_nan=False, description=meaning, json_schema_extra=rule)


def _choice(default: Any, meaning: str, rule: str = "") -> Any:
    return Field(default, description=meaning, json_schema_extra={"rule": rule})


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class GameSettings(BaseModel):
    """The game and its own parameters: whatever other keys there are go to load_game."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    name: str = _choice("lost_cities", "a game's name", "a game's name in quotes")

    @property
    def parameters(self) -> dict[str, Any]:
        """The game's own parameters that were given."""
        return dict(self.model_extra or {})


class NetworkSettings(_Section):
    """One network a player for advantages, and one for the average strategy where it has one."""

    hidden: int = _whole(512, 1, 16384, "units of a hidden layer")
    layers: int = _whole(3, 1, 64, "hidden layers")
    reset: Literal["warm", "reset"] = _choice(
        "warm", "whether an iteration trains the advantage networks it finds (warm) or new ones (reset)"
    )


class TraversalSettings(_Section):
    """What an iteration collects. The cutting into blocks never depends on the threads."""

    count: int = _whole(280, 1, 1 << 30, "traversals a player and iteration")
    block: int | None = _whole(None, 1, 1 << 30, "traversals a block; by default a player has at least 8 equal blocks")
    lanes: int | None = _whole(None, 1, 1 << 16, "traversals of a block in progress at once")
    exploration: float = _number(0.6, 0.0, 1.0, "share of uniform play in what outcome_sampling samples by")
    fallback: Literal["best", "uniform"] = _choice("best", "what is played where no advantage is positive")


class TrainingSettings(_Section):
    """How networks learn from the memories.

    The learning rate falls over the updates of one iteration and starts anew in the next, so that a run made
    longer goes on exactly as if it had been that long from the start.
    """

    updates: int = _whole(512, 1, 1_000_000, "updates of each network in an iteration")
    batch_size: int = _whole(1024, 1, 1 << 20, "samples of an update")
    shards: int | None = _whole(
        None, 1, 1024, "equal parts of a batch whose gradients are summed in order, whoever computes them"
    )
    learning_rate: float = Field(
        1e-3, gt=0, le=10, allow_inf_nan=False, description="at the first update of an iteration",
        json_schema_extra={"rule": "a number above 0, at most 10"},
    )  # fmt: skip
    schedule: Literal["constant", "linear", "cosine"] = _choice(
        "constant", "how the rate falls to 0 over the updates of an iteration"
    )
    clip_norm: float = _number(1.0, 0.0, 1e6, "largest norm of a gradient; 0 does not clip")
    autocast: bool | Literal["auto"] = _choice(
        "auto", "train with bfloat16 products; auto: where the processor has them", "true, false or 'auto'"
    )
    weight_cap: float = _number(
        1e6, 1.0, 1e30, "a sample's own weight (outcome_sampling) counts for no more; a low cap is bias, not safety"
    )
    weighting: Literal["linear", "discounted", "uniform"] = _choice(
        "linear", "what an iteration's samples weigh: its number, as in discounted CFR, or all the same"
    )

    def rate(self, update: int) -> float:
        """The learning rate of an update, counted from 0 in its iteration."""
        progress = update / self.updates
        if self.schedule == "linear":
            return self.learning_rate * (1.0 - progress)
        if self.schedule == "cosine":
            return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.learning_rate


class MemorySettings(_Section):
    """The reservoir memories."""

    capacity: int = _whole(2_000_000, 1, 1 << 31, "samples of each memory")


class BatchingSettings(_Section):
    """The inference thread of scheduler = "server"."""

    limit: int = _whole(4096, 1, 1 << 20, "rows of a batch, at most")
    wait_microseconds: int = _whole(200, 0, 1_000_000, "how long an incomplete batch waits for more rows")
    queue: int = _whole(1024, 1, 1 << 20, "requests that may wait; whoever comes then waits for room")


class EvaluationSettings(_Section):
    """What is looked at while training."""

    every: int = _whole(10, 0, 1 << 30, "iterations between evaluations; 0 never evaluates")
    games: int = _whole(1000, 2, 1 << 30, "games against each opponent")
    opponents: tuple[str, ...] = _choice((), "names of opponents", "a list of names in quotes")

    @field_validator("opponents", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value


class CheckpointSettings(_Section):
    """What is kept on disk to go on from."""

    every: int = _whole(1, 1, 1 << 30, "iterations between checkpoints")
    keep: int = _whole(3, 1, 1000, "newest checkpoints that are kept")


class Config(_Section):
    """The settings of a run. Every problem of a config that cannot run is a ConfigError when it is made.

    The same settings give the same bits, whatever the threads, but for overlap = "free": there it is a matter of
    timing which weights a traversal meets, so that two runs differ.
    """

    seed: int = _whole(0, 0, (1 << 63) - 1, "the run's seed")
    iterations: int = _whole(200, 1, 1 << 30, "iterations; each updates both players")
    threads: int | None = _whole(None, 1, 4096, "worker threads; by default one per physical core")
    algorithm: Literal["external_sampling", "outcome_sampling"] = _choice(
        "outcome_sampling", "what a traversal samples"
    )
    average: Literal["strategy_network", "advantage_sequence"] = _choice(
        "strategy_network", "what plays: a network of the average strategy, or past advantage networks"
    )
    order: Literal["alternating", "simultaneous"] = _choice(
        "alternating", "whether player 1 traverses against what player 0 just learned, or both train at the same time"
    )
    inference_dtype: Literal["auto", "float32", "bfloat16"] = _choice(
        "auto", "what traversals evaluate with; auto: bfloat16 where the processor has it"
    )
    device: str = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$", description="where networks are evaluated and trained",
        json_schema_extra={"rule": "'auto', 'cpu', 'cuda' or 'cuda:N'"},
    )  # fmt: skip
    scheduler: Literal["block", "server", "vectorised"] = _choice(
        "block", "who batches: each block its own lanes, one inference thread for all, or one thread that does it all"
    )
    overlap: Literal["none", "pipelined", "free"] = _choice(
        "none",
        "whether traversals run while networks train: pipelined, by the weights published before, with the same bits "
        "at any number of threads; free, by whatever was published last, NOT the same bits from run to run",
    )
    workers: Literal["threads", "processes-pickle", "processes-shared-memory"] = _choice(
        "threads", "what runs blocks; processes are what threads are measured against"
    )
    deterministic: bool = _choice(False, "the same bits on CUDA too (on CPU they always are)", "true or false")
    game: GameSettings = GameSettings()
    network: NetworkSettings = NetworkSettings()
    traversal: TraversalSettings = TraversalSettings()
    batching: BatchingSettings = BatchingSettings()
    training: TrainingSettings = TrainingSettings()
    memory: MemorySettings = MemorySettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()

    def __init__(self, /, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise ConfigError(config_text.problems(type(self), error, NOT_BUILT)) from None
        if problems := list(self._conflicts()):
            raise ConfigError(problems)

    @property
    def reproducible(self) -> bool:
        """Whether these settings give the same bits again."""
        return self.overlap != "free" and (self.deterministic or not self.device.startswith("cuda"))

    @classmethod
    def from_toml(cls, path: str | Path, overrides: Iterable[str] = ()) -> Config:
        """The settings in a TOML file, changed by `KEY=VALUE` texts with dotted keys.

        Raises ConfigError for a file that cannot be read and for settings that cannot be used.
        """
        return cls(**_overridden(_read(Path(path)), overrides))

    def with_overrides(self, overrides: Iterable[str]) -> Config:
        """These settings changed by `KEY=VALUE` texts with dotted keys."""
        return Config(**_overridden(self.as_dict(), overrides))

    def as_dict(self) -> dict[str, Any]:
        """Nested plain values, as TOML has them: lists for tuples, nothing for what is not set."""
        return config_text.plain(self.model_dump(exclude_none=True))

    def flat(self) -> dict[str, Any]:
        """Dotted key -> value, with all parameters of the game."""
        nested = self.as_dict()
        nested["game"] = {"name": self.game.name, **config_text.plain(self.load_game().parameters)}
        return config_text.flatten(nested)

    def to_toml(self) -> str:
        """TOML text with every default written out; `from_toml` gives equal settings back."""
        return config_text.toml(type(self), self.flat())

    def load_game(self) -> Any:
        """The game, as pyx.registry.load_game makes it."""
        from pyx.registry import load_game

        return load_game(self.game.name, **self.game.parameters)

    def resolved(self) -> Config:
        """The same settings with everything decided that was left open: `auto`, threads, blocks, lanes, shards.

        Raises ConfigError when the device asked for is not there.
        """
        from threading_runtime.gil import threads_default

        nested = self.as_dict()
        nested["game"] = {"name": self.game.name, **self.load_game().parameters}
        nested["threads"] = self.threads or threads_default()
        nested["device"] = device = self._device()
        traversal, training = nested["traversal"], nested["training"]
        traversal["block"] = self.traversal.block or default_block(self.traversal.count)
        traversal["lanes"] = min(self.traversal.lanes or 256, traversal["block"])
        training["shards"] = self.training.shards or default_shards(
            self.training.batch_size, self.products_per_sample()
        )
        if self.inference_dtype == "auto":
            nested["inference_dtype"] = "bfloat16" if hardware.device_has_bf16(device) else "float32"
        if self.training.autocast == "auto":
            training["autocast"] = hardware.device_has_bf16(device)
        return Config(**nested)

    def products_per_sample(self) -> int:
        """Multiply-adds of a forward pass of the networks described here: their weights, biases apart."""
        game, hidden = self.load_game(), self.network.hidden
        return (game.n_features + (self.network.layers - 1) * hidden + game.n_actions) * hidden

    def _device(self) -> str:
        devices = 0 if self.device == "cpu" else hardware.cuda_devices()
        if self.device == "auto":
            return "cuda" if devices else "cpu"
        number = int(self.device.partition(":")[2] or 0)
        if self.device != "cpu" and number >= devices:
            raise ConfigError(
                f'device is {self.device!r}, but torch sees {devices} CUDA devices here; set device = "cpu", or '
                '"auto" to take what there is.'
            )
        return self.device

    def _conflicts(self) -> Iterable[str]:
        """One sentence for each setting that is fine alone and impossible beside the others."""
        training, traversal = self.training, self.traversal
        if training.shards and training.batch_size % training.shards:
            yield (
                f"training.batch_size is {training.batch_size}, which training.shards = {training.shards} does not "
                "divide; shards are equal parts of a batch, so choose a multiple, or leave training.shards out."
            )
        if traversal.block and traversal.count > MAX_BLOCKS * traversal.block:
            yield (
                f"traversal.block is {traversal.block}, which cuts traversal.count = {traversal.count} into more than "
                f"{MAX_BLOCKS} blocks; set a larger block."
            )
        if self.scheduler != "block" and self.workers != "threads":
            yield (
                f"scheduler is {self.scheduler!r}, which batches over threads of one process, but workers is "
                f'{self.workers!r}; set workers = "threads" or scheduler = "block".'
            )
        if self.overlap == "free" and self.workers != "threads":
            yield (
                f"overlap is 'free', in which traversals take up new weights as they run, but workers is "
                f'{self.workers!r}, whose processes get theirs between runs; set overlap = "pipelined" or '
                'workers = "threads".'
            )
        if self.overlap == "free" and self.deterministic:
            yield (
                "deterministic is true, but overlap is 'free', whose results depend on timing; set overlap = "
                '"pipelined" or "none".'
            )
        if self.algorithm == "outcome_sampling" and traversal.exploration == 0:
            yield (
                "traversal.exploration is 0, but outcome_sampling must be able to reach every action or its weights "
                "have no bound; set it above 0, for example 0.6 (the default)."
            )
        try:
            game = self.load_game()
        except (ValueError, TypeError, OverflowError, MemoryError, RecursionError) as error:
            yield f"game: {error}"
            return
        yield from self._unplayable(game)
        length = game.max_game_length()
        if self.algorithm == "external_sampling" and (length is None or length > LONGEST_EXTERNAL):
            lasts = "may last for ever" if length is None else f"can last {length} decisions"
            yield (
                f"algorithm is 'external_sampling', but a game of {self.game.name} {lasts} and external sampling, "
                f"whose cost grows with every action to the power of the decisions, is limited to {LONGEST_EXTERNAL}; "
                'set algorithm = "outcome_sampling".'
            )

    def _unplayable(self, game: Any) -> Iterable[str]:
        """One sentence for each reason why matches against the opponents cannot be played."""
        if self.evaluation.games % 2:
            yield (
                f"evaluation.games is {self.evaluation.games}, but each deal is played twice with seats swapped; set "
                "an even number."
            )
        for opponent in self.evaluation.opponents:
            from pyx.bots import make_bot

            try:
                make_bot(opponent).check(game)
            except ValueError as error:
                yield f"evaluation.opponents: {error}."


def default_block(count: int) -> int:
    """Traversals a block: 8 to 16 equal blocks where `count` can be cut so, else 8 equal ones and a rest."""
    for blocks in range(8, 17):
        if count % blocks == 0:
            return count // blocks
    return max(1, count // 8)


def default_shards(batch_size: int, products: int) -> int:
    """Equal parts of a batch, 1 to 16: 2 from 2**24 multiply-adds of a forward pass, then one for each 2**28.

    A shard's gradients are as many as the network's weights, whatever its samples, so that summing them soon costs more
    than a thread gains; with many cores training.shards may be set higher. products: multiply-adds of a sample.
    """
    least = {1: 0, 2: 1 << 24, 4: 1 << 30, 8: 1 << 31, 16: 1 << 32}
    return max(n for n in least if batch_size % n == 0 and batch_size * products >= least[n])


def changes(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (before, after) of every setting that differs; None stands for one that is not set."""
    old, new = before.flat(), after.flat()
    keys = [*old, *(key for key in new if key not in old)]
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.is_dir():
            raise ConfigError(f"{path} is a folder, but a config is a TOML file; give one, such as configs/kuhn.toml.")
        with open(path, "rb") as file:
            text = file.read(LARGEST_FILE + 1)  # a device has no size, and no end
        if len(text) > LARGEST_FILE:
            raise ConfigError(f"{path} has over {LARGEST_FILE} bytes, too many for a config; give a TOML file.")
        if max(line.count(b".") for line in text.split(b"\n")) > MOST_DOTS:
            raise ConfigError(f"{path} has over {MOST_DOTS} dots in a line, which no setting needs; correct it there.")
        return tomllib.loads(text.decode())
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; give a TOML file, such as configs/kuhn.toml.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); give a TOML file that can.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text, so it is no TOML file; give one.") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is not valid TOML: {error}; correct it there.") from None


def _overridden(settings: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    for text in overrides:
        key, equals, value = text.partition("=")
        parts = [part.strip() for part in key.split(".")]
        if not equals or not all(parts):
            raise ConfigError(f"--set {text!r} is not KEY=VALUE; write for example --set training.batch_size=2048.")
        section = settings
        for depth, part in enumerate(parts[:-1], 1):
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise ConfigError(f"--set {text!r}: {'.'.join(parts[:depth])} is a setting, not a section of settings.")
        section[parts[-1]] = _value(value.strip())
    return settings


def _value(text: str) -> Any:
    """The TOML value that `text` is, or `text` itself: bare words are strings."""
    if text.count(".") > MOST_DOTS:
        return text
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        return text
    return parsed["value"] if len(parsed) == 1 else text
