"""What traversal threads evaluate: a network's published weights, in the form that asks least of the processor.

For a chain of Linear and ReLU modules, on the CPU:

    first layer     the sum of the weights of the bits that are set, straight from packed rows
    other layers    weights packed once a publication in the processor's own order, ReLU inside the product

Any other module runs as it is, and so does every module with shortcuts=False.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from engine.hardware import cpu_multiplies_bf16_in_tiles
from pyx.encoding import expand
from pyx.first_layer import MAX_FEATURES, FirstLayer
from threading_runtime.weights import SharedModel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# What packing is told of the batches to come; their size was not seen to matter from 16 on.
USUAL_BATCH = 256


class PublishedNetwork:
    """A network's weights as traversal threads evaluate them, in the inference dtype.

    Owned by: the trainer, which alone calls `publish`. Safe to call from: any thread.
    Guarantees: an answer is of one version of the weights, and the same bits on every thread; each thread has
    buffers of its own; a row's answer depends on the batch it stands in, and on `shortcuts`, through rounding
    only.
    Does not guarantee: that rows may change, or be given to another call, before their own call returns.
    """

    def __init__(self, module: nn.Module, n_features: int, dtype: torch.dtype, *, shortcuts: bool = True) -> None:
        """Evaluated on the module's own device. shortcuts: False runs the module itself, to measure what they gain."""
        self._n_features, self._dtype, self._shortcuts = n_features, dtype, shortcuts
        self._device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
        self._local = threading.local()
        mine = copy.deepcopy(module).to(dtype).eval().requires_grad_(False)
        self._shared = SharedModel(mine)
        self._packed: Packed | None = pack(mine, n_features) if shortcuts else None  # changes inside writing() only

    def publish(self, module: nn.Module) -> None:
        """Take over another module's weights."""
        self.publish_state(module.state_dict())

    def publish_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over the weights of a state_dict, rounded to the inference dtype."""
        with self._shared.writing() as mine:
            mine.load_state_dict(state)
            if self._packed is not None:
                self._packed = pack(mine, self._n_features)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Packed rows, uint8 (n, row_bytes), to outputs, float32 (n, n_actions)."""
        n = len(rows)
        run = rounded_up(n)
        with torch.inference_mode(), self._shared.reading() as module:
            packed = self._packed
            first = packed.first if packed is not None else None
            array, tensor = self._staging(run, first.width if first is not None else self._n_features)
            if first is not None:
                first(rows, array)
            else:
                expand(rows, array)
            # Pinned rows go out without the host waiting; it waits for the outputs, and so for both.
            outputs = packed.rest(tensor) if packed else module(tensor.to(self._device, non_blocking=True))
            return outputs.float().cpu().numpy()[:n]

    def _staging(self, n: int, width: int) -> tuple[np.ndarray, torch.Tensor]:
        """This thread's buffer of n rows, as the array that is written and the tensor that is read.

        It starts as zeros, and rows beyond those of a call keep what an earlier one left: no answer is of them.
        """
        local = self._local.__dict__
        views: dict[int, tuple[np.ndarray, torch.Tensor]] = local.setdefault("views", {})
        if n not in views:
            if n > local.get("room", 0):
                pinned = self._device.type == "cuda"
                local["room"], local["whole"] = n, torch.zeros(n, width, dtype=self._dtype, pin_memory=pinned)
                views.clear()
            tensor = local["whole"][:n]
            array = tensor.numpy() if self._dtype == torch.float32 else tensor.view(torch.int16).numpy().view(np.uint16)
            views[n] = array, tensor
        return views[n]


def rounded_up(n: int) -> int:
    """The batch that n rows are run as: at most a sixteenth more, and 16 sizes from one power of two to the next.

    For each new shape of a product oneDNN compiles a kernel, which takes as long as a hundred rows and more, and it
    keeps about a thousand of them. Lanes end one by one, so that nearly every size comes up.
    """
    step = 1 << max(0, n.bit_length() - 5)
    return max(1, -(-n // step) * step)


@dataclass(frozen=True)
class Packed:
    """One version of a chain's weights; never changes."""

    first: FirstLayer | None  # None: it is among the others
    others: list[tuple[torch.Tensor, torch.Tensor | None, str]]  # packed weight, bias, "relu" or "none"

    def rest(self, x: torch.Tensor) -> torch.Tensor:
        for weight, bias, activation in self.others:
            x = torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], "")
        return x


def pack(module: nn.Module, n_features: int) -> Packed | None:
    """A module's weights as they are; None where it is no chain of Linear and ReLU, or cannot be packed here."""
    chain = chain_of(module)
    if chain is None or not can_pack(chain[0][0].weight):
        return None
    first = None
    linear, relu = chain[0]
    bfloat = linear.weight.dtype == torch.bfloat16
    # Where bfloat16 products run in tiles, a whole product costs less than the sum.
    if relu and len(chain) > 1 and n_features <= MAX_FEATURES and not (bfloat and cpu_multiplies_bf16_in_tiles()):
        bias = torch.zeros(linear.out_features) if linear.bias is None else linear.bias.float()
        first = FirstLayer(linear.weight.float().numpy(), bias.numpy(), bfloat=bfloat)
        chain = chain[1:]
    reorder = torch.ops.mkldnn._reorder_linear_weight
    return Packed(
        first,
        [(reorder(linear.weight, USUAL_BATCH), linear.bias, "relu" if relu else "none") for linear, relu in chain],
    )


def chain_of(module: nn.Module) -> list[tuple[nn.Linear, bool]] | None:
    """The Linear modules of a Sequential and whether a ReLU follows each; None if it does anything else."""
    if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
        return None
    chain: list[tuple[nn.Linear, bool]] = []
    for each in (module, *module):
        if each._forward_hooks or each._forward_pre_hooks:
            return None
    for each in module:
        if type(each) is nn.Linear:
            chain.append((each, False))
        elif type(each) is nn.ReLU and chain:
            chain[-1] = chain[-1][0], True
        else:
            return None
    return chain or None


def can_pack(weight: torch.Tensor) -> bool:
    """Whether torch has oneDNN's packed products for a weight of this kind."""
    ops = torch.ops.mkldnn
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(ops, "_linear_pointwise") or not hasattr(ops, "_reorder_linear_weight"):
        return False
    return weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and ops._is_mkldnn_bf16_supported())
