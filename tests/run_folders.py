"""Runs on disk: a config to start them with, and what they left that must not depend on how they went."""

from engine.digests import digest
from engine.metrics import read_metrics
from engine.trainer import Trainer, train
from tests.runs import comparable, settings


def written(folder, name, **changes):
    """A run's settings, and the file that has them. Checkpoints are rarer than iterations: work is done again too."""
    config = settings(name, **{"checkpoint": {"every": 2, "keep": 2}, **changes})
    path = folder / "config.toml"
    path.write_text(config.to_toml())
    return path, config


def contents(run, config):
    """All of a finished run that must be equal bits: metrics, memories, weights with optimizers, past networks."""
    trainer = Trainer(config, run_dir=run, resume=True)
    assert trainer.iteration == config.iterations
    memories = {name: (memory.seen, memory.rows[: memory.size].tobytes()) for name, memory in trainer.memories.items()}
    weights = {name: digest(*learner.state()) for name, learner in trainer.learners.items()}
    past = {name: [digest(one.load()) for one in sequence] for name, sequence in trainer.store.sequence.items()}
    return [comparable(line) for line in read_metrics(run / "metrics.jsonl")], memories, weights, past


def reference(folder, config):
    """The contents of a run that nothing interrupted."""
    run = folder / "reference"
    run.mkdir()
    train(config, run_dir=run)
    return contents(run, config)
