"""Training: equal bits, plain references, what is refused, resets and schedules."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from engine.config import Config
from engine.learner import Learner, TrainingError
from engine.memory import Memory
from engine.networks import default_factory, make_network
from engine.parameters import FlatParameters
from pyx.cfr_math import iteration_weights
from pyx.encoding import RecordLayout, batch_indices
from pyx.registry import load_game
from threading_runtime.gil import keep_gil_off
from threading_runtime.pool import Pool
from threading_runtime.tasks import run_chains

GAME = load_game("leduc")
LAYOUT = RecordLayout(GAME)


@pytest.fixture(autouse=True)
def _no_gil():
    keep_gil_off()


def config(**training):
    settings = {"updates": 5, "batch_size": 96, "shards": 4, "autocast": False} | training
    return Config(
        game={"name": "leduc"}, network={"hidden": 24, "layers": 2}, training=settings, algorithm="external_sampling"
    ).resolved()


def samples(n, iteration=1, seed=0):
    """Records of random rows, legal actions, targets that sum to 1, and weights."""
    draw = np.random.default_rng(seed)
    records = np.zeros((n, LAYOUT.record_bytes), np.uint8)
    for record in records:
        bits = np.packbits(draw.integers(0, 2, GAME.n_features), bitorder="little")
        record[: len(bits)] = bits
        legal = draw.permutation(GAME.n_actions)[: draw.integers(1, LAYOUT.max_legal + 1)].astype(np.uint16)
        slots = np.full(LAYOUT.max_legal, 0xFFFF, np.uint16)
        targets = np.zeros(LAYOUT.max_legal, np.float32)
        slots[: len(legal)], targets[: len(legal)] = legal, draw.dirichlet(np.ones(len(legal)))
        record[LAYOUT.targets_at : LAYOUT.weight_at] = targets.view(np.uint8)
        record[LAYOUT.weight_at : LAYOUT.iteration_at] = np.array([draw.gamma(1.0)], np.float32).view(np.uint8)
        record[LAYOUT.iteration_at : LAYOUT.slots_at] = np.array([iteration], np.uint32).view(np.uint8)
        record[LAYOUT.slots_at : LAYOUT.slots_at + 2 * LAYOUT.max_legal] = slots.view(np.uint8)
    return records


RECORDS = samples(400)


def learner(settings, name="advantage0", factory=default_factory, records=RECORDS):
    memory = Memory(LAYOUT, 1000, seed=0, number=0)
    memory.add(records)
    return Learner(name, 0, make_network(factory, GAME, settings, number=0, iteration=0), memory, settings, GAME)


def train(learners, updates=None, threads=1, iterations=1):
    with Pool(threads) as pool:
        for iteration in range(1, iterations + 1):
            for learner in learners:
                learner.begin(iteration, updates)
            run_chains(pool, learners)


def weights(learner):
    with learner.model.reading() as module:
        return copy.deepcopy(module.state_dict())


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


class Gated(nn.Module):
    """No stack: it goes to autograd."""

    def __init__(self, n_features, n_actions):
        super().__init__()
        self.gate, self.value = nn.Linear(n_features, 20), nn.Linear(n_features, 20)
        self.out = nn.Linear(20, n_actions)

    def forward(self, features):
        return self.out(torch.sigmoid(self.gate(features)) * torch.tanh(self.value(features)))


def gated(n_features, n_actions, config):
    return Gated(n_features, n_actions)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("factory", [default_factory, gated])
def test_the_same_bits_at_any_number_of_threads(factory, autocast):
    def trained(threads):
        learners = [learner(config(autocast=autocast), name, factory) for name in ("advantage0", "strategy")]
        train(learners, threads=threads, iterations=2)
        return [(weights(each), each.state()[1]["state"][0], each.loss) for each in learners]

    alone = trained(1)
    for threads in (2, 3, 8):
        for (state, moments, loss), (other_state, other_moments, other_loss) in zip(
            alone, trained(threads), strict=True
        ):
            assert same(state, other_state) and same(moments, other_moments) and loss == other_loss


def reference(settings, name, factory, updates):
    """The same training, whole batches through autograd and torch's own clipping and Adam; weights and mean loss."""
    module = make_network(factory, GAME, settings, number=0, iteration=0)
    optimizer = torch.optim.Adam(module.parameters(), lr=settings.training.learning_rate)
    records = [LAYOUT.restore(record) for record in RECORDS]
    by_iteration, losses = iteration_weights(1, settings.training.weighting), []
    for update in range(updates):
        batch = [
            records[i] for i in batch_indices(settings.seed, 0, 1, update, len(RECORDS), settings.training.batch_size)
        ]
        rows = np.stack(
            [np.unpackbits(sample["row"], count=GAME.n_features, bitorder="little") for sample in batch]
        ).astype(np.float32)
        outputs, total, mass = module(torch.from_numpy(rows)), 0.0, 0.0
        for row, sample in zip(outputs, batch, strict=True):
            weight = min(sample["weight"], settings.training.weight_cap) * by_iteration[sample["iteration"]]
            legal, targets = row[sample["slots"].astype(int)], torch.from_numpy(sample["targets"])
            if name == "strategy":
                loss = -(targets * legal.log_softmax(0)).sum()
            else:
                loss = ((legal - targets / GAME.payoff_scale) ** 2).sum()
            total, mass = total + weight * loss, mass + weight
        loss = total / mass
        optimizer.zero_grad()
        loss.backward()
        if settings.training.clip_norm:
            nn.utils.clip_grad_norm_(module.parameters(), settings.training.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = settings.training.rate(update)
        optimizer.step()
        losses.append(loss.item())
    return module.state_dict(), sum(losses) / updates


@pytest.mark.parametrize("name", ["advantage0", "strategy"])
@pytest.mark.parametrize("factory", [default_factory, gated])
@pytest.mark.parametrize("clip_norm", [0.0, 0.01])
def test_training_is_what_plain_torch_does(name, factory, clip_norm):
    settings = config(updates=4, clip_norm=clip_norm, schedule="linear")
    ours = learner(settings, name, factory)
    train([ours])
    state, loss = reference(settings, name, factory, 4)
    assert ours.loss == pytest.approx(loss, rel=1e-4)
    for key, value in weights(ours).items():
        # Adam's first steps are signs: a gradient that is 0 but for rounding may move a weight by a rate's share.
        off = (value - state[key]).abs() > 1e-4
        assert off.float().mean() < 0.02, key


def test_shards_change_nothing_but_rounding():
    trained = [learner(config(shards=shards)) for shards in (1, 2, 8)]
    train(trained)
    for other in trained[1:]:
        assert other.loss == pytest.approx(trained[0].loss, rel=1e-5)


@pytest.mark.parametrize("iteration", [1, 2])
def test_updates_in_shares_are_the_updates_at_once(iteration):
    whole, shared = learner(config(updates=7), "strategy"), learner(config(updates=7), "strategy")
    train([whole], iterations=iteration)
    with Pool(1) as pool:
        for number in range(1, iteration + 1):
            for share in (range(0, 3), range(3, 7)):
                shared.begin(number, share)
                run_chains(pool, [shared])
    assert same(weights(whole), weights(shared)) and shared.loss == whole.loss


@pytest.mark.parametrize("factory", [default_factory, gated])
@pytest.mark.parametrize("name", ["advantage0", "strategy"])
@pytest.mark.parametrize("autocast", [False, True])
def test_training_learns(factory, name, autocast):
    ours = learner(config(updates=300, autocast=autocast, learning_rate=1e-2), name, factory, RECORDS[:40])
    train([ours], range(1))
    before = ours.loss
    train([ours])
    train([ours], range(1))
    # What a strategy's loss cannot fall below is the entropy of its targets.
    assert ours.loss < (before - 0.1 if name == "strategy" else 0.5 * before)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_stops_training(wrong, autocast):
    records = RECORDS.copy()
    records[:, LAYOUT.targets_at : LAYOUT.targets_at + 4] = np.array([wrong], np.float32).view(np.uint8)
    ours = learner(config(autocast=autocast), records=records)
    before = weights(ours)
    with pytest.raises(TrainingError, match=r"iteration 1, network advantage0, update 0: loss .*targets reach"):
        train([ours])
    assert same(weights(ours), before)


def test_samples_of_an_iteration_to_come_stop_training():
    ours = learner(config(), records=samples(400, iteration=1 << 30))
    before = weights(ours)
    with pytest.raises(TrainingError, match=rf"network advantage0: a sample is of iteration {1 << 30}, but the last"):
        train([ours])
    assert same(weights(ours), before)


@pytest.mark.parametrize("number", [0, 2, 4])
def test_weights_that_are_not_finite_are_refused(number):
    ours = learner(config())
    with ours.model.writing() as module, torch.no_grad():
        module[number].weight[0, 0] = np.nan
    with pytest.raises(TrainingError, match="its weights are not finite"):
        train([ours])


def test_a_batch_that_weighs_nothing_changes_nothing():
    records = RECORDS.copy()
    records[:, LAYOUT.weight_at : LAYOUT.iteration_at] = 0
    ours = learner(config(), records=records)
    before = weights(ours)
    train([ours])
    assert ours.loss == 0 and same(weights(ours), before)


def test_reset_forgets_and_warm_goes_on():
    settings = config()
    fresh, warm, reset = (learner(settings) for _ in range(3))
    train([fresh])
    train([warm], iterations=2)
    assert not same(weights(warm), weights(fresh))

    train([reset])
    reset.reset(make_network(default_factory, GAME, settings, number=0, iteration=0))
    assert not reset.state()[1]["state"]
    train([reset])
    assert same(weights(reset), weights(fresh))


@pytest.mark.parametrize("autocast", [False, True])
def test_loaded_weights_and_moments_go_on_to_the_same_bits(autocast):
    settings = config(autocast=autocast)
    ours, other = learner(settings), learner(settings)
    train([ours])
    other.restore(*copy.deepcopy(ours.state()))
    train([ours])
    train([other])
    assert same(weights(ours), weights(other))


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_rate_follows_the_schedule_in_every_iteration(schedule):
    settings = config(schedule=schedule, learning_rate=0.01)
    ours, rates = learner(settings), []
    with ours.model.writing():
        optimizer = ours.model.optimizer
    optimizer.register_step_post_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    train([ours], iterations=2)
    expected = [settings.training.rate(update) for update in range(settings.training.updates)]
    assert rates == expected * 2
    assert expected[0] == 0.01 and (schedule == "constant") == (expected[-1] == 0.01)


def test_flat_parameters_leave_the_module_what_it_was():
    module = default_factory(7, 3, config())
    state, features = copy.deepcopy(module.state_dict()), torch.rand(5, 7)
    outputs = module(features)
    flat = FlatParameters(module)
    assert same(module.state_dict(), state) and torch.equal(module(features), outputs)
    with torch.no_grad():
        flat.vector.mul_(2)
    assert all(torch.equal(value, 2 * state[key]) for key, value in module.state_dict().items())
    module.load_state_dict(state)
    assert torch.equal(flat.vector, torch.cat([value.reshape(-1) for value in state.values()]))
    assert same(copy.deepcopy(module).state_dict(), state)


@pytest.mark.parametrize("module", [nn.Linear(3, 2).double(), nn.ReLU(), nn.Linear(3, 2).requires_grad_(False)])
def test_parameters_that_cannot_be_trained_are_refused(module):
    with pytest.raises(ValueError, match="must be float32, and there must be some"):
        FlatParameters(module)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_summed_on_any_device_as_on_the_cpu(dtype):
    module = default_factory(7, 3, config())
    shards = [[torch.randn(each.shape).to(dtype) for each in module.parameters()] for _ in range(3)]
    compiled, plain = FlatParameters(module), FlatParameters(copy.deepcopy(module))
    norm = compiled.sum(shards, 0.25)
    assert plain.sum_by_torch(shards, 0.25) == pytest.approx(norm, rel=1e-6)
    torch.testing.assert_close(plain.vector.grad, compiled.vector.grad)
    assert norm == pytest.approx(float(compiled.vector.grad.norm()), rel=1e-5)
