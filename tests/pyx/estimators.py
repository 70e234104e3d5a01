"""Estimator checks: do sampled targets average to the exact counterfactual regret?

Where targets are averaged by feature row, the exact value is summed over the information sets that share the row,
each times u(I) = product of 1 / n over the owner's decisions before I: a sample's weight is u(I) / (own sampling
reach), so weight * target is an unbiased estimate of u(I) times the counterfactual regret.
"""

from dataclasses import dataclass

import numpy as np

from pyx.encoding import RecordLayout
from pyx.traversal import TraversalBlock

NO_SLOT = 0xFFFF


def table_policy(tree, kind, seed=0):
    """A stand-in for a network: outputs that are a function of the row alone, float32 (n, n_actions)."""
    keys = np.unique(_keys(tree.rows))
    if kind == "uniform":
        table = np.zeros((len(keys), tree.game.n_actions), np.float32)
    else:
        table = np.random.default_rng(seed).random((len(keys), tree.game.n_actions), np.float32)
        if kind == "near-deterministic":
            table = np.where(table == table.max(1, keepdims=True), 1.0, 0.02).astype(np.float32)
    return lambda rows: table[np.searchsorted(keys, _keys(rows))]


def _keys(rows):
    """Packed rows as one sortable value each."""
    return np.ascontiguousarray(rows).view(f"S{rows.shape[1]}")[:, 0]


@dataclass
class Check:
    """z statistics at rows with at least `least` visits, and the share of expected visits left out."""

    z: np.ndarray
    left_out: float

    def passes(self):
        return bool(np.abs(self.z).max() <= 5 and 0.8 <= np.mean(self.z**2) <= 1.2)

    def __str__(self):
        return (
            f"{len(self.z)} z, worst {np.abs(self.z).max():.2f}, mean square {np.mean(self.z**2):.3f}, "
            f"left out {self.left_out:.1%} of visits"
        )


def run(game, algorithm, player, evaluate, traversals, *, seed=11, **settings):
    """A block's advantage records as columns."""
    block = TraversalBlock(
        game, algorithm, player, 0, traversals, lanes=4096, seed=seed, iteration=3, keep_strategy=False, **settings
    )
    while block.advance():
        for seat in (0, 1):
            if block.waiting(seat):
                block.answer(seat, evaluate(block.rows(seat)))
    return columns(RecordLayout(game), block.advantage_records())


def columns(layout, records):
    """uint8 (n, record_bytes) as a dict of arrays: row, targets, weight, slots."""

    def column(start, end, dtype):
        return np.ascontiguousarray(records[:, start:end]).view(dtype)

    return {
        "row": np.ascontiguousarray(records[:, : layout.row_bytes]),
        "targets": column(layout.targets_at, layout.weight_at, np.float32).astype(float),
        "weight": column(layout.weight_at, layout.iteration_at, np.float32)[:, 0].astype(float),
        "slots": column(layout.slots_at, layout.slots_at + 2 * layout.max_legal, np.uint16),
    }


def exact(tree, player, strategy, scaled=True):
    """Row bytes -> u(I) times counterfactual regret by output slot, summed over the row's sets, (n_actions,)."""
    regrets = tree.counterfactual_regrets(strategy)
    parents, legal = tree.infosets["parent"], tree.infosets["n_legal"]
    share = np.ones(tree.n_infosets)
    for i in range(tree.n_infosets):
        if parents[i] >= 0:
            share[i] = share[parents[i] // tree.max_legal] / legal[parents[i] // tree.max_legal]
    truth = {}
    for i in np.flatnonzero((tree.infosets["player"] == player) & (legal > 1)):
        key = tree.rows[i].tobytes()
        by_slot = truth.setdefault(key, np.zeros(tree.game.n_actions))
        by_slot[tree.outputs[i]["slot"][: legal[i]]] += regrets[i, : legal[i]] * (share[i] if scaled else 1.0)
    return truth


def check(tree, player, strategy, samples, traversals, *, scaled, weighted=True, least=1000):
    """Compare the mean of weight * target per traversal with the exact value; see the module's docstring.

    scaled: outcome sampling's weights carry u(I); external sampling passes every own action and needs none.
    weighted=False leaves the sample's weight out, as an estimator that forgets its own sampling would.
    """
    truth = exact(tree, player, strategy, scaled=scaled)
    values = by_slot(samples, tree.game.n_actions) * (samples["weight"][:, None] if weighted else 1.0)
    rows, which, visits = np.unique(samples["row"], axis=0, return_inverse=True, return_counts=True)
    which = which.ravel()
    sums = np.stack([np.bincount(which, column, len(rows)) for column in values.T], 1)
    squares = np.stack([np.bincount(which, column**2, len(rows)) for column in values.T], 1)
    z = []
    for i in np.flatnonzero(visits >= least):
        mean = sums[i] / traversals
        error = np.sqrt((squares[i] / traversals - mean**2) / traversals)
        difference = mean - truth[rows[i].tobytes()]
        legal = (error > 0) | (np.abs(difference) > 1e-9)
        z += (difference[legal] / np.maximum(error[legal], 1e-12)).tolist()
    return Check(np.array(z), visits[visits < least].sum() / visits.sum())


def by_slot(samples, n_actions):
    """Targets by output slot, float64 (n, n_actions)."""
    values = np.zeros((len(samples["slots"]), n_actions))
    for slots, targets in zip(samples["slots"].T, samples["targets"].T, strict=True):
        used = slots != NO_SLOT
        values[used, slots[used]] = targets[used]
    return values
