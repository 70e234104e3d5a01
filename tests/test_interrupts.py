"""Ctrl-C and SIGTERM: workers stop, the last completed iteration is on disk, and the run goes on to equal bits."""

import re
import signal
import sys
import time
from functools import partial

import pytest

from engine.checkpoint import CheckpointStore, list_checkpoints
from engine.inference import PublishedNetwork
from engine.interrupts import SAME_REQUEST
from engine.metrics import MetricsLog, read_metrics
from engine.saving import Saver
from engine.trainer import Trainer
from tests.commands import Command, freecfr
from tests.run_folders import contents, reference, written
from tests.runs import ROOT

# With the GIL a stop waits for whoever holds it, and on a loaded machine these bounds were missed.
pytestmark = pytest.mark.one_build

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}
# Seconds from the signal to the end of the process. Promised are 5; a loaded machine may take longer, while what does
# not poll for interrupts takes minutes here.
SOON = 15

FULL_GAME = ["--set", "memory.capacity=20000", "--set", "inference_dtype=float32", "--set", "training.autocast=false"]
# What a first iteration of the full game does for minutes, and its settings.
PHASES = {
    "collecting": ["traversal.count=1000000", "training.updates=1"],
    "training": ["traversal.count=8", "training.updates=1000000"],
    "a large batch": ["traversal.count=8", "training.updates=100000", "training.batch_size=16384"],
    "evaluating": ["traversal.count=8", "training.updates=1", "evaluation.every=1", "evaluation.games=10000000"],
}


def interrupted(command, number):
    """How a command ended that was sent a signal, in time and with its status."""
    command.send(number)
    ended = command.end(SOON)
    assert ended.status == STATUS[number], ended.err
    assert "Traceback" not in ended.err
    assert ("terminated" if number == signal.SIGTERM else "interrupted") in ended.err
    return ended


@pytest.mark.parametrize("phase", PHASES)
def test_the_full_game_stops_in_its_first_iteration(tmp_path, phase):
    run = tmp_path / "run"
    changes = [text for change in PHASES[phase] for text in ("--set", change)]
    config = ROOT / "configs" / "lost_cities.toml"
    command = Command("train", config, "--run", run, "--threads", 2, *FULL_GAME, *changes)
    command.wait_for_text("run: ")
    command.wait_for_work(2)
    ended = interrupted(command, signal.SIGTERM if phase == "training" else signal.SIGINT)
    assert "no iteration was complete" in ended.err
    assert ended.err.endswith(f"go on with: freecfr train {run / 'config.toml'} --run {run} --resume\n")
    assert not read_metrics(run / "metrics.jsonl") and not list_checkpoints(run / "checkpoints")


# Signal, name of a run, and settings that make one of its phases most of an iteration.
LONG = {
    "collecting": (signal.SIGINT, "leduc", {"traversal": {"count": 2000, "block": 100}, "training": {"updates": 1}}),
    "training": (signal.SIGTERM, "kuhn", {"training": {"updates": 100, "batch_size": 256, "shards": 4}}),
}


@pytest.mark.parametrize("phase", LONG)
def test_an_interrupted_run_names_its_boundary_and_goes_on_to_the_same_bits(tmp_path, phase):
    number, name, changes = LONG[phase]
    path, config = written(tmp_path, name, iterations=9, checkpoint={"every": 5}, **changes)
    expected = reference(tmp_path, config)
    run = tmp_path / "run"
    command = Command("train", path, "--run", run, "--threads", 2)
    for before in (0, 3):
        # A line is written just before its iteration counts as complete, so that the last may be dropped again.
        command.wait_for(lambda: len(read_metrics(run / "metrics.jsonl")) > before + 1)  # noqa: B023
        ended = interrupted(command, number)
        [newest, *_] = list_checkpoints(run / "checkpoints")
        iteration = int(newest.name.rpartition("-")[2])
        assert f"iteration {iteration} is on disk: {newest}\n" in ended.err
        # At most the line of one more iteration had been written when it was dropped.
        assert before < iteration <= len(read_metrics(run / "metrics.jsonl")) <= iteration + 1
        again = re.fullmatch(r"go on with: freecfr (.*)", ended.err.splitlines()[-1])[1].split()
        command = Command(*again, "--threads", 3)
    ended = command.end()
    assert ended.status == 0, ended.err
    assert contents(run, config) == expected


def stuck_workers(first=1, polling=True):
    """Make the workers of every iteration from this one on busy for ever, with or without a look at interrupts."""
    from engine import trainer

    collect = trainer.collect

    def stuck(pool, collector, config, iteration, *more):
        if iteration < first:
            return collect(pool, collector, config, iteration, *more)
        print("workers stuck", file=sys.stderr, flush=True)

        def job(_):
            while True:
                time.sleep(0.05)
                if polling:
                    pool.raise_if_stopping()

        return pool.map(job, range(pool.threads))

    trainer.collect = stuck


def test_interrupted_before_its_first_boundary_a_run_goes_on_from_the_start(tmp_path):
    path, config = written(tmp_path, "kuhn")
    expected = reference(tmp_path, config)
    run = tmp_path / "run"
    command = Command("train", path, "--run", run, before=stuck_workers)
    command.wait_for_text("workers stuck\n")
    assert "no iteration was complete" in interrupted(command, signal.SIGINT).err
    assert freecfr("train", path, "--run", run, "--resume").status == 0
    assert contents(run, config) == expected


def test_a_second_request_ends_what_does_not_stop_at_once(tmp_path):
    path, config = written(tmp_path, "kuhn")
    expected = reference(tmp_path, config)
    run = tmp_path / "run"
    command = Command("train", path, "--run", run, before=partial(stuck_workers, first=4, polling=False))
    command.wait_for_text("workers stuck\n")
    command.send(signal.SIGINT)
    time.sleep(1.5 * SAME_REQUEST)
    assert command.running
    command.send(signal.SIGINT)
    assert command.end(SOON).status == 130
    assert [path.name for path in list_checkpoints(run / "checkpoints")] == ["iteration-000002"]
    ended = freecfr("train", path, "--run", run, "--resume")
    assert ended.status == 0, ended.err
    assert contents(run, config) == expected


def test_eval_stops(tmp_path):
    path, _ = written(tmp_path, "lost_cities")
    run = tmp_path / "run"
    assert freecfr("train", path, "--run", run).status == 0
    command = Command("eval", run, "--opponent", "random", "--games", 10_000_000)
    command.wait_for_work(1)
    ended = interrupted(command, signal.SIGINT)
    assert ended.err == "freecfr: interrupted; nothing was evaluated to its end\n" and ended.out == ""


# Whatever an iteration does in the thread that interrupts are raised in.
MOMENTS = [
    (PublishedNetwork, "publish_state"),
    (CheckpointStore, "add_network"),
    (CheckpointStore, "digest"),
    (MetricsLog, "append"),
    (CheckpointStore, "complete"),
    (CheckpointStore, "prepared"),
    (Saver, "begin"),
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    return reference(folder, written(folder, "leduc", iterations=5, threads=2)[1])


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("home, name", MOMENTS, ids=[name for _, name in MOMENTS])
def test_an_interrupt_at_any_moment_of_an_iteration_loses_nothing(
    tmp_path, monkeypatch, uninterrupted, home, name, after
):
    _, config = written(tmp_path, "leduc", iterations=5, threads=2)
    run = tmp_path / "run"
    run.mkdir()
    trainer = Trainer(config, run_dir=run)
    original = getattr(home, name)

    def interrupting(self, *args):
        if trainer.iteration < 2:
            return original(self, *args)
        monkeypatch.setattr(home, name, original)
        if after:
            original(self, *args)
        raise KeyboardInterrupt

    monkeypatch.setattr(home, name, interrupting)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    Trainer(config, run_dir=run, resume=True).run()
    assert contents(run, config) == uninterrupted
