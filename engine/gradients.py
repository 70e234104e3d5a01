"""Gradients of a network's parameters: on the CPU written out for a plain stack of layers, elsewhere by autograd.

Written out they cost little more than their matrix products. Those go to oneDNN where torch has it, which on some
processors is twice as fast as the library behind torch.mm.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

from engine.hardware import onednn_dtypes
from engine.parameters import array
from pyx.gradients import relu_back

Tensors = list[torch.Tensor]

_ONEDNN = onednn_dtypes()


class Gradients(Protocol):
    """How one module is differentiated.

    Safe to call from: any threads at the same time, `refresh` aside. Grad mode is set where it is needed.
    Guarantees: the same input gives the same bits on any thread whose intra-op thread count is 1.
    """

    def refresh(self) -> None:
        """Take note of changed weights; alone, before the next `forward`."""

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Outputs (n, n_actions), float32 or bfloat16, and what `backward` needs of them."""

    def backward(self, kept: Any, gradient: torch.Tensor) -> Tensors:
        """From the gradient by outputs, alike in shape and dtype, to that by each trainable parameter, in the order of
        `parameters()`, float32 or bfloat16."""


def gradients_of(module: nn.Module, *, half: bool) -> Gradients:
    """half: bfloat16 features and products; weights and sums over a batch's shards stay float32."""
    on_cpu = all(parameter.device.type == "cpu" for parameter in module.parameters())
    return StackGradients(module, half) if on_cpu and _is_stack(module) else AutogradGradients(module, half)


class StackGradients:
    """Of Linear layers with a ReLU between each two."""

    def __init__(self, stack: nn.Sequential, half: bool) -> None:
        self._masters = [parameter.detach() for parameter in stack.parameters()]
        dtype = torch.bfloat16 if half else torch.float32
        self._used = [master.to(dtype) for master in self._masters]  # the masters themselves if they are of it
        self._weights, self._biases = self._used[::2], self._used[1::2]
        self._half = half

    def refresh(self) -> None:
        if self._half:
            torch._foreach_copy_(self._used, self._masters)

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, Tensors]:
        inputs = [features]
        for weight, bias in zip(self._weights[:-1], self._biases[:-1], strict=True):
            inputs.append(linear(inputs[-1], weight, bias, relu=True))
        return linear(inputs[-1], self._weights[-1], self._biases[-1]), inputs

    def backward(self, inputs: Tensors, gradient: torch.Tensor) -> Tensors:
        backwards: Tensors = [gradient.sum(0)]
        for number in reversed(range(len(inputs))):
            backwards.append(weight_gradient(gradient, inputs[number]))
            if number:
                gradient = input_gradient(gradient, self._weights[number])
                # A layer's inputs are what the ReLU before it gave out.
                bias = torch.empty(gradient.shape[1])
                relu_back(array(gradient), array(inputs[number]), bias.numpy())
                backwards.append(bias)
        return backwards[::-1]


class AutogradGradients:
    """Of any module. One that changes as it is called, such as by batch norm or dropout, breaks equal bits."""

    def __init__(self, module: nn.Module, half: bool) -> None:
        self._module, self._half = module, half

    def refresh(self) -> None:
        pass

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad(), torch.autocast(features.device.type, torch.bfloat16, enabled=self._half):
            outputs = self._module(features)
        seen = outputs.detach().contiguous()
        return seen if seen.dtype == torch.bfloat16 else seen.float(), outputs

    def backward(self, outputs: torch.Tensor, gradient: torch.Tensor) -> Tensors:
        parameters = [parameter for parameter in self._module.parameters() if parameter.requires_grad]
        # Not `backward`, which would have all threads add to one `.grad`.
        return list(
            torch.autograd.grad(
                outputs, parameters, gradient.to(outputs.dtype), allow_unused=True, materialize_grads=True
            )
        )


def linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, relu: bool = False) -> torch.Tensor:
    """(n, a), (b, a), (b,) to (n, b)."""
    if _onednn(inputs):
        return torch.ops.mkldnn._linear_pointwise.default(inputs, weight, bias, "relu" if relu else "none", [], "")
    outputs = torch.addmm(bias, inputs, weight.t())
    return outputs.relu_() if relu else outputs


def weight_gradient(gradient: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """(n, b), (n, a) to (b, a)."""
    return _product(gradient.t(), inputs)


def input_gradient(gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """(n, b), (b, a) to (n, a)."""
    return _product(gradient, weight)


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    # torch.mm itself takes bfloat16 to oneDNN.
    if left.dtype == torch.float32 and _onednn(left):
        return torch.ops.mkldnn._linear_pointwise.default(left, right.t(), None, "none", [], "")
    return torch.mm(left, right)


def _onednn(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _ONEDNN and tensor.device.type == "cpu"


def _is_stack(module: nn.Module) -> bool:
    """Whether `module` is Linear, ReLU, Linear, ... Linear and nothing about it was changed."""
    if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
        return False
    layers = list(module)
    linears, relus = layers[::2], layers[1::2]
    own = [parameter for layer in linears for parameter in layer.parameters()]
    return (
        len(linears) == len(relus) + 1
        and all(type(layer) is nn.Linear and [*layer._parameters] == ["weight", "bias"] for layer in linears)
        and all(type(layer) is nn.ReLU for layer in relus)
        and len(own) == len({*own}) == 2 * len(linears)  # a bias each, no layer twice
        and all(parameter.requires_grad for parameter in own)
        and not any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in module.modules())
    )
