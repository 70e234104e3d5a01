"""Calls in nogil code that ask for an exception with the GIL every time."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Check, Module
from audit.graph import Project
from audit.rule import Finding, Severity

ID = "exc-check-call"
SEVERITY = Severity.SLOWS
TITLE = "This call takes the GIL each time, to look for an exception"
WHY = """\
The other end of exc-check: the call stands in code without the GIL, and what it calls can report failure in no other
way than by an exception that is set. The C after the call is `if (__Pyx_ErrOccurredWithGIL())`, which attaches the
thread to the interpreter, looks and detaches it. Cython's annotated page shows the line in white."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

cdef void bump(double *p) nogil:
    p[0] += 1.0

cdef void twice(double *p) noexcept nogil:
    bump(p)
    bump(p)
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

cdef void bump(double *p) noexcept nogil:
    p[0] += 1.0

cdef void twice(double *p) noexcept nogil:
    bump(p)
    bump(p)
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    for function in module.functions:
        for call in function.calls:
            if call.check is not Check.ALWAYS or not call.context.released:
                continue
            place = " in a loop" if call.context.loops else ""
            yield Finding.at(
                call.where,
                ID,
                function.name,
                SEVERITY,
                f"After this call of {call.name} (returns {call.returns}){place} the GIL is taken to look for errors.",
                f"Declare {call.name} noexcept, or let it "
                f"{'return an int with `except -1`' if call.returns == 'void' else 'name a value that means failure'}"
                f"{f' ({call.declared.path}:{call.declared.line})' if call.declared else ''}.",
            )
