"""Pointers to Python objects that own no reference."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Attribute, Borrow, Call, Class, Function, Module
from audit.graph import Project
from audit.rule import Finding, Severity, Where
from audit.sharing import Sharing, sharing_of

ID = "borrowed-ref"
SEVERITY = Severity.RACES
TITLE = "A borrowed PyObject* is kept where another thread may drop the object"
WHY = """\
A borrowed reference lives as long as somebody else's: PyList_GetItem hands out the list's own. With the GIL nobody
could take the item out of the list before the next line, where the cast to object took a reference. On a
free-threaded build another thread can, at any instant, and the pointer then leads to freed memory. That also goes for
a PyObject* in a struct that nothing counts, and for PyDict_Next, which lends key and value. Items of a tuple that the
function itself holds, as an argument or a local variable, are safe: a tuple does not change, and the held tuple keeps
its items. The strong functions take the reference under the container's lock: PyList_GetItemRef and PyDict_GetItemRef
(CPython 3.13, in cpython.list and cpython.dict of Cython 3.3), or plain xs[0] and d.get(k), which Cython makes safe."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

from cpython.list cimport PyList_GET_ITEM
from cpython.ref cimport PyObject

cdef struct slot:
    PyObject* owner

def first(list xs):
    cdef PyObject* p = PyList_GET_ITEM(xs, 0)
    return <object>p
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM

cdef class Slot:
    cdef object owner

def first(list xs):
    return xs[0]

def first_of_tuple(tuple xs):
    if not xs:
        return None
    return <object>PyTuple_GET_ITEM(xs, 0)
"""

_LIST, _DICT = "PyList_GetItemRef or xs[i]", "PyDict_GetItemRef or d.get(k)"
_STRONG = {
    "PyList_GetItem": _LIST,
    "PyList_GET_ITEM": _LIST,
    "PySequence_Fast_GET_ITEM": "PySequence_GetItem, or PySequence_Tuple and its items",
    "PyTuple_GetItem": "xs[i]",
    "PyTuple_GET_ITEM": "xs[i]",
    "PyDict_GetItem": _DICT,
    "PyDict_GetItemWithError": _DICT,
    "_PyDict_GetItem_KnownHash": _DICT,
    "__Pyx_PyDict_GetItemStr": _DICT,
    "__Pyx_PyDict_GetItem": _DICT,
    "PyDict_GetItemString": "PyDict_GetItemStringRef or d.get(k)",
    "PyDict_SetDefault": "PyDict_SetDefaultRef or d.setdefault(k, v)",
    "PyWeakref_GetObject": "PyWeakref_GetRef or calling the weak reference",
    "PyWeakref_GET_OBJECT": "PyWeakref_GetRef or calling the weak reference",
    "PyImport_AddModule": "PyImport_AddModuleRef",
    "PySys_GetObject": "PySys_GetAttr, or sys.name",
    "PyCell_GET": "PyCell_Get",
}
_TUPLE = frozenset({"PyTuple_GetItem", "PyTuple_GET_ITEM"})
_NEXT = {"PyDict_Next": "a loop over list(d.items())", "_PySet_NextEntry": "a loop over list(s)"}
_COUNTS = frozenset({"Py_INCREF", "Py_XINCREF", "Py_NewRef", "Py_XNewRef", "__Pyx_INCREF", "__Pyx_XINCREF"})
_KEEPS = frozenset({"push_back", "emplace_back", "push", "emplace", "insert", "push_front"})
_FRESH = ("[", "list(", "dict(", "{", "PyList_New(", "PyDict_New(", "sorted(", "PySequence_List(", "PySequence_Fast(")


def check(module: Module, project: Project) -> Iterator[Finding]:
    sharing = sharing_of(project)
    counting = {
        id(function)
        for _, function in project.functions()
        if any(call.cname.rpartition(":")[2] in _COUNTS for call in function.calls)
    }
    for found in module.classes:
        if not found.extern and sharing.classes.get(found.target) is found:
            for member in found.attributes:
                if member.borrowed and not _is_counted(project, counting, found, member):
                    yield _field(found, member)
    for function in module.functions:
        for borrow in function.borrows:
            if not sharing.locks(function, borrow):
                if borrow.kind == "call" and borrow.function in _STRONG and not _is_held(sharing, function, borrow):
                    yield _call(function, borrow)
                elif borrow.kind == "cast" and id(function) not in counting and _is_kept(function, borrow):
                    yield _cast(function, borrow)
        for call in function.calls:
            if call.cname in _NEXT and not sharing.locks(function, call) and not _is_fresh(function, _first(call)):
                yield _next(function, call)


def _finding(where: Where, function: str, message: str, hint: str) -> Finding:
    return Finding.at(where, ID, function, SEVERITY, message, hint)


def _is_counted(project: Project, counting: set[int], found: Class, member: Attribute) -> bool:
    """Whether all code that sets a field takes a reference for it."""
    writers = [
        (function, access)
        for _, function in project.functions()
        for access in function.accesses
        if access.write
        and access.kind == "attribute"
        and access.attribute == member.name
        and access.owner == found.target
        and access.value not in ("NULL", "None")
    ]
    return bool(writers) and all(id(function) in counting or _is_new(access.value) for function, access in writers)


def _is_new(value: str) -> bool:
    """A call that hands out a reference of its own."""
    name = value.partition("(")[0].rpartition(".")[2]
    return value.endswith(")") and name.startswith("Py") and name not in _STRONG


def _field(found: Class, member: Attribute) -> Finding:
    what = "object" if found.kind == "cdef" else found.kind
    return _finding(
        member.where,
        "",
        f"{found.name}.{member.name} is a PyObject* and keeps no object alive: the {what} owns no reference.",
        "Keep a reference in a Python attribute (`cdef object`) of what owns it, or pair every store with Py_INCREF "
        "and every removal with Py_DECREF, under one lock.",
    )


def _is_held(sharing: Sharing, function: Function, borrow: Borrow) -> bool:
    """Whether what lends the reference cannot let go of it: a tuple the function holds, or a new container."""
    container = borrow.expression.partition("(")[2].partition(",")[0].strip("() ").rpartition(">")[2]
    if borrow.function in _TUPLE:
        if container.isidentifier():
            return True
        if container.startswith("self.") and container.count(".") == 1:
            uses = sharing.uses().get((function.owner, container.partition(".")[2]), ())
            return not any(use.access.write and use.access.kind == "attribute" for use in uses)
        return False
    return _is_fresh(function, container)


def _is_fresh(function: Function, name: str) -> bool:
    """A container that the function made itself."""
    values = [
        access.value for access in function.accesses if access.kind == "local" and access.write and access.base == name
    ]
    return bool(values) and all(value.startswith(_FRESH) for value in values)


def _call(function: Function, borrow: Borrow) -> Finding:
    kept = f", kept in {borrow.variable}" if borrow.variable else ""
    return _finding(
        borrow.where,
        function.name,
        f"{borrow.function} lends a reference{kept}; another thread may drop the object before it is taken over.",
        f"Use {_STRONG[borrow.function]}, which gives a reference of its own.",
    )


def _is_kept(function: Function, borrow: Borrow) -> bool:
    """Whether the pointer outlives the function: in an array or a C++ container. For fields see their declaration."""
    if borrow.variable:
        return "[" in borrow.variable and borrow.variable.endswith("]")
    return any(
        call.where.line == borrow.where.line
        and call.name.rpartition(".")[2] in _KEEPS
        and borrow.expression in call.arguments
        for call in function.calls
    )


def _cast(function: Function, borrow: Borrow) -> Finding:
    kept = f" in {borrow.variable}" if borrow.variable else ""
    return _finding(
        borrow.where,
        function.name,
        f"{borrow.expression} is stored{kept} without a reference, so that the object may go while the pointer stays.",
        "Take a reference with Py_INCREF when it is stored and drop it later, or keep the objects in a list.",
    )


def _first(call: Call) -> str:
    return call.arguments[0] if call.arguments else ""


def _next(function: Function, call: Call) -> Finding:
    return _finding(
        call.where,
        function.name,
        f"{call.cname} lends its items and locks nothing; another thread may change {_first(call)} between two steps.",
        f"Use {_NEXT[call.cname]}, or hold `with cython.critical_section({_first(call)})` (Cython 3.1) around the loop "
        "and take references inside.",
    )
