"""Runs' folders: never overwritten, locked, gone on with only by their own settings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.checkpoint import Boundary, CheckpointStore
from engine.config import Config
from engine.errors import BadInput, ConfigError, RunError
from engine.runs import RunFolder

SMOKE = Path(__file__).parents[2] / "configs" / "smoke.toml"


@pytest.fixture
def run(tmp_path):
    """A run that was started with a seed of its own, and is not in use."""
    with RunFolder.create(tmp_path / "run", SMOKE, ["seed=5", "iterations=20"]) as folder:
        return folder.path


def resumed(*args):
    with RunFolder.resume(*args) as folder:
        return folder.config


def refusal(*args):
    with pytest.raises(ConfigError) as caught:
        resumed(*args)
    assert "\n" not in caught.value.problems[0]
    return caught.value.problems


def test_a_new_run_writes_its_settings(run):
    config = Config.from_toml(run / "config.toml")
    assert (config.seed, config.iterations) == (5, 20)
    assert config.threads is not None and "auto" not in config.flat().values()


def test_default_folder_is_new_each_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RunFolder.create(None, SMOKE) as one, RunFolder.create(None, SMOKE) as two:
        assert one.path != two.path
        for folder in (one, two):
            assert folder.path.parent == Path("runs") and folder.path.name.startswith("smoke-2")


def test_an_existing_run_is_never_overwritten(run, tmp_path):
    with pytest.raises(RunError, match="never overwritten; add --resume"):
        RunFolder.create(run, SMOKE)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file"):
        RunFolder.create(tmp_path / "file", SMOKE)


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "empty").mkdir()
    RunFolder.create(tmp_path / "empty", SMOKE).discard()
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_folder_whose_run_was_killed_before_it_had_settings_is_taken(run):
    (run / "config.toml").rename(run / ".config.toml.tmp")
    with pytest.raises(RunError, match="no config.toml"):
        RunFolder.resume(run, SMOKE)
    with RunFolder.create(run, SMOKE, ["seed=6"]) as folder:
        assert Config.from_toml(run / "config.toml") == folder.config


def test_discard_leaves_nothing(tmp_path):
    RunFolder.create(tmp_path / "run", SMOKE).discard()
    assert not (tmp_path / "run").exists()


def test_bad_settings_leave_nothing(tmp_path):
    with pytest.raises(ConfigError):
        RunFolder.create(tmp_path / "run", SMOKE, ["threads=0"])
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(run, tmp_path):
    tmp_path.chmod(0o555)
    run.chmod(0o555)
    try:
        with pytest.raises(RunError, match="Permission denied"):
            RunFolder.create(tmp_path / "other", SMOKE)
        (run / ".lock").unlink(missing_ok=True)
        with pytest.raises(RunError, match="Permission denied"):
            RunFolder.resume(run, SMOKE)
    finally:
        tmp_path.chmod(0o755)
        run.chmod(0o755)


def test_what_cannot_be_written_is_refused(run, monkeypatch):
    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(RunError, match="cannot be written .Permission denied"):
        RunFolder.create(run.parent / "other", SMOKE)
    assert not (run.parent / "other").exists()
    with pytest.raises(RunError, match="cannot be written .Permission denied"):
        RunFolder.resume(run, SMOKE)


def test_two_runs_on_one_folder_are_refused(run):
    with RunFolder.resume(run, SMOKE):
        with pytest.raises(RunError, match="in use by another run"):
            RunFolder.resume(run, SMOKE)
    resumed(run, SMOKE)


def test_the_lock_dies_with_its_process(run):
    hold = (
        "import sys, time\nfrom engine.runs import RunFolder\n"
        "folder = RunFolder.resume(*sys.argv[1:])\nprint('held', flush=True)\ntime.sleep(60)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", hold, run, SMOKE], stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match="in use"):
            RunFolder.resume(run, SMOKE)
        process.kill()
    resumed(run, SMOKE)


def test_resume_goes_on_with_the_runs_own_settings(run):
    stored = Config.from_toml(run / "config.toml")
    assert resumed(run, SMOKE) == stored
    assert resumed(run, run / "config.toml") == stored
    assert resumed(run, SMOKE, ["seed=5"]) == stored


def test_threads_and_more_iterations_may_change(run):
    config = resumed(run, SMOKE, ["threads=7", "iterations=30"])
    assert (config.threads, config.iterations) == (7, 30)
    assert resumed(run, SMOKE) == config, "and the run remembers"


@pytest.mark.parametrize(
    "override, says",
    [
        ("seed=6", "seed is 6 asked for, but 5 in"),
        ("training.batch_size=256", "training.batch_size is 256 asked for, but 128 in"),
        ("game.name=leduc", "game.name is 'leduc' asked for"),
        ("iterations=3", "iterations is 3, but .* was to have 20"),
        ("traversal.block=9", "traversal.block is 9 asked for, but 8 in"),
    ],
)
def test_anything_else_is_refused(run, override, says):
    before = (run / "config.toml").read_bytes()
    with pytest.raises(ConfigError, match=says):
        resumed(run, SMOKE, [override])
    assert (run / "config.toml").read_bytes() == before


def test_a_changed_config_is_refused(run, tmp_path):
    changed = tmp_path / "changed.toml"
    changed.write_text(SMOKE.read_text().replace("updates = 20", "updates = 30").replace("count = 64", "count = 70"))
    problems = refusal(run, changed)
    assert "traversal.count is 70 in" in problems[0] and "training.updates is 30 in" in problems[1]


def test_a_config_of_another_game_is_refused(run):
    [problem] = refusal(run, SMOKE.parent / "leduc.toml")
    assert "plays 'kuhn'" in problem


def test_a_changed_run_config_is_held_against_its_checkpoints(run):
    config = Config.from_toml(run / "config.toml")
    store = CheckpointStore(run, 3, {}, config.flat())
    store.complete(Boundary(1, {}, {}))
    store.save()
    own = run / "config.toml"
    own.write_text(own.read_text().replace("iterations = 20", "iterations = 25"))
    assert resumed(run, own).iterations == 25
    own.write_text(own.read_text().replace("seed = 5", "seed = 6"))
    [problem] = refusal(run, own)
    assert "seed is 6 in" in problem and "but 5 in the run's checkpoints" in problem


def test_what_is_no_run_is_refused(tmp_path, run):
    for path, says in {tmp_path / "nope": "does not exist", tmp_path: "has no config.toml"}.items():
        with pytest.raises(BadInput, match=says):
            RunFolder.resume(path, SMOKE)
    (run / "config.toml").write_text("seed = ")
    with pytest.raises(ConfigError, match="not valid TOML"):
        RunFolder.resume(run, SMOKE)
