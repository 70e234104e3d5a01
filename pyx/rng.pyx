"""Python face of the counter-based generator, for tests and for everything that is not hot."""
from pyx.rng cimport Rng, philox4x32, rng_below, rng_double, rng_start, rng_u32
from pyx.types cimport uint32_t

STREAMS = {"traversal": STREAM_TRAVERSAL, "match": STREAM_MATCH, "reservoir": STREAM_RESERVOIR,
           "batch": STREAM_BATCH, "state": STREAM_STATE, "network": STREAM_NETWORK}


def philox(counter, key):
    """Philox4x32-10 of one block: four counter words and two key words to four words, all uint32."""
    cdef uint32_t c[4]
    cdef uint32_t k[2]
    cdef uint32_t out[4]
    cdef int i
    for i in range(4):
        c[i] = counter[i]
    for i in range(2):
        k[i] = key[i]
    philox4x32(c, k, out)
    return out[0], out[1], out[2], out[3]


cdef class Stream:
    """One stream of random numbers.

    Owned by whoever made it. Not safe to share: every draw changes it.
    Guarantees the same numbers for the same key on every machine.
    """
    def __cinit__(self, seed, stream="state", uint32_t iteration=0, uint32_t player=0, uint32_t index=0):
        rng_start(&self.rng, seed, STREAMS[stream], iteration, player, index)

    def u32(self):
        """The next 32 bits, an int."""
        return rng_u32(&self.rng)

    def double(self):
        """Uniform in [0, 1)."""
        return rng_double(&self.rng)

    def below(self, uint32_t n):
        """Uniform in 0..n-1; ValueError where n is 0."""
        if n == 0:
            raise ValueError("below(0): there is no number to draw; n must be at least 1")
        return rng_below(&self.rng, n)
