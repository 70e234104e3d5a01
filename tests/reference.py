"""Slow, obvious twins of compiled code, and tabular solvers that reproduce published curves.

Strategies are float64 (n_infosets, max_legal), as in pyx/tree.pyx.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from pyx.game import Game, State
from pyx.tree import GameTree

# -- one state after the other, by the rules alone ---------------------------------------------------


def histories(state: State) -> Iterator[State]:
    """The state and everything after it."""
    yield state
    for action in state.legal_actions():
        yield from histories(state.child(action))


def expected_value(state: State, policy: Callable[[State], dict[int, float]]) -> float:
    """What player 0 wins on average from `state` on when both play `policy`."""
    if state.is_terminal():
        return state.returns()[0]
    odds = dict(state.chance_outcomes()) if state.is_chance_node() else policy(state)
    return sum(odds[action] * expected_value(state.child(action), policy) for action in state.legal_actions())


def best_response_value(game: Game, policy: Callable[[State], dict[int, float]], player: int) -> float:
    """What `player` wins by a best response to `policy`.

    Information set by information set: its histories with their counterfactual reach, the best action for
    all of them together.
    """
    members: dict[str, list[tuple[State, float]]] = {}

    def collect(state: State, reach: float) -> None:
        if state.is_terminal():
            return
        if state.current_player() == player:
            members.setdefault(state.information_state_string(player), []).append((state, reach))
            odds = dict.fromkeys(state.legal_actions(), 1.0)
        else:
            odds = dict(state.chance_outcomes()) if state.is_chance_node() else policy(state)
        for action in state.legal_actions():
            collect(state.child(action), reach * odds[action])

    chosen: dict[str, int] = {}

    def choice(infoset: str) -> int:
        if infoset not in chosen:
            first = members[infoset][0][0]
            chosen[infoset] = max(
                first.legal_actions(),
                key=lambda action: sum(reach * value(state.child(action)) for state, reach in members[infoset]),
            )
        return chosen[infoset]

    def value(state: State) -> float:
        if state.is_terminal():
            return state.returns()[player]
        if state.current_player() == player:
            return value(state.child(choice(state.information_state_string(player))))
        odds = dict(state.chance_outcomes()) if state.is_chance_node() else policy(state)
        return sum(odds[action] * value(state.child(action)) for action in state.legal_actions())

    start = game.new_initial_state()
    collect(start, 1.0)
    return value(start)


# -- all histories at once, level by level ------------------------------------------------------------


class Levels:
    """A tree's histories by their depth, for passes in plain NumPy."""

    def __init__(self, tree: GameTree) -> None:
        self.tree = tree
        nodes = tree.nodes
        self.parent = nodes["parent"]
        depth = np.zeros(tree.n_nodes, int)
        for at in range(1, tree.n_nodes):
            depth[at] = depth[self.parent[at]] + 1
        self.levels = [np.flatnonzero(depth == d) for d in range(1, depth.max() + 1)]
        # Where a history's last step stands in a raveled strategy; -1 where chance made it.
        self.mover = np.where(self.parent >= 0, nodes["player"][self.parent], -1)
        index = np.arange(tree.n_nodes) - nodes["first_child"][self.parent]
        self.step = np.where(self.mover >= 0, nodes["infoset"][self.parent] * tree.max_legal + index, -1)

    def add_regrets(self, strategy: np.ndarray, player: int, regrets: np.ndarray) -> np.ndarray:
        """Add the counterfactual regrets of `player`'s information sets to `regrets`; returns the own reach of each
        of their actions, zero elsewhere.

        Sums are made in the order in which OpenSpiel's recursion makes them: rounding decides ties between
        regrets, and in Leduc that shows in the published digits.
        """
        tree = self.tree
        edge = np.where(self.step >= 0, strategy.ravel()[self.step], tree.nodes["chance"])
        reach = np.ones((3, tree.n_nodes))  # of player 0, player 1, chance (as player -1)
        for level in self.levels:
            above = self.parent[level]
            for who in range(3):
                reach[who, level] = reach[who, above]
            reach[self.mover[level], level] *= edge[level]
        value = tree.nodes["payoff"] * (1.0 if player == 0 else -1.0)
        for level in reversed(self.levels):
            value += np.bincount(self.parent[level], edge[level] * value[level], minlength=tree.n_nodes)
        moved = np.flatnonzero(self.mover == player)
        above = self.parent[moved]
        gain = reach[1 - player, above] * reach[2, above] * (value[moved] - value[above])
        np.add.at(regrets.reshape(-1), self.step[moved], gain)
        own = np.zeros(strategy.size)
        own[self.step[moved]] = reach[player, moved]
        return own.reshape(strategy.shape)


def match_regrets(tree: GameTree, regrets: np.ndarray) -> np.ndarray:
    """Proportional to positive regrets; uniform where there are none."""
    positive = np.where(tree.legal >= 0, np.maximum(regrets, 0.0), 0.0)
    total = positive.sum(axis=1, keepdims=True)
    return np.where(total > 0, positive / np.where(total > 0, total, 1.0), tree.uniform())


def normalised(tree: GameTree, totals: np.ndarray) -> np.ndarray:
    """Each information set's weights as probabilities; uniform where there are none."""
    return match_regrets(tree, totals)


class TabularCFR:
    """CFR with alternating updates, and its kin by three choices.

    discount    after t iterations: what positive and negative regrets are multiplied by
    weight      of iteration t in the average strategy
    """

    def __init__(
        self,
        tree: GameTree,
        discount: Callable[[int], tuple[float, float]] = lambda t: (1.0, 1.0),
        weight: Callable[[int], float] = lambda t: 1.0,
    ) -> None:
        self.tree, self.levels = tree, Levels(tree)
        self.discount, self.weight = discount, weight
        self.regrets = np.zeros_like(tree.uniform())
        self.totals = np.zeros_like(self.regrets)
        self.strategy = tree.uniform()
        self.iteration = 0

    def run(self, iterations: int) -> TabularCFR:
        for _ in range(iterations):
            self.iteration += 1
            for player in range(2):
                reach = self.levels.add_regrets(self.strategy, player, self.regrets)
                self.totals += self.weight(self.iteration) * reach
                own = self.tree.infosets["player"] == player
                positive, negative = self.discount(self.iteration)
                self.regrets[own] *= np.where(self.regrets[own] >= 0, positive, negative)
                self.strategy = match_regrets(self.tree, self.regrets)
        return self

    def average(self) -> np.ndarray:
        return normalised(self.tree, self.totals)


def cfr(tree: GameTree) -> TabularCFR:
    """Zinkevich et al. 2007."""
    return TabularCFR(tree)


def cfr_plus(tree: GameTree) -> TabularCFR:
    """Tammelin 2014: negative regrets are forgotten, the average is linear."""
    return TabularCFR(tree, lambda t: (1.0, 0.0), lambda t: t)


def discounted_cfr(tree: GameTree, alpha: float = 1.5, beta: float = 0.0, gamma: float = 2.0) -> TabularCFR:
    """Brown and Sandholm 2019."""
    return TabularCFR(tree, lambda t: (t**alpha / (t**alpha + 1), t**beta / (t**beta + 1)), lambda t: float(t) ** gamma)


def linear_cfr(tree: GameTree) -> TabularCFR:
    """Brown and Sandholm 2019: discounted CFR (1, 1, 1)."""
    return discounted_cfr(tree, 1.0, 1.0, 1.0)


# -- Monte Carlo -------------------------------------------------------------------------------------


class MonteCarloCFR:
    """One traversal a player and iteration (Lanctot et al. 2009); subclasses say what it does.

    Regrets and weights begin at 1e-6, as OpenSpiel's do.
    """

    def __init__(self, tree: GameTree, seed: int) -> None:
        self.tree, self.random = tree, random.Random(seed)
        # Python lists are the faster ones to read single numbers from.
        self.nodes = tree.nodes.tolist()
        self.n_legal = tree.infosets["n_legal"].tolist()
        self.regrets = [[1e-6] * n for n in self.n_legal]
        self.totals = [[1e-6] * n for n in self.n_legal]

    def run(self, iterations: int) -> MonteCarloCFR:
        for _ in range(iterations):
            for player in range(2):
                self.traverse(player)
        return self

    def traverse(self, player: int) -> None:
        raise NotImplementedError

    def strategy(self, infoset: int) -> list[float]:
        positive = [max(regret, 0.0) for regret in self.regrets[infoset]]
        total = sum(positive)
        n = len(positive)
        return [p / total for p in positive] if total > 0 else [1.0 / n] * n

    def draw(self, probabilities: list[float]) -> int:
        return self.random.choices(range(len(probabilities)), probabilities)[0]

    def chance(self, first_child: int, n_children: int) -> list[float]:
        return [child[6] for child in self.nodes[first_child : first_child + n_children]]

    def average(self) -> np.ndarray:
        totals = np.zeros_like(self.tree.uniform())
        for infoset, row in enumerate(self.totals):
            totals[infoset, : len(row)] = row
        return normalised(self.tree, totals)


class ExternalSampling(MonteCarloCFR):
    """Every action of the traverser, one of everybody else's; the average is of the opponent's passes."""

    def traverse(self, player: int) -> None:
        self.walk(0, player)

    def walk(self, at: int, player: int) -> float:
        mover, infoset, _, first_child, n, _, _, payoff = self.nodes[at]
        if n == 0:
            return payoff if player == 0 else -payoff
        if mover < 0:
            return self.walk(first_child + self.draw(self.chance(first_child, n)), player)
        strategy = self.strategy(infoset)
        if mover != player:
            for k in range(n):
                self.totals[infoset][k] += strategy[k]
            return self.walk(first_child + self.draw(strategy), player)
        values = [self.walk(first_child + k, player) for k in range(n)]
        value = sum(strategy[k] * values[k] for k in range(n))
        for k in range(n):
            self.regrets[infoset][k] += values[k] - value
        return value


class OutcomeSampling(MonteCarloCFR):
    """One history; the traverser explores. The average is stochastically weighted (Lanctot 2013, 4.4)."""

    exploration = 0.6

    def traverse(self, player: int) -> None:
        self.walk(0, player, 1.0, 1.0, 1.0)

    def walk(self, at: int, player: int, own: float, others: float, sampled: float) -> float:
        mover, infoset, _, first_child, n, _, _, payoff = self.nodes[at]
        if n == 0:
            return payoff if player == 0 else -payoff
        if mover < 0:
            odds = self.chance(first_child, n)
            k = self.draw(odds)
            return self.walk(first_child + k, player, own, others * odds[k], sampled * odds[k])
        strategy = self.strategy(infoset)
        if mover != player:
            k = self.draw(strategy)
            return self.walk(first_child + k, player, own, others * strategy[k], sampled * strategy[k])
        sampling = [(1 - self.exploration) * p + self.exploration / n for p in strategy]
        taken = self.draw(sampling)
        tail = self.walk(first_child + taken, player, own * strategy[taken], others, sampled * sampling[taken])
        values = [tail / sampling[k] if k == taken else 0.0 for k in range(n)]
        value = sum(strategy[k] * values[k] for k in range(n))
        for k in range(n):
            self.regrets[infoset][k] += (values[k] - value) * others / sampled
            self.totals[infoset][k] += own * strategy[k] / sampled
        return value


# -- the game's value --------------------------------------------------------------------------------


def linear_program_value(tree: GameTree, terminals: np.ndarray | None = None) -> float:
    """What player 0 wins when both play an equilibrium, by the sequence form's linear program.

    terminals: tree.terminals with other weights, for a game that differs in its payoffs only.

    Koller, Megiddo, von Stengel 1996: maximise the root value q_0 over player 0's plans x and player 1's
    information set values q, where at no sequence of player 1 is more to be had than q says. A player's
    sequences are numbered from 1, 0 being the empty one.
    """
    ends = tree.terminals if terminals is None else terminals
    number = [{-1: 0}, {-1: 0}]
    constraints = [[(0, 0, 1.0)], [(0, 0, 1.0)]]  # (row, sequence, coefficient): row 0 fixes the empty sequence
    rows = [1, 1]
    for infoset, (player, n_legal, parent, _) in enumerate(tree.infosets.tolist()):
        constraints[player].append((rows[player], number[player][parent], -1.0))
        for k in range(n_legal):
            number[player][infoset * tree.max_legal + k] = len(number[player])
            constraints[player].append((rows[player], len(number[player]) - 1, 1.0))
        rows[player] += 1

    def matrix(entries: list[tuple[int, int, float]], shape: tuple[int, int]) -> sparse.csr_array:
        i, j, values = zip(*entries, strict=True)
        return sparse.csr_array((values, (i, j)), shape=shape)

    plans = matrix(constraints[0], (rows[0], len(number[0])))
    values = matrix(constraints[1], (rows[1], len(number[1])))
    payoffs = matrix(
        [(number[0][last0], number[1][last1], weight) for _, last0, last1, weight in ends.tolist()],
        (len(number[0]), len(number[1])),
    )
    one = np.zeros(rows[0])
    one[0] = 1.0
    objective = np.zeros(len(number[0]) + rows[1])
    objective[len(number[0])] = -1.0
    solution = linprog(
        objective,
        A_ub=sparse.hstack([-payoffs.T, values.T]).tocsr(),
        b_ub=np.zeros(len(number[1])),
        A_eq=sparse.hstack([plans, sparse.csr_array((rows[0], rows[1]))]).tocsr(),
        b_eq=one,
        bounds=[(0, None)] * len(number[0]) + [(None, None)] * rows[1],
        method="highs",
    )
    assert solution.success, solution.message
    return -solution.fun
