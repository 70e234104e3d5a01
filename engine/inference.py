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

from engine.hardware import cpu_multiplies_bf16_in_tiles, onednn_dtypes
from pyx.encoding import expand
from pyx.first_layer import MAX_FEATURES, FirstLayer
from threading_runtime.weights import Snapshots, refuse_compiled

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# What packing is told of the batches to come; their size was not seen to matter from 16 on.
USUAL_BATCH = 256


class PublishedNetwork:
    """A network's weights as traversal threads evaluate them, in the inference dtype.

    Owned by: the trainer, which alone calls `publish`. Safe to call from: any thread.
    Guarantees: an answer is of one version of the weights, and the same bits on every thread; each thread has
    buffers of its own; a row's answer depends on the batch it stands in, and on `shortcuts`, through rounding
    only. Nobody waits for a publication: who began before it ends with the older version.
    Does not guarantee: that rows may change, or be given to another call, before their own call returns.
    """

    def __init__(self, module: nn.Module, n_features: int, dtype: torch.dtype, *, shortcuts: bool = True) -> None:
        """Evaluated on the module's own device. shortcuts: False runs the module itself, to measure what they gain.

        Raises ValueError for a module of torch.compile.
        """
        refuse_compiled(module)
        self._n_features, self._dtype, self._shortcuts = n_features, dtype, shortcuts
        self._device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
        self._local = threading.local()
        self._template = copy.deepcopy(module).to(dtype).eval().requires_grad_(False)
        self._snapshots = Snapshots(self._device, *self._version_of(self._template))

    @property
    def version(self) -> int:
        """How many publications there were."""
        return self._snapshots.newest().version

    def publish(self, module: nn.Module) -> None:
        """Take over another module's weights."""
        self.publish_state(module.state_dict())

    def publish_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over the weights of a state_dict, rounded to the inference dtype."""
        module = copy.deepcopy(self._template)
        module.load_state_dict(state)
        self._snapshots.publish(*self._version_of(module))

    def _version_of(self, module: nn.Module) -> tuple[Packed | nn.Module, list[torch.Tensor]]:
        """What threads evaluate, which is not to be written to again, and its tensors."""
        packed = pack(module, self._n_features) if self._shortcuts else None
        if packed is not None:
            return packed, []
        return module, [*module.parameters(), *module.buffers()]

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Packed rows, uint8 (n, row_bytes), to outputs, float32 (n, n_actions)."""
        weights = self._snapshots.newest().weights
        try:
            mine = self._local.mine
        except AttributeError:
            mine = self._local.mine = _Mine(self._dtype, self._device)
        with torch.inference_mode():
            if isinstance(weights, Packed):
                return mine.evaluate(weights, rows, self._n_features)
            return mine.run(weights, rows, self._n_features)


class _Mine:
    """What one thread evaluates with: buffers, and objects of its own for weights that all threads read.

    An object that threads share, a Python object as well as a tensor, has one reference count, whose cache line goes
    from core to core with every use. With two threads a call of 26 rows through 64 hidden units took 9 % longer for it
    than in two processes; it takes as long.

    Owned by: that thread.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device, self._pinned = dtype, device, device.type == "cuda"
        self._answers: torch.Tensor | None = None  # pinned, where outputs come to
        self._answered = torch.cuda.Event() if self._pinned else None
        self._whole: torch.Tensor | None = None
        self._views: dict[int, tuple[np.ndarray, torch.Tensor]] = {}
        self._packed: Packed | None = None
        self._others: list[tuple[torch.Tensor, torch.Tensor | None, str]] = []
        # What torch.ops.mkldnn._linear_pointwise calls; None in a torch that lacks it, where nothing is packed.
        self._product = torch._C._jit_get_operation("mkldnn::_linear_pointwise")[0]

    def evaluate(self, packed: Packed, rows: np.ndarray, n_features: int) -> np.ndarray:
        """Outputs of a version's weights for packed rows: float32 (n, n_actions)."""
        if self._packed is not packed:
            self._packed = packed
            self._others = [
                (weight.detach(), None if bias is None else bias.detach(), activation)
                for weight, bias, activation in packed.others
            ]
        n, first = len(rows), packed.first
        array, x = self.buffer(rounded_up(n), n_features if first is None else first.width)
        if first is None:
            expand(rows, array)
        else:
            first(rows, array)
        product = self._product
        for weight, bias, activation in self._others:
            x = product(x, weight, bias, activation, [], "")
        return x.float().numpy()[:n]

    def run(self, module: nn.Module, rows: np.ndarray, n_features: int) -> np.ndarray:
        """Outputs of a module for packed rows: float32 (n, n_actions)."""
        n = len(rows)
        array, features = self.buffer(rounded_up(n), n_features)
        expand(rows, array)
        if self._answered is None:
            return module(features).float().numpy()[:n]
        # Rows go out and outputs come back on this thread's stream, without the host waiting; it then waits for that
        # work alone, and not for what other threads gave the device.
        outputs = module(features.to(self._device, non_blocking=True)).float()
        if self._answers is None or self._answers.shape[0] < len(outputs):
            self._answers = torch.empty(outputs.shape, pin_memory=True)
        answers = self._answers[: len(outputs)]
        answers.copy_(outputs, non_blocking=True)
        self._answered.record(torch.cuda.current_stream(self._device))
        self._answered.synchronize()
        return answers.numpy()[:n].copy()  # whoever asked may keep it beyond the next call

    def buffer(self, n: int, width: int) -> tuple[np.ndarray, torch.Tensor]:
        """The buffer of n rows, as the array that is written and the tensor that is read; always of one width.

        It starts as zeros, and rows beyond those of a call keep what an earlier one left: no answer is of them.
        """
        if n not in self._views:
            if self._whole is None or n > len(self._whole):
                self._whole = torch.zeros(n, width, dtype=self._dtype, pin_memory=self._pinned)
                self._views.clear()
            tensor = self._whole[:n]
            array = tensor.numpy() if self._dtype == torch.float32 else tensor.view(torch.int16).numpy().view(np.uint16)
            self._views[n] = array, tensor
        return self._views[n]


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


def pack(module: nn.Module, n_features: int) -> Packed | None:
    """A copy of a module's weights; None where it is no chain of Linear and ReLU, or cannot be packed here."""
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
    reorder = torch.ops.mkldnn._reorder_linear_weight  # into memory of its own
    return Packed(
        first,
        [
            (
                reorder(linear.weight, USUAL_BATCH),
                None if linear.bias is None else linear.bias.clone(),
                "relu" if relu else "none",
            )
            for linear, relu in chain
        ],
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
    reorders = hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return reorders and weight.device.type == "cpu" and weight.dtype in onednn_dtypes()
