"""Memoryviews that are acquired, or whose acquisition count changes."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Module
from audit.graph import Project
from audit.rule import Finding, Severity

ID = "buffer-acquire"
SEVERITY = Severity.SLOWS
TITLE = "A memoryview is acquired or counted here"
WHY = """\
A memoryview shares one acquisition count with all its slices. Giving a slice a name adds one to it and takes one off
when the name gets another value: an atomic write to one place of memory that all threads then fight over, and the last
one takes the GIL. Passing an element or a slice straight on as an argument is not counted (Cython 3.3). Making a
memoryview from a Python object asks the object for its buffer, which needs the GIL. Where the GIL is held anyway both
are a note."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False

cdef double rows(double[:, ::1] m) noexcept nogil:
    cdef Py_ssize_t i
    cdef double s = 0.0
    cdef double[::1] row
    for i in range(m.shape[0]):
        row = m[i]
        s += row[0]
    return s
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False

cdef double rows(double[:, ::1] m) noexcept nogil:
    cdef Py_ssize_t i
    cdef double s = 0.0
    for i in range(m.shape[0]):
        s += m[i, 0]
    return s
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    for function in module.functions:
        for view in function.views:
            if view.kind == "acquire":
                message = f"A buffer is acquired from the Python object {view.expression}"
                if view.context.released:
                    message += " without the GIL, which Cython lets pass although it may crash"
                hint = (
                    "Acquire it once, before the loop, and pass the memoryview or a pointer on."
                    if view.context.loops or view.context.released
                    else "Once a call is right; keep it out of loops and of functions that loops call."
                )
            else:
                name = view.target or "a temporary"
                message = f"{view.expression} is given to {name}, which changes the acquisition count all slices share"
                hint = "Index the larger view, pass the slice straight to a function, or take a pointer to its start."
            yield Finding.at(
                view.where,
                ID,
                function.name,
                SEVERITY if view.context.released else Severity.NOTE,
                f"{message}{', in a loop' if view.context.loops else ''}.",
                hint,
            )
