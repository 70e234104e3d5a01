"""Functions whose callers ask for an exception with the GIL after every call."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Check, Function, Module
from audit.graph import Project
from audit.rule import Finding, Severity

ID = "exc-check"
SEVERITY = Severity.SLOWS
TITLE = "Every call without the GIL takes the GIL to look for an exception"
WHY = """\
A C function that may raise has to tell its caller. One that returns nothing, or a value of which none is set aside for
failure, cannot: so Cython makes every caller in nogil code attach to the interpreter and ask whether an exception is
set, after each call and whether or not anything went wrong. That costs some twenty times the call itself, and on a
free-threaded build threads wait for one another there when the interpreter stops them. Function-pointer types and
fused results have no value set aside unless one is written."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

cdef void bump(double *p) nogil:
    p[0] += 1.0
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

cdef void bump(double *p) noexcept nogil:
    p[0] += 1.0

cdef int checked(double *p) except -1 nogil:
    p[0] += 1.0
    return 0
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    for function in [*module.functions, *module.declarations]:
        if function.check is not Check.ALWAYS or not (function.nogil or function.with_gil):
            continue
        if function in module.declarations and project.defines(function):
            continue  # reported where it is defined
        yield Finding.at(
            function.where,
            ID,
            function.name,
            SEVERITY,
            f"{_subject(function)} has neither noexcept nor a value that means failure, so each call from code without "
            f"the GIL takes the GIL to look for an exception{_calls(function, project)}.",
            f"Declare it noexcept if it cannot fail, else {_sentinel(function)}; in the .pxd too.",
        )


def _sentinel(function: Function) -> str:
    """How a caller could tell a failure without asking the interpreter."""
    if function.returns == "void":
        return "return an int and declare `except -1`"
    return "declare a value that means failure, as in `except? -1`"


def _subject(function: Function) -> str:
    if function.kind == "pointer":
        return f"The function-pointer type {function.name}"
    return f"{function.name}, which returns {function.returns},"


def _calls(function: Function, project: Project) -> str:
    lines = sorted({(call.where.path, call.where.line) for call in project.calls_to(function) if call.context.released})
    if not lines:
        return ""
    shown = ", ".join(f"line {line}" if path == function.where.path else f"{path}:{line}" for path, line in lines[:5])
    more = f" and {len(lines) - 5} more" if len(lines) > 5 else ""
    return f" (called at {shown}{more})"
