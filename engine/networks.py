"""Advantage and strategy networks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from pyx.rng import Stream

Factory = Callable[[int, int, object], nn.Module]


class Network(nn.Sequential):
    """n_features -> hidden, `layers` times with ReLU, -> n_actions; float32 (n, n_features) to (n, n_actions).

    The output layer starts at zero, so that an untrained network gives every action the same value and the first
    strategy is uniform.
    """

    def __init__(self, n_features: int, n_actions: int, hidden: int, layers: int) -> None:
        widths = [n_features] + [hidden] * layers
        modules: list[nn.Module] = []
        for wide, narrow in zip(widths, widths[1:], strict=False):
            modules += [nn.Linear(wide, narrow), nn.ReLU()]
        output = nn.Linear(hidden, n_actions)
        nn.init.zeros_(output.weight)
        nn.init.zeros_(output.bias)
        super().__init__(*modules, output)


def default_factory(n_features: int, n_actions: int, config) -> nn.Module:
    """The network that the config describes."""
    return Network(n_features, n_actions, config.network.hidden, config.network.layers)


def make_network(factory: Factory, game, config, *, number: int, iteration: int) -> nn.Module:
    """A new network whose initial weights depend on (seed, number, iteration) alone.

    Any factory is answered from torch's own generator, so that is what is seeded, and put back afterwards.
    """
    seed = Stream(config.seed, "network", iteration=iteration, player=number).u32()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = factory(game.n_features, game.n_actions, config)
    with torch.no_grad():
        shape = tuple(module(torch.zeros(2, game.n_features)).shape)
    if shape != (2, game.n_actions):
        raise ValueError(
            f"the network maps (2, {game.n_features}) features to shape {shape}; "
            f"{game.name} needs (2, {game.n_actions})"
        )
    return module
