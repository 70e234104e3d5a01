"""A module's parameters as one vector."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from pyx.gradients import sum_shards


class FlatParameters:
    """A module's trainable parameters as views of one vector, so that norm, clipping and step are one pass each.

    The module stays what it was: its parameters, `state_dict` and `load_state_dict` go on as before.

    vector: a float32 parameter, (n,), whose `grad` is what `sum` puts there; an optimizer of it trains the module.
    """

    def __init__(self, module: nn.Module) -> None:
        """Raises ValueError where no parameter is trainable or one is not float32."""
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if dtypes := {parameter.dtype for parameter in parameters} ^ {torch.float32}:
            raise ValueError(
                f"the network's trainable parameters must be float32, and there must be some; "
                f"these dtypes are in the way or missing: {', '.join(sorted(map(str, dtypes)))}."
            )
        self._shapes = [parameter.shape for parameter in parameters]
        self.vector = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
        for parameter, view in zip(parameters, self._views(self.vector.detach()), strict=True):
            parameter.data = view
        self.vector.grad = torch.zeros_like(self.vector)
        self._gradients = self._views(self.vector.grad)

    def sum(self, shards: list[list[torch.Tensor]], scale: float) -> float:
        """Put the scaled sum of the gradients of shards, one tensor a parameter each, in `vector.grad`; its norm.

        The norm is Euclidean. Gradients are float32 or bfloat16, and are added in order in float32.
        """
        if self.vector.device.type != "cpu":
            return self.sum_by_torch(shards, scale)
        into = [array(gradient) for gradient in self._gradients]
        return sum_shards([[array(gradient) for gradient in shard] for shard in shards], into, scale)

    def sum_by_torch(self, shards: list[list[torch.Tensor]], scale: float) -> float:
        """What `sum` does, on any device."""
        first, *others = shards
        torch._foreach_copy_(self._gradients, first)
        for shard in others:
            torch._foreach_add_(self._gradients, [gradient.float() for gradient in shard])
        gradient = self.vector.grad
        assert gradient is not None
        return float(gradient.mul_(scale).norm(dtype=torch.float64))

    def _views(self, vector: torch.Tensor) -> list[torch.Tensor]:
        pieces = vector.split([shape.numel() for shape in self._shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]


def array(tensor: torch.Tensor) -> np.ndarray:
    """The same memory as NumPy sees it: bfloat16 as uint16."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
