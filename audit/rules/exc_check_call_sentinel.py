"""Calls in nogil code that ask for an exception with the GIL when one value comes back."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Check, Module
from audit.graph import Project
from audit.rule import Finding, Severity

ID = "exc-check-call-sentinel"
SEVERITY = Severity.NOTE
TITLE = "This call takes the GIL when one certain value comes back"
WHY = """\
The other end of exc-check-sentinel: the result is compared with the value that may mean failure, and when it is that
value the thread attaches to the interpreter to ask whether an exception is set."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

cdef int minus(int x) nogil:
    return x - 1

cdef int use(int x) noexcept nogil:
    return minus(x)
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

cdef int minus(int x) noexcept nogil:
    return x - 1

cdef int use(int x) noexcept nogil:
    return minus(x)
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    for function in module.functions:
        for call in function.calls:
            if call.check is not Check.SENTINEL or not call.context.released or call.kind == "builtin":
                continue
            yield Finding.at(
                call.where,
                ID,
                function.name,
                SEVERITY,
                f"When this call of {call.name} returns {call.sentinel}, the GIL is taken to look for an exception.",
                f"Declare {call.name} noexcept if it cannot fail, or `except {call.sentinel}` if that is no result.",
            )
