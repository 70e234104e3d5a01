"""Streams: nothing on the CPU; on CUDA a stream a thread, ordered around writes of weights."""

import threading

import pytest
import torch

from threading_runtime.pool import Pool
from threading_runtime.streams import WeightOrder, use_own_stream
from threading_runtime.weights import SharedModel, Snapshots

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_on_the_cpu_nothing_happens():
    with Pool(2, initialise=lambda: use_own_stream("cpu")) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
    assert not torch.cuda.is_initialized()


class Stream:
    """A stream that only knows which work must have ended before what it is given next."""

    def __init__(self):
        self.before = set()

    def run(self, work):
        self.before.add(work)

    def wait_event(self, event):
        self.before |= event.recorded


class Event:
    def __init__(self):
        self.recorded = set()

    def record(self, stream):
        self.recorded = set(stream.before)


@pytest.fixture
def current(monkeypatch):
    """Stands in for torch's current stream of a thread: `current.stream = ...`."""
    current = threading.local()
    current.stream = Stream()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current.stream)
    return current


def in_new_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_forwards_wait_for_the_write_and_the_write_for_the_forwards(current):
    current.stream.run("weights made")
    order = WeightOrder(torch.device("cuda"))
    seen = {}

    def forwards(thread, writes):
        def read():
            current.stream = Stream()
            for number in range(2):
                order.before_read()
                seen[thread, writes, number] = set(current.stream.before)
                current.stream.run((thread, writes, number))
                order.after_read()

        in_new_thread(read)

    def write(name):
        def enqueue():
            current.stream = Stream()
            order.before_write()
            seen[name] = set(current.stream.before)
            current.stream.run(name)
            order.after_write()

        in_new_thread(enqueue)

    forwards("a", 0)
    forwards("b", 0)
    write("first")
    forwards("a", 1)
    write("second")
    forwards("b", 2)

    early = {(thread, 0, number) for thread in "ab" for number in range(2)}
    assert seen["a", 0, 0] == {"weights made"}
    assert seen["b", 0, 0] == {"weights made"}  # forwards do not wait for each other
    assert seen["first"] == early | {"weights made"}
    assert "first" in seen["a", 1, 0]
    assert seen["second"] >= {"first", ("a", 1, 0), ("a", 1, 1)}
    assert seen["b", 2, 0] >= {"first", "second"}
    assert order._reads  # of the last reader; those before a write are dropped
    write("third")
    assert not order._reads


class Tensor:
    """Weights that only know which streams may still read them."""

    def __init__(self):
        self.streams = []

    def record_stream(self, stream):
        self.streams.append(stream)


def test_a_snapshot_is_read_once_it_is_made_and_kept_while_a_stream_may_read_it(current):
    """Readers wait for the work that made the version they take, not for that of later ones, and only once."""
    tensors = [[Tensor(), Tensor()] for _ in range(3)]
    current.stream.run("made 0")
    snapshots = Snapshots("cuda", "weights 0", tensors[0])
    waited, go_on, taken = [], threading.Semaphore(0), threading.Semaphore(0)
    stream = Stream()

    def read():
        current.stream = stream
        for _ in range(3):
            go_on.acquire()
            for _ in range(2):
                version, weights = snapshots.newest()
                assert weights == f"weights {version}"
            waited.append(set(stream.before))
            taken.release()

    reader = threading.Thread(target=read)
    reader.start()
    for version in range(3):
        if version:
            current.stream = Stream()  # whoever publishes
            current.stream.run(f"made {version}")
            assert snapshots.publish(f"weights {version}", tensors[version]) == version
        go_on.release()
        taken.acquire()
    reader.join()
    assert waited == [{f"made {version}" for version in range(last + 1)} for last in range(3)]
    assert all(tensor.streams == [stream] for of_version in tensors for tensor in of_version)


class Wide(torch.nn.Module):
    """All weights of version v hold v, in tensors large enough for a kernel to be overtaken."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ParameterList(torch.zeros(1 << 22) for _ in range(4))

    def forward(self):
        return torch.stack([extreme for layer in self.layers for extreme in layer.aminmax()])


@pytest.mark.gpu
@needs_cuda
def test_each_worker_has_a_stream_of_its_own():
    together = threading.Barrier(4)

    def stream(_):
        together.wait(60)
        return torch.cuda.current_stream().cuda_stream

    with Pool(4, initialise=lambda: use_own_stream("cuda")) as pool:
        streams = pool.map(stream, range(4))
        assert len(set(streams)) == 4
        assert set(pool.map(stream, range(4))) == set(streams)
    assert torch.cuda.current_stream().cuda_stream not in streams


@pytest.mark.gpu
@needs_cuda
def test_no_forward_on_any_stream_mixes_two_versions():
    model = SharedModel(Wide().cuda())
    over = []

    def write():
        for version in range(1, 200):
            with model.writing() as module, torch.no_grad():
                for layer in module.layers:
                    layer.fill_(version)
        over.append(True)

    def read():
        while not over:
            with model.reading() as module, torch.inference_mode():
                met = module()
            assert len(met.unique()) == 1  # waits for this thread's stream only

    with Pool(5, initialise=lambda: use_own_stream("cuda")) as pool:
        pool.map(lambda role: role(), [read, read, read, read, write])
