"""Counter-based random numbers: Philox4x32-10 keyed by (seed, iteration, player, traversal).

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
A stream is a pure function of its key, so no two threads share state and no draw depends on timing.
"""
from pyx.types cimport uint32_t, uint64_t

# What a stream is for; part of its key, so that streams of different use never meet.
cdef enum:
    STREAM_TRAVERSAL = 0
    STREAM_MATCH = 1
    STREAM_RESERVOIR = 2
    STREAM_BATCH = 3
    STREAM_STATE = 4
    STREAM_NETWORK = 5

# Owned by one lane (or one Python object); four words are made at a time.
ctypedef struct Rng:
    uint32_t key[2]
    uint32_t counter[4]
    uint32_t words[4]
    uint32_t used


cdef inline void philox4x32(const uint32_t* counter, const uint32_t* key, uint32_t* out) noexcept nogil:
    """Ten rounds of Philox4x32.

    counter  # IN, 4 words
    key      # IN, 2 words
    out      # OUT, 4 words
    """
    cdef uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3]
    cdef uint32_t k0 = key[0], k1 = key[1], low0, low1
    cdef uint64_t product0, product1
    cdef int i
    for i in range(10):
        product0 = <uint64_t>0xD2511F53u * c0
        product1 = <uint64_t>0xCD9E8D57u * c2
        low0 = <uint32_t>product0
        low1 = <uint32_t>product1
        c0 = <uint32_t>(product1 >> 32) ^ c1 ^ k0
        c2 = <uint32_t>(product0 >> 32) ^ c3 ^ k1
        c1 = low1
        c3 = low0
        k0 += 0x9E3779B9u
        k1 += 0xBB67AE85u
    out[0] = c0
    out[1] = c1
    out[2] = c2
    out[3] = c3


cdef inline void rng_start(Rng* rng, uint64_t seed, uint32_t stream, uint32_t iteration,
                           uint32_t player, uint32_t index) noexcept nogil:
    """Place `rng` at the start of its stream.

    rng                        # OUT
    seed                       # IN, the run's seed, 64 bits
    stream                     # IN, below 2**24; a STREAM_* constant
    iteration, player, index   # IN; player below 256; index is the traversal, game, sample, ...
    """
    rng.key[0] = <uint32_t>seed
    rng.key[1] = <uint32_t>(seed >> 32)
    rng.counter[0] = 0
    rng.counter[1] = index
    rng.counter[2] = iteration
    rng.counter[3] = (stream << 8) | player
    rng.used = 4


cdef inline uint32_t rng_u32(Rng* rng) noexcept nogil:
    """The stream's next 32 uniform bits (2**34 of them before it repeats)."""
    if rng.used == 4:
        philox4x32(rng.counter, rng.key, rng.words)
        rng.counter[0] += 1
        rng.used = 0
    rng.used += 1
    return rng.words[rng.used - 1]


cdef inline uint64_t rng_u64(Rng* rng) noexcept nogil:
    cdef uint64_t high = rng_u32(rng)
    return (high << 32) | rng_u32(rng)


cdef inline double rng_double(Rng* rng) noexcept nogil:
    """Uniform in [0, 1), 53 bits."""
    return <double>(rng_u64(rng) >> 11) * (1.0 / 9007199254740992.0)


cdef inline uint32_t rng_below(Rng* rng, uint32_t n) noexcept nogil:
    """Uniform in 0..n-1 without bias (Lemire 2019); n > 0."""
    cdef uint64_t product = <uint64_t>rng_u32(rng) * n
    cdef uint32_t floor
    if <uint32_t>product < n:
        floor = (-n) % n
        while <uint32_t>product < floor:
            product = <uint64_t>rng_u32(rng) * n
    return <uint32_t>(product >> 32)


cdef class Stream:
    cdef Rng rng
