"""The promise of exact resumption: however often a run was killed, its end has the bits of one that never was."""

import itertools
import os
import random
import signal
import time

import pytest

from engine.metrics import read_metrics
from tests.commands import Command, freecfr
from tests.run_folders import contents, reference, written

# Small runs that between them use both samplings, both averages and traversals that run ahead.
NAMES = ["kuhn", "leduc", "kuhn_pipelined", "leduc_pipelined"]
RUNS = [*NAMES[:2], *(pytest.param(name, marks=pytest.mark.one_build) for name in NAMES[2:])]
EVALUATED = {"nash_conv", "exploitability", "game_value", "exact", "infosets_sampled", "infosets"}


def lines(log):
    return log.read_bytes().count(b"\n") if log.exists() else 0


def killed_and_resumed(path, run, kills, chance):
    """Kill a run so many times, each when a few iterations and a random share of the next have passed, or earlier."""
    log = run / "metrics.jsonl"
    command = Command("train", path, "--run", run)
    for _, threads in zip(range(kills), itertools.cycle((2, 1, 3)), strict=False):
        if chance.random() < 0.8:
            further = lines(log) + chance.randint(1, 3)
            command.wait_for(lambda: lines(log) >= further)  # noqa: B023
            time.sleep(min(0.1, chance.random() * read_metrics(log)[-1]["iteration_seconds"]))
        else:  # while it starts, or reads what it goes on from
            command.wait_for_text("run: ")
            time.sleep(chance.random() * 0.05)
        command.send(signal.SIGKILL)
        assert command.end().status == -signal.SIGKILL
        command = Command("train", path, "--run", run, "--resume", "--threads", threads)
    return command.end()


@pytest.mark.parametrize(
    "name, kills",
    [("leduc", 5), ("kuhn_pipelined", 5), *(pytest.param(name, 50, marks=pytest.mark.slow) for name in NAMES)],
)
def test_a_run_killed_at_random_moments_ends_with_the_same_bits(tmp_path, name, kills):
    path, config = written(tmp_path, name, iterations=10 * kills)
    expected = reference(tmp_path, config)
    run = tmp_path / "run"
    ended = killed_and_resumed(path, run, kills, random.Random(20))
    assert ended.status == 0, ended.err
    assert [line["iteration"] for line in read_metrics(run / "metrics.jsonl")] == [*range(1, config.iterations + 1)]
    assert contents(run, config) == expected


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_runs_killed_for_as_long_as_it_is_given(tmp_path):
    """Other moments each time, and more kills than iterations that survive them."""
    chance, until = random.Random(), time.monotonic() + float(os.environ.get("SOAK_SECONDS", "180"))
    turns = 0
    while time.monotonic() < until or not turns:
        folder = tmp_path / str(turns)
        folder.mkdir()
        path, config = written(folder, NAMES[turns % len(NAMES)], iterations=30, seed=chance.randrange(1 << 30))
        expected = reference(folder, config)
        run = folder / "run"
        ended = killed_and_resumed(path, run, 20, chance)
        assert ended.status == 0, ended.err
        assert contents(run, config) == expected
        turns += 1
    print(f"{turns} runs, each killed 20 times")


@pytest.mark.parametrize("name", RUNS)
def test_a_run_made_longer_is_a_run_that_was_that_long_from_the_start(tmp_path, name):
    path, config = written(tmp_path, name, iterations=5)
    expected, *rest = reference(tmp_path, config)
    run = tmp_path / "run"
    assert freecfr("train", path, "--run", run, "--set", "iterations=3").status == 0
    longer = freecfr("train", path, "--run", run, "--set", "iterations=5", "--resume", "--threads", 3)
    assert longer.status == 0, longer.err
    metrics, *others = contents(run, config)
    assert others == rest
    # A run evaluates its last iteration, whichever that was.
    for line in (metrics[2], expected[2]):
        for key in EVALUATED:
            line.pop(key, None)
    assert metrics == expected


def test_a_finished_run_is_left_as_it_is(tmp_path):
    path, config = written(tmp_path, "kuhn")
    run = tmp_path / "run"
    first = freecfr("train", path, "--run", run, "--json")
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    again = freecfr("train", path, "--run", run, "--resume", "--json")
    assert (first.status, again.status) == (0, 0), again.err
    assert again.out == first.out
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
