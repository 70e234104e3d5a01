"""metrics.jsonl: strict JSON, flushed lines, torn ends, full disks."""

import errno
import json
import math

import numpy as np
import pytest
import torch

from engine import metrics as module
from engine.errors import RunError
from engine.metrics import MetricsLog, dumps, jsonable, read_metrics


def test_lines_are_there_when_append_returns(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for iteration in (1, 2):
        log.append({"iteration": iteration, "loss": 0.5})
        assert read_metrics(log.path)[-1] == {"iteration": iteration, "loss": 0.5}
    MetricsLog(log.path).append({"iteration": 3})
    assert [line["iteration"] for line in read_metrics(log.path)] == [1, 2, 3]


def test_never_a_bare_nan():
    text = dumps({"a": math.nan, "b": [math.inf, 1.5], "c": {"d": -math.inf}, "e": np.float32("nan"), "f": np.int64(3),
                  "g": torch.tensor(2.5), "h": np.arange(2), "i": True, "j": None, "k": (1, 2)})  # fmt: skip
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": None, "b": [None, 1.5], "c": {"d": None}, "e": None, "f": 3, "g": 2.5, "h": [0, 1], "i": True, "j": None,
        "k": [1, 2],
    }  # fmt: skip
    assert jsonable({1: 2}) == {"1": 2}


@pytest.mark.parametrize(
    "tail", [b'{"iteration": 3, "lo', b'{"iteration": 3}', b"\x00\xff\n", b"[1]\n", b'{"iteration": "x"}\n']
)
def test_a_torn_end_is_dropped(tmp_path, tail):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.append({"iteration": 1})
    log.append({"iteration": 2})
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    assert [line["iteration"] for line in read_metrics(path)] == [1, 2]
    log = MetricsLog(path)
    log.cut(2)
    assert path.read_bytes() == whole
    log.append({"iteration": 3})
    assert [line["iteration"] for line in read_metrics(path)] == [1, 2, 3]


def test_cut_goes_back_to_an_iteration(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.cut(0)  # no file yet
    for iteration in range(1, 6):
        log.append({"iteration": iteration})
    log.cut(3)
    log.append({"iteration": 4, "again": True})
    assert read_metrics(log.path)[2:] == [{"iteration": 3}, {"iteration": 4, "again": True}]
    log.cut(0)
    assert read_metrics(log.path) == []


class Full:
    """A file of which only a part of each line can be written."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        self.file.__enter__()
        return self

    def __exit__(self, *rest):
        return self.file.__exit__(*rest)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        self.file.write(data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")


def test_what_a_full_disk_refuses_is_written_later(tmp_path, monkeypatch):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append({"iteration": 1})
    whole = log.path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(module, "open", lambda *args, **more: Full(open(*args, **more)), raising=False)
        for waiting in (1, 2):
            with pytest.raises(RunError, match=f"No space left on device.; {waiting} lines wait"):
                log.append({"iteration": 1 + waiting})
            assert log.path.read_bytes() == whole
    log.append({"iteration": 4})
    assert [line["iteration"] for line in read_metrics(log.path)] == [1, 2, 3, 4]


def test_no_file_has_no_lines(tmp_path):
    assert read_metrics(tmp_path / "nope") == []
    with pytest.raises(RunError, match="cannot be read"):
        read_metrics(tmp_path)


def test_a_line_without_end_is_not_held(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_LINE", 100)
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 1}\n' + "x" * 10_000)
    assert read_metrics(path) == [{"iteration": 1}]


def test_what_the_engine_would_not_have_written_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    match = {"opponent": "random", "win_rate": 0.5, "win_rate_ci95": [0.4, 0.6], "score_mean": 1}
    wrong = [3, {}, match | {"opponent": 3}, match | {"win_rate": "1"}, match | {"win_rate_ci95": [1]},
             match | {"score_mean": None}, match | {"opponent": "\x1b[2J"}]  # fmt: skip
    line = {"iteration": 1, "loss": 0.5, "text": "x", "none": None, "sizes": [1, 2.5], "nested": {"a": 1},
            "deep": [[1]], "texts": ["a"], "matches": [*wrong, match]}  # fmt: skip
    large = '{"iteration": 2, "a": NaN, "b": -Infinity, "c": 1e999, "d": 1' + "0" * 2000 + ', "matches": 3}'
    path.write_text(f"{json.dumps(line)}\n{large}\n")
    first, second = read_metrics(path)
    assert first == {"iteration": 1, "loss": 0.5, "text": "x", "none": None, "sizes": [1, 2.5], "matches": [match]}
    assert second == {"iteration": 2, "a": None, "b": None, "c": None, "d": None, "matches": []}


@pytest.mark.parametrize("iteration", ["-1", "true", "1.0", "1" + "0" * 50, "9007199254740993", '"1"', "null"])
def test_iterations_that_are_none(tmp_path, iteration):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 1}\n{"iteration": ' + iteration + "}\n")
    assert read_metrics(path) == [{"iteration": 1}]
