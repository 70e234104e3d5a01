"""Python face of the kernels in cfr_math.pxd, and the weights of iterations."""
import numpy as np

from pyx.cfr_math cimport (FALLBACK_BEST, FALLBACK_UNIFORM, explore, outcome_targets, positive_part,
                           regret_matching, sample_strategy, softmax_strategy)
from pyx.rng cimport Rng, rng_start
from pyx.types cimport MAX_LEGAL, Output, uint64_t

FALLBACKS = {"best": FALLBACK_BEST, "uniform": FALLBACK_UNIFORM}


def match_regrets(const double[::1] advantages, fallback="best"):
    """Regret matching of float64 (n,) advantages: (strategy float64 (n,), was the fallback played)."""
    strategy = np.empty(advantages.shape[0])
    cdef double[::1] out = strategy
    fell = positive_part(&advantages[0], <int>advantages.shape[0], FALLBACKS[fallback], &out[0])
    return strategy, bool(fell)


# nogil-audit: ignore[py-op] it reads a caller's tuples, for the functions that check these kernels
cdef int _places(places, Output* out) except -1:
    cdef int k
    if not 0 < len(places) <= MAX_LEGAL:
        raise ValueError(f"{len(places)} legal actions; there must be 1 to {MAX_LEGAL}")
    for k in range(<int>len(places)):
        out[k].slot, out[k].first, out[k].ties, out[k].stride = places[k]
    return <int>len(places)


def strategy_of(const float[::1] outputs, places, mode="advantage", fallback="best"):
    """One output row (float32) as a strategy over the legal actions, float64 (n,).

    places: per legal action (slot, first, ties, stride), as State.outputs() gives them.
    mode: "advantage" (regret matching) or "strategy" (softmax of logits).
    """
    cdef Output where[MAX_LEGAL]
    cdef int n = _places(places, where)
    strategy = np.empty(n)
    cdef double[::1] out = strategy
    if mode == "advantage":
        regret_matching(&outputs[0], where, n, FALLBACKS[fallback], &out[0])
    elif mode == "strategy":
        softmax_strategy(&outputs[0], where, n, &out[0])
    else:
        raise ValueError(f"mode {mode!r}; there are: advantage, strategy")
    return strategy


def mix(const double[::1] strategy, double exploration):
    """(1 - exploration) strategy + exploration / n, float64 (n,)."""
    sampling = np.empty(strategy.shape[0])
    cdef double[::1] out = sampling
    explore(&strategy[0], <int>strategy.shape[0], exploration, &out[0])
    return sampling


def draw(const double[::1] strategy, int count, uint64_t seed=0):
    """`count` indices drawn from `strategy`, intp (count,)."""
    cdef Rng rng
    rng_start(&rng, seed, 0, 0, 0, 0)
    drawn = np.empty(count, np.intp)
    cdef Py_ssize_t[::1] out = drawn
    cdef int i
    for i in range(count):
        out[i] = sample_strategy(&strategy[0], <int>strategy.shape[0], &rng)
    return drawn


def sampled_targets(double tail, int n, int sampled, double strategy, double sampling):
    """Outcome sampling's targets at one node: (float32 (n,), the tail of the decision before)."""
    targets = np.empty(n, np.float32)
    cdef float[::1] out = targets
    before = outcome_targets(tail, n, sampled, strategy, sampling, &out[0])
    return targets, before


def iteration_weights(int iterations, kind="linear", double alpha=1.5):
    """What a sample of iteration t weighs after `iterations` of them: float64 (iterations + 1,), entry 0 unused.

    uniform: 1. linear: t (Brown, Sandholm 2019, linear CFR). discounted: the product over k = t ..
    iterations - 1 of k^alpha / (k^alpha + 1) (discounted CFR's discount of positive regrets).
    All are divided by their mean, so that a loss keeps its scale as a run grows.
    """
    steps = np.arange(iterations + 1, dtype=np.float64)
    if kind == "uniform":
        weights = np.ones(iterations + 1)
    elif kind == "linear":
        weights = steps
    elif kind == "discounted":
        powers = steps[1:iterations] ** alpha
        factors = np.concatenate([[1.0], powers / (powers + 1.0), [1.0]])
        weights = np.cumprod(factors[::-1])[::-1].copy()[:iterations + 1]
    else:
        raise ValueError(f"weighting {kind!r}; there are: uniform, linear, discounted")
    weights[0] = 0.0
    return weights * (iterations / weights.sum()) if iterations else weights
