"""Directives that differ between a .pyx and its .pxd."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Module
from audit.graph import Project
from audit.rule import Finding, Severity

ID = "directive-mismatch"
SEVERITY = Severity.NOTE
TITLE = "A .pyx and its .pxd set a directive differently"
WHY = """\
What a .pxd declares is compiled into every module that cimports it, under the .pxd's own directives where it sets some.
With another language level, division or bounds checking there than in the .pyx, the same inline function or signature
means two things: one copy may raise, and take the GIL for it, while the other does not."""
# The .pxd stands beside the file under the same name; the test writes both.
BAD = """\
# cython: language_level=3, boundscheck=False, freethreading_compatible=True

cdef int one(int x) noexcept nogil:
    return x + 1
"""
BAD_PXD = """\
# cython: language_level=3, boundscheck=True
cdef int one(int x) noexcept nogil
"""
GOOD = BAD
GOOD_PXD = """\
# cython: language_level=3, boundscheck=False
cdef int one(int x) noexcept nogil
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    for name, (value, where) in sorted(module.pxd_directives.items()):
        if name not in module.directives or _same(module.directives[name], value):
            continue
        source = module.said_by.get(name, "Cython's default")
        yield Finding.at(
            where,
            ID,
            "",
            SEVERITY,
            f"{name} is {value} here and {module.directives[name]} in {module.path}, set there by {source}.",
            "Give both files the same value, or leave it to the build alone.",
        )


def _same(one: object, other: object) -> bool:
    return one == other or str(one).removesuffix("str") == str(other).removesuffix("str")
