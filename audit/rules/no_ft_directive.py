"""A module that does not say it is fit for free threading."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from audit.facts import Module
from audit.graph import Project
from audit.rule import Finding, Severity

ID = "no-ft-directive"
SEVERITY = Severity.SLOWS
TITLE = "The module is not marked as compatible with free threading"
WHY = """\
A free-threaded interpreter switches the GIL on, for the whole process and until it ends, when it imports an extension
module that does not declare itself compatible. Cython writes that declaration only where the directive
freethreading_compatible is true: in a comment before the first code of the file, or in the build's directives. In any
other place, or misspelt, the directive is ignored without a word. Declare it once the findings of kind `races` are
gone: it is a promise that nothing but the GIL guarded is left."""
BAD = """\
# cython: language_level=3

cdef int one(int x) noexcept nogil:
    return x + 1
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

cdef int one(int x) noexcept nogil:
    return x + 1
"""

_NAME = "freethreading_compatible"
_HINT = f"Write `# cython: {_NAME}=True` above the first code of the file, or give it to the build."
_MACRO = re.compile(r"^\s*#\s*define\s+CYTHON_FREETHREADING_COMPATIBLE\s+1\b", re.MULTILINE)


def check(module: Module, project: Project) -> Iterator[Finding]:
    if module.kind == "pxd" or module.directives.get(_NAME) is True:
        return
    if any(_MACRO.search(block.code) for block in module.verbatim):
        return
    message = f"{_reason(module)}: importing this module switches the GIL on for the whole process."
    yield Finding(module.path, 1, 1, ID, "", SEVERITY, message, _HINT)


def _reason(module: Module) -> str:
    if _NAME in module.written:
        return f"Line {module.written[_NAME][1].line} sets {_NAME} to {module.written[_NAME][0]}"
    for comment in module.comments:
        for name in re.findall(r"([\w.]+)\s*=", comment.text):
            if name == _NAME and not comment.read:
                return f"{_NAME} in line {comment.where.line} stands after the first code, where Cython ignores it"
            if name != _NAME and difflib.SequenceMatcher(None, name, _NAME).ratio() > 0.8:
                return f"Line {comment.where.line} says {name}, which Cython ignores: it is spelt {_NAME}"
    if _NAME in module.said_by:
        return f"{module.said_by[_NAME]} sets {_NAME} to False"
    return f"Neither this file nor the build sets {_NAME}"
