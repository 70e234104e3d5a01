"""State that some code locks and other code does not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from audit.facts import Access, Function, Module
from audit.graph import Project
from audit.rule import Finding, Severity, Where
from audit.sharing import Sharing, Use, is_lazy, is_thread_local, place_of, sharing_of

ID = "inconsistent-guard"
SEVERITY = Severity.RACES
TITLE = "A lock is taken for some accesses and not for others"
WHY = """\
A lock protects nothing by itself: it makes those wait who ask for it. Where one method writes an attribute under a
lock and another reads or writes it without, the second does not wait, and the first might as well not have locked.
The same holds where two methods hold two different locks. Reads count too: without the lock a reader may see the
object that a writer is just dropping. Two things are left alone: what __cinit__ and __init__ do, and a test outside
of the lock that is made again inside it before the place is filled for the first time."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

cimport cython

cdef class Total:
    cdef double sum
    cdef cython.pymutex mutex

    def add(self, double x):
        with self.mutex:
            self.sum += x

    def reset(self):
        self.sum = 0.0
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

cimport cython

cdef class Total:
    cdef double sum
    cdef cython.pymutex mutex

    def __cinit__(self):
        self.sum = 0.0

    def add(self, double x):
        with self.mutex:
            self._add(x)

    cdef void _add(self, double x) noexcept:
        self.sum += x

    def reset(self):
        with self.mutex:
            self.sum = 0.0
"""

_LOCK_TYPES = re.compile(r"mutex|lock|atomic|semaphore", re.IGNORECASE)


def check(module: Module, project: Project) -> Iterator[Finding]:
    sharing = sharing_of(project)
    for (owner, name), uses in sharing.uses().items():
        if sharing.classes[owner].kind in ("cdef", "python") and any(use.module is module for use in uses):
            yield from _uneven(module, uses, f"{owner.rpartition('.')[2]}.{name}")
    for name, uses in _globals(sharing, module).items():
        yield from _uneven(module, uses, name)


def _globals(sharing: Sharing, module: Module) -> dict[str, list[Use]]:
    """Accesses of the module's variables by functions that do not only run at import."""
    names = {variable.name for variable in module.variables if not is_thread_local(module, variable)}
    found: dict[str, list[Use]] = {}
    for function in module.functions:
        if id(function) in sharing.at_import or sharing.is_generated(function):
            continue
        for access in function.accesses:
            if access.root_kind == "global" and access.root in names:
                found.setdefault(access.root, []).append(Use(module, function, access, sharing.locks(function, access)))
    return found


def _uneven(module: Module, uses: list[Use], name: str) -> Iterator[Finding]:
    """The place itself and what it holds, each on its own."""
    if any(_LOCK_TYPES.search(use.access.base_type or use.access.type) for use in uses):
        return
    if any(place_of(use.access) in other.locks for use in uses[:1] for other in uses):
        return
    for part in (False, True):
        yield from _part(module, [use for use in uses if _is_inside(use.access) == part], name)


def _is_inside(access: Access) -> bool:
    return access.kind in ("element", "item") or bool(access.method)


def _part(module: Module, uses: list[Use], name: str) -> Iterator[Finding]:
    uses = [use for use in uses if not use.access.atomic]
    guarded = [use for use in uses if use.locks]
    if not guarded or not any(use.access.write for use in uses):
        return
    lock, _ = Counter(lock for use in sorted(guarded, key=_place) for lock in sorted(use.locks)).most_common(1)[0]
    under = [use for use in guarded if lock in use.locks]
    written = any(use.access.write for use in under)
    once = all(is_lazy(use.function, use.access) for use in under if use.access.write)
    seen: set[tuple[int, str]] = set()
    for use in uses:
        access = use.access
        if use.module is not module or lock in use.locks or (access.where.line, use.function.name) in seen:
            continue
        if not access.write and (not written or once or _is_part_of_write(access, uses)):
            continue
        seen.add((access.where.line, use.function.name))
        other = next(iter(sorted(use.locks)), "")
        yield _finding(use.function, access, name, lock, under, other)


def _is_part_of_write(read: Access, uses: Iterable[Use]) -> bool:
    """Whether a write at the same place says the same already."""
    return any(use.access.write and use.access.where == read.where for use in uses)


def _place(use: Use) -> Where:
    return use.access.where


def _finding(function: Function, access: Access, name: str, lock: str, under: list[Use], other: str) -> Finding:
    verb = "writes" if access.write else "reads"
    example = min((use for use in under if use.access.write or not access.write), key=_place, default=under[0])
    holder = f"{example.function.name} (line {example.access.where.line}) holds {lock} for it"
    without = f"holding {other} instead" if other else "without a lock"
    where = access.where
    return Finding.at(
        where,
        ID,
        function.name,
        SEVERITY,
        f"{function.name} {verb} {name} {without}, while {holder}.",
        f"Take the same lock here ({lock}), or have no lock at all where one thread owns the state "
        "(cython.critical_section and cython.pymutex: Cython 3.1).",
    )
