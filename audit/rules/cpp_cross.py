"""C++ exceptions that Cython was not told about."""

from __future__ import annotations

import re
from collections.abc import Iterator

from audit.facts import Check, Function, Module
from audit.graph import Project
from audit.rule import Finding, Severity
from audit.verbatim import functions, stripped

ID = "cpp-cross"
SEVERITY = Severity.RACES
TITLE = "A C++ exception leaves code that Cython believes cannot throw"
WHY = """\
Cython writes try and catch around a call only where the function is declared `except +`. Declared otherwise, an
exception leaves the C that Cython made: past `with nogil`, so that the thread never attaches again and its references
and locks stay, or out of a parallel loop, where OpenMP ends the process. The rule reads the C++ in verbatim blocks: a
body that throws and does not catch. Functions of other headers cannot be judged from their declaration, and libcpp's
are declared as they should be, so nothing is said about those."""
BAD = '''\
# distutils: language = c++
# cython: language_level=3, freethreading_compatible=True

cdef extern from *:
    """
    #include <stdexcept>
    static int checked(int x) { if (x < 0) throw std::runtime_error("negative"); return x; }
    """
    int checked(int x) nogil

cdef int twice(int x) noexcept nogil:
    return 2 * checked(x)
'''
GOOD = '''\
# distutils: language = c++
# cython: language_level=3, freethreading_compatible=True

cdef extern from *:
    """
    static int checked(int x) noexcept { return x < 0 ? -1 : x; } /* does not throw */
    """
    int checked(int x) noexcept nogil

cdef int twice(int x) noexcept nogil:
    return 2 * checked(x)
'''

_THROWS = re.compile(r"\bthrow\b")
_CATCHES = re.compile(r"\bcatch\s*\(\s*\.\.\.\s*\)")


def check(module: Module, project: Project) -> Iterator[Finding]:
    throwing: set[str] = set()
    bodies = dict(found for block in module.verbatim for found in functions(stripped(block.code)))
    changed = module.cplus
    while changed:
        changed = False
        for name, body in bodies.items():
            if name not in throwing and not _CATCHES.search(body) and _may_throw(body, throwing):
                throwing.add(name)
                changed = True
    if not throwing:
        return
    for function in module.functions:
        yield from _calls(function, throwing)


def _may_throw(body: str, throwing: set[str]) -> bool:
    return _THROWS.search(body) is not None or any(re.search(rf"\b{name}\s*\(", body) for name in throwing)


def _calls(function: Function, throwing: set[str]) -> Iterator[Finding]:
    for call in function.calls:
        if call.kind == "extern" and call.cname in throwing and call.check is not Check.CPP:
            how = "without the GIL " if call.context.released else ""
            yield Finding.at(
                call.where,
                ID,
                function.name,
                SEVERITY,
                f"{call.name} throws in C++, is called {how}and is not declared `except +`: nothing catches it.",
                "Catch it in the C++ and return a code, or declare the function `except +` (its catch takes the GIL).",
            )
