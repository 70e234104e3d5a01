"""Liar's Dice: declarations."""
from pyx.game cimport Game


cdef class LiarsDice(Game):
    pass
