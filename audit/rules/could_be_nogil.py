"""C functions that Cython would accept as nogil and that are not marked."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Check, Module
from audit.graph import Project
from audit.rule import Finding, Severity

ID = "could-be-nogil"
SEVERITY = Severity.NOTE
TITLE = "This function needs no GIL but is not marked nogil"
WHY = """\
Code without the GIL may only call what is declared nogil, so one missing word keeps everything above it under the GIL.
Marking the function changes nothing for callers that hold the GIL. Callees are taken into account: those that need the
mark as well are named."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

cdef double twice(double x) noexcept:
    return 2.0 * x
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

cdef double twice(double x) noexcept nogil:
    return 2.0 * x
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    for function in module.functions:
        if function.nogil or function.with_gil or not project.could_be_nogil(function):
            continue
        if any(view.kind == "acquire" for view in function.views):
            continue  # Cython would let it pass, and the buffer be acquired without the GIL
        callees = sorted({callee.name for callee in project.to_mark_with(function)})
        too = f" together with {', '.join(callees[:5])}{' and others' if len(callees) > 5 else ''}" if callees else ""
        safe = " noexcept" if function.check in (Check.ALWAYS, Check.SENTINEL) and not function.raises else ""
        yield Finding.at(
            function.where,
            ID,
            function.name,
            SEVERITY,
            f"{function.name} touches no Python object but is not declared nogil.",
            f"Declare it{safe} nogil{too}; in the .pxd too.",
        )
