"""What the networks minimise, with its gradient by their outputs."""

from __future__ import annotations

from collections.abc import Callable

import torch

# (outputs, targets, mask, weights) -> the loss summed over the samples, float32 (), and its gradient by outputs.
# outputs, targets, mask: float32 (n, n_actions), mask 1 where an action is legal and else 0, as targets then are;
# weights: float32 (n,).
Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def advantage_loss(
    outputs: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted squared error summed over legal actions: Brown et al. 2019, equation 3."""
    errors = (outputs - targets).mul_(mask)
    gradient = errors * (2 * weights).unsqueeze(1)
    return torch.dot(errors.view(-1), gradient.view(-1)) / 2, gradient


def strategy_loss(
    outputs: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted cross entropy of the softmax over legal actions against the recorded strategy.

    Its minimum is the weighted mean of the recorded strategies, as that of the squared error is, but it does not
    vanish where the softmax saturates.
    """
    # Finite, so that it times a target of 0 is 0; its exponential is 0 beside any legal action's.
    logarithms = outputs.masked_fill(mask == 0, -1e30).log_softmax(1)
    weighted = targets * weights.unsqueeze(1)
    gradient = logarithms.exp().mul_(weighted.sum(1, keepdim=True)).sub_(weighted)
    return -torch.dot(weighted.view(-1), logarithms.view(-1)), gradient
