"""Small runs for the tests of promises, and what of their metrics must be equal."""

import os
import re
import subprocess
import sys
from pathlib import Path

from engine.config import Config

ROOT = Path(__file__).parent.parent

# Name -> settings of runs of a few seconds that between them use both samplings, both averages and several shards.
RUNS = {
    "kuhn": {
        "iterations": 4,
        "algorithm": "external_sampling",
        "game": {"name": "kuhn"},
        "network": {"hidden": 16, "layers": 2},
        "traversal": {"count": 40, "block": 5},
        "training": {"updates": 6, "batch_size": 64, "shards": 4},
        "memory": {"capacity": 150},
        "evaluation": {"every": 2},
    },
    "leduc": {
        "iterations": 3,
        "algorithm": "outcome_sampling",
        "average": "advantage_sequence",
        "game": {"name": "leduc"},
        "network": {"hidden": 32, "layers": 2, "reset": "reset"},
        "traversal": {"count": 50, "block": 7, "lanes": 3},
        "training": {"updates": 5, "batch_size": 128, "shards": 2, "autocast": True},
        "memory": {"capacity": 10_000},
        "evaluation": {"every": 1},
    },
    "lost_cities": {
        "iterations": 2,
        "algorithm": "outcome_sampling",
        "inference_dtype": "bfloat16",
        "game": {"name": "lost_cities", "colours": 3, "ranks": 4, "wagers": 1, "hand_size": 3, "deck_only_after": 40},
        "network": {"hidden": 64, "layers": 2},
        "traversal": {"count": 48, "block": 6},
        "training": {"updates": 4, "batch_size": 96, "shards": 3},
        "memory": {"capacity": 1500},
        "evaluation": {"every": 2, "games": 40, "opponents": ["random", "greedy_lowest"]},
    },
}
# The same with traversals that run while networks train.
RUNS["kuhn_pipelined"] = {**RUNS["kuhn"], "overlap": "pipelined"}
RUNS["leduc_pipelined"] = {**RUNS["leduc"], "overlap": "pipelined", "order": "simultaneous"}

# Keys that may differ between equal runs: see "Equal bits" in the documentation of threading.
FREE_KEYS = re.compile(r".*_(seconds|per_second|mib)|threads|workers|gil_enabled|python|torch")


def settings(name, **changes):
    return Config(**{**RUNS[name], **changes})


def comparable(metrics):
    """Metrics without the keys that may differ, nested ones too."""
    if isinstance(metrics, dict):
        return {key: comparable(value) for key, value in metrics.items() if not FREE_KEYS.fullmatch(key)}
    if isinstance(metrics, list | tuple):
        return [comparable(value) for value in metrics]
    return metrics


def freecfr(*arguments, **options):
    """The command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "engine", *map(str, arguments)],
        capture_output=True, text=True, cwd=ROOT, timeout=300, env=os.environ | {"PYTHONUNBUFFERED": "1"}, **options,
    )  # fmt: skip
