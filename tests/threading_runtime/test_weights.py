"""SharedModel: no forward sees a torn write, and a failed write is never evaluated."""

import threading
import time

import pytest
import torch

from threading_runtime.gil import keep_gil_off
from threading_runtime.pool import Pool
from threading_runtime.weights import ModelFailed, SharedModel


class Layers(torch.nn.Module):
    """All parameters of version v hold v; `forward` returns the values that it met."""

    def __init__(self, between=lambda: None):
        super().__init__()
        self.layers = torch.nn.ParameterList(torch.zeros(3) for _ in range(4))
        self.between = between

    def forward(self):
        met = []
        for layer in self.layers:
            met.append(float(layer.detach()[0]))
            self.between()
        return met

    def write(self, version, between=lambda: None):
        with torch.no_grad():
            for layer in self.layers:
                layer.fill_(version)
                between()


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_no_forward_mixes_two_versions(threads):
    """Continuous optimizer steps and load_state_dict beside continuous forwards, with a pause in each."""
    keep_gil_off()
    module = Layers(between=lambda: time.sleep(0))
    model = SharedModel(module)
    over = []

    def step():
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        for _ in range(60):
            with model.writing() as inside:
                for parameter in inside.parameters():
                    parameter.grad = torch.full((3,), -1.0)  # the step adds 1
                optimizer.step()
                time.sleep(0.0001)

    def load():
        for version in range(1000, 1060):
            state = {name: torch.full((3,), float(version)) for name in module.state_dict()}
            with model.writing() as inside:
                inside.load_state_dict(state)

    def read():
        seen = 0
        while len(over) < 2:
            with model.reading() as inside, torch.inference_mode():
                version = model.version
                met = inside()
                assert version == model.version
            assert len(set(met)) == 1
            seen += 1
        return seen

    def job(role):
        try:
            return role()
        finally:
            over.append(role)

    with Pool(threads + 2) as pool:
        pool.map(job, [*[read] * threads, step, load])
    assert model.version == 120


def test_the_same_schedule_tears_without_the_lock():
    """A reader comes at the marked point between two writes of parameters: with the lock it waits."""
    for guarded in (False, True):
        module = Layers()
        model = SharedModel(module)
        half_written, seen = threading.Event(), []

        def read(model=model, module=module, guarded=guarded, half_written=half_written, seen=seen):
            half_written.wait(60)
            if guarded:
                with model.reading() as inside:
                    seen.append(inside())
            else:
                seen.append(module())

        def hand_over(half_written=half_written, guarded=guarded, seen=seen):
            half_written.set()
            deadline = time.monotonic() + (0.05 if guarded else 60)
            while not seen and time.monotonic() < deadline:
                time.sleep(0.001)

        reader = threading.Thread(target=read)
        reader.start()
        if guarded:
            with model.writing() as inside:
                inside.write(1, hand_over)
        else:
            module.write(1, hand_over)
        reader.join()
        assert seen == ([[1.0] * 4] if guarded else [[1.0, 0.0, 0.0, 0.0]])


def test_the_version_rises_when_a_write_ends():
    model = SharedModel(Layers())
    assert model.version == 0
    for version in range(3):
        with model.writing():
            assert model.version == version
        assert model.version == version + 1
    with model.reading():
        assert model.version == 3


def test_a_failed_write_is_never_evaluated():
    model = SharedModel(Layers())
    refused = []

    def read():
        try:
            with model.reading():
                refused.append(False)
        except ModelFailed:
            refused.append(True)

    waiting = threading.Thread(target=read)
    with pytest.raises(ZeroDivisionError):
        with model.writing() as module:
            waiting.start()
            while not model._lock._queue:
                time.sleep(0.001)
            module.layers[0].data.fill_(1 / 0)
    waiting.join()
    assert refused == [True]
    for side in (model.reading, model.writing):
        for _ in range(2):
            with pytest.raises(ModelFailed, match="version 0.*ZeroDivisionError.*checkpoint") as raised:
                with side():
                    pytest.fail("entered")
            assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert model.version == 0


def test_an_exception_while_reading_harms_nobody():
    model = SharedModel(Layers())
    with pytest.raises(LookupError), model.reading():
        raise LookupError
    with model.writing() as module:
        module.write(1)
    with model.reading() as module:
        assert module() == [1.0] * 4


@pytest.mark.parametrize("held", ["reading", "writing"])
@pytest.mark.parametrize("wanted", ["reading", "writing"])
def test_nesting_is_refused(held, wanted):
    model = SharedModel(Layers())

    def nest():
        with getattr(model, wanted)():
            pytest.fail("entered")

    with getattr(model, held)():
        with pytest.raises(RuntimeError, match=f"already {held}"):
            nest()
    with model.writing():
        pass


def test_readers_do_not_wait_for_each_other():
    model, together = SharedModel(Layers()), threading.Barrier(4)

    def read(_):
        with model.reading():
            together.wait(60)

    with Pool(4) as pool:
        pool.map(read, range(8))


def test_a_module_without_parameters_is_fine():
    model = SharedModel(torch.nn.ReLU())
    with model.reading() as module:
        assert module(torch.tensor(-1.0)) == 0
