"""Calls through the interpreter of functions that could be called in C."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Module
from audit.graph import Project
from audit.rule import Finding, Severity

ID = "def-overhead"
SEVERITY = Severity.NOTE
TITLE = "A function of this project is called through the interpreter"
WHY = """\
A call of a def function makes a tuple of objects and looks the function up by name each time, although caller and
callee are both compiled. The C side of a cpdef method looks for an override in Python on each call. Neither can be done
without the GIL."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

def square(double x):
    return x * x

cdef double total(double *p, Py_ssize_t n):
    cdef Py_ssize_t i
    cdef double s = 0.0
    for i in range(n):
        s += square(p[i])
    return s
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

cdef double square(double x) noexcept nogil:
    return x * x

cdef double total(double *p, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cdef double s = 0.0
    for i in range(n):
        s += square(p[i])
    return s
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    for function in module.functions:
        compiled = function.kind in ("cdef", "cpdef")
        for python_call in function.python_calls:
            callee = project.resolve(python_call)
            if callee is None or not (compiled or python_call.context.loops):
                continue
            yield Finding.at(
                python_call.where,
                ID,
                function.name,
                SEVERITY,
                f"{callee.name} is a {callee.kind} function of this project, called here through the interpreter.",
                f"Put its work into a cdef function, and call that from here and from {callee.name}.",
            )
        for call in function.calls:
            if not (call.virtual and call.overridable) or call.wrapper or not (compiled or call.context.loops):
                continue
            yield Finding.at(
                call.where,
                ID,
                function.name,
                SEVERITY,
                f"{call.name} is a cpdef method: each call from C looks for an override in Python.",
                "Call a cdef method, or mark the method or its class @cython.final.",
            )
