"""What kernels are timed on: positions, rows and samples of the full game of Lost Cities, played uniformly.

`make bench` times; without timing every kernel still runs once, so that a benchmark does not rot. Each time is also
printed over that of a calibration kernel, timed right before and after it, beside the same in ratios.json: such ratios
compare across machines and moments as times do not. `pytest tests/benchmarks --benchmark-only --write-ratios` writes
the file.
"""

import json
import platform
import time
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch

from engine.hardware import processor
from engine.networks import Network
from pyx.registry import load_game
from pyx.traversal import TraversalBlock
from threading_runtime.gil import gil_enabled

LANES = 256
RATIOS = Path(__file__).with_name("ratios.json")
_measured = pytest.StashKey[dict[str, float]]()
_chain = np.ones(100_000)


def pytest_addoption(parser):
    parser.addoption("--write-ratios", action="store_true", help="write the ratios measured to ratios.json")


def calibration():
    """Seconds of 100,000 additions that wait for one another, ten times: no vector unit or cache changes them."""
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        np.cumsum(_chain)
        seconds.append(time.perf_counter() - start)
    return seconds


@pytest.fixture(autouse=True)
def ratio(request):
    if "benchmark" not in request.fixturenames:
        yield
        return
    benchmark, before = request.getfixturevalue("benchmark"), calibration()
    yield
    if benchmark.stats is not None:
        unit = median(before + calibration())
        request.config.stash.setdefault(_measured, {})[request.node.name] = benchmark.stats.stats.median / unit


def pytest_terminal_summary(terminalreporter, config):
    measured = config.stash.get(_measured, {})
    if not measured:
        return
    kept = json.loads(RATIOS.read_text()) if RATIOS.exists() else {"machine": "nothing", "ratios": {}}
    terminalreporter.section(f"times over the calibration kernel's; kept: {kept['machine']}")
    terminalreporter.write_line(f"{'kernel':44}{'here':>10}{'kept':>10}{'here/kept':>11}")
    for name, here in measured.items():
        other = kept["ratios"].get(name)
        beside = f"{other:10.3g}{here / other:11.2f}" if other else f"{'-':>10}{'-':>11}"
        terminalreporter.write_line(f"{name:44}{here:10.3g}{beside}")
    if config.getoption("--write-ratios", False):
        kept = {"machine": _machine(), "ratios": {name: float(f"{here:.3g}") for name, here in measured.items()}}
        RATIOS.write_text(json.dumps(kept, indent=1) + "\n")


def _machine():
    build = "" if gil_enabled() else "t"
    return (
        f"{processor()}, CPython {platform.python_version()}{build}, torch {torch.__version__}, NumPy {np.__version__}"
    )


@pytest.fixture(scope="session")
def game():
    return load_game("lost_cities")


@pytest.fixture(scope="session")
def make_block(game):
    """Blocks of LANES lanes by default, that never run out of traversals in a benchmark."""

    def make(count=1 << 20, lanes=LANES):
        return TraversalBlock(game, "outcome_sampling", 0, 0, count, lanes=lanes, seed=1, iteration=1)

    return make


@pytest.fixture(scope="session")
def answers(game):
    """Outputs for a batch: random ones with which games end soon, drawing from the deck being the best draw."""
    outputs = np.random.default_rng(0).standard_normal((LANES, game.n_actions)).astype(np.float32)
    outputs[:, 2 * game.kinds] += 2
    return outputs


def take_turn(block, answers):
    """One round of a block: up to its next decisions, and answers to them."""
    block.advance()
    for player in (0, 1):
        if waiting := block.waiting(player):
            block.answer(player, answers[:waiting])


@pytest.fixture(scope="session")
def rows(make_block, answers):
    """LANES packed rows from the middle of games."""
    block, found = make_block(lanes=2 * LANES), []
    twice = np.concatenate([answers, answers])
    while sum(map(len, found)) < LANES:
        for _ in range(20):
            take_turn(block, twice)
        block.advance()
        for player in (0, 1):
            found.append(block.rows(player).copy())
            if waiting := block.waiting(player):
                block.answer(player, twice[:waiting])
    return np.concatenate(found)[:LANES]


@pytest.fixture(scope="session")
def records(make_block, answers):
    """The samples of 200 traversals' traverser."""
    block = make_block(count=200)
    while block.advance():
        for player in (0, 1):
            if waiting := block.waiting(player):
                block.answer(player, answers[:waiting])
    return block.advantage_records()


@pytest.fixture(scope="session")
def network(game):
    return Network(game.n_features, game.n_actions, 512, 3)


@pytest.fixture
def one_torch_thread():
    """Torch's own threads, as they are wherever the engine evaluates and trains."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
