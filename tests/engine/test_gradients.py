"""Gradients written out beside autograd's, and which modules they are written out for."""

import copy

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from engine import gradients
from engine.gradients import AutogradGradients, StackGradients, gradients_of
from engine.networks import Network


def stack(seed, widths):
    torch.manual_seed(seed)
    layers = []
    for wide, narrow in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def by_both(module, features, gradient, half):
    """Outputs and gradients by StackGradients and by autograd."""
    results = []
    for kind in (StackGradients, AutogradGradients):
        differentiate = kind(module, half)
        outputs, kept = differentiate.forward(features)
        results.append((outputs, differentiate.backward(kept, gradient.to(outputs.dtype))))
    return results


def distance(values, exact, size=0.0):
    """Largest error, as a share of the largest exact value, or of `size` where that is larger."""
    scale = exact.double().abs().max().clamp_min(max(size, 1e-30))
    return ((values.double() - exact.double()).abs().max() / scale).item()


def size_of_terms(module, features):
    """What an output is where the terms of its sum do not happen to cancel: a lone output can be far smaller."""
    hidden, last = module[:-1](features.float()), module[-1]
    return (hidden.square() @ last.weight.square().T + last.bias.square()).sqrt().max().item()


def check(seed, widths, n, half, scale, tolerance):
    module = stack(seed, widths)
    features = (torch.rand(n, widths[0]) < 0.3).to(torch.bfloat16 if half else torch.float32)
    gradient = torch.randn(n, widths[-1]) * scale
    (outputs, written), (expected, by_autograd) = by_both(module, features, gradient, half)
    assert outputs.dtype == features.dtype
    assert distance(outputs, expected, size_of_terms(module, features)) < tolerance
    for ours, theirs, parameter in zip(written, by_autograd, module.parameters(), strict=True):
        assert ours.shape == theirs.shape == parameter.shape
        assert distance(ours, theirs) < tolerance


WIDTHS = st.lists(st.integers(1, 90), min_size=2, max_size=5)
SCALES = st.sampled_from([1e-6, 1.0, 1e6])  # of a batch's weights


@given(st.integers(0, 1 << 30), WIDTHS, st.integers(1, 200), SCALES)
@example(1337, [90, 90, 1], 1, 1e-6)  # an output a hundred times smaller than its terms
@settings(deadline=None, max_examples=80)
def test_float32_gradients_are_those_of_autograd(seed, widths, n, scale):
    check(seed, widths, n, False, scale, 1e-5)


@given(st.integers(0, 1 << 30), WIDTHS, st.integers(1, 200), SCALES)
@settings(deadline=None, max_examples=80)
def test_bfloat16_gradients_are_those_of_autocast(seed, widths, n, scale):
    # bfloat16 has 8 bits, and what is rounded differently in one layer goes through all the others.
    check(seed, widths, n, True, scale, 0.05)


@pytest.mark.parametrize("half", [False, True])
def test_the_full_network(half):
    check(0, [703, 512, 512, 512, 106], 256, half, 1.0, 0.05 if half else 1e-5)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("dtypes", [set(), {torch.float32}])
def test_without_onednn(monkeypatch, dtypes, half):
    monkeypatch.setattr(gradients, "_ONEDNN", dtypes)
    check(1, [40, 64, 64, 7], 100, half, 1.0, 0.05 if half else 1e-5)


def test_changed_weights_are_seen_after_refresh():
    module = stack(2, [5, 8, 3])
    for half, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        differentiate = gradients_of(module, half=half)
        before = differentiate.forward(torch.ones(2, 5, dtype=dtype))[0].clone()
        with torch.no_grad():
            module[0].weight.mul_(2)
        differentiate.refresh()
        outputs = differentiate.forward(torch.ones(2, 5, dtype=dtype))[0]
        assert not torch.equal(outputs, before)
        torch.testing.assert_close(outputs.float(), module(torch.ones(2, 5)).detach(), rtol=0.02, atol=0.02)


def test_stacks_are_written_out():
    assert isinstance(gradients_of(Network(6, 3, 8, 2), half=False), StackGradients)
    assert isinstance(gradients_of(nn.Sequential(nn.Linear(6, 3)), half=False), StackGradients)


class Doubled(nn.Sequential):
    def forward(self, features):
        return 2 * super().forward(features)


class Scaled(nn.Linear):
    def forward(self, features):
        return 2 * super().forward(features)


def frozen():
    module = stack(0, [6, 8, 3])
    module[0].weight.requires_grad_(False)
    return module


def hooked():
    module = stack(0, [6, 8, 3])
    module[1].register_forward_hook(lambda *_: None)
    return module


def tied():
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer)


@pytest.mark.parametrize(
    "module",
    [
        Doubled(*stack(0, [6, 8, 3])),
        nn.Sequential(Scaled(6, 3)),
        frozen(),
        hooked(),
        tied(),
        nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(6, 8), nn.ReLU()),
        nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3)),
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))),
        nn.Sequential(),
    ],
    ids=lambda module: str(module)[:40],
)
def test_whatever_else_goes_to_autograd(module):
    assert isinstance(gradients_of(module, half=False), AutogradGradients)


def test_a_parameter_that_is_not_used_has_no_gradient():
    module = stack(3, [4, 5, 2])
    module.unused = nn.Parameter(torch.ones(3))
    plain = copy.deepcopy(module)
    plain.forward = lambda features: nn.Sequential(plain[0], plain[1], plain[2])(features)
    differentiate = AutogradGradients(plain, half=False)
    outputs, kept = differentiate.forward(torch.ones(2, 4))
    found = differentiate.backward(kept, torch.ones_like(outputs))
    assert len(found) == 5 and found[[*dict(plain.named_parameters())].index("unused")].eq(0).all()
