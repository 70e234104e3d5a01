"""Module-level state that functions change, and caches of functions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from audit.facts import Function, Module, Variable
from audit.graph import Project
from audit.rule import Finding, Severity, Where
from audit.sharing import GlobalWrite, by_whom, global_writes, is_thread_local, line_of

ID = "module-state"
SEVERITY = Severity.RACES
TITLE = "Module-level state that functions change"
WHY = """\
A module exists once, so whatever stands at its level is shared by all threads. With the GIL two Python threads never
ran such a function at the same instant; without it they do, and nothing orders the writes: counts get lost, a scratch
buffer holds halves of two results, a global object's reference count goes wrong. State that only nogil code writes
was never protected. What is set once, at import, and only read afterwards is safe. A dict or a list is locked by
CPython for the length of one operation, not for a test and the write that follows from it. functools.lru_cache locks
itself, but all threads wait for that one lock, may compute the same value twice, and share the objects it hands out."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

cdef int hits = 0
cdef double[16] scratch
_memo = {}

cdef double smooth(double x) noexcept nogil:
    global hits
    hits += 1
    scratch[0] = x
    return scratch[0] * 0.5

def lookup(int k):
    if k not in _memo:
        _memo[k] = smooth(k)
    return _memo[k]
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

from libcpp.atomic cimport atomic

LIMIT = 64
NAMES = ("a", "b")

cdef class Work:
    cdef double[16] scratch
    cdef dict memo

    def __cinit__(self):
        self.memo = {}

cdef double smooth(double* scratch, double x) noexcept nogil:
    scratch[0] = x
    return scratch[0] * 0.5
"""

_CACHES = re.compile(r"^(?:functools\.)?(?:lru_cache|cache)\b(?:\(|$)")
_CACHE_MADE = re.compile(r"^(?:functools\.)?(?:lru_cache|cache)\(.*\)$|^(?:functools\.)?lru_cache\(.*\)\(.*\)$")
_LOCKS = re.compile(
    r"pymutex|PyMutex|pythread|thread_type_lock|omp_(?:nest_)?lock_t|pthread_|\bmtx_t|once_flag|mutex|atomic|latch|"
    r"barrier|semaphore|condition_variable",
)


def check(module: Module, project: Project) -> Iterator[Finding]:
    written = global_writes(module, project)
    for variable in module.variables:
        finding = _variable(module, variable, written.get(variable.name, []))
        if finding is not None:
            yield finding
    for function in module.functions:
        where = _cached(module, function)
        if where is not None:
            yield Finding.at(
                where,
                ID,
                function.name,
                Severity.SLOWS,
                f"Results of {function.name} are kept in one cache that all threads share and wait for.",
                "Give each thread or each owner a cache of its own (threading.local, an attribute), or fill a table at "
                "import; if it must be shared, make sure that nobody changes the objects it hands out.",
            )


def _variable(module: Module, variable: Variable, writes: list[GlobalWrite]) -> Finding | None:
    name = variable.name
    if variable.const or variable.kind == "constant" or (name.startswith("__") and name.endswith("__")):
        return None
    if _LOCKS.search(variable.type) or is_thread_local(module, variable):
        return None
    if _CACHE_MADE.match(variable.value):
        return _finding(
            variable,
            Severity.SLOWS,
            f"{name} is a cache that all threads share and wait for.",
            "Give each thread or each owner a cache of its own, or fill a table at import.",
        )
    bare = [write for write in writes if not write.locks and not write.atomic]
    if not bare:
        return None
    # Where some writes are locked, inconsistent-guard says which are not
    severity = Severity.NOTE if len(bare) < len(writes) else SEVERITY
    who = by_whom((write.function.name, write.where.line) for write in bare)
    how = "what it holds is changed" if all(write.through for write in bare) else "it is written"
    return _finding(variable, severity, f"All threads share {name}, and {how} by {who}.", _hint(variable))


def _finding(variable: Variable, severity: Severity, message: str, hint: str) -> Finding:
    return Finding.at(variable.where, ID, "", severity, message, hint)


def _hint(variable: Variable) -> str:
    if variable.python:
        return (
            "Keep it in an object that one thread owns, fill it at import and leave it alone, or lock every access "
            "(`with cython.pymutex`, Cython 3.1)."
        )
    if re.search(r"\[|\*|^.*\bstruct\b", variable.type) or "[" in variable.type:
        return (
            "Let the caller pass the buffer in, so that each thread owns one, or lock every access (cython.pymutex, "
            "Cython 3.1)."
        )
    return (
        "Count in a cdef class or struct that one thread owns and add up at the end, make it an atomic "
        "(libcpp.atomic, Cython 3.0), or lock every access (cython.pymutex, Cython 3.1)."
    )


def _cached(module: Module, function: Function) -> Where | None:
    """Where a cache decorates a function that exists once."""
    if "." in function.name and not function.owner:
        return None  # made anew by each call of the function around it
    for decorator in function.decorators:
        decorator = decorator.split("#")[0].strip()
        if not _CACHES.match(decorator):
            continue
        if function.where.path == module.path:
            for line in _around(module, function.where.line):
                text = line_of(module, line)
                if text.lstrip().startswith("@" + decorator.split("(")[0]):
                    return Where(function.where.path, line, len(text) - len(text.lstrip()) + 1)
        return function.where
    return None


def _around(module: Module, line: int) -> Iterator[int]:
    """Lines of a function's decorators: from its own line, which may be the first of them, down to `def`, then up."""
    for below in range(line, line + 40):
        yield below
        if re.match(r"\s*(?:async\s+)?(?:def|cdef|cpdef)\b", line_of(module, below)):
            break
    for above in range(line - 1, max(0, line - 40), -1):
        if not line_of(module, above).lstrip().startswith(("@", "#")):
            break
        yield above
