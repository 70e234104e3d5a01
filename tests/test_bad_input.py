"""Bad input gets a sentence, not a traceback, from the command line as it is started; what was there stays as it was.

Statuses, near matches and settings one by one are in engine/test_cli.py and engine/test_config.py.
"""

import json
import resource
import shutil

import pytest

from engine.checkpoint import list_checkpoints
from engine.metrics import read_metrics
from tests.commands import freecfr, nobody, readable, sentence
from tests.run_folders import written


def files(folder):
    """Everything below a folder: contents of files, None for folders. A lock's file says nothing."""
    paths = [path for path in folder.rglob("*") if path.name != ".lock"]
    return {path: path.read_bytes() if path.is_file() else None for path in paths}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A config's file, and the folder of a run of it that came to its end; both only to be read."""
    folder = tmp_path_factory.mktemp("finished")
    path, _ = written(folder, "kuhn", iterations=6)
    assert freecfr("train", path, "--run", folder / "run").status == 0
    return path, folder / "run"


@pytest.fixture
def copied(finished, tmp_path):
    """The same, to be damaged."""
    path, run = finished
    return path, shutil.copytree(run, tmp_path / "run")


@pytest.mark.parametrize(
    "changes, words",
    [
        (["game.name=kuhm"], ["'kuhm'", "kuhn"]),
        (["game.name=lost_cities", "game.hand_size=0", "algorithm=outcome_sampling"], ["game", "hand_size"]),
        (["game.name=lost_cities"], ["external_sampling", "outcome_sampling"]),
        (["traversal.count=0"], ["traversal.count is 0"]),
        (["network.hidden=99999999"], ["network.hidden is 99999999"]),
        (["memory.capacity=-1"], ["memory.capacity is -1"]),
        (["training.batch_size=10", "training.shards=3"], ["training.batch_size is 10", "training.shards = 3"]),
        (["evaluation.opponents=['radnom']"], ["radnom", "did you mean random"]),
        (["threads=0"], ["threads is 0"]),
    ],
    ids=lambda value: value[0] if "=" in value[0] else "",
)
def test_settings_that_cannot_be(finished, tmp_path, changes, words):
    arguments = [text for change in changes for text in ("--set", change)]
    ended = freecfr("train", finished[0], "--run", tmp_path / "run", *arguments)
    assert len(ended.err.splitlines()) == 1
    sentence(ended, 2, *words)
    assert not files(tmp_path)


def little_memory():
    now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (3 << 30), resource.RLIM_INFINITY))


@pytest.mark.parametrize(
    "setting, words",
    [("memory.capacity=2147483648", ["memory.capacity is 2147483648"]), ("network.hidden=16384", ["network.hidden"])],
)
def test_sizes_that_this_machine_refuses(finished, tmp_path, setting, words):
    arguments = ["--set", setting, "--set", "network.layers=9", "--threads", 1]
    ended = freecfr("train", finished[0], "--run", tmp_path / "run", *arguments, before=little_memory)
    sentence(ended, 2, *words)
    assert not files(tmp_path)


def test_a_config_that_is_half_written(finished, tmp_path):
    half = tmp_path / "half.toml"
    text = finished[0].read_text()
    half.write_text(text[: text.index('"kuhn"') + 3])
    sentence(freecfr("train", half, "--run", tmp_path / "run"), 2, "half.toml", "TOML")
    assert [*files(tmp_path)] == [half]


def test_a_config_of_another_game_than_the_runs(finished, tmp_path):
    path, _ = written(tmp_path, "leduc")
    before = files(finished[1])
    ended = freecfr("train", path, "--run", finished[1], "--resume")
    sentence(ended, 2, "leduc", "kuhn")
    assert files(finished[1]) == before


def test_a_runs_config_changed_to_another_game_than_its_checkpoints(copied, tmp_path):
    _, run = copied
    own = run / "config.toml"
    own.write_text(own.read_text().replace('"kuhn"', '"leduc"'))
    before = files(run)
    sentence(freecfr("train", own, "--run", run, "--resume"), 2, "game.name", "leduc", "kuhn")
    assert files(run) == before


@pytest.mark.parametrize("command", ["train", "resume", "eval", "report"])
def test_a_run_that_is_a_file(finished, tmp_path, command):
    path, file = finished[0], tmp_path / "file"
    file.write_text("a file")
    arguments = {
        "train": ["train", path, "--run", file],
        "resume": ["train", path, "--run", file, "--resume"],
        "eval": ["eval", file],
        "report": ["report", file],
    }
    sentence(freecfr(*arguments[command]), 2, str(file), "folder")
    assert file.read_text() == "a file"


def test_a_run_below_a_file(finished, tmp_path):
    (tmp_path / "file").write_text("a file")
    sentence(freecfr("train", finished[0], "--run", tmp_path / "file" / "run"), 2, "cannot be made", "--run")
    sentence(freecfr("report", finished[1], "--out", tmp_path / "file" / "report"), 2, "cannot be written", "--out")


@pytest.fixture
def read_only(copied):
    path, run = copied
    path = shutil.copy(path, run.parent / "config.toml")
    readable(run)
    yield path, run
    for folder in [run, *run.rglob("*")]:
        folder.chmod(0o755)


@pytest.mark.parametrize("command", ["new", "resume"])
def test_a_read_only_run_folder(read_only, command):
    path, run = read_only
    before = files(run)
    arguments = {
        "new": ["train", path, "--run", run / "new"],
        "resume": ["train", path, "--run", run, "--resume"],
    }
    sentence(freecfr(*arguments[command], before=nobody), 2, "ermission denied")
    assert files(run) == before


def test_a_read_only_run_is_evaluated(read_only):
    assert freecfr("eval", read_only[1], "--games", 2, before=nobody).status == 0


def test_metrics_that_are_half_written(copied):
    """Their torn end is dropped and written again."""
    path, run = copied
    log = run / "metrics.jsonl"
    whole = read_metrics(log)
    shutil.rmtree(list_checkpoints(run / "checkpoints")[0])
    log.write_bytes(log.read_bytes()[:-40])
    assert freecfr("report", run).status == 0
    assert freecfr("train", path, "--run", run, "--resume").status == 0
    assert [line["digest"] for line in read_metrics(log)] == [line["digest"] for line in whole]


def test_metrics_that_are_not_there(copied):
    _, run = copied
    (run / "metrics.jsonl").unlink()
    sentence(freecfr("report", run), 2, "metrics.jsonl")


def test_a_damaged_checkpoint_is_reported_and_the_one_before_used(copied):
    path, run = copied
    newest, before = list_checkpoints(run / "checkpoints")
    state = bytearray((newest / "state.pt").read_bytes())
    state[len(state) // 2] ^= 1
    (newest / "state.pt").write_bytes(state)
    ended = freecfr("eval", run, "--games", 2, "--json")
    assert ended.status == 0 and json.loads(ended.out)["exact"] is True
    [line] = ended.err.splitlines()
    assert str(newest) in line and "cannot be used, the one before it is tried" in line
    digest = read_metrics(run / "metrics.jsonl")[-1]["digest"]
    ended = freecfr("train", path, "--run", run, "--resume", "--json")
    assert ended.status == 0 and f"{newest} cannot be used" in ended.err
    assert json.loads(ended.out)["digest"] == digest


def test_checkpoints_that_are_all_damaged(copied):
    path, run = copied
    for checkpoint in list_checkpoints(run / "checkpoints"):
        manifest = checkpoint / "manifest.json"
        manifest.write_bytes(manifest.read_bytes()[:100])
    before = files(run)
    for arguments in (["train", path, "--run", run, "--resume"], ["eval", run]):
        ended = freecfr(*arguments)
        assert ended.status == 2 and "Traceback" not in ended.err and "no checkpoint in" in ended.err
    sentence(freecfr("eval", list_checkpoints(run / "checkpoints")[0]), 2, "manifest.json")
    assert files(run) == before


def test_threads_that_have_no_block_idle_and_change_no_bit(finished, tmp_path):
    path, run = finished
    ended = freecfr("train", path, "--run", tmp_path / "run", "--threads", 19, "--json")
    assert ended.status == 0, ended.err
    [line] = [line for line in ended.err.splitlines() if "idle" in line]
    assert "threads is 19" in line and "8 blocks" in line and "11 threads idle" in line
    assert json.loads(ended.out)["digest"] == read_metrics(run / "metrics.jsonl")[-1]["digest"]
    assert "idle" not in freecfr("train", path, "--run", tmp_path / "few", "--threads", 8).err


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["trian", "x"], ["'trian'", "'train'"]),
        (["eval", "RUN", "--oponent", "random"], ["'--oponent'", "'--opponent'"]),
        (["eval", "RUN", "--opponent", "radnom"], ["radnom", "did you mean random"]),
        (["eval", "RUN", "--threads", "0"], ["'0' threads"]),
        (["eval", "RUN/config.toml"], ["config.toml", "folder"]),
        (["eval", "RUN/checkpoints/iteration-000099"], ["iteration-000099 does not exist"]),
    ],
)
def test_unknown_things(finished, tmp_path, arguments, words):
    before = files(finished[1])
    arguments = [argument.replace("RUN", str(finished[1])) for argument in arguments]
    ended = freecfr(*arguments)
    assert len(ended.err.splitlines()) == 1
    sentence(ended, 2, *words)
    assert files(finished[1]) == before
