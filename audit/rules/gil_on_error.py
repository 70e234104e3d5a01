"""Checks that Cython puts into nogil code, whose failing branch takes the GIL."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import ErrorKind, Module
from audit.graph import Project
from audit.rule import Finding, Severity

ID = "gil-on-error"
SEVERITY = Severity.SLOWS
TITLE = "A check that Cython puts in here takes the GIL when it fails"
WHY = """\
Indexing a memoryview, dividing integers, slicing and the like are checked unless a directive says otherwise. The check
runs on every pass; when it fails the branch takes the GIL to raise. In a noexcept function the exception is then
printed and dropped, and the function returns garbage as if nothing had happened."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

cdef double share(double[::1] x, int i, int j) noexcept nogil:
    return x[i] + i % j
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False, cdivision=True

cdef double share(double[::1] x, int i, int j) noexcept nogil:
    return x[i] + i % j
"""

_WHAT = {
    ErrorKind.BOUNDS: "The index in {0} is checked",
    ErrorKind.DIVISION: "The divisor in {0} is checked for zero",
    ErrorKind.OVERFLOW: "{0} is checked for overflow",
    ErrorKind.NONE: "{0} is checked for None",
    ErrorKind.CONVERSION: "The conversion of {0} is checked",
    ErrorKind.UNBOUND: "{0} is checked for being set",
    ErrorKind.MEMORYVIEW: "{0} is checked as a memoryview operation",
    ErrorKind.COMPARISON: "The comparison of Python objects in {0} is checked",
}
_OFF = {
    "boundscheck": "boundscheck=False",
    "cdivision": "cdivision=True",
    "cdivision_warnings": "cdivision_warnings=False",
    "overflowcheck": "overflowcheck=False",
    "nonecheck": "nonecheck=False",
    "initializedcheck": "initializedcheck=False",
}


def check(module: Module, project: Project) -> Iterator[Finding]:
    for function in module.functions:
        seen: set[tuple[object, ...]] = set()
        for path in function.error_paths:
            if not path.context.released:
                continue
            key = (path.where.path, path.where.line, path.kind)
            if key in seen:
                continue
            seen.add(key)
            if path.directive in _OFF:
                hint = f"Test it yourself before the loop and set {_OFF[path.directive]} for the function."
            else:
                hint = "Test it before the code that runs without the GIL, or use a pointer there."
            yield Finding.at(
                path.where,
                ID,
                function.name,
                SEVERITY,
                f"{_WHAT[path.kind].format(path.expression)}, and a failure takes the GIL where it is not held.",
                hint,
            )
