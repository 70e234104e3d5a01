"""The command line: statuses, one sentence for what is wrong, near matches, JSON and nothing else."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest

from engine import cli, commands
from engine.checkpoint import list_checkpoints
from engine.config import Config
from engine.metrics import read_metrics

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "configs" / "smoke.toml"
QUICK = ["--set", "training.updates=2", "--set", "traversal.count=16", "--set", "evaluation.every=2"]


@pytest.fixture
def freecfr(capsys):
    def call(*args):
        status = cli.main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = tmp_path_factory.mktemp("trained") / "run"
    assert cli.main(["train", str(SMOKE), "--run", str(run), "--set", "iterations=4", *QUICK]) == 0
    return run


@pytest.mark.parametrize(
    "line, says",
    [
        ("", "no command given; there are: train, eval"),
        ("trian x", "no command 'trian'; did you mean 'train'?"),
        ("train", "required: CONFIG"),
        ("train a.toml b.toml", "no use for 'b.toml'"),
        ("train a.toml --thread 3", "no option '--thread'; did you mean '--threads'?"),
        ("train a.toml --thread=3", "no option '--thread'; did you mean '--threads'?"),
        ("train a.toml --resume", "--resume needs --run DIR"),
        ("train a.toml --threads", "expected one argument"),
        ("train nope.toml", "nope.toml does not exist"),
        ("train .", "is a folder"),
        (f"train {SMOKE} --threads 0", "threads is 0, but must be a whole number from 1"),
        (f"train {SMOKE} --threads two", "threads is 'two', but must be a whole number"),
        (f"train {SMOKE} --workers processes", "workers is 'processes', but must be"),
        (f"train {SMOKE} --set scheduler=serve", "scheduler is 'serve', but must be"),
        (f"train {SMOKE} --device gpu", "device is 'gpu', but must be"),
        (f"train {SMOKE} --set seed", "--set 'seed' is not KEY=VALUE"),
        (f"train {SMOKE} --set training.updaets=3", "did you mean 'training.updates'"),
        (f"train {SMOKE} --set game.name=kun", "no game is called 'kun'; did you mean 'kuhn'?"),
        (f"train {SMOKE} --set algorithm=escher", "algorithm is 'escher', which is not built yet"),
        (f"train {SMOKE} --run nope --resume", "nope does not exist"),
        ("eval nope", "nope does not exist"),
        ("eval .", "not a run's folder"),
        ("eval x --games 0", "'0' games cannot be played"),
        ("eval x --games 7", "'7' games cannot be played"),
        ("eval x --threads 0", "'0' threads cannot work"),
        ("eval x --seed -1", "'-1' is not a whole number"),
        ("bench traversl", "no bench 'traversl'; did you mean 'traversal'?"),
        ("bench forward --threads 0", "'0' threads cannot work"),
        ("report nope", "not a run's folder"),
        ("report .", "has no config.toml"),
        ("report", "required: RUN"),
        ("doctor --jsn", "no option '--jsn'; did you mean '--json'?"),
    ],
)
def test_bad_usage_and_bad_input(freecfr, tmp_path, monkeypatch, line, says):
    monkeypatch.chdir(tmp_path)
    status, out, err = freecfr(*line.split())
    assert status == 2
    assert says in err and out == ""
    assert err.count("\n") == 1 and err.startswith("freecfr: ") and "Traceback" not in err
    assert list(tmp_path.iterdir()) == [], "nothing was written"


def test_help_names_every_kind_of_workers(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    told = capsys.readouterr().out
    assert all(kind in "".join(told.split()) for kind in get_args(Config.model_fields["workers"].annotation))


def test_help_ends_with_an_example(capsys):
    for command in ("train", "eval", "bench", "report", "doctor"):
        with pytest.raises(SystemExit) as caught:
            cli.main([command, "--help"])
        assert caught.value.code == 0
        example = capsys.readouterr().out.strip().splitlines()[-1].strip()
        assert example.startswith(f"freecfr {command}")
        cli.parse(example.split()[1:])
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "example:" in capsys.readouterr().out


def test_train_prints_one_json_object(freecfr, tmp_path):
    run = tmp_path / "run"
    status, out, err = freecfr("train", SMOKE, "--run", run, "--json", "--threads", 2, "--set", "iterations=3", *QUICK)
    assert status == 0
    result = json.loads(out, parse_constant=pytest.fail)
    assert result["run"] == str(run) and result["checkpoint"] == str(run / "checkpoints" / "iteration-000003")
    assert {"iteration", "nodes", "traversals", "nodes_per_second", "digest", "collect_seconds", "train_seconds",
            "iteration_seconds", "threads", "gil_enabled", "python", "torch", "peak_rss_mib", "policy_loss",
            "advantage_loss", "exploitability"} <= result.keys()  # fmt: skip
    assert read_metrics(run / "metrics.jsonl")[-1] == {
        key: value for key, value in result.items() if key not in ("run", "checkpoint")
    }
    assert err.startswith(f"run: {run}\n") and "iteration 3/3" in err


def test_an_existing_run_is_refused_and_gone_on_with(freecfr, trained):
    before = (trained / "metrics.jsonl").read_bytes()
    status, out, err = freecfr("train", SMOKE, "--run", trained)
    assert status == 2 and "never overwritten" in err
    status, out, err = freecfr("train", SMOKE, "--run", trained, "--resume", "--set", "seed=9")
    assert status == 2 and "seed is 9" in err
    assert (trained / "metrics.jsonl").read_bytes() == before
    status, out, err = freecfr("train", SMOKE, "--run", trained, "--resume", "--json")
    assert status == 0 and json.loads(out)["iteration"] == 4
    assert (trained / "metrics.jsonl").read_bytes() == before


def test_eval(freecfr, trained):
    status, out, err = freecfr("eval", trained, "--games", 20, "--json")
    result = json.loads(out, parse_constant=pytest.fail)
    assert status == 0 and result["exact"] is True
    assert result["exploitability"] == read_metrics(trained / "metrics.jsonl")[-1]["exploitability"]
    assert result["nash_conv"] == 2 * result["exploitability"] and "game_value" in result
    [match] = result["matches"]
    assert match["opponent"] == "random" and match["games"] == 20 and len(match["win_rate_ci95"]) == 2
    assert {"win_rate", "score_mean", "score_sd"} <= match.keys()
    newest = list_checkpoints(trained / "checkpoints")[0]
    again = json.loads(freecfr("eval", newest, "--games", 20, "--threads", 1, "--json")[1])
    assert [again["matches"][0][key] for key in ("win_rate", "score_sd")] == [match["win_rate"], match["score_sd"]]
    status, out, err = freecfr("eval", trained, "--games", 20)
    assert status == 0 and "exploitability" in out and "random" in out


def test_eval_refuses_bots_of_another_game(freecfr, trained):
    status, out, err = freecfr("eval", trained, "--opponent", "opener")
    assert status == 2 and "opener plays lost_cities, not kuhn" in err
    status, out, err = freecfr("eval", trained, "--opponent", "radnom")
    assert status == 2 and "did you mean random" in err


def test_eval_refuses_a_half_written_checkpoint(freecfr, tmp_path):
    half = tmp_path / "checkpoints" / "iteration-000001"
    half.mkdir(parents=True)
    (half / "state.pt").write_bytes(b"half")
    for path in (tmp_path, half):
        status, out, err = freecfr("eval", path)
        assert status == 2 and "half written" in err and err.count("\n") == 1


def test_report(freecfr, trained, tmp_path):
    status, out, err = freecfr("report", trained, "--out", tmp_path / "report")
    assert status == 0 and out.strip() == str(tmp_path / "report" / "index.html")
    status, out, err = freecfr("report", trained)
    assert (trained / "report" / "index.html").is_file()


def test_doctor(freecfr):
    status, out, err = freecfr("doctor", "--json")
    result = json.loads(out)
    assert status == 0
    assert {"python", "free_threaded_build", "gil_enabled", "gil_enabled_by", "threads_default", "torch",
            "torch_threads", "cuda", "inference_dtype", "advice"} <= result.keys()  # fmt: skip
    assert all(isinstance(text, str) for text in result["advice"]) and result["advice"]
    status, out, err = freecfr("doctor")
    assert status == 0 and "free_threaded_build" in out


def test_bad_input_that_comes_to_light_late_leaves_nothing(freecfr, tmp_path, monkeypatch):
    from engine import trainer
    from engine.errors import BadInput

    def refuse(*args, **more):
        raise BadInput("memory.capacity needs more memory than there is; lower it.")

    monkeypatch.setattr(trainer, "Trainer", refuse)
    status, out, err = freecfr("train", SMOKE, "--run", tmp_path / "run")
    assert status == 2 and "lower it" in err and not (tmp_path / "run").exists()


def test_a_run_that_fails_has_status_1(freecfr, tmp_path, monkeypatch):
    from engine.checkpoint import CheckpointStore
    from engine.errors import CheckpointError

    def fail(*_):
        raise CheckpointError("checkpoint of iteration 1 could not be written: No space left on device.")

    monkeypatch.setattr(CheckpointStore, "_save", fail)
    status, out, err = freecfr("train", SMOKE, "--run", tmp_path / "run", "--set", "iterations=2", *QUICK)
    assert status == 1 and "No space left" in err and "Traceback" not in err


@pytest.mark.parametrize("forced, allowed", [(False, False), (True, False), (False, True)])
def test_train_refuses_a_gil_that_was_switched_on(freecfr, tmp_path, monkeypatch, forced, allowed):
    from engine import doctor

    monkeypatch.setattr(doctor, "gil_enabled", lambda: True)
    monkeypatch.setattr(doctor, "free_threaded_build", lambda: True)
    monkeypatch.setattr(doctor, "gil_forced", lambda: forced)
    monkeypatch.setattr(doctor, "gil_enabled_by", lambda: ["spoiler"])
    extra = ["--allow-gil"] if allowed else []
    status, out, err = freecfr("train", SMOKE, "--run", tmp_path / "run", "--set", "iterations=1", *QUICK, *extra)
    if allowed:
        assert status == 0 and "the GIL is on, as allowed" in err
    else:
        assert status == 2 and not (tmp_path / "run").exists() and "--allow-gil" in err
        assert ("unset PYTHON_GIL" if forced else "switched on by spoiler") in err


def test_cells_of_a_bench_table():
    assert [commands._cell(value) for value in (None, 12345.6, 0.123456, 7, "x", True)] == [
        "", "12,346", "0.1235", "7", "x", "True"
    ]  # fmt: skip


def start(*args):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "engine", *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_names_its_boundary_and_goes_on(freecfr, tmp_path, number, status):
    run = tmp_path / "run"
    settings = ["--set", "iterations=100000", "--set", "checkpoint.every=1000", *QUICK]
    with start("train", SMOKE, "--run", run, "--json", *settings) as process:
        deadline = time.monotonic() + 120
        while len(read_metrics(run / "metrics.jsonl")) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        process.send_signal(number)  # as `timeout` does: the same request once more
        asked = time.monotonic()
        out, err = process.communicate(timeout=60)
        assert time.monotonic() - asked < 5
    assert process.returncode == status and out == "" and "Traceback" not in err
    newest = list_checkpoints(run / "checkpoints")[0]
    iteration = int(newest.name[-6:])
    assert iteration >= 3 and f"iteration {iteration} is on disk: {newest}" in err
    command = err.strip().splitlines()[-1]
    assert command == f"go on with: freecfr train {run}/config.toml --run {run} --resume"
    lines = read_metrics(run / "metrics.jsonl")
    assert iteration <= lines[-1]["iteration"] <= iteration + 1

    own = run / "config.toml"
    own.write_text(own.read_text().replace("iterations = 100000", f"iterations = {iteration + 2}"))
    status, out, err = freecfr("train", own, "--run", run, "--resume", "--json")
    assert status == 0 and json.loads(out)["iteration"] == iteration + 2
    numbers = [line["iteration"] for line in read_metrics(run / "metrics.jsonl")]
    assert numbers == list(range(1, iteration + 3))
