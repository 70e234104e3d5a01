"""Python objects and memoryviews that cdef classes hold and that methods replace without a lock."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Access, Attribute, Class, Function, Module
from audit.graph import Project
from audit.rule import Finding, Severity
from audit.sharing import Sharing, Use, by_whom, is_lazy, place_of, reads_itself, sharing_of

ID = "shared-attr"
SEVERITY = Severity.RACES
TITLE = "A Python object or memoryview of a cdef class is replaced without a lock"
WHY = """\
An attribute of a cdef class is a field of a C struct. To replace the object in it, Cython's C stores the new pointer
and drops a reference to the old one; to read it, the C loads the pointer and then takes a reference. On a
free-threaded build another thread may run between the two steps: two writers drop the same object twice, and a reader
takes a reference to an object that is already gone. That is a crash, not only a wrong value. A memoryview is a struct
of several words and a count, so a reader may also see half of the old one and half of the new one, and nogil code
that replaces it was never protected at all. __cinit__ and __init__, and cdef methods called init, run before others
have the object, and are left alone. The getter and setter that Cython 3.3 writes for a public attribute hold the
object's critical section; your own methods do not. At the declaration a note says which methods change the attribute,
or what it holds; a note, too, is a write of which lazy-cache or inconsistent-guard says more."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

cdef class Latest:
    cdef object value
    cdef double[::1] window

    def put(self, value):
        self.value = value

    cdef void slide(self, double[::1] window) noexcept nogil:
        self.window = window
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

cimport cython

cdef class Latest:
    cdef object value
    cdef double[::1] window

    def __cinit__(self, double[::1] window):
        self.value = None
        self.window = window

    def put(self, value):
        with cython.critical_section(self):
            self.value = value

    def get(self):
        with cython.critical_section(self):
            return self.value
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    sharing = sharing_of(project)
    for function in module.functions:
        if sharing.is_shared(function):
            for access in function.accesses:
                if _is_at_fault(sharing, function, access):
                    said = is_lazy(function, access) or sharing.is_locked_elsewhere(access)
                    yield _write(function, access, Severity.NOTE if said else SEVERITY)
    for found in module.classes:
        if found.kind == "cdef" and sharing.classes.get(found.target) is found:
            for member in found.attributes:
                if member.python or member.memoryview:
                    yield from _declaration(sharing, found, member)


def _is_at_fault(sharing: Sharing, function: Function, access: Access) -> bool:
    if not access.write or access.atomic or access.root_kind in ("local", "closure", "other") or access.method:
        return False
    if not _is_own(sharing, function, access):
        return False
    if access.kind == "attribute":
        wanted = access.python or access.memoryview
    else:
        wanted = access.kind == "item" and reads_itself(access)
    return wanted and not sharing.locks(function, access)


def _is_own(sharing: Sharing, function: Function, access: Access) -> bool:
    """An attribute of a cdef class: one that is known, or of a class whose declaration was not given."""
    if access.owner in sharing.classes:
        return sharing.is_field(access)
    return function.extension and access.root_kind == "self" and access.base.count(".") == 1 and bool(access.owner)


def _write(function: Function, access: Access, severity: Severity) -> Finding:
    place = place_of(access)
    if access.kind == "item":
        message = f"{function.name} reads {place} and writes it back; another thread's change in between is lost."
    elif access.memoryview:
        message = f"{function.name} replaces the memoryview {place} while other threads may use it."
    else:
        verb = "deletes" if access.deleted else "replaces"
        message = f"{function.name} {verb} the object in {place} while other threads may read or replace it."
    if access.context.released:
        hint = (
            "Do it where the thread is attached, under a lock that every access takes (cython.pymutex, Cython 3.1, "
            "also works without the GIL), or give each thread an object of its own."
        )
    else:
        hint = (
            f"Put every access into `with cython.critical_section({access.root})` (Cython 3.1) or under one "
            "cython.pymutex, or give each thread an object of its own."
        )
    where = access.where
    return Finding.at(where, ID, function.name, severity, message, hint)


def _declaration(sharing: Sharing, found: Class, member: Attribute) -> Iterator[Finding]:
    uses = [use for use in sharing.uses().get((found.target, member.name), ()) if use.access.write and not use.locks]
    if member.memoryview:
        uses = [use for use in uses if use.access.kind == "attribute"]
    if uses:
        message = f"Threads that share one {found.name} share {member.name}, and {_how(uses)}."
    elif member.visibility == "public":
        message = f"Python code on any thread may replace {found.name}.{member.name}: it is public."
    else:
        return
    yield Finding.at(
        member.where,
        ID,
        "",
        Severity.NOTE,
        message,
        "Let one thread own the object, set it in __cinit__ only, or lock every access (cython.critical_section, "
        "Cython 3.1).",
    )


def _how(uses: list[Use]) -> str:
    """What is done without a lock, and by whom."""
    inside = all(use.access.method or use.access.kind != "attribute" for use in uses)
    who = by_whom((use.function.name, use.access.where.line) for use in uses)
    return f"{'what it holds is changed' if inside else 'it is replaced'} without a lock by {who}"
