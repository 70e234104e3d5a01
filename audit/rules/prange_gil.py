"""prange that keeps the GIL."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Module
from audit.graph import Project
from audit.rule import Finding, Severity

ID = "prange-gil"
SEVERITY = Severity.SLOWS
TITLE = "Each OpenMP thread of this prange takes the GIL"
WHY = """\
Without nogil=True, and outside nogil code, every OpenMP thread attaches to the interpreter for its part of the loop. On
a GIL build the threads then run one after the other. On a free-threaded build they run, but each keeps a Python thread
state, and stops at each pause of the interpreter. Before Cython 3.2 it is an error."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True
from cython.parallel cimport prange

def total(double[::1] x):
    cdef Py_ssize_t i
    cdef double s = 0.0
    for i in prange(x.shape[0]):
        s += x[i]
    return s
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True
from cython.parallel cimport prange

def total(double[::1] x):
    cdef Py_ssize_t i
    cdef double s = 0.0
    for i in prange(x.shape[0], nogil=True):
        s += x[i]
    return s
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    for function in module.functions:
        for parallel in function.parallels:
            if not parallel.takes_gil:
                continue
            what = "parallel() block" if parallel.section else "prange"
            yield Finding.at(
                parallel.where,
                ID,
                function.name,
                SEVERITY,
                f"This {what} holds the GIL, so each of its threads attaches to the interpreter.",
                "Write nogil=True, or put it into a `with nogil` block.",
            )
