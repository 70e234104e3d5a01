"""A whole game tree in flat arrays, and exact passes over it: values, best responses, NashConv."""
from libc.string cimport memcpy, memset

import numpy as np

from pyx.cfr_math cimport FALLBACK_BEST, FALLBACK_UNIFORM, regret_matching, softmax_strategy
from pyx.game cimport Game
from pyx.rng cimport Rng, rng_below, rng_start
from pyx.types cimport CHANCE, TERMINAL, Output, int32_t, int64_t, uint8_t, uint64_t

NODE = np.dtype([("player", np.int32), ("infoset", np.int32), ("parent", np.int32), ("first_child", np.int32),
                 ("n_children", np.int32), ("action", np.int32), ("chance", np.float64), ("payoff", np.float64)])
TERMINAL_HISTORY = np.dtype([("node", np.int32), ("last0", np.int32), ("last1", np.int32), ("weight", np.float64)],
                            align=True)
INFOSET = np.dtype([("player", np.int32), ("n_legal", np.int32), ("parent", np.int32), ("node", np.int32)])
EDGE = np.dtype([("parent", np.int32), ("child", np.int32), ("sight", np.uint64)])
cdef Output[1] _one_output
OUTPUT = np.asarray(<Output[:1]>_one_output).dtype     # follows types.pxd

FALLBACKS = {"best": FALLBACK_BEST, "uniform": FALLBACK_UNIFORM}

# What Builder.expand says.
cdef enum:
    DONE = 0
    TOO_LARGE = 1
    OTHER_ACTIONS = 2
    OTHER_PAST = 3
    GROW_NODES = 4
    GROW_TERMINALS = 5
    GROW_INFOSETS = 6
    GROW_TRIE = 7
    GROW_STACK = 8

# A node to expand; its game's state follows it on the stack.
ctypedef struct Pending:
    int32_t node
    int32_t seen[2]         # trie nodes: all that each player saw
    int32_t last[2]         # last sequences
    int32_t padding
    double chance           # probability of the chance outcomes so far


cdef inline uint64_t hashed(int32_t parent, uint64_t sight) noexcept nogil:
    """The finaliser of splitmix64 over both."""
    cdef uint64_t x = sight + <uint64_t>0x9E3779B97F4A7C15 * (<uint64_t>parent + 1)
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)


def _longer(array):
    """A copy with twice the room. Pages not yet written take no memory."""
    longer = np.empty((2 * len(array), *array.shape[1:]), array.dtype)
    longer[:len(array)] = array
    return longer


def _free_edges(size):
    edges = np.empty(size, EDGE)
    edges["parent"] = -1
    return edges


# nogil-audit: ignore-within[shared-attr] the constructor of a GameTree makes it, uses it and drops it
cdef class Builder:
    """One depth-first walk over a game.

    Owned by GameTree's constructor. Not safe to share. The walk itself allocates nothing: where room
    runs out it stops, and goes on when there is more.
    """

    def __cinit__(self, Game game):
        self.game = game
        self.widest = max(game.max_legal, game.max_chance)
        room = 1024 + self.widest
        self.node = np.empty(room, NODE)
        self.terminal = np.empty(room, TERMINAL_HISTORY)
        self.infoset = np.empty(room, INFOSET)
        self.row = np.empty((room, game.row_bytes), np.uint8)
        self.output = np.zeros((room, game.max_legal), OUTPUT)
        size = 1 << (8 * self.widest).bit_length()
        self.edge = _free_edges(size)
        self.trie_infoset = np.full(size, -1, np.int32)
        self.entry_bytes = sizeof(Pending) + game.state_bytes
        self.stack = np.empty(2 * (self.widest + 1) * self.entry_bytes, np.uint8)
        self.popped = np.empty(self.entry_bytes, np.uint8)
        self.actions = np.empty(self.widest, np.intc)
        self.probabilities = np.empty(self.widest)

        self.node[0] = Node(TERMINAL, -1, -1, -1, 0, -1, 1.0, 0.0)
        self.n_nodes = 1
        self.n_trie = 2                 # 0 and 1: the players before they saw anything
        cdef Pending* root = <Pending*>&self.stack[0]
        root[0] = Pending(0, [0, 1], [-1, -1], 0, 1.0)
        game.start(root + 1)
        self.stack_used = self.entry_bytes

    cdef double estimated_size(self, int walks) noexcept nogil:
        """Knuth's unbiased estimate of the number of histories (1975), from walks with fixed draws."""
        cdef Rng rng
        cdef int walk, n
        cdef double size = 0.0, width
        cdef void* state = &self.popped[0]
        for walk in range(walks):
            rng_start(&rng, 0, 0, 0, 0, walk)
            self.game.start(state)
            width = 1.0
            size += 1.0
            while self.game.player(state) != TERMINAL:
                n = self.game.legal(state, &self.actions[0])
                width *= n
                size += width
                self.game.apply(state, self.actions[rng_below(&rng, n)])
        return size / walks

    cdef int32_t after(self, int32_t parent, uint64_t sight) noexcept nogil:
        """The trie node of `parent` and then `sight`."""
        cdef uint64_t mask = self.edge.shape[0] - 1, place
        cdef Edge* edge
        if sight == 0:
            return parent
        place = hashed(parent, sight) & mask
        while True:
            edge = &self.edge[place]
            if edge.parent < 0:
                edge[0] = Edge(parent, self.n_trie, sight)
                self.n_trie += 1
                return edge.child
            if edge.parent == parent and edge.sight == sight:
                return edge.child
            place = (place + 1) & mask

    cdef int expand(self, int limit) noexcept nogil:
        """Expand nodes until none is left, or room runs out, or the game is at fault: says which."""
        cdef Pending* top = <Pending*>&self.popped[0]
        cdef void* state = top + 1
        cdef Pending* below
        cdef Node* node
        cdef Infoset* infoset
        cdef int player, n, k, j, number, child
        while self.stack_used > 0:
            if self.n_nodes > limit:
                return TOO_LARGE
            if self.n_nodes + self.widest > self.node.shape[0]:
                return GROW_NODES
            if self.n_terminals == self.terminal.shape[0]:
                return GROW_TERMINALS
            if self.n_infosets == self.infoset.shape[0]:
                return GROW_INFOSETS
            if 3 * <int64_t>(self.n_trie + 2 * self.widest) > 2 * self.edge.shape[0]:
                return GROW_TRIE
            if self.stack_used + self.widest * self.entry_bytes > self.stack.shape[0]:
                return GROW_STACK

            self.stack_used -= self.entry_bytes
            memcpy(top, &self.stack[self.stack_used], self.entry_bytes)
            node = &self.node[top.node]
            player = self.game.player(state)
            node.player = player
            if player == TERMINAL:
                node.payoff = self.game.payoff(state)
                self.terminal[self.n_terminals] = Terminal(top.node, top.last[0], top.last[1],
                                                           node.payoff * top.chance)
                self.n_terminals += 1
                continue

            n = self.game.legal(state, &self.actions[0])
            node.first_child = self.n_nodes
            node.n_children = n
            if player == CHANCE:
                self.game.chance(state, &self.probabilities[0])
            else:
                number = self.trie_infoset[top.seen[player]]
                if number < 0:
                    number = self.n_infosets
                    self.n_infosets += 1
                    self.trie_infoset[top.seen[player]] = number
                    self.infoset[number] = Infoset(player, n, top.last[player], top.node)
                    self.game.observe(state, player, &self.row[number, 0], &self.output[number, 0])
                node.infoset = number
                infoset = &self.infoset[number]
                if infoset.parent != top.last[player]:
                    return OTHER_PAST
                if infoset.n_legal != n:
                    return OTHER_ACTIONS

            for k in range(n):
                child = self.n_nodes + k
                self.node[child] = Node(TERMINAL, -1, top.node, -1, 0, self.actions[k],
                                        self.probabilities[k] if player == CHANCE else 1.0, 0.0)
                if player != CHANCE and self.node[self.node[infoset.node].first_child + k].action != self.actions[k]:
                    return OTHER_ACTIONS
            # The last child is pushed first, so that the walk takes them in order.
            for j in range(n):
                k = n - 1 - j
                below = <Pending*>&self.stack[self.stack_used]
                self.stack_used += self.entry_bytes
                memcpy(below, top, self.entry_bytes)
                below.node = self.n_nodes + k
                below.seen[0] = self.after(top.seen[0], self.game.sight(state, self.actions[k], 0))
                below.seen[1] = self.after(top.seen[1], self.game.sight(state, self.actions[k], 1))
                if player == CHANCE:
                    below.chance = top.chance * self.probabilities[k]
                else:
                    below.last[player] = number * self.game.max_legal + k
                self.game.apply(below + 1, self.actions[k])
            self.n_nodes += n
        return DONE

    def grow(self, int what):
        """Make room where expand() found none."""
        if what == GROW_NODES:
            self.node = _longer(np.asarray(self.node))
        elif what == GROW_TERMINALS:
            self.terminal = _longer(np.asarray(self.terminal))
        elif what == GROW_STACK:
            self.stack = _longer(np.asarray(self.stack))
        elif what == GROW_INFOSETS:
            self.infoset = _longer(np.asarray(self.infoset))
            self.row = _longer(np.asarray(self.row))
            self.output = _longer(np.asarray(self.output))
        else:
            longer = np.full(2 * self.edge.shape[0], -1, np.int32)
            longer[:self.n_trie] = np.asarray(self.trie_infoset)[:self.n_trie]
            self.trie_infoset = longer
            self._rehash(self.edge)

    def _rehash(self, const Edge[::1] edges):
        cdef Py_ssize_t i
        cdef uint64_t mask = 2 * edges.shape[0] - 1, place
        self.edge = _free_edges(2 * edges.shape[0])
        with nogil:
            for i in range(edges.shape[0]):
                if edges[i].parent >= 0:
                    place = hashed(edges[i].parent, edges[i].sight) & mask
                    while self.edge[place].parent >= 0:
                        place = (place + 1) & mask
                    self.edge[place] = edges[i]

    def path(self):
        """Actions and chance outcomes to the node expanded last."""
        cdef int32_t at = (<Pending*>&self.popped[0]).node
        path = []
        while at > 0:
            path.append(self.node[at].action)
            at = self.node[at].parent
        return path[::-1]

    def run(self, int limit):
        cdef int answer
        cdef double size
        too_large = (f"{self.game!r} has more than {limit:,} histories, too many to enumerate; "
                     "evaluate it by matches, or take smaller parameters")
        # By Markov's inequality a game within the limit gives such an estimate with probability below 1e-6;
        # a hopeless game would otherwise cost the time and memory of `limit` histories first.
        with nogil:
            size = self.estimated_size(64)
        if size > 1e6 * limit:
            raise ValueError(too_large)
        while True:
            with nogil:
                answer = self.expand(limit)
            if answer == DONE:
                return
            if answer == TOO_LARGE:
                raise ValueError(too_large)
            if answer == OTHER_ACTIONS:
                raise ValueError(f"{self.game!r}: after {self.path()} other actions are legal than at another "
                                 "history of the same information set; a player's sights must tell them apart")
            if answer == OTHER_PAST:
                raise ValueError(f"{self.game!r}: after {self.path()} the player's own past differs from another "
                                 "history of the same information set; a player must see every own action")
            self.grow(answer)


cdef class GameTree:
    """Every history of a small game, and exact passes over them.

    Owned by its maker. Safe to call from any thread: nothing changes after construction, and each pass
    works in memory of its own with the GIL released. The arrays are not to be written.

    game             a Game that cannot last for ever
    max_histories    ValueError beyond so many; a history takes about 60 bytes

    nodes, terminals, infosets are structured arrays of the records in tree.pxd; legal is int32
    (n_infosets, max_legal), -1 beyond an information set's actions; rows is uint8 (n_infosets, row_bytes).
    A strategy is float64 (n_infosets, max_legal), both players' at once, aligned to `legal` and zero
    beyond it. Values are in the game's units.
    """

    def __cinit__(self, Game game, max_histories=10_000_000):
        if not 0 < max_histories <= 1_000_000_000:
            raise ValueError(f"max_histories = {max_histories}: it must be 1 to 1,000,000,000")
        if not game.max_length:
            raise ValueError(f"{game!r} may last for ever, so its histories cannot be enumerated; "
                             "evaluate it by matches")
        cdef Builder builder = Builder(game)
        builder.run(max_histories)
        self.game = game
        self.max_legal = game.max_legal
        self.n_nodes, self.n_terminals, self.n_infosets = builder.n_nodes, builder.n_terminals, builder.n_infosets
        self.nodes = np.asarray(builder.node)[:self.n_nodes]
        self.terminals = np.asarray(builder.terminal)[:self.n_terminals]
        self.infosets = np.asarray(builder.infoset)[:self.n_infosets]
        self.rows = np.asarray(builder.row)[:self.n_infosets]
        self.outputs = np.asarray(builder.output)[:self.n_infosets]
        self.node, self.terminal, self.infoset = self.nodes, self.terminals, self.infosets
        self.row, self.output = self.rows, self.outputs
        at = self.nodes["first_child"][self.infosets["node"]][:, None] + np.arange(self.max_legal)
        inside = np.arange(self.max_legal) < self.infosets["n_legal"][:, None]
        self.legal = np.where(inside, self.nodes["action"][np.where(inside, at, 0)], -1).astype(np.int32)

    # -- compiled passes ---------------------------------------------------------------------------

    cdef void make_plan(self, const double* strategy, double* plan) noexcept nogil:
        cdef int i, k, at
        cdef double reach
        for i in range(self.n_infosets):
            reach = plan[self.infoset[i].parent] if self.infoset[i].parent >= 0 else 1.0
            at = i * self.max_legal
            for k in range(self.max_legal):
                plan[at + k] = reach * strategy[at + k]

    cdef double plan_value(self, const double* plan) noexcept nogil:
        cdef int i
        cdef double value = 0.0, weight
        cdef const Terminal* end
        for i in range(self.n_terminals):
            end = &self.terminal[i]
            weight = end.weight
            if end.last0 >= 0:
                weight *= plan[end.last0]
            if end.last1 >= 0:
                weight *= plan[end.last1]
            value += weight
        return value

    cdef double action_values(self, const double* plan, const double* strategy, int player,
                              double* values) noexcept nogil:
        cdef int i, k, j, at, own, other
        cdef double value = 0.0, weight
        cdef const Terminal* end
        memset(values, 0, <size_t>self.n_infosets * self.max_legal * sizeof(double))
        for i in range(self.n_terminals):
            end = &self.terminal[i]
            if player == 0:
                own, other, weight = end.last0, end.last1, end.weight
            else:
                own, other, weight = end.last1, end.last0, -end.weight
            if other >= 0:
                weight *= plan[other]
            if own >= 0:
                values[own] += weight
            else:
                value += weight
        for j in range(self.n_infosets):
            i = self.n_infosets - 1 - j
            if self.infoset[i].player != player:
                continue
            at = i * self.max_legal
            if strategy == NULL:
                weight = values[at]
                for k in range(1, self.infoset[i].n_legal):
                    if values[at + k] > weight:
                        weight = values[at + k]
            else:
                weight = 0.0
                for k in range(self.infoset[i].n_legal):
                    weight += strategy[at + k] * values[at + k]
            if self.infoset[i].parent >= 0:
                values[self.infoset[i].parent] += weight
            else:
                value += weight
        return value

    # -- strategies --------------------------------------------------------------------------------

    def uniform(self):
        """The uniform strategy."""
        return np.where(self.legal >= 0, 1.0 / self.infosets["n_legal"][:, None], 0.0)

    def checked(self, strategy, double tolerance=1e-6):
        """`strategy` as a C-contiguous float64 array; ValueError where it is no strategy."""
        strategy = np.ascontiguousarray(strategy, np.float64)
        if strategy.shape != (self.n_infosets, self.max_legal):
            raise ValueError(f"a strategy of shape {strategy.shape}; this game's have shape "
                             f"{(self.n_infosets, self.max_legal)}: information sets by legal actions")
        wrong = ~(strategy >= 0.0) | ((self.legal < 0) & (strategy != 0.0))
        wrong = wrong.any(axis=1) | ~(np.abs(strategy.sum(axis=1) - 1.0) <= tolerance)
        if wrong.any():
            i = int(np.argmax(wrong))
            raise ValueError(f"information set {i} (after {self.history(self.infosets['node'][i])}) has strategy "
                             f"{strategy[i].tolist()}; its {self.infosets['n_legal'][i]} legal actions come first, "
                             "must be at least 0 and sum to 1, and the rest must be 0")
        return strategy

    def from_outputs(self, outputs, mode="advantage", fallback="best", infosets=None):
        """A network's outputs as a strategy.

        outputs     float32 (n, n_actions), one row per information set
        mode        "advantage": regret matching; "strategy": softmax of the legal actions' logits
        fallback    "best" or "uniform": what is played where no advantage is positive
        infosets    the information sets the rows are of, ints (n,); default: all, in order
        Returns float64 (n, max_legal).
        """
        outputs = np.ascontiguousarray(outputs, np.float32)
        infosets = np.arange(self.n_infosets) if infosets is None else infosets
        infosets = np.ascontiguousarray(infosets, np.int32)
        if outputs.shape != (len(infosets), self.game.n_actions):
            raise ValueError(f"outputs of shape {outputs.shape}; {len(infosets)} information sets of "
                             f"{self.game.name} need {(len(infosets), self.game.n_actions)}")
        if mode not in ("advantage", "strategy"):
            raise ValueError(f"mode {mode!r}; there are: advantage, strategy")
        if fallback not in FALLBACKS:
            raise ValueError(f"fallback {fallback!r}; there are: {', '.join(FALLBACKS)}")
        if not np.isfinite(outputs).all():
            raise ValueError("outputs hold numbers that are not finite: the network has diverged")
        strategy = np.zeros((len(infosets), self.max_legal))
        cdef const float[:, ::1] values = outputs
        cdef const int32_t[::1] numbers = infosets
        cdef double[:, ::1] out = strategy
        cdef bint advantage = mode == "advantage"
        cdef int rule = FALLBACKS[fallback], i, number
        if numbers.shape[0] and not (0 <= infosets.min() and infosets.max() < self.n_infosets):
            raise ValueError(f"information sets are 0 to {self.n_infosets - 1}")
        with nogil:
            for i in range(<int>numbers.shape[0]):
                number = numbers[i]
                if advantage:
                    regret_matching(&values[i, 0], &self.output[number, 0], self.infoset[number].n_legal, rule, &out[i, 0])
                else:
                    softmax_strategy(&values[i, 0], &self.output[number, 0], self.infoset[number].n_legal, &out[i, 0])
        return strategy

    # -- exact passes ------------------------------------------------------------------------------

    def _plan(self, strategy):
        plan = np.empty((self.n_infosets, self.max_legal))
        cdef const double[:, ::1] probabilities = strategy
        cdef double[:, ::1] out = plan
        if self.n_infosets:
            with nogil:
                self.make_plan(&probabilities[0, 0], &out[0, 0])
        return plan

    def plan(self, strategy):
        """The owner's probability of playing up to and with each action, float64 (n_infosets, max_legal)."""
        return self._plan(self.checked(strategy))

    def own_reach(self, strategy):
        """The owner's probability of playing to each information set, float64 (n_infosets,)."""
        plan = self.plan(strategy).ravel()
        parent = self.infosets["parent"]
        return np.where(parent >= 0, plan[np.maximum(parent, 0)], 1.0)

    def expected_value(self, strategy):
        """What player 0 wins on average when both play `strategy`."""
        cdef const double[:, ::1] plan = self._plan(self.checked(strategy))
        cdef double value
        with nogil:
            value = self.plan_value(&plan[0, 0])
        return value

    def best_response(self, strategy, int player):
        """What `player` wins by a best response to the other's part of `strategy`.

        Returns (value, float64 (n_infosets, max_legal)): the strategy with `player`'s part replaced by the
        best response, the first of equally good actions.
        """
        strategy = self.checked(strategy)
        value, values = self._respond(self._plan(strategy), player)
        best = np.where(self.legal >= 0, values, -np.inf).argmax(axis=1)
        own = self.infosets["player"] == player
        response = strategy.copy()
        response[own] = np.arange(self.max_legal) == best[own, None]
        return value, response

    def _respond(self, const double[:, ::1] plan, int player):
        if player not in (0, 1):
            raise ValueError(f"player {player}: players are 0 and 1")
        values = np.empty((self.n_infosets, self.max_legal))
        cdef double[:, ::1] out = values
        cdef double value
        with nogil:
            value = self.action_values(&plan[0, 0], NULL, player, &out[0, 0])
        return value, values

    def nash_conv(self, strategy):
        """The sum of what both players gain by a best response (exploitability is half of it)."""
        plan = self._plan(self.checked(strategy))
        # The value of the pair itself cancels: the game is zero-sum.
        return self._respond(plan, 0)[0] + self._respond(plan, 1)[0]

    def counterfactual_values(self, strategy):
        """Of each legal action a, to the owner: the sum over the information set's histories h of
        (chance's and the opponent's reach of h) times the value of ha. float64 (n_infosets, max_legal).
        """
        cdef const double[:, ::1] probabilities = self.checked(strategy)
        cdef const double[:, ::1] plan = self._plan(np.asarray(probabilities))
        result = np.zeros((self.n_infosets, self.max_legal))
        values = np.empty((self.n_infosets, self.max_legal))
        cdef double[:, ::1] out = values
        cdef int player
        for player in range(2):
            with nogil:
                self.action_values(&plan[0, 0], &probabilities[0, 0], player, &out[0, 0])
            result += values
        return result

    def counterfactual_regrets(self, strategy):
        """The sum over h of (chance's and the opponent's reach) times (v(ha) - v(h)), zero beyond the
        legal actions. float64 (n_infosets, max_legal).
        """
        values = self.counterfactual_values(strategy)
        node = (np.asarray(strategy) * values).sum(axis=1, keepdims=True)
        return np.where(self.legal >= 0, values - node, 0.0)

    def node_reach(self, strategy):
        """Each history's reach by player 0, by player 1 and by chance, float64 (n_nodes, 3)."""
        cdef const double[:, ::1] probabilities = self.checked(strategy)
        reach = np.empty((self.n_nodes, 3))
        cdef double[:, ::1] out = reach
        cdef int at, j, k, child
        with nogil:
            out[0, 0] = out[0, 1] = out[0, 2] = 1.0
            for at in range(self.n_nodes):
                for k in range(self.node[at].n_children):
                    child = self.node[at].first_child + k
                    for j in range(3):
                        out[child, j] = out[at, j]
                    if self.node[at].player == CHANCE:
                        out[child, 2] *= self.node[child].chance
                    else:
                        out[child, self.node[at].player] *= probabilities[self.node[at].infoset, k]
        return reach

    def node_values(self, strategy):
        """What player 0 wins on average from each history on, float64 (n_nodes,)."""
        cdef const double[:, ::1] probabilities = self.checked(strategy)
        values = np.empty(self.n_nodes)
        cdef double[::1] out = values
        cdef int at, j, k, child
        cdef double value
        with nogil:
            for j in range(self.n_nodes):
                at = self.n_nodes - 1 - j
                value = self.node[at].payoff
                for k in range(self.node[at].n_children):
                    child = self.node[at].first_child + k
                    if self.node[at].player == CHANCE:
                        value += self.node[child].chance * out[child]
                    else:
                        value += probabilities[self.node[at].infoset, k] * out[child]
                out[at] = value
        return values

    def counterfactual_reach(self, strategy):
        """Chance's and the opponent's reach, summed over each information set's histories. (n_infosets,)"""
        reach = self.node_reach(strategy)
        at = np.flatnonzero(self.nodes["infoset"] >= 0)
        others = reach[at, 1 - self.nodes["player"][at]] * reach[at, 2]
        return np.bincount(self.nodes["infoset"][at], others, minlength=self.n_infosets)

    def history(self, node):
        """Actions and chance outcomes from the start to a node, ints."""
        node, path = int(node), []
        while node > 0:
            path.append(int(self.nodes["action"][node]))
            node = int(self.nodes["parent"][node])
        return path[::-1]

    def state(self, infoset):
        """A State in the information set, for Python."""
        state = self.game.new_initial_state()
        for action in self.history(self.infosets["node"][infoset]):
            state.apply_action(action)
        return state

    def __reduce__(self):
        return GameTree, (self.game, max(self.n_nodes, 1))

    def __repr__(self):
        return f"GameTree({self.game!r}): {self.n_nodes:,} histories, {self.n_infosets:,} information sets"
