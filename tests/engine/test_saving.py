"""Saving beside a run: iterations go on while a checkpoint is written, and a disk that fails stops nothing."""

import threading

import pytest

from engine import checkpoint as module
from engine import journal
from engine.checkpoint import CheckpointStore, list_checkpoints, read_checkpoint
from engine.errors import CheckpointError
from engine.metrics import MetricsLog, read_metrics
from engine.saving import Saver
from tests.engine.test_checkpoint import Toy, files


class Gate:
    """Holds whoever comes at a place of the code until it is opened."""

    def __init__(self, monkeypatch, home, name):
        self.come, self.open = threading.Event(), threading.Event()
        original = getattr(home, name)

        def wait(*args, **more):
            self.come.set()
            assert self.open.wait(60)
            return original(*args, **more)

        monkeypatch.setattr(home, name, wait)


def saver_of(toy, log=None):
    told = []
    return Saver(toy.store, log, notify=told.append), told


@pytest.mark.parametrize("where", [(journal.Journal, "_append"), (journal.Journal, "_compact"), (module, "_replace")])
def test_iterations_go_on_while_a_checkpoint_is_written(tmp_path, monkeypatch, where):
    """What is recorded and completed meanwhile is not in it, and is in the next."""
    reference = Toy(None)
    digests = reference.train(12)
    toy = Toy(tmp_path, compact_above=2000)
    saver, told = saver_of(toy)
    assert toy.iterate(5) == digests[:5]
    gate = Gate(monkeypatch, *where)
    saver.begin()
    assert gate.come.wait(60)
    assert toy.iterate(9) == digests[5:9]
    assert not list_checkpoints(tmp_path / "checkpoints")
    gate.open.set()
    saver.begin()  # waits for the one before
    toy.iterate(12)
    saver.end()
    assert not told
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == [
        "iteration-000012", "iteration-000009",
    ]  # fmt: skip
    again = Toy(tmp_path, compact_above=2000)
    assert again.iteration == 12 and again.same_memories(reference) and not again.notices


def test_the_checkpoint_is_of_the_boundary_it_was_begun_at(tmp_path, monkeypatch):
    reference = Toy(None)
    reference.train(5)
    toy = Toy(tmp_path / "run")
    saver, _ = saver_of(toy)
    toy.iterate(5)
    gate = Gate(monkeypatch, module, "_replace")
    saver.begin()
    assert gate.come.wait(60)
    toy.iterate(6)
    toy.collect(7)  # and part of the next
    gate.open.set()
    saver.wait()
    again = Toy(tmp_path / "run")
    assert again.iteration == 5 and again.same_memories(reference)


def test_nothing_is_written_twice(tmp_path):
    toy = Toy(tmp_path)
    saver, _ = saver_of(toy)
    toy.iterate(3)
    saver.begin()
    saver.end()
    before = files(tmp_path)
    saver.end()
    assert files(tmp_path) == before


def test_what_can_be_done_later_is_left_out_in_a_hurry(tmp_path, monkeypatch):
    """A new base of the memories is given up when the run is to end; the checkpoint is whole without it."""
    reference = Toy(None)
    reference.train(8)
    toy = Toy(tmp_path, compact_above=2000)
    saver, _ = saver_of(toy)
    toy.iterate(8)
    gate = Gate(monkeypatch, journal, "_unless")
    saver.begin()
    assert gate.come.wait(60)
    ending = threading.Thread(target=saver.end)
    ending.start()
    while not saver._in_a_hurry:
        pass
    gate.open.set()
    ending.join()
    assert not list((tmp_path / "checkpoints/memories").glob("*base-000001"))
    again = Toy(tmp_path, compact_above=2000)
    assert again.iteration == 8 and again.same_memories(reference)


def test_a_failed_attempt_is_told_and_tried_again(tmp_path, monkeypatch):
    toy, reference = Toy(tmp_path), Toy(None)
    reference.train(9)
    saver, told = saver_of(toy)
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left")))
        for to in (3, 6):
            toy.iterate(to)
            saver.begin()
        with pytest.raises(CheckpointError, match="iteration 6 could not be written.*No space left"):
            saver.end()
        saver.end(failed=True)
    assert [text.partition(" could")[0] for text in told] == [
        "checkpoint of iteration 3", "checkpoint of iteration 6", "checkpoint of iteration 6",
    ]  # fmt: skip
    assert "tries again" in told[0]
    toy.iterate(9)
    saver.end()
    assert read_checkpoint(tmp_path).iteration == 9 and Toy(tmp_path).same_memories(reference)


def test_metrics_that_cannot_be_written_wait(tmp_path):
    log = MetricsLog(tmp_path / "folder" / "metrics.jsonl")
    saver, told = saver_of(Toy(None), log)
    for iteration in (1, 2):
        saver.append({"iteration": iteration})
    assert len(told) == 2 and "2 lines wait" in told[1] and "tries again" in told[1]
    log.path.parent.mkdir()
    saver.end()
    assert [line["iteration"] for line in read_metrics(log.path)] == [1, 2]


def test_an_error_of_the_thread_comes_out(tmp_path, monkeypatch):
    """One that is no disk's is not lost: it ends the run."""
    toy = Toy(tmp_path)
    saver, _ = saver_of(toy)
    toy.iterate(1)
    monkeypatch.setattr(CheckpointStore, "_write", lambda *_: 1 / 0)
    saver.begin()
    with pytest.raises(ZeroDivisionError):
        saver.begin()
