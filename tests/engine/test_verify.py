"""`verify`: equal bits are found equal, and where they part is named."""

import json
import shutil

import numpy as np
import pytest
import torch

from engine import checkpoint as module
from engine.checkpoint import list_checkpoints
from engine.errors import CheckpointError, RunError
from engine.trainer import Trainer, train
from engine.verify import verify
from tests.commands import freecfr
from tests.run_folders import written
from tests.test_bad_input import files

pytestmark = pytest.mark.one_build

RUNS = ["kuhn", "leduc", "leduc_pipelined"]


@pytest.fixture(scope="module", params=RUNS)
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    path, config = written(folder, request.param, iterations=5, threads=2, checkpoint={"every": 2, "keep": 3})
    run = folder / "run"
    run.mkdir()
    shutil.copy(path, run / "config.toml")
    train(config, run_dir=run)
    return run


@pytest.fixture
def copied(run, tmp_path):
    return shutil.copytree(run, tmp_path / "run")


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_a_run_is_computed_again_to_the_same_bits(run, threads):
    before = files(run)
    told = []
    result = verify(run, threads, tell=told.append)
    assert result["match"] and result["parts_at"] is None
    assert (result["from_iteration"], result["to_iteration"]) == (4, 5)
    assert told == ["iteration 5: the same bits"]
    assert files(run) == before


def test_up_to_the_checkpoint_that_is_given(run):
    newest, middle, oldest = list_checkpoints(run / "checkpoints")
    assert [verify(path)["from_iteration"] for path in (newest, middle, oldest)] == [4, 2, 0]


def test_metrics_that_part(copied):
    """The first iteration, and of it the first key."""
    log = copied / "metrics.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines[2:]:
        line["advantage_loss"] += 1e-9
        line["digest"] = "0" * 64
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = verify(list_checkpoints(copied / "checkpoints")[1])
    assert not result["match"]
    assert result["parts_at"]["iteration"] == 3 and result["parts_at"]["what"] == "advantage_loss"
    assert result["parts_at"]["recorded"] == lines[2]["advantage_loss"]
    assert result["parts_at"]["replayed"] == pytest.approx(lines[2]["advantage_loss"])


@pytest.mark.parametrize("kind", ["networks", "optimizers"])
def test_weights_that_part(copied, kind):
    """One number of the newest checkpoint is another, and its checksums are made again."""
    newest = list_checkpoints(copied / "checkpoints")[0]
    state = torch.load(newest / "state.pt", weights_only=True)
    if kind == "networks":
        state["networks"]["advantage1"]["2.bias"][0] += 1e-6
    else:
        state["optimizers"]["advantage1"]["state"][0]["exp_avg"][5] += 1e-6
    data = module._dump(state)
    (newest / "state.pt").write_bytes(data)
    manifest = json.loads((newest / "manifest.json").read_text())
    manifest["state"] |= {"bytes": len(data), "sha256": module.hashlib.sha256(data).hexdigest()}
    del manifest["checksum"]
    manifest["checksum"] = module._checksum(manifest)
    (newest / "manifest.json").write_text(json.dumps(manifest))
    place = verify(copied)["parts_at"]
    assert place["iteration"] == 5
    assert place["what"] == f"{kind} advantage1." + ("2.bias" if kind == "networks" else "state.0.exp_avg")


def test_memories_that_part(run, monkeypatch):
    remember = Trainer._remember

    def otherwise(self, name, blocks):
        if name == "advantage0":
            blocks = [np.array(records) for records in blocks]
            for records in blocks:
                records[:, 0] ^= 1  # a feature of every sample
        remember(self, name, blocks)

    monkeypatch.setattr(Trainer, "_remember", otherwise)
    place = verify(run)["parts_at"]
    assert place["iteration"] == 5 and place["what"].startswith("memory advantage0")


def test_what_cannot_be_verified_is_refused(copied, tmp_path):
    with pytest.raises(RunError, match="not a run's folder"):
        verify(tmp_path / "nothing")
    config = copied / "config.toml"
    free = config.read_text().replace('overlap = "none"', 'overlap = "free"')
    free = free.replace('overlap = "pipelined"', 'overlap = "free"')
    config.write_text(free)
    with pytest.raises(RunError, match="free.*no equal bits"):
        verify(copied)
    shutil.rmtree(copied / "checkpoints")
    config.write_text(free.replace('overlap = "free"', 'overlap = "none"'))
    with pytest.raises(CheckpointError, match="no checkpoint"):
        verify(copied)


def test_the_command(copied):
    ended = freecfr("verify", copied, "--json")
    assert ended.status == 0, ended.err
    assert json.loads(ended.out)["match"] is True
    log = copied / "metrics.jsonl"
    log.write_text(log.read_text().replace('"advantage_loss": ', '"advantage_loss": 1'))
    ended = freecfr("verify", copied)
    assert ended.status == 1 and "other bits, first at iteration 5, advantage_loss" in ended.out
    ended = freecfr("verify", copied / "checkpoints")
    assert ended.status == 2 and len(ended.err.splitlines()) == 1
