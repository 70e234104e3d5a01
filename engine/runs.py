"""A run's folder: made once, locked while in use, gone on with only by its own settings."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from engine.checkpoint import list_checkpoints, read_checkpoint
from engine.config import LARGEST_FILE, MAY_CHANGE, Config, changes
from engine.errors import ConfigError, RunError
from engine.needs import refuse_too_large
from engine.untrusted import refuse_links

# What a folder holds until its config.toml is there: no run yet, so that one killed this early is as if it never was.
BEGUN = (".lock", "run.json", ".config.toml.tmp")


class RunFolder:
    """A run's folder that this process may write to, from `create` or `resume` to the end of its `with` block.

    Guarantees: no other process holds the same folder; the lock dies with the process that took it.
    """

    def __init__(self, path: Path, config: Config, lock: int, *, new: bool) -> None:
        self.path, self.config = path, config
        self._new = new
        self._lock = lock

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def discard(self) -> None:
        """Remove what `create` wrote: nothing was started after all."""
        for name in (*BEGUN, "config.toml"):
            (self.path / name).unlink(missing_ok=True)
        if self._new and not any(self.path.iterdir()):
            self.path.rmdir()
        self.close()

    def close(self) -> None:
        """Let others have the folder. May be repeated."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @classmethod
    def create(cls, path: Path | str | None, config_path: Path | str, overrides: Sequence[str] = ()) -> RunFolder:
        """A new run of a config changed by `KEY=VALUE` texts; without a path, below `runs/`.

        Raises ConfigError or RunError before anything is written, and leaves nothing behind where writing fails.
        """
        config = Config.from_toml(config_path, overrides).resolved()
        refuse_too_large(config)
        folder = _new_folder(Path(config_path)) if path is None else Path(path)
        try:
            new = _make(folder)
            lock = _locked(folder)
        except OSError as error:
            raise RunError(f"{folder} cannot be made ({error.strerror}); give another folder with --run.") from None
        made = cls(folder, config, lock, new=new)
        try:
            started = {
                "config": str(config_path),
                "overrides": list(overrides),
                "reproducible": config.reproducible,
            }
            (folder / "run.json").write_text(json.dumps(started, indent=1) + "\n")
            _write_config(folder, config)
        except OSError as error:
            made.discard()
            raise RunError(f"{folder} cannot be written ({error.strerror}); give another with --run.") from None
        return made

    @classmethod
    def resume(cls, path: Path | str, config_path: Path | str, overrides: Sequence[str] = ()) -> RunFolder:
        """An existing run, gone on with from its own config.toml.

        The config at `config_path` with the overrides that the run was started with, and now `overrides`, may differ
        from it in threads, workers and a larger iterations; ConfigError says what else differs.
        """
        folder = Path(path)
        own = folder / "config.toml"
        if folder.is_file():
            raise RunError(f"{folder} is a file, but a run is a folder; give the run's own.")
        if not folder.is_dir():
            raise RunError(f"{folder} does not exist, so no run can go on there; leave --resume out to start one.")
        if not own.is_file():
            raise RunError(f"{folder} is not a run's folder: it has no config.toml; give a run's own folder.")
        refuse_links(folder)
        try:
            lock = _locked(folder)
        except OSError as error:
            raise RunError(f"{folder} cannot be written ({error.strerror}); a run that goes on has to.") from None
        try:
            config = _gone_on(folder, Path(config_path), overrides)
            refuse_too_large(config)
            _write_config(folder, config)
        except OSError as error:
            os.close(lock)
            raise RunError(f"{own} cannot be written ({error.strerror}); a run that goes on has to.") from None
        except BaseException:
            os.close(lock)
            raise
        return cls(folder, config, lock, new=False)


def _new_folder(config_path: Path) -> Path:
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = Path("runs") / f"{config_path.stem}-{now}"
    number = 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{config_path.stem}-{now}-{number}"
    return folder


def _make(folder: Path) -> bool:
    """Make a folder, or take one without a run; whether it is new."""
    if folder.is_dir():
        if any(entry.name not in BEGUN for entry in folder.iterdir()):
            raise RunError(
                f"{folder} exists and is never overwritten; add --resume to go on with it, or give another --run."
            )
        refuse_links(folder)
        return False
    if folder.exists():
        raise RunError(f"{folder} is a file, but a run needs a folder; give another --run.")
    folder.mkdir(parents=True)
    return True


def _locked(folder: Path) -> int:
    """The descriptor that holds the folder's lock. Not inherited by child processes."""
    fd = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise RunError(f"{folder} is in use by another run; wait for it to end, or give another --run.") from None
    except OSError:
        os.close(fd)
        raise
    return fd


def _write_config(folder: Path, config: Config) -> None:
    beside = folder / ".config.toml.tmp"
    beside.write_text(config.to_toml())
    os.replace(beside, folder / "config.toml")


def _started_with(folder: Path) -> list[str]:
    """The overrides that a run was started with."""
    try:
        with open(folder / "run.json", encoding="utf-8") as file:
            overrides = json.loads(file.read(LARGEST_FILE))["overrides"]
        return [text for text in overrides if isinstance(text, str)]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def _gone_on(folder: Path, config_path: Path, overrides: Sequence[str]) -> Config:
    """The settings that a run goes on with. Raises ConfigError naming everything that may not change."""
    own = folder / "config.toml"
    config = stored = Config.from_toml(own)
    if not (config_path.exists() and config_path.samefile(own)):
        given = _settled(Config.from_toml(config_path, _started_with(folder)), stored)
        _refuse(f"in {config_path}", folder, stored, given)
        larger = max(given.iterations, stored.iterations)
        config = stored.with_overrides([f"threads={given.threads}", f"iterations={larger}"])
    before, config = config, config.with_overrides(overrides)
    if config.iterations < before.iterations and config.iterations < stored.iterations:
        raise ConfigError(
            f"iterations is {config.iterations}, but {folder} was to have {stored.iterations}; give as many or more."
        )
    config = config.resolved()
    _refuse("asked for", folder, stored, config)
    if list_checkpoints(folder / "checkpoints"):
        saved = read_checkpoint(folder, notify=lambda text: None)
        wrong = [key for key, value in config.flat().items() if saved.config.get(key, value) != value]
        if wrong := [key for key in wrong if key not in MAY_CHANGE]:
            raise ConfigError(
                f"{key} is {config.flat()[key]!r} in {own}, but {saved.config[key]!r} in the run's checkpoints; "
                "put it back, or start a new run."
                for key in wrong
            )
    return config


def _settled(given: Config, stored: Config) -> Config:
    """What `given` leaves open becomes what the run had; the rest is decided as for any run."""
    flat, left_open = given.flat(), ["threads", "traversal.block", "traversal.lanes"]
    if given.training.batch_size == stored.training.batch_size:
        left_open.append("training.shards")
    taken = {
        key: value
        for key, value in stored.flat().items()
        if flat.get(key) == "auto" or (key in left_open and key not in flat)
    }
    return given.with_overrides([f"{key}={json.dumps(value)}" for key, value in taken.items()]).resolved()


def _refuse(where: str, folder: Path, stored: Config, given: Config) -> None:
    wrong: Iterable[str] = [key for key in changes(stored, given) if key not in MAY_CHANGE]
    if "game.name" in wrong:
        raise ConfigError(
            f"game.name is {given.game.name!r} {where}, but {folder} plays {stored.game.name!r}; "
            "give its own config, or start a new run."
        )
    if wrong:
        differing = changes(stored, given)
        raise ConfigError(
            f"{key} is {differing[key][1]!r} {where}, but {differing[key][0]!r} in {folder}; only threads, workers and "
            "a larger iterations may change when a run goes on: leave it out, or start a new run."
            for key in wrong
        )
