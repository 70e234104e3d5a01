"""Training on a CUDA device: what the CPU does, within rounding, and with `deterministic` the same bits again."""

import pytest
import torch

from engine.inference import PublishedNetwork
from engine.trainer import Trainer
from tests.runs import RUNS, comparable, settings

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
