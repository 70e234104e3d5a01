"""How good a strategy is, exactly: NashConv, exploitability and value in games small enough to enumerate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.errors import BadInput
from pyx.game import Game, State
from pyx.tree import GameTree

Strategy = NDArray[np.float64]  # (n_infosets, max_legal) of a GameTree
Evaluate = Callable[[NDArray[np.uint8]], NDArray[np.float32]]  # packed rows (n, row_bytes) to outputs (n, n_actions)


class Agent(Protocol):
    """What plays by probabilities."""

    def action_probabilities(self, state: State) -> Mapping[int, float]: ...


Policy = Agent | Callable[[State], Mapping[int, float]]

# What float32 probabilities may miss in their sum.
SUM_TOLERANCE = 1e-5


def nash_conv(game: Game | GameTree, policy: Policy) -> float:
    """The sum of both players' gains by best response against `policy`, in the game's units.

    game      a small game, or its GameTree, which saves enumerating it again
    policy    plays both seats: an agent with action_probabilities(state), or a function
              state -> {action: probability}; actions left out have probability 0
    ValueError where the game is too large, or a policy's answer is no distribution over legal actions.
    """
    tree = tree_of(game)
    return float(tree.nash_conv(strategy_of_policy(tree, policy)))


def exploitability(game: Game | GameTree, policy: Policy) -> float:
    """NashConv / 2: what a best responder wins on average over both seats, beyond the game's value."""
    return nash_conv(game, policy) / 2


def game_value(game: Game | GameTree, policy: Policy) -> float:
    """What player 0 wins on average when `policy` plays both seats; at an equilibrium, the game's value."""
    tree = tree_of(game)
    return float(tree.expected_value(strategy_of_policy(tree, policy)))


def evaluate_strategy(tree: GameTree, strategy: Strategy) -> dict[str, float | bool]:
    """All that is known of one strategy, under the keys of `freecfr eval --json`."""
    conv = float(tree.nash_conv(strategy))
    return {
        "nash_conv": conv,
        "exploitability": conv / 2,
        "game_value": float(tree.expected_value(strategy)),
        "exact": True,
    }


def tree_of(game: Game | GameTree) -> GameTree:
    """The game's tree; ValueError where the game is too large to enumerate."""
    return game if isinstance(game, GameTree) else GameTree(game)


def strategy_of_policy(tree: GameTree, policy: Policy) -> Strategy:
    """What `policy` plays at every information set, asked once at each."""
    ask = getattr(policy, "action_probabilities", policy)
    if not callable(ask):
        raise ValueError(
            f"a policy is an agent with action_probabilities(state) or a function of a state, not {policy!r}"
        )
    strategy = np.zeros((tree.n_infosets, tree.max_legal))
    for infoset in range(tree.n_infosets):
        state = tree.state(infoset)
        legal = state.legal_actions()
        strategy[infoset, : len(legal)] = _distribution(ask(state), legal, state)
    return strategy


def _distribution(answer: Any, legal: Sequence[int], state: State) -> NDArray[np.float64]:
    """A policy's answer at one state, aligned to `legal` and normalised."""
    if not isinstance(answer, Mapping):
        raise ValueError(f"at {state}: the policy answered {answer!r}; it must be {{action: probability}}")
    illegal = [action for action, probability in answer.items() if action not in legal and probability != 0]
    if illegal:
        raise ValueError(f"at {state}: the policy puts weight on {illegal}; legal: {list(legal)}")
    probabilities = np.array([float(answer.get(action, 0.0)) for action in legal])
    if not (probabilities >= 0).all():
        raise ValueError(f"at {state}: the policy answered {dict(answer)}; a probability must be at least 0")
    total = probabilities.sum()
    if not abs(total - 1.0) <= SUM_TOLERANCE:
        raise ValueError(f"at {state}: the policy's probabilities sum to {total}; they must sum to 1")
    return probabilities / total


def strategy_of_network(
    tree: GameTree,
    evaluate: Evaluate | Sequence[Evaluate],
    mode: str = "advantage",
    fallback: str = "best",
) -> Strategy:
    """What a network plays at every information set, by one batched forward pass.

    evaluate    packed rows uint8 (n, row_bytes) -> outputs float32 (n, n_actions); or a pair of them, one a
                player, each given the rows of that player's information sets
    mode        "advantage": regret matching; "strategy": softmax of the legal actions' logits
    fallback    "best" or "uniform": what is played where no advantage is positive
    BadInput where outputs have the wrong shape or are not finite.
    """
    strategy = np.zeros((tree.n_infosets, tree.max_legal))
    try:
        if callable(evaluate):
            return tree.from_outputs(evaluate(tree.rows), mode, fallback)
        for player, of_player in enumerate(evaluate):
            own = np.flatnonzero(tree.infosets["player"] == player)
            if len(own):
                strategy[own] = tree.from_outputs(of_player(tree.rows[own]), mode, fallback, own)
    except ValueError as error:
        raise BadInput(f"a network cannot be evaluated: {error}; give an earlier checkpoint.") from None
    return strategy


class AverageStrategy:
    """The average of a sequence of strategies, exact: what CFR's guarantee is about.

    Owned by whoever made it. Not safe to share while strategies are added.

    Each strategy counts by its weight and by its owner's own reach of the information set under it (Zinkevich
    et al. 2007, equation 4). With the networks of each iteration and their weights this is single Deep CFR's
    average (Steinberger 2019) without its sampling.

    totals    float64 (n_infosets, max_legal), the weighted sums; saving and restoring it continues exactly
    """

    def __init__(self, tree: GameTree) -> None:
        self.tree = tree
        self.totals: Strategy = np.zeros((tree.n_infosets, tree.max_legal))

    def add(self, strategy: Strategy, weight: float = 1.0) -> None:
        """Count `strategy` with `weight`, at least 0."""
        if not (weight >= 0 and np.isfinite(weight)):
            raise ValueError(f"weight {weight}: it must be a number of at least 0")
        self.totals += weight * self.tree.plan(strategy)

    def strategy(self) -> Strategy:
        """The average so far; uniform at information sets that no strategy played to."""
        sums = self.totals.sum(axis=1, keepdims=True)
        return np.where(sums > 0, self.totals / np.where(sums > 0, sums, 1.0), self.tree.uniform())
