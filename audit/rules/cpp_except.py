"""C++ functions that may throw, called without the GIL."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Check, Module
from audit.graph import Project
from audit.rule import Finding, Severity

ID = "cpp-except"
SEVERITY = Severity.SLOWS
TITLE = "The catch branch of this C++ call takes the GIL"
WHY = """\
`except +` puts try and catch around each call. The catch branch takes the GIL to turn the C++ exception into a Python
one, and the way out takes it again in each function. In a noexcept function the exception is printed and dropped. The
try itself is nearly free, so this matters where the call does throw, or must never be interrupted."""
BAD = """\
# distutils: language = c++
# cython: language_level=3, freethreading_compatible=True
from libcpp.vector cimport vector

cdef void grow(vector[int] *v, int x) noexcept nogil:
    v.push_back(x)
"""
GOOD = """\
# distutils: language = c++
# cython: language_level=3, freethreading_compatible=True
from libcpp.vector cimport vector

cdef void put(vector[int] *v, size_t i, int x) noexcept nogil:
    v.data()[i] = x
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    for function in module.functions:
        for call in function.calls:
            if call.check is not Check.CPP or not call.context.released:
                continue
            yield Finding.at(
                call.where,
                ID,
                function.name,
                SEVERITY,
                f"{call.name} is declared `except +`: if it throws, the catch branch takes the GIL.",
                "Reserve the memory beforehand and use calls that cannot throw, declared noexcept.",
            )
