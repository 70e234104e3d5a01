"""What is refused of a stranger's run: links, archives that unpack to more than they are, another network's weights."""

import io
import zipfile
from pathlib import Path

import pytest
import torch

from engine.errors import CheckpointError, RunError
from engine.untrusted import WRITTEN, refuse_compressed, refuse_links, refuse_other_optimizer, refuse_unlike

HERE = Path("state.pt")


@pytest.mark.parametrize("name", [*WRITTEN, "checkpoints/memories", "checkpoints/iteration-000001/state.pt"])
def test_links_are_refused_wherever_training_writes(tmp_path, name):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = run / name
    path.parent.mkdir(parents=True)
    refuse_links(run)
    path.symlink_to(elsewhere if "." not in path.name[1:] else elsewhere / "file")
    with pytest.raises(RunError, match=f"{name} is a symbolic link"):
        refuse_links(run)


def test_a_run_may_be_reached_through_a_link(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "metrics.jsonl").touch()
    (tmp_path / "run" / "notes").symlink_to(tmp_path)  # nothing is written there
    (tmp_path / "link").symlink_to("run")
    refuse_links(tmp_path / "link")


def saved(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def zipped(data, method, twice=0):
    """The same archive, its entries stored by `method`; the largest stands `twice` more times in its list."""
    source, out = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for entry in source.infolist():
            archive.writestr(entry.filename, source.read(entry))
        archive.filelist += [max(archive.filelist, key=lambda entry: entry.file_size)] * twice
    return out.getvalue()


def test_archives_that_unpack_to_more_than_they_are():
    data = saved({"weight": torch.zeros(100_000)})
    refuse_compressed(io.BytesIO(data), HERE)
    refuse_compressed(io.BytesIO(zipped(data, zipfile.ZIP_STORED)), HERE)
    for bomb in (zipped(data, zipfile.ZIP_DEFLATED), zipped(data, zipfile.ZIP_STORED, twice=5)):
        with pytest.raises(CheckpointError, match="state.pt holds no weights as this engine writes them"):
            refuse_compressed(io.BytesIO(bomb), HERE)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x80\x02" * 100, saved(1)[:-30]])
def test_what_is_no_archive(data):
    with pytest.raises(CheckpointError, match="state.pt holds no weights"):
        refuse_compressed(io.BytesIO(data), HERE)


OWN = torch.nn.Linear(3, 2).state_dict()


def test_weights_that_fit():
    refuse_unlike(OWN, OWN, "it")
    refuse_unlike({name: tensor.bfloat16() for name, tensor in OWN.items()}, OWN, "it")


@pytest.mark.parametrize(
    "change, says",
    [
        ({"more": torch.ones(1)}, "has .* but its network"),
        ({"bias": torch.ones(3)}, "torch.float32 .3,. for bias"),
        ({"bias": torch.ones(2, dtype=torch.int64)}, "torch.int64 .2,. for bias"),
        ({"bias": torch.ones(2, dtype=torch.complex64)}, "no numbers for bias"),
        ({"bias": torch.ones(2, device="meta")}, "no numbers for bias"),
        ({"bias": torch.ones(2).to_sparse()}, "no numbers for bias"),
        ({"bias": torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)}, "no numbers for bias"),
        ({"bias": [1.0, 1.0]}, "no numbers for bias"),
        ({"bias": None}, "no numbers for bias"),
    ],
)
def test_weights_that_do_not(change, says):
    with pytest.raises(CheckpointError, match=f"^it has {says}" if "has" not in says else f"^it {says}"):
        refuse_unlike(OWN | change, OWN, "it")


@pytest.mark.parametrize("state", [None, [], "x", {}, {1: 2}])
def test_what_are_no_weights(state):
    with pytest.raises(CheckpointError, match="^it has .* but its network"):
        refuse_unlike(state, OWN, "it")


def optimizer(steps):
    parameter = torch.nn.Parameter(torch.ones(5))
    adam = torch.optim.Adam([parameter], lr=0.1, fused=True)
    for _ in range(steps):
        parameter.sum().backward()
        adam.step()
    return adam


@pytest.mark.parametrize("steps", [0, 2])
def test_optimizers_that_fit(steps):
    state = torch.load(io.BytesIO(saved(optimizer(steps).state_dict())), weights_only=True)
    state["param_groups"][0]["lr"] = 0.001
    refuse_other_optimizer(state, optimizer(0), "it")
    state["param_groups"][0].pop("decoupled_weight_decay", None)  # of a torch that had no such setting
    refuse_other_optimizer(state, optimizer(3), "it")


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("state"),
        lambda state: state.update(param_groups=3),
        lambda state: state.update(param_groups=[]),
        lambda state: state["param_groups"].append({}),
        lambda state: state["param_groups"][0].update(params=[0, 1]),
        lambda state: state["param_groups"][0].update(params=torch.ones(3)),
        lambda state: state["param_groups"][0].update(betas=[0.9, 0.999]),
        lambda state: state["param_groups"][0].update(betas=(0.0, 0.0)),
        lambda state: state["param_groups"][0].update(lr=torch.ones(3)),
        lambda state: state["param_groups"][0].update(more=1),
        lambda state: state["state"].update({1: {}}),
        lambda state: state["state"].update({True: {}, False: {}}),
        lambda state: state["state"].update({0: []}),
        lambda state: state["state"][0].update(step=[[1]]),
        lambda state: state["state"][0].update(step=torch.ones(2)),
        lambda state: state["state"][0].update(exp_avg=torch.ones(6)),
        lambda state: state["state"][0].update(more=torch.ones(6)),
        lambda state: state["state"][0].pop("exp_avg_sq"),
    ],
)
def test_optimizers_that_do_not(change):
    own = optimizer(2)
    state = torch.load(io.BytesIO(saved(own.state_dict())), weights_only=True)
    change(state)
    with pytest.raises(CheckpointError, match="give the config of its training|has no numbers for"):
        refuse_other_optimizer(state, own, "it")


def test_what_is_no_optimizer():
    for state in (None, [], {}, {"state": {}}):
        with pytest.raises(CheckpointError, match="^it has an optimizer of other settings"):
            refuse_other_optimizer(state, optimizer(0), "it")
