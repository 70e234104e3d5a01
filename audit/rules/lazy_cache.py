"""Places that are filled when they are first found empty."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Access, Function, Module
from audit.graph import Project
from audit.rule import Finding, Severity
from audit.sharing import Sharing, is_lazy, is_thread_local, place_of, sharing_of

ID = "lazy-cache"
SEVERITY = Severity.RACES
TITLE = "A value is made when it is first asked for, without a lock"
WHY = """\
`if self._x is None: self._x = compute()` is two steps. On a free-threaded build two threads both find the place
empty, both compute, and one value replaces the other: the work is done twice, two callers hold two objects that were
meant to be one, and where the place is a field of a cdef class the reference that the loser stored is dropped while
somebody may be taking it. A dict locks itself for one operation only, so `if key not in cache: cache[key] = ...` has
the same gap; dict.setdefault closes it where a second computation does no harm."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

cdef class Board:
    cdef object _moves
    cdef dict cache

    def moves(self):
        if self._moves is None:
            self._moves = list(range(10))
        return self._moves

    def value(self, key):
        if key not in self.cache:
            self.cache[key] = hash(key)
        return self.cache[key]
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

cimport cython

cdef class Board:
    cdef object _moves
    cdef dict cache

    def __cinit__(self):
        self.cache = {}

    def moves(self):
        with cython.critical_section(self):
            if self._moves is None:
                self._moves = list(range(10))
            return self._moves

    def value(self, key):
        with cython.critical_section(self):
            return self.cache.setdefault(key, hash(key))
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    sharing = sharing_of(project)
    private = {variable.name for variable in module.variables if is_thread_local(module, variable)}
    for function in module.functions:
        if not sharing.is_shared(function) or id(function) in sharing.at_import:
            continue
        for access in function.accesses:
            if not _is_place(access) or access.root in private or not is_lazy(function, access):
                continue
            if not sharing.locks(function, access) and not sharing.is_locked_elsewhere(access):
                yield _finding(sharing, function, access)


def _is_place(access: Access) -> bool:
    """An attribute of self or of a module's object, or a module-level name."""
    return access.write and not access.atomic and access.root_kind in ("self", "global")


def _finding(sharing: Sharing, function: Function, access: Access) -> Finding:
    field = sharing.is_field(access) or function.extension
    place = place_of(access)
    hint = "Fill it in __cinit__ or at import, or do test and write under one lock"
    if access.root_kind == "self" and field:
        hint += f" (`with cython.critical_section({access.root})`, Cython 3.1)."
    else:
        hint += " (cython.pymutex, Cython 3.1; threading.Lock)."
    where = access.where
    return Finding.at(
        where,
        ID,
        function.name,
        SEVERITY if field or access.root_kind == "global" else Severity.NOTE,
        f"Two threads may both find {access.base} without a value and both fill {place}.",
        hint,
    )
