"""On a free-threaded build nothing switches the GIL on: not imports, not training, not any command."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine import commands
from tests.runs import ROOT
from threading_runtime.gil import free_threaded_build

pytestmark = [
    pytest.mark.one_build,
    pytest.mark.skipif(not free_threaded_build(), reason="this build always has the GIL"),
]

IMPORT_ALL = """
import importlib, pathlib, sys
names = [".".join(path.with_suffix("").parts).removesuffix(".__init__")
         for folder in ("engine", "pyx", "threading_runtime", "audit")
         for path in sorted(pathlib.Path(folder).rglob("*.py*"))
         if path.suffix in (".py", ".pyx") and path.stem != "__main__"]
for name in names:
    importlib.import_module(name)
    assert not sys._is_gil_enabled(), name
print(len(names))
"""

TRAIN = """
import sys
from pathlib import Path
from engine.trainer import Trainer
from tests.runs import settings
for name in ("kuhn", "lost_cities"):
    run = Path(sys.argv[1]) / name
    run.mkdir()
    changes = {"training": {"updates": 6, "batch_size": 64, "shards": 4, "schedule": "cosine"}}
    metrics = Trainer(settings(name, threads=2, iterations=2, **changes), run_dir=run).run()
    assert metrics["gil_enabled"] is False
    assert list((run / "checkpoints").glob("iteration-*"))
assert not sys._is_gil_enabled()
"""

COMMAND = """
import importlib, sys
main = importlib.import_module(sys.argv[1]).main
assert main(sys.argv[2:]) == 0
assert not sys._is_gil_enabled()
"""
# Each command of `freecfr`; the first makes the run that others look at.
COMMANDS = {
    "train": "train configs/smoke.toml --run {run} --set iterations=2 --tensorboard --json",
    "eval": "eval {run} --games 20",
    "verify": "verify {run}",
    "report": "report {run}",
    "bench": "bench memory --set memory.capacity=2000 --set traversal.count=16",
    "doctor": "doctor configs/smoke.toml",
}


def python(script, *arguments):
    # PYTHON_GIL only overrides what modules declare, so with it set this would prove nothing.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHON_GIL"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *map(str, arguments)],
        capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_imports_without_the_gil():
    assert int(python(IMPORT_ALL)) > 30


def test_whole_iterations_run_without_the_gil(tmp_path):
    python(TRAIN, tmp_path)


def test_every_command_runs_without_the_gil(tmp_path):
    assert set(COMMANDS) == set(commands.COMMANDS)
    commands_of_engine = [("engine.cli", *line.format(run=tmp_path / "run").split()) for line in COMMANDS.values()]
    train, *others = [*commands_of_engine, ("audit.__main__", "pyx", "--statistics")]
    python(COMMAND, *train)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda arguments: python(COMMAND, *arguments), others))
