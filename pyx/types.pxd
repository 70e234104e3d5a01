"""Shared typedefs and limits of the compiled core; nothing else.

Features are bits. A *row* is one information set's features packed eight to a byte, lowest bit first,
padded with zeros to a whole number of 8-byte words; `float(bit)` is what a network sees.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

# Values of Game.player() beside 0 and 1, as in OpenSpiel.
cdef enum:
    CHANCE = -1
    TERMINAL = -4

# The most legal actions a decision of any game may offer: arrays on the C stack have this length.
cdef enum:
    MAX_LEGAL = 64

# Where the value of a legal action stands in a network's output row.
#   slot             the action's own place, where its training target goes
#   first, ties, stride
#                    its value is the mean of the `ties` outputs at first, first + stride, ...:
#                    more than one where the player cannot tell interchangeable actions apart
ctypedef struct Output:
    int16_t slot
    int16_t first
    int16_t ties
    int16_t stride
