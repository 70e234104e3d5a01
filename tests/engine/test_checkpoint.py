"""Checkpoints: what comes back, what damage is survived, what is refused, what interrupts leave behind."""

import errno
import json
import os
import shutil
import types

import numpy as np
import pytest
import torch

from engine import checkpoint as module
from engine import journal
from engine.checkpoint import FORMAT, Boundary, CheckpointStore, list_checkpoints, read_checkpoint
from engine.digests import canonical, digest
from engine.errors import CheckpointError
from threading_runtime.gil import keep_gil_off

SIZES = {"advantage0": (500, 24), "strategy": (300, 16)}


class Toy:
    """A run with everything a checkpoint holds; iteration i's samples and steps depend on i and the state alone."""

    def __init__(self, run_dir, keep=2, compact_above=4000):
        keep_gil_off()
        self.notices = []
        self.memories = {
            name: types.SimpleNamespace(rows=np.zeros(size, np.uint8), seen=0) for name, size in SIZES.items()
        }
        self.store = CheckpointStore(
            run_dir, keep, self.memories, {"seed": 1}, notify=self.notices.append, compact_above=compact_above
        )
        self.network = torch.nn.Linear(3, 2)
        self.network.load_state_dict({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)})
        self.optimizer = torch.optim.Adam(self.network.parameters())
        self.iteration = 0
        if boundary := self.store.resume():
            self.iteration = boundary.iteration
            self.network.load_state_dict(boundary.networks["strategy"])
            self.optimizer.load_state_dict(boundary.optimizers["strategy"])

    def collect(self, iteration):
        rng = np.random.default_rng(iteration)
        for name, memory in self.memories.items():
            capacity, width = memory.rows.shape
            records = rng.integers(0, 256, (60, width), dtype=np.uint8)
            places = memory.seen + np.arange(60)
            slots = np.where(places < capacity, places, rng.integers(-capacity, capacity, 60)).astype(np.int64)
            for slot, record in zip(slots, records, strict=True):
                if slot >= 0:
                    memory.rows[slot] = record
            memory.seen += 60
            # the partition into calls must not matter
            self.store.record(name, slots[:25], records[:25])
            self.store.record(name, slots[25:], records[25:])

    def iterate(self, to):
        digests = []
        for iteration in range(self.iteration + 1, to + 1):
            self.collect(iteration)
            self.optimizer.zero_grad()
            self.network(torch.full((1, 3), 1.0 + iteration)).square().sum().add(self.network.weight.sum()).backward()
            self.optimizer.step()
            self.store.add_network("advantage0", iteration, self.network.state_dict())
            digests.append(self.store.digest(self.boundary(iteration)))
            self.store.complete(self.boundary(iteration))
            self.iteration = iteration
        return digests

    def boundary(self, iteration):
        return Boundary(
            iteration,
            {"strategy": self.network.state_dict()},
            {"strategy": self.optimizer.state_dict()},
            {"nodes": 10 * iteration},
        )

    def train(self, to, every=1):
        digests = []
        while self.iteration < to:
            digests += self.iterate(self.iteration + 1)
            if self.iteration % every == 0:
                self.store.save()
        return digests

    def same_memories(self, other):
        return all(
            memory.seen == other.memories[name].seen and (memory.rows == other.memories[name].rows).all()
            for name, memory in self.memories.items()
        )


def damage(path, at=-3):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_in_parts_is_the_run_in_one(tmp_path):
    whole = Toy(tmp_path / "whole")
    digests = whole.train(14)
    for stop in (1, 6, 7, 14):
        Toy(tmp_path / "parts").train(stop)
    parts = Toy(tmp_path / "parts")
    assert parts.iteration == 14
    assert parts.same_memories(whole)
    assert files(tmp_path / "parts") == files(tmp_path / "whole")
    assert parts.train(16) == whole.train(16)
    assert Toy(None).train(14) == digests, "digests do not depend on a disk"


def test_digests_tell_every_iteration_apart():
    digests = Toy(None).train(10)
    assert len(set(digests)) == 10


def test_the_newest_are_kept_and_old_files_go(tmp_path):
    Toy(tmp_path, keep=3, compact_above=1000).train(10)
    folder = tmp_path / "checkpoints"
    assert [path.name for path in list_checkpoints(folder)] == [f"iteration-{i:06d}" for i in (10, 9, 8)]
    generations = {path.name.rpartition("-")[2] for path in (folder / "memories").iterdir()}
    assert generations - {"000000"}, "journals were compacted"
    referred = set()
    for checkpoint in list_checkpoints(folder):
        for about in json.loads((checkpoint / "manifest.json").read_text())["memories"].values():
            referred |= {about["base"]["file"], about["journal"]["file"]}
    assert {path.name for path in (folder / "memories").iterdir()} <= referred
    assert not list(folder.rglob(".*"))


def test_compaction_changes_no_content(tmp_path):
    small, large = Toy(tmp_path / "small", compact_above=1), Toy(tmp_path / "large", compact_above=1 << 30)
    assert small.train(12) == large.train(12)
    again = Toy(tmp_path / "small", compact_above=1), Toy(tmp_path / "large", compact_above=1 << 30)
    assert again[0].same_memories(small) and again[1].same_memories(small)


def test_an_interrupted_iteration_is_not_saved(tmp_path):
    toy = Toy(tmp_path)
    toy.train(5, every=10)
    toy.collect(6)  # and then the run is stopped
    toy.store.add_network("advantage0", 6, toy.network.state_dict())
    assert toy.store.save().name == "iteration-000005"
    reference = Toy(None)
    reference.train(5)
    resumed = Toy(tmp_path)
    assert resumed.iteration == 5 and resumed.same_memories(reference)
    assert [past.iteration for past in resumed.store.sequence["advantage0"]] == [1, 2, 3, 4, 5]


def test_weights_are_those_of_the_boundary(tmp_path):
    toy = Toy(tmp_path)
    toy.iterate(1)
    before = toy.network.weight.detach().clone()
    with torch.no_grad():
        toy.network.weight.fill_(9.0)
    toy.store.save()
    assert torch.equal(read_checkpoint(tmp_path).networks["strategy"]["weight"], before)


def test_what_is_behind_the_checkpoint_is_dropped(tmp_path):
    Toy(tmp_path).train(4)
    for path in (tmp_path / "checkpoints" / "memories").iterdir():
        with open(path, "ab") as file:
            file.write(b"torn")
    (tmp_path / "checkpoints" / ".iteration-000005.tmp").mkdir()
    resumed, reference = Toy(tmp_path), Toy(None)
    assert resumed.train(9)[-1] == reference.train(9)[-1]
    assert Toy(tmp_path).same_memories(reference)
    assert not list((tmp_path / "checkpoints").rglob(".*"))


@pytest.mark.parametrize("kind", ["state", "manifest", "journal", "gone", "cut", "network"])
def test_a_damaged_newest_is_reported_and_the_one_before_used(tmp_path, kind):
    Toy(tmp_path, compact_above=1 << 30).train(6)
    folder = tmp_path / "checkpoints"
    newest = folder / "iteration-000006"
    if kind == "state":
        damage(newest / "state.pt")
    elif kind == "manifest":
        text = (newest / "manifest.json").read_text()
        (newest / "manifest.json").write_text(text.replace('"nodes": 60', '"nodes": 61'))
    elif kind == "journal":
        damage(folder / "memories" / "strategy.journal-000000")  # an entry of iteration 6
    elif kind == "gone":
        (newest / "state.pt").unlink()
    elif kind == "cut":
        data = (newest / "manifest.json").read_bytes()
        (newest / "manifest.json").write_bytes(data[: len(data) // 2])
    else:
        (folder / "networks" / "advantage0-000006.pt").unlink()
    if kind != "journal":  # which agents do not read
        notices = []
        assert read_checkpoint(tmp_path, notices.append).iteration == 5
        assert "iteration-000006 cannot be used" in notices[0]
    resumed = Toy(tmp_path, compact_above=1 << 30)
    assert resumed.iteration == 5
    assert len(resumed.notices) == 1 and "iteration-000006 cannot be used" in resumed.notices[0]
    reference = Toy(None)
    assert resumed.train(8)[-1] == reference.train(8)[-1]
    again = Toy(tmp_path, compact_above=1 << 30)
    assert again.iteration == 8 and again.same_memories(reference) and not again.notices


def test_when_all_are_damaged_it_says_so(tmp_path):
    Toy(tmp_path).train(3)
    for checkpoint in list_checkpoints(tmp_path / "checkpoints"):
        damage(checkpoint / "state.pt")
    with pytest.raises(CheckpointError, match="no checkpoint in .* can be used"):
        Toy(tmp_path)
    with pytest.raises(CheckpointError, match="state.pt is damaged"):
        read_checkpoint(list_checkpoints(tmp_path / "checkpoints")[0])


def rewrite(checkpoint, change):
    """A manifest changed by somebody who also makes its checksum right."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest.pop("checksum")
    change(manifest)
    manifest["checksum"] = module._checksum(manifest)
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def test_another_format_is_refused_by_name(tmp_path):
    Toy(tmp_path).train(3)
    newest = list_checkpoints(tmp_path / "checkpoints")[0]
    rewrite(newest, lambda manifest: manifest.update(format=FORMAT + 1))
    for read in (Toy, read_checkpoint):
        with pytest.raises(CheckpointError, match=f"format {FORMAT + 1}, this version reads format {FORMAT}"):
            read(tmp_path)
    assert list_checkpoints(tmp_path / "checkpoints")[0] == newest, "good work is not thrown away"


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["memories"]["strategy"]["base"].update(file="../../../etc/passwd"),
        lambda m: m["memories"]["strategy"]["journal"].update(file="strategy.journal-000009"),
        lambda m: m["memories"]["strategy"]["journal"].update(bytes=-1),
        lambda m: m["memories"]["strategy"]["journal"].update(bytes=1 << 60),
        lambda m: m["memories"]["strategy"]["journal"].update(bytes="many"),
        lambda m: m["memories"]["strategy"].update(size=1 << 60),
        lambda m: m["memories"]["strategy"].update(size=10, seen=10),
        lambda m: m["memories"]["strategy"].update(record_bytes=1 << 40),
        lambda m: m["memories"].pop("strategy"),
        lambda m: m["memories"].update(strategy=None),
        lambda m: m.pop("memories"),
        lambda m: m.update(sequence=[1, 2]),
        lambda m: m["sequence"]["advantage0"][0].update(file="../../state.pt"),
        lambda m: m["state"].update(file="../iteration-000001/state.pt"),
        lambda m: m.update(iteration="x"),
        lambda m: m.update(config=3),
    ],
)
def test_a_strangers_manifest_makes_an_error_and_nothing_else(tmp_path, change):
    Toy(tmp_path, keep=1).train(3)
    rewrite(list_checkpoints(tmp_path / "checkpoints")[0], change)
    before = files(tmp_path)
    with pytest.raises(CheckpointError):
        Toy(tmp_path)
    assert files(tmp_path) == before


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


def test_nothing_is_unpickled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Toy(tmp_path, keep=1).train(2)
    checkpoint = list_checkpoints(tmp_path / "checkpoints")[0]
    torch.save({"networks": Evil(), "optimizers": {}}, checkpoint / "state.pt")
    size = (checkpoint / "state.pt").stat().st_size
    extent = journal.Extent("state.pt", size, journal.hash_file(checkpoint / "state.pt", size).hexdigest())
    rewrite(checkpoint, lambda manifest: manifest.update(state=vars(extent)))
    with pytest.raises(CheckpointError, match="holds no weights"):
        read_checkpoint(tmp_path)
    assert not (tmp_path / "evil").exists()


def test_another_runs_memories_are_refused(tmp_path, monkeypatch):
    Toy(tmp_path).train(2)
    monkeypatch.setitem(SIZES, "strategy", (300, 32))
    with pytest.raises(CheckpointError, match="record_bytes"):
        Toy(tmp_path)


def test_past_networks_are_bfloat16_and_written_once(tmp_path):
    toy = Toy(tmp_path)
    toy.train(2)
    folder = tmp_path / "checkpoints" / "networks"
    first = (folder / "advantage0-000001.pt").stat().st_mtime_ns
    weight = toy.network.weight.detach().clone()
    toy.train(4)
    assert (folder / "advantage0-000001.pt").stat().st_mtime_ns == first
    past = read_checkpoint(tmp_path).sequence["advantage0"]
    assert [network.iteration for network in past] == [1, 2, 3, 4]
    assert torch.equal(past[1].load()["weight"], weight.bfloat16())
    damage(folder / "advantage0-000002.pt")
    with pytest.raises(CheckpointError, match="damaged"):
        past[1].load()


def test_past_networks_are_there_before_they_are_on_disk():
    toy = Toy(None)
    toy.train(2)
    assert toy.store.sequence["advantage0"][0].load()["weight"].dtype == torch.bfloat16


@pytest.mark.parametrize("where", ["fsync", "replace", "mkdir"])
def test_a_full_disk_is_told_and_tried_again(tmp_path, monkeypatch, where):
    toy, reference = Toy(tmp_path), Toy(None)
    toy.train(3)
    toy.iterate(5)
    calls = 0
    real = os.fsync if where == "fsync" else os.replace if where == "replace" else os.mkdir

    def full(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, where, full)
        for _ in range(2):
            with pytest.raises(CheckpointError, match="iteration 5 could not be written .* No space left"):
                toy.store.save()
        assert read_checkpoint(tmp_path).iteration == 3
        toy.iterate(8)
        with pytest.raises(CheckpointError, match="iteration 8"):
            toy.store.save()
    assert toy.store.save().name == "iteration-000008"
    reference.train(8)
    assert Toy(tmp_path).same_memories(reference)


def interrupted(function, countdown):
    """`function`, which an interrupt precedes once the countdown has run out."""

    def call(*args):
        if next(countdown, None) is None:
            raise KeyboardInterrupt
        return function(*args)

    return call


def test_an_interrupt_at_any_write_leaves_a_run_that_goes_on(tmp_path, monkeypatch):
    """Ctrl-C at each of the places where a save calls the system; once in the same process, once in another."""
    reference = Toy(None)
    reference.train(8)
    for stop_at in range(1, 40):
        run = tmp_path / str(stop_at)
        toy = Toy(run, compact_above=2000)
        toy.train(5)
        toy.iterate(6)
        with monkeypatch.context() as patch:
            countdown = iter(range(1, stop_at))
            for name in ("fsync", "replace"):
                patch.setattr(os, name, interrupted(getattr(os, name), countdown))
            try:
                toy.store.save()
                done = True
            except KeyboardInterrupt:
                done = False
        shutil.copytree(run, tmp_path / "other", dirs_exist_ok=False)
        other = Toy(tmp_path / "other", compact_above=2000)
        assert other.iteration in (5, 6) and not other.notices
        other.train(8)
        assert other.same_memories(reference)
        toy.train(8)
        assert Toy(run, compact_above=2000).same_memories(reference)
        shutil.rmtree(tmp_path / "other")
        if done:
            break
    assert done and stop_at > 5


def test_entries_that_cannot_be_written_stay_bounded(tmp_path, monkeypatch):
    toy, reference = Toy(tmp_path), Toy(None)
    reference.train(60)
    toy.iterate(60)
    waiting = sum(len(entries) for entries in toy.store._journals["strategy"]._waiting)
    assert waiting <= 2 * SIZES["strategy"][0] + 120 < 60 * 60
    toy.store.save()
    assert Toy(tmp_path).same_memories(reference)


def test_no_checkpoint(tmp_path):
    assert Toy(tmp_path).iteration == 0
    with pytest.raises(CheckpointError, match="does not exist"):
        read_checkpoint(tmp_path / "nope")
    with pytest.raises(CheckpointError, match="not a run's folder"):
        read_checkpoint(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        read_checkpoint(tmp_path)
    half = tmp_path / "checkpoints" / "iteration-000001"
    half.mkdir()
    with pytest.raises(CheckpointError, match="half written"):
        read_checkpoint(half)


def test_canonical_copies_are_written_to_equal_bytes():
    key = "".join(["we", "ight"])  # another object than the literal
    one = {"weight": torch.ones(2), "list": ["weight", "weight"], "betas": (0.9, 0.9)}
    two = {key: torch.ones(2), "list": [key, "weight"], "betas": (0.9, 0.9)}
    assert module._dump(canonical(one)) == module._dump(canonical(two))
    assert digest(one) == digest(two)
    with pytest.raises(TypeError, match="not a object"):
        canonical({"x": object()})


def test_digest_sees_values_types_and_shapes():
    values = [1, 1.0, True, "1", None, [1], [[1]], {"a": 1}, torch.ones(1), torch.ones(1, 1), torch.ones(1).double(),
              torch.tensor([]), torch.ones(3).bfloat16(), torch.ones((), dtype=torch.int64)]  # fmt: skip
    assert len({digest(value) for value in values}) == len(values)
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
