"""Who batches changes nothing but rounding: options A and C against B, in bits, rows and batches."""

import numpy as np
import pytest

from engine.collect import collect
from engine.collectors import SCHEDULERS
from engine.config import Config
from engine.errors import ConfigError
from engine.inference import DTYPES, PublishedNetwork
from engine.networks import default_factory, make_network
from engine.trainer import Trainer
from pyx.encoding import RecordLayout
from pyx.registry import load_game
from pyx.tree import GameTree
from tests.pyx.estimators import check, columns, table_policy
from tests.runs import RUNS, comparable, settings
from threading_runtime.pool import Pool

OTHERS = sorted(set(SCHEDULERS) - {"block"})
BATCHING = ("iteration_batches", "iteration_batch_sizes")


def result(name, **changes):
    history = []
    trainer = Trainer(settings(name, **changes), on_iteration=lambda metrics: history.append(comparable(metrics)))
    trainer.run()
    memories = {name: memory.rows[: memory.size].tobytes() for name, memory in trainer.memories.items()}
    return history, memories


def network(game, config, dtype):
    module = make_network(default_factory, game, config, number=0, iteration=0)
    return PublishedNetwork(module, game.n_features, DTYPES[dtype])


def answers_of(evaluate, rows, batch):
    """Outputs of all rows, evaluated so many at a time."""
    return np.concatenate([evaluate(rows[start : start + batch]) for start in range(0, len(rows), batch)])


def rows_of(game, n):
    random = np.random.default_rng(0)
    rows = random.integers(0, 256, (n, game.row_bytes), np.uint8)
    rows[:, game.n_features // 8 :] = 0  # bits beyond the features are never set
    return rows


def rows_stand_alone(name, dtype):
    """Whether this machine gives a row the same bits in every batch, for the networks of these runs."""
    config = settings(name)
    game = config.load_game()
    evaluate, rows = network(game, config, dtype), rows_of(game, 96)
    alone = answers_of(evaluate, rows, 1)
    return all(np.array_equal(alone, answers_of(evaluate, rows, batch)) for batch in (2, 3, 8, 16, 32, 64, 96))


@pytest.fixture(scope="module", params=RUNS)
def by_block(request):
    return request.param, result(request.param, threads=1)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("scheduler", OTHERS)
def test_the_same_bits_where_rows_stand_alone(by_block, scheduler, threads):
    name, (history, memories) = by_block
    if not rows_stand_alone(name, settings(name).resolved().inference_dtype):
        pytest.skip("a row's bits depend on its batch here")
    other_history, other_memories = result(name, threads=threads, scheduler=scheduler)
    assert other_memories == memories
    for mine, other in zip(history, other_history, strict=True):
        assert {key: value for key, value in other.items() if key not in BATCHING} == {
            key: value for key, value in mine.items() if key not in BATCHING
        }


@pytest.mark.parametrize("scheduler", OTHERS)
def test_batches_are_larger_and_all_of_them_are_counted(scheduler):
    (mine, *_), _ = result("leduc", threads=3)
    (other, *_), _ = result("leduc", threads=3, scheduler=scheduler)
    assert other["iteration_rows"] == mine["iteration_rows"]
    assert other["iteration_batches"] < mine["iteration_batches"]
    sizes = other["iteration_batch_sizes"]
    assert sum(sizes) == other["iteration_batches"]
    assert sum(n << bucket for bucket, n in enumerate(sizes)) <= other["iteration_rows"]


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 0.02)])
def test_a_rows_outputs_hardly_depend_on_its_batch(dtype, tolerance):
    """Of the largest output of all rows; the full game's own network."""
    config = Config()
    game = config.load_game()
    module = make_network(default_factory, game, config, number=0, iteration=0)
    for parameter in module.parameters():
        parameter.data.normal_(std=0.05)
    evaluate, rows = PublishedNetwork(module, game.n_features, DTYPES[dtype]), rows_of(game, 128)
    alone = answers_of(evaluate, rows, 1)
    for batch in (2, 16, 100, 128):
        assert np.abs(answers_of(evaluate, rows, batch) - alone).max() <= tolerance * np.abs(alone).max()


def test_other_schedulers_are_of_one_process():
    with pytest.raises(ConfigError, match=r"scheduler is 'server'.*workers is 'processes-pickle'"):
        settings("kuhn", scheduler="server", workers="processes-pickle")


@pytest.mark.parametrize("scheduler", OTHERS)
def test_a_network_that_fails_ends_the_run(scheduler, monkeypatch):
    def broken(self, rows):
        raise FloatingPointError("no")

    monkeypatch.setattr(PublishedNetwork, "__call__", broken)
    with pytest.raises(FloatingPointError):
        Trainer(settings("kuhn", threads=2, scheduler=scheduler)).run()


@pytest.mark.parametrize("algorithm", ["outcome_sampling", "external_sampling"])
@pytest.mark.parametrize("scheduler", OTHERS)
def test_targets_average_to_the_counterfactual_regret(scheduler, algorithm):
    game = load_game("kuhn")
    tree, policy, count = GameTree(game), table_policy(GameTree(game), "random", 5), 100_000
    changes = {"algorithm": algorithm, "scheduler": scheduler, "traversal": {"count": count, "block": count // 8}}
    config = settings("kuhn", threads=2, **changes).resolved()
    with Pool(2) as pool, SCHEDULERS[scheduler](game, config, [policy, policy]) as collector:
        records = collect(pool, collector, config, 1).records
    strategy = tree.from_outputs(policy(tree.rows))
    for player in (0, 1):
        samples = columns(RecordLayout(game), np.concatenate(records[f"advantage{player}"]))
        found = check(tree, player, strategy, samples, count, scaled=algorithm == "outcome_sampling")
        assert len(found.z) > 5 and np.abs(found.z).max() <= 5, str(found)
