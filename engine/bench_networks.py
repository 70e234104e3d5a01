"""Networks that benches play with."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from engine.config import Config
from engine.networks import default_factory, make_network
from pyx.lost_cities import LostCities


def played_network(game: Any, config: Config, player: int) -> nn.Module:
    """A network whose play is neither uniform nor endless.

    Weights are as they start, but the output layer's are random instead of zero. In Lost Cities drawing from the
    deck gets 1 more: random values alone would trade cards with the piles for hundreds of plies, which no player who
    has learned anything does. Games then last for about 115 decisions; 88 is the least without draws from piles.
    """
    module = make_network(default_factory, game, config, number=player, iteration=0)
    output = [layer for layer in module.modules() if isinstance(layer, nn.Linear)][-1]
    with torch.no_grad():
        output.weight.normal_(std=output.in_features**-0.5, generator=torch.Generator().manual_seed(player))
        if isinstance(game, LostCities):
            output.bias[2 * game.kinds] += 1.0
    return module
