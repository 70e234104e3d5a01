"""Advantage and strategy networks, and the form of them that traversal threads evaluate."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

from pyx.encoding import expand
from pyx.rng import Stream
from threading_runtime.weights import SharedModel

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


class PublishedNetwork:
    """A network's weights as traversal threads evaluate them, in the inference dtype.

    Owned by: the trainer, which alone calls `publish`. Safe to call from: any thread.
    Guarantees: an answer is of one version of the weights; each thread has buffers of its own; a row's answer
    depends on the batch it stands in through rounding only.
    Does not guarantee: that an answer outlives the thread's next call with the same network width.
    """

    def __init__(self, module: nn.Module, n_features: int, dtype: torch.dtype) -> None:
        self._shared = SharedModel(copy.deepcopy(module).to(dtype).eval().requires_grad_(False))
        self._n_features, self._dtype = n_features, dtype
        self._local = threading.local()

    def publish(self, module: nn.Module) -> None:
        """Take over another module's weights."""
        self.publish_state(module.state_dict())

    def publish_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over the weights of a state_dict, rounded to the inference dtype."""
        with self._shared.writing() as mine:
            mine.load_state_dict(state)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Packed rows, uint8 (n, row_bytes), to outputs, float32 (n, n_actions)."""
        array, tensor = self._staging(len(rows))
        expand(rows, array)
        with torch.inference_mode(), self._shared.reading() as module:
            return module(tensor[: len(rows)]).float().numpy()

    def _staging(self, n: int) -> tuple[np.ndarray, torch.Tensor]:
        """This thread's buffer of at least n rows, as the array that is written and the tensor that is read."""
        if getattr(self._local, "room", 0) < n:
            if self._dtype == torch.float32:
                tensor = torch.zeros(n, self._n_features)
                array = tensor.numpy()
            else:
                tensor = torch.zeros(n, self._n_features, dtype=torch.int16)
                array, tensor = tensor.numpy().view(np.uint16), tensor.view(torch.bfloat16)
            self._local.room, self._local.buffers = n, (array, tensor)
        return self._local.buffers
