"""raise and assert where the GIL is not held."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Gil, Module
from audit.graph import Project
from audit.rule import Finding, Severity

ID = "raise-nogil"
SEVERITY = Severity.SLOWS
TITLE = "A raise or assert in code without the GIL takes the GIL"
WHY = """\
Cython accepts raise and assert in nogil code by putting `with gil` around them. The exception is an object, its
traceback is built on the way out, and each function on that way takes the GIL once more; where the function is
noexcept, the exception is printed and dropped. An assert tests its condition on each pass unless assertions are
switched off when the C is compiled."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

cdef int root(double x) except -1 nogil:
    if x < 0.0:
        raise ValueError("negative")
    return 0
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

cdef int root(double x) noexcept nogil:
    if x < 0.0:
        return -1
    return 0

def checked_root(double x):
    if root(x) < 0:
        raise ValueError("negative")
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    for function in module.functions:
        for fact in function.raises:
            if fact.context.gil is not Gil.RELEASED or fact.kind == "reraise":
                continue
            yield Finding.at(
                fact.where,
                ID,
                function.name,
                SEVERITY,
                f"This {fact.kind} takes the GIL where it is not held.",
                "Return an error code and raise in the caller that holds the GIL"
                + (", or compile with CYTHON_WITHOUT_ASSERTIONS." if fact.kind == "assert" else "."),
            )
