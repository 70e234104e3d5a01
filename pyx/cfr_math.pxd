"""Kernels of counterfactual regret minimisation, inlined where they are used.

Each has a slow, obvious twin in tests/reference.py. Finite input never gives NaN.
"""
from libc.math cimport exp

from pyx.rng cimport Rng, rng_double
from pyx.types cimport MAX_LEGAL, Output

# What regret matching plays where no advantage is positive.
cdef enum:
    FALLBACK_BEST = 0       # the best action (Deep CFR, section 5.3); exact ties share it equally
    FALLBACK_UNIFORM = 1


cdef inline void action_values(const float* outputs, const Output* places, int n, double* values) noexcept nogil:
    """A network's output row as one value per legal action, interchangeable actions averaged.

    outputs  # IN, one row
    places   # IN, n
    values   # OUT, n
    """
    cdef int k, i
    cdef double total
    for k in range(n):
        if places[k].ties == 1:
            values[k] = outputs[places[k].first]
        else:
            total = 0.0
            for i in range(places[k].ties):
                total += outputs[places[k].first + i * places[k].stride]
            values[k] = total / places[k].ties


cdef inline int positive_part(const double* advantages, int n, int fallback, double* strategy) noexcept nogil:
    """Regret matching: strategy proportional to positive advantages. Returns 1 if the fallback was played.

    advantages  # IN, n
    strategy    # OUT, n, sums to 1
    """
    cdef int k, n_best = 0
    cdef double total = 0.0, best = 0.0
    for k in range(n):
        if advantages[k] > 0.0:
            total += advantages[k]
    if total > 0.0:
        for k in range(n):
            strategy[k] = advantages[k] / total if advantages[k] > 0.0 else 0.0
        return 0
    if fallback == FALLBACK_BEST:
        for k in range(n):
            if n_best == 0 or advantages[k] > best:
                best = advantages[k]
                n_best = 1
            elif advantages[k] == best:
                n_best += 1
        for k in range(n):
            strategy[k] = 1.0 / n_best if advantages[k] == best else 0.0
    else:
        for k in range(n):
            strategy[k] = 1.0 / n
    return 1


cdef inline int regret_matching(const float* outputs, const Output* places, int n, int fallback,
                                double* strategy) noexcept nogil:
    """The strategy of an advantage network's output row (Brown et al. 2019, equation 1).

    outputs   # IN, one row
    places    # IN, n
    strategy  # OUT, n, sums to 1
    Returns 1 if the fallback was played.
    """
    cdef double values[MAX_LEGAL]
    action_values(outputs, places, n, values)
    return positive_part(values, n, fallback, strategy)


cdef inline void softmax_strategy(const float* outputs, const Output* places, int n, double* strategy) noexcept nogil:
    """The strategy of a strategy network's output row: softmax over the legal actions.

    outputs   # IN, one row of logits
    places    # IN, n
    strategy  # OUT, n, sums to 1
    """
    cdef int k
    cdef double top, total = 0.0
    action_values(outputs, places, n, strategy)
    top = strategy[0]
    for k in range(1, n):
        if strategy[k] > top:
            top = strategy[k]
    for k in range(n):
        strategy[k] = exp(strategy[k] - top)
        total += strategy[k]
    for k in range(n):
        strategy[k] /= total


cdef inline void explore(const double* strategy, int n, double exploration, double* sampling) noexcept nogil:
    """Mix a strategy with uniform play: (1 - exploration) strategy + exploration / n.

    strategy  # IN, n
    sampling  # OUT, n
    """
    cdef int k
    for k in range(n):
        sampling[k] = (1.0 - exploration) * strategy[k] + exploration / n


cdef inline int sample_strategy(const double* strategy, int n, Rng* rng) noexcept nogil:
    """An index drawn from `strategy`; never one of probability zero."""
    cdef double point = rng_double(rng)
    cdef int k, last = 0
    for k in range(n):
        if strategy[k] > 0.0:
            last = k
            point -= strategy[k]
            if point < 0.0:
                return k
    return last


cdef inline double outcome_targets(double tail, int n, int sampled, double strategy, double sampling,
                                   float* targets) noexcept nogil:
    """Advantage targets of a node that outcome sampling passed, given a visit to it.

    With v(ha) estimated by tail / sampling for the sampled action and by 0 for the others, the node's
    value is strategy * tail / sampling and every action's target is v(ha) minus it: the actions that
    were not sampled too (Lanctot et al. 2009, section 4.1). The own sampling up to the node is a
    sample's weight, not part of its target.

    tail      # IN, the payoff times strategy / sampling of the traverser's later decisions
    strategy  # IN, the sampled action's probability under the strategy
    sampling  # IN, its probability of being sampled
    targets   # OUT, n
    Returns the tail of the decision before.
    """
    cdef double value = tail / sampling, node = strategy * value
    cdef int k
    for k in range(n):
        targets[k] = <float>(-node)
    targets[sampled] = <float>(value - node)
    return node
