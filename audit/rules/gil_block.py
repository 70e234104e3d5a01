"""Places in nogil code that take the GIL on purpose."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Module
from audit.graph import Project
from audit.rule import Finding, Severity

ID = "gil-block"
SEVERITY = Severity.SLOWS
TITLE = "Code without the GIL takes it: a `with gil` block or function"
WHY = """\
On a GIL build all threads queue here. On a free-threaded build the thread attaches to the interpreter: that costs tens
of nanoseconds, stops with every stop-the-world pause, and is waste in a hot loop. What the block does is Python work,
whose reference counts are shared by all threads that touch the same objects."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

cdef double walk(double *p, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        if p[i] < 0.0:
            with gil:
                print(i)
    return 0.0
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

cdef Py_ssize_t walk(double *p, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i, negative = 0
    for i in range(n):
        if p[i] < 0.0:
            negative += 1
    return negative

def count(double[::1] x):
    print(walk(&x[0], x.shape[0]))
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    for function in module.functions:
        if function.with_gil:
            yield Finding.at(
                function.where,
                ID,
                function.name,
                SEVERITY,
                f"{function.name} is declared `with gil`, so it takes the GIL each time it is called without.",
                "Declare it nogil and do its Python work in the caller, before or after the hot part.",
            )
        for block in function.gil_blocks:
            path = project.path(function)
            place = " in a loop" if block.context.loops else ""
            through = f", reached by {' -> '.join(path)}" if path else ""
            yield Finding.at(
                block.where,
                ID,
                function.name,
                SEVERITY,
                f"This block takes the GIL{place} in code that runs without it{through}.",
                "Note what happened in a C variable or a buffer of the thread, and do the Python work after the loop.",
            )
