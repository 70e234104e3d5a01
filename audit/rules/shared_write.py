"""Parallel loops whose iterations may write one place."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Module
from audit.graph import Project
from audit.iterations import SharedWrite, shared_writes
from audit.rule import Finding, Severity

ID = "shared-write"
SEVERITY = Severity.RACES
TITLE = "Several iterations of a parallel loop may write one place"
WHY = """\
The iterations of a prange run on several threads in any order. Memory is theirs alone only where the index tells the
iterations apart: out[i], out[i + 1], out[i * n + j], or a stretch of their own as in a compressed row. With
hist[data[i]] two iterations may pick the same cell; with acc[0], a global or an attribute all of them do: `+=` then
loses additions, and a plain `=` leaves what came last. Cython gives each thread its own copy of a C variable that is
assigned in the loop, and makes one that is only changed by +=, -=, *=, &=, |= or ^= a reduction. It recognises
nothing else: `s = s + x`, `s = max(s, x)` and `if x > s: s = x` are refused (Cython 3.1) or start from an undefined
copy on each thread and the result is one thread's. Python objects assigned in the loop are shared by all threads,
also inside `with gil`, which keeps nobody out on a free-threaded build."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False

from cython.parallel cimport prange

cdef void histogram(int* hist, const unsigned char* data, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in prange(n):
        hist[data[i]] += 1
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False

from cython.parallel cimport prange

cdef double scale(const double* x, double* out, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cdef double s = 0.0
    for i in prange(n):
        out[i] = 2.0 * x[i]
        s += x[i]
    return s
"""

_OWN = (
    "Give each thread or iteration a place of its own and add up after the loop, or use an atomic (libcpp.atomic, "
    "Cython 3.0) or a cython.pymutex (3.1)"
)


def check(module: Module, project: Project) -> Iterator[Finding]:
    for function in module.functions:
        if function.parallels:
            for write in dict.fromkeys(shared_writes(project, function)):
                message, hint = _words(write)
                where = write.where
                yield Finding.at(where, ID, function.name, SEVERITY, message, hint)


def _words(write: SharedWrite) -> tuple[str, str]:
    if write.kind == "reduction":
        return (
            f"{write.place} carries a value from one iteration to the next, and Cython makes no reduction of it.",
            "Use += or another operator that Cython reduces by, or keep one value for each thread and combine them "
            "after the loop.",
        )
    if write.kind == "local":
        return (
            f"The Python object {write.place} is one variable for all threads of the loop.",
            "Move what needs Python into a function and call that: its variables are its own.",
        )
    if write.kind == "container":
        return (
            f"Several iterations change the container {write.place} at once.",
            "Give each thread a container of its own, or make room beforehand and let iteration i write element i.",
        )
    if write.kind == "call":
        return f"{write.through} writes {write.place}, which is the same for several iterations.", f"{_OWN}."
    if write.kind == "global":
        return f"{write.place} is one variable for all iterations.", f"{_OWN}, or a local variable with +=."
    verb = "change" if write.augmented else "write"
    return f"Several iterations may {verb} {write.place}: its index does not tell them apart.", f"{_OWN}."
