"""What a run needs: held against what runs take, and refused where there is less."""

import json
import os
import subprocess
import sys

import pytest

from engine import hardware, needs
from engine.config import Config
from engine.errors import ConfigError
from engine.hardware import Available, memory_available
from tests.commands import freecfr
from tests.runs import ROOT, settings

pytestmark = pytest.mark.one_build

# Trains with full memories; prints by how many bytes the process grew at its largest.
TAKES = """
import sys
from pathlib import Path
from engine.bench_memory import fill, resident_mib
from engine.config import Config
from engine.hardware import peak_rss_mib
from engine.trainer import Trainer

def look(metrics):
    if metrics["iteration"] == 1:
        for memory in trainer.memories.values():
            fill(memory)

config = Config.from_toml(sys.argv[1], sys.argv[2:])
before = resident_mib()
trainer = Trainer(config, run_dir=Path(sys.argv[1]).parent, on_iteration=look)
trainer.run()
print((peak_rss_mib() - before) * (1 << 20))
"""


LITTLE = ["training.updates=1", "traversal.count=16"]


@pytest.mark.parametrize(
    "config, changes",
    [
        ("leduc", ["memory.capacity=500000", "training.updates=4"]),
        ("lost_cities", ["memory.capacity=300000", *LITTLE]),
        ("lost_cities", ["network.hidden=1024", "network.layers=4", "memory.capacity=9000", *LITTLE]),
    ],
)
def test_runs_take_what_is_computed(tmp_path, config, changes):
    """Never more, and not much less."""
    path = tmp_path / "config.toml"
    path.write_text((ROOT / "configs" / f"{config}.toml").read_text())
    changes = ["iterations=2", "evaluation.every=0", "threads=2", *changes]
    done = subprocess.run(
        [sys.executable, "-c", TAKES, path, *changes], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr
    taken = float(done.stdout)
    computed = needs.needed(Config.from_toml(path, [*changes, "iterations=1000"]).resolved())
    assert taken <= computed <= 1.5 * taken + needs.REST


def test_memories_count_as_they_can_be_filled():
    def memories(**changes):
        return {part.name: part.bytes for part in needs.parts_of(settings("kuhn", **changes).resolved())}[
            "sample memories"
        ]

    few = memories(memory={"capacity": 2_000_000}, algorithm="outcome_sampling", iterations=4)
    assert few == 3 * 4 * 2 * 40 * 3 * 32  # memories, iterations, players, traversals, decisions, bytes
    assert memories(memory={"capacity": 100}, iterations=4) == 3 * 100 * 32


def cgroup(root, path, **files):
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)


def test_a_cgroup_has_less_than_the_machine(tmp_path):
    """The least that any of the groups above leaves; pages that can be dropped are free."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    assert memory_available(tmp_path, 1000) == Available(1000, "of the machine")
    cgroup(tmp_path, "a", memory_max="700\n", memory_current="400\n", memory_stat="anon 5\ninactive_file 100\n")
    cgroup(tmp_path, "a/b", memory_max="max\n", memory_current="300\n", memory_stat="inactive_file 1\n")
    assert memory_available(tmp_path, 1000) == Available(400, "its cgroup's limit")
    assert memory_available(tmp_path, 300) == Available(300, "of the machine")
    cgroup(tmp_path, "a/b", memory_max="350\n")
    assert memory_available(tmp_path, 1000).bytes == 51


def test_a_cgroup_of_version_1(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n")
    folder = tmp_path / "sys/fs/cgroup/memory/x"
    folder.mkdir(parents=True)
    for name, text in {
        "memory.limit_in_bytes": "500\n", "memory.usage_in_bytes": "450\n", "memory.stat": "total_inactive_file 20\n",
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    assert memory_available(tmp_path, 1000) == Available(70, "its cgroup's limit")


def test_this_machine_says_what_it_has():
    assert memory_available().bytes > 0


def little(size=1 << 30):
    from engine import hardware

    hardware.memory_available = lambda: hardware.Available(size, "of a small machine")


def test_train_refuses_and_names_what_to_lower(tmp_path):
    path = ROOT / "configs" / "lost_cities.toml"
    run = tmp_path / "run"
    ended = freecfr("train", path, "--run", run, before=little)
    assert ended.status == 2 and not run.exists()
    [line] = ended.err.splitlines()
    assert "memory.capacity is 2000000, so that this run will need" in line and "1.0 GiB left (of a small" in line
    value = int(line.partition("lower it to ")[2].split()[0])
    config = Config.from_toml(path, [f"memory.capacity={value}"]).resolved()
    assert needs.needed(config) <= 1 << 30 < needs.needed(config.with_overrides([f"memory.capacity={2 * value}"]))


def test_a_run_that_goes_on_is_refused_too(tmp_path):
    path, run = ROOT / "configs" / "smoke.toml", tmp_path / "run"
    assert freecfr("train", path, "--run", run, "--set", "iterations=1").status == 0
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    ended = freecfr("train", path, "--run", run, "--resume", "--set", "iterations=2", before=very_little)
    assert ended.status == 2 and len(ended.err.splitlines()) == 1
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def very_little():
    little(1 << 20)


@pytest.mark.parametrize(
    "change, named",
    [("network.hidden=16384", "network.hidden"), ("training.batch_size=1048576", "training.batch_size")],
)
def test_the_largest_part_is_named(monkeypatch, change, named):
    monkeypatch.setattr(hardware, "memory_available", lambda: Available(1 << 30, "of a small machine"))
    config = Config().with_overrides([change, "memory.capacity=1000"]).resolved()
    with pytest.raises(ConfigError, match=f"^{named} is .*GiB left"):
        needs.refuse_too_large(config)


def test_doctor_says_what_a_run_needs(tmp_path):
    ended = freecfr("doctor", "--json", before=little)
    result = json.loads(ended.out)
    assert ended.status == 0
    assert result["memory_available_mib"] == 1024
    assert result["memory_needed_mib"] == pytest.approx(sum(result["memory_needed_for"].values()))
    assert any("memory.capacity is 2000000" in text for text in result["advice"])
    small = json.loads(freecfr("doctor", os.fspath(ROOT / "configs/kuhn.toml"), "--json", before=little).out)
    assert small["memory_needed_mib"] < 1024 and not any("memory" in text for text in small["advice"])
