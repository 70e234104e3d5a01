"""Training on a CUDA device: what the CPU does, within rounding, and with `deterministic` the same bits again."""

import threading

import numpy as np
import pytest
import torch

from engine import bench_streams
from engine.checkpoint import read_checkpoint
from engine.config import Config
from engine.inference import PublishedNetwork
from engine.trainer import Trainer
from tests.runs import RUNS, comparable, settings
from threading_runtime.pool import Pool
from threading_runtime.streams import use_own_stream

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def run(name, **changes):
    history = []
    trainer = Trainer(settings(name, **changes), on_iteration=lambda metrics: history.append(comparable(metrics)))
    trainer.run()
    return history, {name: memory.rows[: memory.size].tobytes() for name, memory in trainer.memories.items()}


@pytest.mark.parametrize("name", RUNS)
def test_deterministic_runs_have_the_same_bits_at_any_number_of_threads(name):
    expected = run(name, device="cuda", deterministic=True, threads=1)
    assert run(name, device="cuda", deterministic=True, threads=3) == expected
    assert run(name, device="cuda", deterministic=True, threads=3) == expected


def test_the_first_traversals_are_those_of_the_cpu():
    """New networks play uniformly, so that nothing of the first samples is a matter of rounding."""
    on_cpu, on_cuda = (run("kuhn", device=device, iterations=1)[0][0] for device in ("cpu", "cuda"))
    for key in ("nodes", "traversals", "advantage0_samples"):
        assert on_cuda[key] == on_cpu[key]
    assert on_cuda["advantage_loss"] == pytest.approx(on_cpu["advantage_loss"], rel=0.02)
    assert on_cuda["exploitability"] == pytest.approx(on_cpu["exploitability"], rel=0.2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_networks_answer_as_on_the_cpu(dtype):
    module = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))
    rows = torch.randint(0, 256, (50, 8), dtype=torch.uint8).numpy()
    on_cpu = PublishedNetwork(module, 40, torch.float32)(rows)
    on_cuda = PublishedNetwork(module.cuda(), 40, dtype)(rows)
    rounding = 1e-3 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(torch.from_numpy(on_cuda), torch.from_numpy(on_cpu), atol=rounding, rtol=rounding)


@pytest.mark.parametrize("there, here", [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_checkpoint_of_either_device_loads_on_the_other(tmp_path, there, here):
    Trainer(settings("kuhn", device=there, iterations=2), run_dir=tmp_path).run()
    trainer = Trainer(settings("kuhn", device=here, iterations=3), run_dir=tmp_path, resume=True)
    assert trainer.iteration == 2
    saved = read_checkpoint(tmp_path).networks
    for name, learner in trainer.learners.items():
        for key, value in learner.state()[0].items():
            assert value.device.type == here and torch.equal(value.cpu(), saved[name][key])
    assert trainer.run()["iteration"] == 3


def test_answers_of_threads_are_of_one_version_each():
    """Four threads ask on streams of their own while new versions are published: all weights of version v are v."""

    class Constant(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ParameterList(torch.zeros(1 << 20) for _ in range(4))

        def forward(self, features):
            return torch.stack([layer.aminmax()[end] for layer in self.layers for end in (0, 1)]).expand(
                len(features), -1
            )

    module, over = Constant().cuda(), threading.Event()
    published = PublishedNetwork(module, 8, torch.float32)
    rows = np.zeros((4, 1), np.uint8)

    def ask(_):
        versions = set()
        while not over.is_set():
            answer = published(rows)
            assert (answer == answer[0, 0]).all()
            versions.add(answer[0, 0])
        return len(versions)

    def publish(_):
        for version in range(1, 300):
            published.publish_state({key: torch.full((1 << 20,), float(version)) for key in module.state_dict()})
        over.set()

    with Pool(5, initialise=lambda: use_own_stream("cuda")) as pool:
        *versions, _ = pool.map(lambda role: role(None), [ask, ask, ask, ask, publish])
    assert min(versions) > 1


def test_streams_overlap():
    """The profiler's trace: kernels of different threads run at the same time, and on one stream never."""
    config = Config().with_overrides(["device=cuda", "network.hidden=1024"]).resolved()
    bench_streams.SECONDS, before = 0.3, bench_streams.SECONDS
    try:
        found = {row["way"]: row["overlap"] for row in bench_streams.rows(config, [4], [1024])}
    finally:
        bench_streams.SECONDS = before
    assert found["default_stream"] == pytest.approx(1, abs=0.01)
    assert found["stream_per_thread"] > 1.05
