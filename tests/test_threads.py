"""The promise of equal bits: memories, weights, optimizers and metrics at any number of threads."""

import json
import os
import subprocess
import sys

import pytest

from engine.trainer import Trainer
from tests.runs import ROOT, RUNS, comparable, settings


def result(name, threads, workers="threads"):
    """Everything of a run that must not depend on its threads."""
    history = []
    config = settings(name, threads=threads, workers=workers)
    trainer = Trainer(config, on_iteration=lambda metrics: history.append(comparable(metrics)))
    trainer.run()
    memories = {name: memory.rows[: memory.size].tobytes() for name, memory in trainer.memories.items()}
    return history, memories


@pytest.fixture(scope="module", params=RUNS)
def alone(request):
    return request.param, result(request.param, 1)


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_the_same_bits_at_any_number_of_threads(alone, threads):
    name, (history, memories) = alone
    other_history, other_memories = result(name, threads)
    assert other_history == history
    assert other_memories == memories


@pytest.mark.parametrize("workers, count", [("processes-pickle", 1), ("processes-shared-memory", 2)])
def test_the_same_bits_from_worker_processes(alone, workers, count):
    name, (history, memories) = alone
    other_history, other_memories = result(name, count, workers)
    assert other_history == history
    assert other_memories == memories


@pytest.mark.parametrize("change", [{"seed": 1}, {"overlap": "none"}, {"overlap": "pipelined"}])
def test_other_settings_give_other_bits(alone, change):
    name, (history, _) = alone
    config = settings(name, threads=2, **change)
    other = []
    Trainer(config, on_iteration=other.append).run()
    same = config.seed == 0 and config.overlap == history[0]["overlap"]
    assert (other[-1]["digest"] == history[-1]["digest"]) == same


SCRIPT = """
import json, sys
from engine.trainer import train
from tests.runs import comparable, settings
history = []
train(settings("leduc", threads=2), on_iteration=lambda metrics: history.append(comparable(metrics)))
print(json.dumps(history))
"""


@pytest.mark.parametrize("intra_op", ["1", "3"])
def test_bits_do_not_depend_on_the_intra_op_threads_of_the_machine(intra_op):
    environment = os.environ | {"OMP_NUM_THREADS": intra_op, "MKL_NUM_THREADS": intra_op}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == result("leduc", 1)[0]
