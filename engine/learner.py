"""Training of one network from its memory: a chain of updates, each a fixed number of shards."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from engine.memory import Memory
from pyx.cfr_math import iteration_weights
from pyx.encoding import batch_indices, gather
from threading_runtime.weights import SharedModel


class TrainingError(Exception):
    """Training cannot go on: a loss or gradient is not finite."""


def advantage_loss(outputs: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Squared error summed over legal actions, (n,): Brown et al. 2019, equation 3."""
    return ((outputs - targets).square() * mask).sum(1)


def strategy_loss(outputs: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Cross entropy against the recorded strategy over legal actions, (n,).

    Its minimum is the weighted mean of the recorded strategies, as that of the squared error is, but it does not
    vanish where the softmax saturates.
    """
    logits = outputs.masked_fill(mask == 0, -torch.inf)
    return -(targets * logits.log_softmax(1).masked_fill(mask == 0, 0.0)).sum(1)


class Learner:
    """One network, its optimizer and its memory; a chain for threading_runtime.tasks.run_chains.

    Owned by: the trainer. Safe to call from: the pool's threads while a chain runs, as tasks.Chain says.
    Guarantees: weights after an iteration are a pure function of the weights before, the memory and the config:
    a batch is cut into `shards` parts, each differentiated into gradients of its own, which are summed in shard
    order before one step, whichever threads computed them.
    Does not guarantee: anything of the module while a chain runs; evaluate a published copy.
    """

    def __init__(self, name: str, number: int, module: nn.Module, memory: Memory, config, game) -> None:
        self.name, self.number, self.memory, self.config = name, number, memory, config
        self._scale = 1.0 if name == "strategy" else 1.0 / game.payoff_scale
        self.model = SharedModel(module)
        self.is_strategy = name == "strategy"
        training = config.training
        self.steps, self.shards = training.updates, training.shards
        self.optimizer = self._make_optimizer()
        batch, layout = training.batch_size, memory.layout
        self._autocast = config.training.autocast
        features = torch.zeros(batch, layout.n_features, dtype=torch.int16 if self._autocast else torch.float32)
        self._features_array = features.numpy().view(np.uint16) if self._autocast else features.numpy()
        self._features = features.view(torch.bfloat16) if self._autocast else features
        self._targets, self._mask = torch.zeros(2, batch, layout.n_actions).unbind()
        self._weights = torch.zeros(batch)
        self._gradients: list[tuple[torch.Tensor, ...]] = [()] * self.shards
        self._losses = np.zeros(self.shards)

    def begin(self, iteration: int) -> None:
        """Get ready for the updates of an iteration (counted from 1); call before the chain runs."""
        self._iteration = iteration
        self._iteration_weights = iteration_weights(iteration, self.config.training.weighting)
        self._loss_sum = 0.0
        self._prepare(0)

    def shard(self, step: int, index: int) -> None:
        """Loss and gradients of one part of the batch."""
        rows = slice(*(len(self._weights) * edge // self.shards for edge in (index, index + 1)))
        with self.model.reading() as module, torch.enable_grad():
            with torch.autocast("cpu", torch.bfloat16, enabled=self._autocast):
                outputs = module(self._features[rows])
            loss_of = strategy_loss if self.is_strategy else advantage_loss
            losses = loss_of(outputs.float(), self._targets[rows], self._mask[rows])
            loss = (losses * self._weights[rows]).sum()
            self._gradients[index] = torch.autograd.grad(loss, list(module.parameters()))
            self._losses[index] = loss.item()

    def finish(self, step: int) -> None:
        """Sum the shards' gradients in order, step, draw the next batch."""
        loss = float(self._losses.sum())
        total = self._gradients[0]
        for gradients in self._gradients[1:]:
            torch._foreach_add_(total, gradients)
        norm = torch.nn.utils.get_total_norm(total)
        if not math.isfinite(loss) or not math.isfinite(norm.item()):
            raise TrainingError(
                f"iteration {self._iteration}, network {self.name}, update {step}: loss {loss}, gradient norm "
                f"{norm.item()}; targets reach {self._targets.abs().max().item():.3g}, weights "
                f"{self._weights.max().item():.3g}. Lower training.learning_rate or set training.clip_norm."
            )
        with self.model.writing() as module:
            parameters = list(module.parameters())
            for parameter, gradient in zip(parameters, total, strict=True):
                parameter.grad = gradient
            if self.config.training.clip_norm:
                torch.nn.utils.clip_grads_with_norm_(parameters, self.config.training.clip_norm, norm)
            for group in self.optimizer.param_groups:
                group["lr"] = self.config.training.rate(step)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self._loss_sum += loss
        if step + 1 < self.steps:
            self._prepare(step + 1)

    @property
    def loss(self) -> float:
        """Mean loss of the iteration's updates, per sample of mean weight."""
        return self._loss_sum / self.steps

    def reset(self, module: nn.Module) -> None:
        """Start again from another module's weights and a fresh optimizer."""
        with self.model.writing() as mine:
            mine.load_state_dict(module.state_dict())
        self.optimizer = self._make_optimizer()

    def _make_optimizer(self) -> torch.optim.Optimizer:
        with self.model.reading() as module:
            return torch.optim.Adam(module.parameters(), lr=self.config.training.learning_rate, fused=True)

    def _prepare(self, step: int) -> None:
        memory, training = self.memory, self.config.training
        indices = batch_indices(
            self.config.seed, self.number, self._iteration, step, memory.size, training.batch_size
        )
        gather(
            memory.layout,
            memory.rows,
            indices,
            self._iteration_weights,
            self._scale,
            training.weight_cap,
            self._features_array,
            self._targets.numpy(),
            self._mask.numpy(),
            self._weights.numpy(),
        )
        # A loss is a mean over the batch's total weight, so that its size does not depend on importance weights.
        self._weights /= self._weights.sum().clamp_min(torch.finfo(torch.float32).tiny)
