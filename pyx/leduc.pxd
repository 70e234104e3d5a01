"""Leduc poker: declarations."""
from pyx.game cimport Game


cdef class Leduc(Game):
    pass
