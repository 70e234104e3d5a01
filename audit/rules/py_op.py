"""Python operations in C functions and in nogil code."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Gil, Module, Operation
from audit.graph import Project, refusal_of
from audit.rule import Finding, Severity

ID = "py-op"
SEVERITY = Severity.BLOCKS
TITLE = "A C function, or nogil code, touches Python objects"
WHY = """\
A thread must be attached to the interpreter to touch an object, so the function cannot be nogil and nothing that runs
without the GIL can call it. On a free-threaded build the work would run in parallel, but each object's reference count
is then written by all threads that use it, and slows them down. In code that is nogil already Cython refuses it."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

cdef double noisy(double x) noexcept:
    print(x)
    return x
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

cdef double quiet(double x) noexcept nogil:
    return x

def noisy(double x):
    print(quiet(x))
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    for function in module.functions:
        refused: dict[tuple[str, int], Operation] = {}
        for operation in function.operations:
            if operation.context.gil is Gil.RELEASED:
                refused.setdefault((operation.where.path, operation.where.line), operation)
        for operation in refused.values():
            yield Finding.at(
                operation.where,
                ID,
                function.name,
                SEVERITY,
                f"This needs the GIL where it is not held: {refusal_of(operation)}",
                "Move it out of the nogil code, or give what it uses a C type.",
            )
        for call in function.calls:
            if call.context.released and not call.nogil:
                yield Finding.at(
                    call.where,
                    ID,
                    function.name,
                    SEVERITY,
                    f"{call.name}, which is not declared nogil, is called where the GIL is not held.",
                    f"Declare {call.name} nogil, or call it before the nogil code.",
                )
        own = [fact for fact in function.operations if fact.context.gil is Gil.HELD]
        if function.kind not in ("cdef", "cpdef") or function.with_gil or not own:
            continue
        lines = project.python_lines(function)
        first = min(own, key=lambda fact: (fact.where, fact.kind == "ReturnType"))
        path = project.path(function)
        shown = ", ".join(str(line) for line in lines[:8]) + (f" and {len(lines) - 8} more" if len(lines) > 8 else "")
        where = f" in line{'s' if len(lines) > 1 else ''} {shown}" if lines else ""
        yield Finding.at(
            function.where,
            ID,
            function.name,
            SEVERITY,
            f"{function.name} touches Python objects{where}, first by {first.expression}"
            f"{', and is reached by ' + ' -> '.join(path) if path else ''}, so it cannot be nogil.",
            "Mark the method or its class @cython.final, or put its work into a cdef method."
            if all(fact.kind == "Override" for fact in own)
            else "Give its variables C types and move the Python work to the caller.",
        )
