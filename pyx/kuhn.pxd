"""Kuhn poker: declarations."""
from pyx.game cimport Game


cdef class Kuhn(Game):
    pass
