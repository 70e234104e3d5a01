"""Training of one network from its memory: a chain of updates, each a fixed number of shards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from engine.gradients import gradients_of
from engine.memory import Memory
from engine.parameters import FlatParameters, array
from engine.untrusted import refuse_other_optimizer, refuse_unlike
from pyx.cfr_math import iteration_weights
from pyx.encoding import RecordLayout, batch_indices, gather
from pyx.losses import advantage_loss, strategy_loss
from threading_runtime.weights import SharedModel

# Divides where a batch weighs nothing.
_TINY = float(np.finfo(np.float32).tiny)


class TrainingError(Exception):
    """Training cannot go on: a loss, gradient or weight is not finite."""


class Learner:
    """One network, its optimizer and its memory; a chain for threading_runtime.tasks.run_chains.

    Owned by: the trainer. Safe to call from: the pool's threads while a chain runs, as tasks.Chain says.
    Guarantees: weights after an iteration are a pure function of the weights before, the optimizer's state, the
    memory and the config: a batch is cut into `shards` parts, each differentiated into gradients of its own, which
    are summed in shard order before one step, whichever threads computed them.
    Does not guarantee: anything of the module while a chain runs; evaluate a published copy.
    """

    def __init__(self, name: str, number: int, module: nn.Module, memory: Memory, config, game) -> None:
        self.name, self.number, self.memory, self.config = name, number, memory, config
        training = config.training
        self.steps, self.shards = training.updates, training.shards
        self._iteration = self._done = 0
        self._first = 0  # the update that is the chain's step 0
        is_strategy = name == "strategy"
        self._loss_of = strategy_loss if is_strategy else advantage_loss
        self._scale = 1.0 if is_strategy else 1.0 / game.payoff_scale
        self._parameters = FlatParameters(module)
        self._differentiate = gradients_of(module, half=training.autocast)
        optimizer = torch.optim.Adam([self._parameters.vector], lr=training.learning_rate, fused=True)
        self.model = SharedModel(module, optimizer)
        self._device = self._parameters.vector.device
        self._excess = torch.ones((), device=self._device)
        size = training.batch_size // self.shards
        self._parts = [Part(memory.layout, size, half=training.autocast) for _ in range(self.shards)]
        self._loss_sum = math.nan
        self.thread_seconds = 0.0  # that threads spent since `begin`, all of them together

    def begin(self, iteration: int, updates: range | None = None) -> None:
        """Get ready for updates of an iteration (counted from 1); call before the chain runs.

        updates: which of its config.training.updates, where not all; in ascending order from one call to the next.
        """
        began = perf_counter()
        updates = range(self.config.training.updates) if updates is None else updates
        self._first, self.steps = updates.start, len(updates)
        if iteration != self._iteration or self._first == 0:
            self._loss_sum, self._done = 0.0, 0
        self._iteration = iteration
        self._iteration_weights = iteration_weights(iteration, self.config.training.weighting)
        # Finite weights stay finite by updates with finite gradients, so that this need not be looked at again.
        if not math.isfinite(self._parameters.vector.sum().item()):
            raise TrainingError(
                f"iteration {iteration}, network {self.name}: its weights are not finite, before any update; "
                "start from other weights."
            )
        with self.model.writing():
            self._differentiate.refresh()
        self._draw(0)
        self.thread_seconds = perf_counter() - began

    def shard(self, step: int, index: int) -> None:
        """Loss and gradients of one part of the batch, of samples by their weights, not yet divided by their sum."""
        began = perf_counter()
        part, size = self._parts[index], self.config.training.batch_size // self.shards
        try:
            gather(
                self.memory.layout,
                self.memory.rows,
                self._indices[size * index : size * (index + 1)],
                self._iteration_weights,
                self._scale,
                self.config.training.weight_cap,
                *part.arrays,
            )
        except ValueError as error:  # samples that no traversal wrote: the checkpoint that had them is a stranger's
            raise TrainingError(
                f"iteration {self._iteration}, network {self.name}: {error}; go on from another checkpoint."
            ) from None
        with self.model.reading():
            outputs, kept = self._differentiate.forward(part.features.to(self._device))
            outputs = outputs.cpu()
            gradient = torch.empty_like(outputs)
            part.loss = self._loss_of(array(outputs), *part.arrays[1:], array(gradient))
            part.gradients = self._differentiate.backward(kept, gradient.to(self._device))
        part.seconds = perf_counter() - began

    def finish(self, step: int) -> None:
        """Sum the shards' gradients in order, step, draw the next batch."""
        began = perf_counter()
        training = self.config.training
        # A loss is a mean over the batch's total weight, so that its size does not depend on importance weights.
        weight = max(sum(part.weight() for part in self._parts), _TINY)
        loss = sum(part.loss for part in self._parts) / weight
        with self.model.writing():  # on CUDA the shards' gradients are there once their readings have ended
            norm = self._parameters.sum([part.gradients for part in self._parts], 1.0 / weight)
        for part in self._parts:
            part.gradients = []  # as large as the network each, and not read again
        if not math.isfinite(loss) or not math.isfinite(norm):
            update = self._first + step
            raise TrainingError(
                f"iteration {self._iteration}, network {self.name}, update {update}: loss {loss}, gradient norm "
                f"{norm}; {self._statistics()}. Lower training.learning_rate or set training.clip_norm."
            )
        excess = norm / training.clip_norm if training.clip_norm else 1.0
        with self.model.writing():
            optimizer = self.model.optimizer
            # What the fused step divides gradients by, which saves a pass; torch's GradScaler uses it too.
            optimizer.grad_scale = self._excess.fill_(excess) if excess > 1.0 else None
            for group in optimizer.param_groups:
                group["lr"] = training.rate(self._first + step)
            optimizer.step()
            self._differentiate.refresh()
        self._loss_sum += loss
        self._done += 1
        if step + 1 < self.steps:
            self._draw(step + 1)
        self.thread_seconds += perf_counter() - began + sum(part.seconds for part in self._parts)

    @property
    def loss(self) -> float:
        """Mean loss of the iteration's updates, per sample of mean weight; NaN before the first."""
        return self._loss_sum / self._done if self._done else math.nan

    def reset(self, module: nn.Module) -> None:
        """Start again from another module's weights and a fresh optimizer."""
        with self.model.writing() as mine:
            mine.load_state_dict(module.state_dict())
            self.model.optimizer.state.clear()

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The state_dicts of network and optimizer, which are not to be kept beyond the next update."""
        with self.model.reading() as module:
            return module.state_dict(), self.model.optimizer.state_dict()

    def restore(self, network: Mapping[str, Any], optimizer: Mapping[str, Any], where: str = "the checkpoint") -> None:
        """Go on from state_dicts. Raises CheckpointError where they do not fit; where: what has them."""
        with self.model.reading() as module:
            refuse_unlike(network, module.state_dict(), where)
            refuse_other_optimizer(optimizer, self.model.optimizer, where)
        with self.model.writing() as module:
            module.load_state_dict(network)
            self.model.optimizer.load_state_dict(dict(optimizer))

    def _draw(self, step: int) -> None:
        """Which samples the shards of a step will gather."""
        update, size = self._first + step, self.memory.size
        self._indices = batch_indices(
            self.config.seed, self.number, self._iteration, update, size, self.config.training.batch_size
        )

    def _statistics(self) -> str:
        """Of the batch, for the report of a failure."""
        targets, weights = (max(np.abs(part.arrays[place]).max() for part in self._parts) for place in (2, 3))
        return f"targets reach {targets:.3g}, weights {weights:.3g}"


class Part:
    """A shard's samples, and what came of them.

    features: (n, n_features), float32 or with `half` bfloat16. arrays: the same memory, slots and targets
    (n, max_legal), weights (n,), as gather fills them.
    """

    def __init__(self, layout: RecordLayout, n: int, *, half: bool) -> None:
        self.features = torch.zeros(n, layout.n_features, dtype=torch.bfloat16 if half else torch.float32)
        self.arrays = [
            array(self.features),
            np.zeros((n, layout.max_legal), np.uint16),
            np.zeros((n, layout.max_legal), np.float32),
            np.zeros(n, np.float32),
        ]
        self.gradients: list[torch.Tensor] = []
        self.loss = math.nan
        self.seconds = 0.0  # that its shard took

    def weight(self) -> float:
        """Total weight of the samples."""
        return float(self.arrays[3].sum(dtype=np.float64))
