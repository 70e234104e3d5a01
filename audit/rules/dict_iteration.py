"""Loops over containers that other code changes."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Access, Function, Iteration, Module
from audit.graph import Project
from audit.rule import Finding, Severity
from audit.sharing import Sharing, sharing_of

ID = "dict-iteration"
SEVERITY = Severity.RACES
TITLE = "A loop over a shared dict, list or set that other code changes"
WHY = """\
A loop over a dict, a list or a set takes one item at a time. With the GIL another thread could get in only where the
body let it; on a free-threaded build it can at any step. A dict or set that changes size ends the loop with
RuntimeError; a list that shrinks or is sorted gives items twice or not at all. CPython locks a container for one
operation, so copying it first (`list(d)`, `list(d.items())`) is one safe step."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

cdef class Scores:
    cdef dict scores

    def put(self, name, score):
        self.scores[name] = score

    def total(self):
        s = 0
        for score in self.scores.values():
            s += score
        return s
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

cdef class Scores:
    cdef dict scores

    def __cinit__(self):
        self.scores = {}

    def put(self, name, score):
        self.scores[name] = score

    def total(self):
        s = 0
        for score in list(self.scores.values()):
            s += score
        return s
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    sharing = sharing_of(project)
    written = sharing.global_writes(module)
    for function in module.functions:
        if not sharing.is_shared(function) or id(function) in sharing.at_import:
            continue
        for loop in function.iterations:
            if sharing.locks(function, loop) or loop.root_kind == "local":
                continue
            if loop.attribute:
                changes = [
                    (use.function, use.access)
                    for use in sharing.uses().get((loop.owner, loop.attribute), ())
                    if _changes_size(use.access, loop)
                ]
            elif loop.root_kind == "global" and loop.over in written:
                changes = _global_changes(sharing, module, loop)
            else:
                continue
            if changes:
                yield _finding(function, loop, *changes[0])


def _global_changes(sharing: Sharing, module: Module, loop: Iteration) -> list[tuple[Function, Access]]:
    return [
        (function, access)
        for function in module.functions
        if id(function) not in sharing.at_import
        for access in function.accesses
        if access.root == loop.over and access.root_kind == "global" and _changes_size(access, loop)
    ]


def _changes_size(access: Access, loop: Iteration) -> bool:
    """Whether an access adds to a container, takes from it or moves what is in it."""
    if not access.write or "." in access.base.replace(loop.over, "", 1):
        return False
    if access.method:
        return not access.indices  # self.rows[0].append(x) changes a row, not the rows
    if access.deleted and access.kind == "item":
        return True
    return access.kind == "item" and loop.container != "list" and "list" not in access.base_type


def _finding(function: Function, loop: Iteration, other: Function, access: Access) -> Finding:
    by = f"{other.name} (line {access.where.line})" if other is not function else f"line {access.where.line}"
    return Finding.at(
        loop.where,
        ID,
        function.name,
        SEVERITY,
        f"{function.name} loops over {loop.over}, and {by} may change it meanwhile on another thread.",
        "Loop over a copy made in one step (`list(...)`), or hold one lock for the loop and for every change "
        "(cython.pymutex or `with cython.critical_section(...)`, Cython 3.1).",
    )
