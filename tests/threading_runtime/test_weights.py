"""SharedModel: no forward sees a torn write, and a failed write is never evaluated."""

import copy
import pickle
import threading
import time

import pytest
import torch

from threading_runtime.gil import keep_gil_off
from threading_runtime.pool import Pool
from threading_runtime.weights import ModelFailed, SharedModel, Snapshots


class Layers(torch.nn.Module):
    """All parameters of version v hold v; `forward` returns the values that it met."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ParameterList(torch.zeros(3) for _ in range(4))

    def forward(self):
        return torch.stack([layer[0] for layer in self.layers])

    def write(self, version, between=lambda: None):
        with torch.no_grad():
            for layer in self.layers:
                layer.fill_(version)
                between()


def state_of(version):
    return {f"layers.{number}": torch.full((3,), float(version)) for number in range(4)}


class Steps(torch.optim.Optimizer):
    """Adds 1 to all parameters, one after the other; `between` is called at the marked point after each."""

    def __init__(self, parameters, between=lambda: None):
        super().__init__(parameters, {})
        self.between = between

    def step(self):
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter += 1
                    self.between()


FORWARDS = 100_000


def test_no_forward_mixes_two_versions():
    """100,000 forwards by 4 threads, and all the while both writers, as fast as they can."""
    keep_gil_off()
    module = Layers()
    # Its step is by torch's own kernel: with this gradient, 1 is added.
    model = SharedModel(module, torch.optim.SGD(module.parameters(), lr=1.0))
    for parameter in module.parameters():
        parameter.grad = torch.full((3,), -1.0)
    over = []

    def step():
        while not over:
            with model.writing():
                model.optimizer.step()

    def load():
        version = 0
        while not over:
            version += 1000
            with model.writing() as inside:
                inside.load_state_dict(state_of(version))

    def read():
        versions = set()
        with torch.inference_mode():
            for _ in range(FORWARDS // 4):
                with model.reading() as inside:
                    version = model.version
                    met = inside()
                    assert version == model.version
                low, high = met.aminmax()
                assert low == high, "a mixture of two versions"
                versions.add(version)
        over.append(True)
        return len(versions)

    with Pool(6) as pool:
        *versions, _, _ = pool.map(lambda role: role(), [read, read, read, read, step, load])
    assert min(versions) > 10 and model.version > 100


# Who writes: what it does, with the hand-over at the marked point.
WRITERS = {
    "step": lambda model, module, between: Steps(module.parameters(), between).step(),
    "load_state_dict": lambda model, module, between: load_slowly(module, between),
}


def load_slowly(module, between):
    """load_state_dict, which copies parameters one by one: the copy of the second is the marked point."""
    second = module.layers[1]

    class Marked(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, arguments=(), more=None):
            between()
            return super().__torch_function__(function, types, arguments, more or {})

    state = state_of(1)
    state["layers.1"] = state["layers.1"].as_subclass(Marked)
    assert second[0] == 0
    module.load_state_dict(state)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("guarded", [(), ("reader",), ("reader", "writer")], ids=["no lock", "one writer", "lock"])
def test_the_same_schedule_tears_without_the_lock(writer, guarded):
    """A reader comes at the marked point between two writes of parameters: only a lock that both take makes it wait.

    With ("reader",) the reader takes the lock, as another writer would, and this one writer does not.
    """
    module = Layers()
    bare = copy.deepcopy(module)  # the same parameters, without the guards that refuse such use
    for number in range(4):
        bare.layers[number] = module.layers[number]
    model = SharedModel(module)
    half_written, seen = threading.Event(), []

    def read():
        half_written.wait(60)
        with torch.no_grad():
            if "reader" in guarded:
                with model.reading() as inside:
                    seen.append(inside().tolist())
            else:
                seen.append(bare().tolist())

    def hand_over():
        if half_written.is_set():
            return
        half_written.set()
        deadline = time.monotonic() + (0.05 if "writer" in guarded else 60)
        while not seen and time.monotonic() < deadline:
            time.sleep(0.001)

    reader = threading.Thread(target=read)
    reader.start()
    if "writer" in guarded:
        with model.writing() as inside:
            WRITERS[writer](model, inside, hand_over)
    else:
        WRITERS[writer](model, bare, hand_over)
    reader.join()
    assert seen == ([[1.0] * 4] if "writer" in guarded else [[1.0, 0.0, 0.0, 0.0]])


def test_outside_of_the_lock_nothing_can_be_done():
    """Neither with what `SharedModel` gave, nor with the module and the optimizer that it was made of."""
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    state, features = copy.deepcopy(module.state_dict()), torch.zeros(1, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    model = SharedModel(module, optimizer)
    with model.reading() as kept:
        kept(features)
    for forbidden in (
        lambda: kept(features),
        lambda: module[0](features),
        lambda: module.load_state_dict(state),
        lambda: module[0].load_state_dict(module[0].state_dict()),
        optimizer.step,
        lambda: optimizer.load_state_dict(optimizer.state_dict()),
        lambda: model.optimizer,
    ):
        with pytest.raises(RuntimeError, match=r"reading\(\)|writing\(\)"):
            forbidden()
    with model.reading():
        for forbidden in (lambda: module.load_state_dict(state), optimizer.step):
            with pytest.raises(RuntimeError, match=r"outside of writing\(\)"):
                forbidden()
        assert model.optimizer is optimizer
    with model.writing() as inside:
        inside.load_state_dict(state)
        inside(features).sum().backward()
        model.optimizer.step()


def test_what_one_thread_holds_lets_no_other_in():
    model = SharedModel(Layers())
    with model.writing() as module:
        with Pool(1) as pool, pytest.raises(RuntimeError, match="a forward of a shared model"):
            pool.map(lambda _: module(), [None])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_are_free(copied):
    model = SharedModel(torch.nn.Linear(2, 2))
    with model.reading() as module:
        free = copied(module)
    free(torch.zeros(1, 2))
    free.load_state_dict(free.state_dict())


def test_compiled_modules_are_refused():
    compiled = torch.nn.Linear(2, 2)
    compiled._compiled_call_impl = lambda *_: None  # as Module.compile does, which would import what needs the GIL
    with pytest.raises(ValueError, match="torch.compile"):
        SharedModel(torch.nn.Sequential(compiled))


@pytest.mark.parametrize("side", ["reading", "writing"])
def test_a_writer_that_dies_holding_the_lock_fails_the_run(side):
    """Whoever waits for it, and whoever comes later, is told; nobody hangs."""
    model = SharedModel(Layers())
    entered, die = threading.Event(), threading.Event()

    def begin_and_end():
        model.writing().__enter__()
        entered.set()
        die.wait(60)

    writer = threading.Thread(target=begin_and_end, name="the-writer")
    writer.start()
    entered.wait(60)
    refused = []

    def come(when):
        with pytest.raises(ModelFailed, match="the-writer ended while it was writing.*checkpoint"):
            with getattr(model, side)():
                pytest.fail("entered")
        refused.append(when)

    waiting = threading.Thread(target=come, args=("before",))
    waiting.start()
    while not model._lock._queue:
        time.sleep(0.001)
    die.set()
    waiting.join(60)
    later = threading.Thread(target=come, args=("after",))
    later.start()
    later.join(60)
    assert refused == ["before", "after"]


def test_snapshots_are_whole_and_nobody_waits():
    """All values of version v are v; readers and the publisher run freely."""
    snapshots = Snapshots("cpu", [0] * 50)
    over = []

    def publish():
        for version in range(1, 2000):
            assert snapshots.publish([version] * 50) == version
        over.append(True)

    def read():
        last = -1
        while not over:
            version, weights = snapshots.newest()
            assert version >= last and weights == [version] * 50
            last = version
        return last

    with Pool(4) as pool:
        pool.map(lambda role: role(), [read, read, read, publish])
    kept = snapshots.newest()
    snapshots.publish([2000] * 50)
    assert kept == (1999, [1999] * 50) and snapshots.newest().version == 2000


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
        assert module().tolist() == [1.0] * 4


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
