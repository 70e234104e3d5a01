"""TensorBoard's event files, where the extra is installed."""

import sys

import pytest

from engine import cli


def test_numbers_are_written(tmp_path):
    pytest.importorskip("tensorboardX")
    from engine.tensorboard import TensorBoard

    board = TensorBoard(tmp_path)
    board.show({"iteration": 1, "loss": 0.5, "text": "x", "flag": True, "none": None,
                                "matches": [{"opponent": "a", "win_rate": 0.5, "score_mean": 1.0}]})  # fmt: skip
    board.close()
    [events] = tmp_path.iterdir()
    data = events.read_bytes()
    assert b"loss" in data and b"win_rate/a" in data and b"flag" not in data


def test_without_the_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.delitem(sys.modules, "engine.tensorboard", raising=False)
    run = tmp_path / "run"
    assert cli.main(["train", "configs/smoke.toml", "--run", str(run), "--tensorboard"]) == 2
    assert "pip install" in capsys.readouterr().err and not run.exists()
