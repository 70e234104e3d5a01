"""The loop: which updates are made beside which, and what an iteration says of its time."""

import pytest

from engine.learner import Learner
from engine.trainer import PHASES, Trainer, _share
from tests.runs import settings


@pytest.mark.parametrize("updates", [1, 2, 3, 512])
@pytest.mark.parametrize("order", PHASES)
def test_the_shares_of_phases_are_all_updates_in_order(order, updates):
    shares = [_share(updates, PHASES[order], phase) for phase in PHASES[order]]
    assert [update for share in shares for update in share] == list(range(updates))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_strategy_network_trains_beside_each_advantage_network(monkeypatch):
    begun, begin = [], Learner.begin

    def note(self, iteration, updates=None):
        begun.append((self.name, updates))
        begin(self, iteration, updates)

    monkeypatch.setattr(Learner, "begin", note)
    config = settings("lost_cities", iterations=1, threads=1)
    Trainer(config).run()
    updates = config.training.updates
    assert begun == [
        ("advantage0", range(updates)),
        ("strategy", range(updates // 2)),
        ("advantage1", range(updates)),
        ("strategy", range(updates // 2, updates)),
    ]


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_spend_no_more_than_there_is(threads):
    metrics = Trainer(settings("lost_cities", iterations=1, threads=threads)).run()
    spent = {key: value for key, value in metrics.items() if key.endswith("_thread_seconds")}
    assert {f"{part}_thread_seconds" for part in ("logic", "encode", "forward", "strategy", "write", "merge",
            "train_advantage0", "train_advantage1", "train_strategy")} == spent.keys()  # fmt: skip
    assert all(value > 0 for value in spent.values())
    training = sum(value for key, value in spent.items() if key.startswith("train_"))
    collecting = sum(spent.values()) - training
    assert collecting <= metrics["collect_seconds"] * threads and training <= metrics["train_seconds"] * threads
