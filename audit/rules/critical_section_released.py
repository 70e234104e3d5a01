"""Critical sections inside which the thread state is given up."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Context, Fact, Function, Gil, GuardKind, Module
from audit.graph import Project
from audit.rule import Finding, Severity

ID = "critical-section-released"
SEVERITY = Severity.RACES
TITLE = "The thread state is given up inside a critical section"
WHY = """\
A critical section is not a lock that stays locked: it holds only while its thread is attached to the interpreter.
When the thread detaches, as `with nogil` does, CPython unlocks every critical section the thread is in, lets others
in, and locks them again when the thread comes back. What was read before the block may have changed after it, and
what the block itself writes is not protected at all. The same happens in a function that is called there and releases
the GIL. A mutex stays locked."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

cimport cython

cdef class Total:
    cdef double sum

    def add(self, const double[::1] x):
        cdef Py_ssize_t i
        with cython.critical_section(self):
            with nogil:
                for i in range(x.shape[0]):
                    self.sum += x[i]
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

cimport cython

cdef class Total:
    cdef double sum

    def add(self, const double[::1] x):
        cdef Py_ssize_t i
        cdef double s = 0.0
        with nogil:
            for i in range(x.shape[0]):
                s += x[i]
        with cython.critical_section(self):
            self.sum += s
"""

_DETACHES = {"PyEval_SaveThread", "PyEval_ReleaseThread", "Py_BEGIN_ALLOW_THREADS"}


def check(module: Module, project: Project) -> Iterator[Finding]:
    for function in [*module.functions, *([module.toplevel] if module.toplevel is not None else [])]:
        for block in function.nogil_blocks:
            if section := _section(block.context):
                yield _finding(
                    function, block, f"`with nogil` lets other threads into the critical section of {section}"
                )
        given_up = {block.context.guards for block in function.nogil_blocks}
        for parallel in function.parallels:
            if parallel.takes_gil or parallel.context.guards in given_up:
                continue  # keeps the thread state, or stands in a block that has given it up
            if section := _locked(parallel.context):
                yield _finding(
                    function, parallel, f"The parallel loop lets other threads into the section of {section}"
                )
        for call in function.calls:
            section = _section(call.context)
            if not section:
                continue
            callee = project.resolve(call)
            if call.cname in _DETACHES:
                yield _finding(
                    function, call, f"{call.cname} lets other threads into the critical section of {section}"
                )
            elif callee is not None and _releases(project, callee):
                message = (
                    f"{call.name} releases the GIL and so lets other threads into the critical section of {section}"
                )
                yield _finding(function, call, message)


def _section(context: Context) -> str:
    """What the critical section around something locks."""
    return _locked(context) if context.gil is not Gil.RELEASED else ""


def _locked(context: Context) -> str:
    return next((guard.what for guard in context.guards if guard.kind is GuardKind.CRITICAL_SECTION), "")


def _releases(project: Project, function: Function) -> bool:
    """Whether a function, or one that it calls, gives the thread state up."""
    waiting, seen = [function], {id(function)}
    while waiting:
        step = waiting.pop()
        if step.nogil_blocks or any(not parallel.takes_gil for parallel in step.parallels):
            return not step.nogil
        for call in step.calls:
            callee = project.resolve(call)
            if callee is not None and id(callee) not in seen and not callee.nogil:
                seen.add(id(callee))
                waiting.append(callee)
    return False


def _finding(function: Function, fact: Fact, message: str) -> Finding:
    return Finding.at(
        fact.where,
        ID,
        function.name,
        SEVERITY,
        f"{message}.",
        "Work on copies outside of the section and store the result inside, or hold a cython.pymutex, which stays "
        "locked (both Cython 3.1).",
    )
