"""Published networks: shortcuts change rounding only, and an answer is of one version on whichever thread."""

import copy
import threading

import numpy as np
import pytest
import torch
from torch import nn

from engine import inference
from engine.inference import PublishedNetwork, chain_of, rounded_up
from engine.networks import Network

# The largest difference from the plain network, as a share of its largest output: float32 sums in another order,
# and bfloat16 values of which one may be rounded the other way in every layer.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-6}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def network(n_features, n_actions, hidden, layers, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = Network(n_features, n_actions, hidden, layers)
        nn.init.normal_(made[-1].weight, std=hidden**-0.5)
    return made


def packed_rows(n, n_features, seed=0):
    bits = np.random.default_rng(seed).random((n, n_features)) < 0.15
    rows = np.zeros((n, (n_features + 63) // 64 * 8), np.uint8)
    packed = np.packbits(bits, axis=1, bitorder="little")
    rows[:, : packed.shape[1]] = packed
    return rows


def plainly(module, rows, n_features, dtype):
    """The module itself in the inference dtype, on the floats of the rows."""
    module = copy.deepcopy(module).to(dtype)
    features = np.unpackbits(rows, axis=1, bitorder="little")[:, :n_features]
    with torch.inference_mode():
        return module(torch.from_numpy(features).to(dtype)).float().numpy()


def assert_close(got, expected, dtype):
    assert got.dtype == np.float32 and got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE[dtype] * np.abs(expected).max())


@DTYPES
@pytest.mark.parametrize("n_features, n_actions, hidden, layers", [(703, 106, 512, 3), (11, 2, 64, 1), (129, 7, 70, 2)])
@pytest.mark.parametrize("shortcuts", [True, False])
def test_answers_are_the_plain_network_s(dtype, n_features, n_actions, hidden, layers, shortcuts):
    module = network(n_features, n_actions, hidden, layers)
    published = PublishedNetwork(module, n_features, dtype, shortcuts=shortcuts)
    rows = packed_rows(300, n_features)
    expected = plainly(module, rows, n_features, dtype)
    for n in (1, 2, 3, 17, 31, 32, 33, 64, 100, 255, 300, 5):
        assert_close(published(rows[:n]), expected[:n], dtype)


@DTYPES
def test_every_batch_size_to_300(dtype):
    module = network(40, 5, 64, 2)
    published = PublishedNetwork(module, 40, dtype)
    rows = packed_rows(300, 40)
    expected = plainly(module, rows, 40, dtype)
    for n in range(1, 301):
        assert_close(published(rows[:n]), expected[:n], dtype)


def test_no_rows_no_answers():
    assert PublishedNetwork(network(40, 5, 64, 2), 40, torch.float32)(packed_rows(0, 40)).shape == (0, 5)


@DTYPES
def test_without_the_sum_of_set_bits(dtype, monkeypatch):
    monkeypatch.setattr(inference, "MAX_FEATURES", 0)
    module = network(40, 5, 64, 2)
    rows = packed_rows(50, 40)
    assert_close(PublishedNetwork(module, 40, dtype)(rows), plainly(module, rows, 40, dtype), dtype)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(40, 40), nn.Linear(40, 5)

    def forward(self, x):
        return self.out(x + torch.tanh(self.inner(x)))


class Doubled(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked():
    module = nn.Sequential(nn.Linear(40, 8), nn.ReLU(), nn.Linear(8, 5))
    module[0].register_forward_hook(hook)
    return module


def hook(module, args, output):
    return output + 1


def test_publishing_to_a_module_of_any_kind():
    """A chain is packed, anything else runs as it is; both answer for the weights published last."""
    chains = [
        lambda: nn.Sequential(nn.Linear(40, 5)),
        lambda: nn.Sequential(nn.Linear(40, 5), nn.ReLU()),
        lambda: nn.Sequential(nn.Linear(40, 16, bias=False), nn.ReLU(), nn.ReLU(), nn.Linear(16, 5, bias=False)),
        lambda: nn.Sequential(nn.Linear(40, 16), nn.Linear(16, 5)),
    ]
    others = [
        Residual,
        hooked,
        lambda: Doubled(nn.Linear(40, 5)),
        lambda: nn.Sequential(nn.Linear(40, 8), nn.Tanh(), nn.Linear(8, 5)),
        lambda: nn.Sequential(nn.Sequential(nn.Linear(40, 8), nn.ReLU()), nn.Linear(8, 5)),
    ]
    rows = packed_rows(20, 40)
    for factory in chains + others:
        assert (chain_of(factory()) is not None) == (factory in chains)
        for dtype in TOLERANCE:
            published = PublishedNetwork(factory(), 40, dtype)
            newest = factory()
            published.publish(newest)
            assert_close(published(rows), plainly(newest, rows, 40, dtype), dtype)


@DTYPES
def test_versions_never_mix(dtype):
    """While one thread publishes, others evaluate: every answer has the bits of one version's."""
    versions = [network(70, 6, 96, 2, seed=seed) for seed in range(8)]
    rows = packed_rows(40, 70)
    published = PublishedNetwork(versions[0], 70, dtype)
    expected = set()
    for version in versions:
        published.publish(version)
        expected.add(published(rows).tobytes())
    assert len(expected) == len(versions)
    seen, stop = [set() for _ in range(3)], threading.Event()

    def evaluate(answers):
        torch.set_num_threads(1)
        while not stop.is_set():
            answers.add(published(rows).tobytes())

    threads = [threading.Thread(target=evaluate, args=(answers,)) for answers in seen]
    for thread in threads:
        thread.start()
    for turn in range(40):
        published.publish(versions[turn % len(versions)])
    stop.set()
    for thread in threads:
        thread.join()
    assert set().union(*seen) <= expected


@DTYPES
@pytest.mark.parametrize("shortcuts", [True, False])
def test_what_was_published_is_a_copy(dtype, shortcuts):
    """Whatever becomes of the module that was published, biases too, its answers stay."""
    module = network(70, 6, 96, 2)
    published = PublishedNetwork(module, 70, dtype, shortcuts=shortcuts)
    rows = packed_rows(40, 70)
    for version in range(2):
        assert published.version == version
        before = published(rows)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter += 1
        assert np.array_equal(published(rows), before)
        published.publish(module)
        assert not np.array_equal(published(rows), before)


@pytest.mark.parametrize("shortcuts", [True, False])
def test_nobody_waits_for_a_publication(shortcuts, monkeypatch):
    """Evaluations that come while a new version is being made are of the version before."""
    module = network(70, 6, 96, 2)
    published = PublishedNetwork(module, 70, torch.float32, shortcuts=shortcuts)
    rows = packed_rows(40, 70)
    before, during = published(rows), []
    make = published._version_of

    def slowly(module):
        thread = threading.Thread(target=lambda: during.append(published(rows)))
        thread.start()
        thread.join(60)
        return make(module)

    monkeypatch.setattr(published, "_version_of", slowly)
    published.publish(network(70, 6, 96, 2, seed=1))
    assert len(during) == 1 and np.array_equal(during[0], before)
    assert not np.array_equal(published(rows), before)


def test_compiled_modules_are_refused():
    """Their guards and caches would be shared by all threads."""

    class Compiled(nn.Sequential):
        _orig_mod = nn.Linear(70, 6)

    with pytest.raises(ValueError, match="torch.compile"):
        PublishedNetwork(nn.Sequential(Compiled(nn.Linear(70, 6))), 70, torch.float32)


@DTYPES
def test_the_same_bits_on_every_thread(dtype):
    published = PublishedNetwork(network(703, 106, 128, 2), 703, dtype)
    rows = packed_rows(90, 703)
    sizes = [90, 1, 33, 17, 64, 2, 90]
    answers = [[] for _ in range(4)]

    def evaluate(own, order):
        torch.set_num_threads(1)
        # Sizes in orders of their own, so that what is left in the buffers differs.
        found = {n: published(rows[:n]).tobytes() for n in order}
        own.extend(found[n] for n in sizes)

    threads = [
        threading.Thread(target=evaluate, args=(own, sizes[turn:] + sizes[:turn])) for turn, own in enumerate(answers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers[0] and all(own == answers[0] for own in answers)


def test_sizes_that_batches_are_run_as():
    sizes = [rounded_up(n) for n in range(1, 1025)]
    assert all(n <= size <= n + n // 16 for n, size in enumerate(sizes, 1))
    assert len({size for size in sizes if 512 < size <= 1024}) == 16
