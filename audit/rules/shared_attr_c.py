"""Methods that Python calls and that read, change and write back C attributes of their object."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Access, Attribute, Call, Class, Function, Module
from audit.graph import Project
from audit.rule import Finding, Severity
from audit.sharing import Sharing, by_whom, is_mentioned, place_of, reads_itself, sharing_of

ID = "shared-attr-c"
SEVERITY = Severity.RACES
TITLE = "A method that Python calls changes C attributes of self without a lock"
WHY = """\
A def or cpdef method of a cdef class used to run from its first line to its last without another Python thread in
between, unless it released the GIL itself. On a free-threaded build any thread that has the object may call it at the
same time: `self.n += 1` is a load, an addition and a store, and of two threads' additions one is lost; a generator's
state goes backwards; of two threads that grow or free a buffer one frees what the other still uses, or both free it.
It is the fault most often met in code that was marked compatible without being changed. Methods of objects that only
one thread ever has are safe; nothing in the source says so, so say it in a suppression. A note stands at public C
attributes, which Python code may write from any thread, and where a method does it through a cdef method of its own."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

from libc.stdlib cimport free, malloc

cdef class Counter:
    cdef long n
    cdef double* room

    def __cinit__(self):
        self.room = <double*>malloc(80)

    def add(self, long k):
        self.n += k
        return self.n

    def close(self):
        free(self.room)
        self.room = NULL

    def __dealloc__(self):
        free(self.room)
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

cimport cython
from libc.stdlib cimport free, malloc

cdef class Counter:
    cdef long n
    cdef double* room

    def __cinit__(self):
        self.n = 0
        self.room = <double*>malloc(80)

    def add(self, long k):
        with cython.critical_section(self):
            self.n += k
            return self.n

    def __dealloc__(self):
        free(self.room)
"""

_REMEDY = (
    "Let one thread own the object, use an atomic (libcpp.atomic, Cython 3.0), or put every access under "
    "`with cython.critical_section(self)` or one cython.pymutex (both Cython 3.1)."
)


def check(module: Module, project: Project) -> Iterator[Finding]:
    sharing = sharing_of(project)
    for function in module.functions:
        if _is_called_by_python(sharing, function):
            yield from _method(sharing, function)
    for found in module.classes:
        if found.kind == "cdef" and sharing.classes.get(found.target) is found:
            for member in found.attributes:
                yield from _declaration(sharing, found, member)


def _is_called_by_python(sharing: Sharing, function: Function) -> bool:
    return function.extension and function.kind in ("def", "cpdef", "generator") and sharing.is_shared(function)


def _method(sharing: Sharing, function: Function) -> Iterator[Finding]:
    freed: dict[tuple[int, str], None] = {}
    for free in function.frees:
        if free.root_kind == "self" and not sharing.locks(function, free):
            freed[free.where.line, free.expression] = None
            verb = "reallocates" if "realloc" in free.function.lower() else "frees"
            yield Finding.at(
                free.where,
                ID,
                function.name,
                SEVERITY,
                f"{function.name} {verb} {free.expression} while another thread may use or free it.",
                "Free it in __dealloc__ only, or put every access under one lock (cython.pymutex, Cython 3.1, or "
                "`with cython.critical_section(self)`).",
            )
    gone = {expression for _, expression in freed}
    reported: set[str] = set()
    for access in function.accesses:
        place = place_of(access)
        if access.base in gone and access.kind == "attribute":
            continue
        if _is_change(sharing, function, access) and reads_itself(access):
            reported.add(place)
            yield _finding(sharing, function, access, f"{function.name} reads {place} and writes it back")
    for access in function.accesses:
        place = place_of(access)
        if place in reported or (access.base in gone and access.kind == "attribute"):
            continue
        if _is_change(sharing, function, access) and _reads_before(function, access):
            reported.add(place)
            yield _finding(sharing, function, access, f"{function.name} looks at {place} and then sets it")
    for call in function.calls:
        changed = _changes_behind(sharing, function, call)
        if changed:
            yield Finding.at(
                call.where,
                ID,
                function.name,
                Severity.NOTE,
                f"{function.name} changes {changed} through {call.name}, and other threads may call it too.",
                _REMEDY,
            )


def _finding(sharing: Sharing, function: Function, access: Access, what: str) -> Finding:
    """A note where inconsistent-guard says more."""
    where = access.where
    severity = Severity.NOTE if sharing.is_locked_elsewhere(access) else SEVERITY
    message = f"{what}; another thread's change in between is lost."
    return Finding.at(where, ID, function.name, severity, message, _REMEDY)


def _is_change(sharing: Sharing, function: Function, access: Access) -> bool:
    """An unguarded write to a C attribute of self, or to memory that one leads to."""
    if not access.write or access.atomic or access.python or access.memoryview or access.root_kind != "self":
        return False
    if access.kind not in ("attribute", "element") or access.method:
        return False
    if access.owner in sharing.classes and sharing.classes[access.owner].kind == "python":
        return False
    return not sharing.locks(function, access)


def _reads_before(function: Function, write: Access) -> bool:
    """Whether the method looks at the place before it writes there, or in the same loop."""
    place = place_of(write)
    if any(is_mentioned(place, test) for test in write.context.tests):
        return True
    return any(
        not access.write
        and access.kind == write.kind
        and place_of(access) == place
        and access.where < write.where
        and not access.context.guards
        and _is_used(function, access, write)
        for access in function.accesses
    )


def _is_used(function: Function, read: Access, write: Access) -> bool:
    """Whether what was read can decide what is written: through a local variable that the written value names."""
    place = place_of(read)
    names = {
        access.base
        for access in function.accesses
        if access.kind == "local" and access.write and is_mentioned(place, access.value) and access.where <= write.where
    }
    for _ in range(3):
        names |= {
            access.base
            for access in function.accesses
            if access.kind == "local" and access.write and any(is_mentioned(name, access.value) for name in names)
        }
    return any(is_mentioned(name, write.value) for name in names)


def _changes_behind(sharing: Sharing, function: Function, call: Call) -> str:
    """A C attribute of self that a cdef method of the same object reads and writes back, when called here."""
    if not call.name.startswith("self.") or call.name.count(".") != 1 or call.kind != "c":
        return ""
    callee = sharing.project.resolve(call)
    if callee is None or callee.kind != "cdef" or sharing.locks(function, call):
        return ""
    for access in callee.accesses:
        if _is_change(sharing, callee, access) and reads_itself(access):
            return place_of(access)
    return ""


def _declaration(sharing: Sharing, found: Class, member: Attribute) -> Iterator[Finding]:
    if member.python or member.memoryview:
        return
    writers = [
        use
        for use in sharing.uses().get((found.target, member.name), ())
        if _is_called_by_python(sharing, use.function) and use.access.write and not use.locks and not use.access.atomic
    ]
    changed = [use for use in writers if reads_itself(use.access)]
    if member.visibility == "public":
        message = f"Python code on any thread may write {found.name}.{member.name}: it is public."
    elif changed:
        who = by_whom((use.function.name, use.access.where.line) for use in changed)
        message = f"Threads that share one {found.name} share {member.name}, and it is changed without a lock by {who}."
    else:
        return
    yield Finding.at(
        member.where,
        ID,
        "",
        Severity.NOTE,
        message,
        "Let one thread own the object, make it readonly, or lock every access (cython.critical_section, Cython 3.1).",
    )
