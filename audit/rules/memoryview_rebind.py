"""Module-level memoryviews that nogil code replaces."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Module
from audit.graph import Project
from audit.rule import Finding, Severity
from audit.sharing import sharing_of

ID = "memoryview-rebind"
SEVERITY = Severity.RACES
TITLE = "A module-level memoryview is replaced without the GIL"
WHY = """\
A memoryview is several words: a pointer, shapes, strides, and the object with the count of all its slices. To replace
one, Cython's C drops a count of the old one and copies the new one in, word by word, and no lock stands around it. A
thread that reads the variable meanwhile sees the pointer of one array with the shape of another, and two threads that
replace it drop the old count twice, which frees an array that is in use. That holds with the GIL too, where the code
that writes runs without it. For memoryviews of a cdef class see shared-attr; for what a named slice costs,
buffer-acquire."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

cdef double[::1] current

cdef void use(double[::1] other) noexcept nogil:
    global current
    current = other
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

cdef double use(double[::1] current) noexcept nogil:
    return current[0] if current.shape[0] else 0.0
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    sharing = sharing_of(project)
    for function in module.functions:
        for access in function.accesses:
            if access.kind == "global" and access.memoryview and access.write and access.context.released:
                if not sharing.locks(function, access):
                    yield Finding.at(
                        access.where,
                        ID,
                        function.name,
                        SEVERITY,
                        f"{function.name} replaces the memoryview {access.base}, which all threads share.",
                        "Pass the memoryview as an argument, or set it once at import; if it must change, do it under "
                        "a cython.pymutex (Cython 3.1) that every reader takes too.",
                    )
