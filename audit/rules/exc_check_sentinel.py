"""Functions whose callers ask for an exception with the GIL when one value comes back."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Check, Module
from audit.graph import Project
from audit.rule import Finding, Severity

ID = "exc-check-sentinel"
SEVERITY = Severity.NOTE
TITLE = "A call that returns one certain value takes the GIL to look for an exception"
WHY = """\
With `except? -1`, which Cython assumes for a C function that returns a number and says nothing else, the value -1 may
mean failure or be a result. A caller without the GIL compares, which is cheap, and when it meets the value it attaches
to the interpreter to ask. So the cost depends on how often the value is an honest result. `except -1` needs no
question, `noexcept` not even the comparison."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

cdef int minus(int x) nogil:
    return x - 1
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

cdef int minus(int x) noexcept nogil:
    return x - 1

cdef int strict(int x) except -1 nogil:
    return x + 1
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    for function in [*module.functions, *module.declarations]:
        if function.check is not Check.SENTINEL or not (function.nogil or function.with_gil):
            continue
        if function in module.declarations and (function.extern or project.defines(function)):
            continue
        yield Finding.at(
            function.where,
            ID,
            function.name,
            SEVERITY,
            f"A call of {function.name} that returns {function.sentinel} takes the GIL to look for an exception.",
            f"Declare it noexcept if it cannot fail, or `except {function.sentinel}` if that is no result.",
        )
