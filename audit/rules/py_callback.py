"""Calls from C functions back into Python."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Module
from audit.graph import Project
from audit.rule import Finding, Severity

ID = "py-callback"
SEVERITY = Severity.SLOWS
TITLE = "A C function calls a Python object that came from outside"
WHY = """\
Whatever the object is, the call makes objects of its arguments, runs the interpreter and may run any code at all: other
locks, other threads, the same function again. No thread may hold a lock of its own across it, and on a GIL build all
threads queue for it."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

cdef double through(object f, double x):
    return f(x)
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

ctypedef double (*kernel)(double) noexcept nogil

cdef double through(kernel f, double x) noexcept nogil:
    return f(x)
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    for function in module.functions:
        if function.kind not in ("cdef", "cpdef"):
            continue
        for call in function.python_calls:
            if not call.callback:
                continue
            yield Finding.at(
                call.where,
                ID,
                function.name,
                SEVERITY,
                f"{call.name} is a Python object, and {function.name} calls it from C code.",
                "Take a C function pointer declared `noexcept nogil`, or collect arguments and call it once for all.",
            )
