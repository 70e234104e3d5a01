"""A whole game tree in flat arrays, and exact passes over it.

A *sequence* is one player's (information set, legal action index), numbered infoset * max_legal + index;
a player's *last sequence* at a history is the last own decision made on the way to it, -1 for none.
Perfect recall makes every history of an information set have the same last sequence of its owner, whose
information set has the smaller number. So a pass is one scan over the terminal histories and one over the
information sets.
"""
from pyx.game cimport Game
from pyx.types cimport Output, int32_t, int64_t, uint8_t, uint64_t

# Children stand after their parent and side by side, in the order of their actions.
ctypedef struct Node:
    int32_t player          # 0, 1, CHANCE or TERMINAL
    int32_t infoset         # -1 where no player decides
    int32_t parent          # -1 at the start
    int32_t first_child     # -1 at the end
    int32_t n_children
    int32_t action          # action or chance outcome that led here; -1 at the start
    double chance           # probability of the chance outcome that led here; 1 after an action
    double payoff           # what player 0 wins; 0 before the end

ctypedef struct Terminal:
    int32_t node
    int32_t last0           # last sequence of player 0
    int32_t last1           # of player 1
    double weight           # player 0's payoff times the probability of the chance outcomes

# Numbered as a depth-first walk meets them.
ctypedef struct Infoset:
    int32_t player
    int32_t n_legal
    int32_t parent          # the owner's last sequence
    int32_t node            # one history of it


# A place of the trie's hash table: `parent` and then `sight` is `child`.
ctypedef struct Edge:
    int32_t parent          # -1 marks a free place
    int32_t child
    uint64_t sight


cdef class GameTree:
    cdef readonly Game game
    cdef readonly int max_legal
    cdef readonly int n_nodes, n_terminals, n_infosets
    cdef readonly object nodes, terminals, infosets     # structured arrays of the records above
    cdef readonly object legal                          # int32 (n_infosets, max_legal), -1 beyond
    cdef readonly object rows                           # uint8 (n_infosets, row_bytes)
    cdef readonly object outputs                        # records of types.pxd (n_infosets, max_legal)
    cdef Node[::1] node
    cdef Terminal[::1] terminal
    cdef Infoset[::1] infoset
    cdef uint8_t[:, ::1] row
    cdef Output[:, ::1] output

    # The passes, for compiled callers: all memory is the caller's.
    #   strategy  IN   (n_infosets, max_legal), both players' at once, zero beyond the legal actions
    #   plan      OUT  (n_infosets, max_legal): how likely the owner plays up to and with each action
    cdef void make_plan(self, const double* strategy, double* plan) noexcept nogil
    # What player 0 wins when both follow the plan.
    cdef double plan_value(self, const double* plan) noexcept nogil
    #   values    OUT  (n_infosets, max_legal): at `player`'s sequences the sum over histories of (chance's and
    #                  the opponent's reach times the value to `player`) when `player` goes on by `strategy`,
    #                  or by a best response where that is NULL; zero elsewhere
    # Returns the value of the game to `player`.
    cdef double action_values(self, const double* plan, const double* strategy, int player,
                              double* values) noexcept nogil


cdef class Builder:
    cdef Game game
    cdef int widest                     # most children of a node
    cdef int n_nodes, n_terminals, n_infosets, n_trie
    cdef Node[::1] node
    cdef Terminal[::1] terminal
    cdef Infoset[::1] infoset
    cdef uint8_t[:, ::1] row
    cdef Output[:, ::1] output
    # A trie of what each player saw, its edges by open addressing.
    cdef Edge[::1] edge                 # a power of two of them
    cdef int32_t[::1] trie_infoset      # by trie node; -1 until the player decides there
    # Nodes to expand, each a Pending and a state.
    cdef uint8_t[::1] stack
    cdef uint8_t[::1] popped
    cdef int64_t stack_used
    cdef int64_t entry_bytes
    cdef int[::1] actions
    cdef double[::1] probabilities

    cdef int expand(self, int limit) noexcept nogil
    cdef int32_t after(self, int32_t parent, uint64_t sight) noexcept nogil
    cdef double estimated_size(self, int walks) noexcept nogil
