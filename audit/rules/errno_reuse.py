"""errno read after another call has had the chance to set it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from audit.facts import Access, Call, Function, Module, PythonCall
from audit.graph import Project
from audit.rule import Finding, Severity
from audit.sharing import is_mentioned

ID = "errno-reuse"
SEVERITY = Severity.NOTE
TITLE = "errno is read after other calls in between"
WHY = """\
Every thread has its own errno, so threads do not disturb each other's; but the next call on the same thread may.
Taking the GIL back keeps it, most other calls do not promise to: logging, closing a file, allocating, any Python
code. Read errno in the first statement after the call that failed. The rule speaks only where the test names the
variable that holds the failed call's result and another call stands in between."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

from libc.errno cimport errno
from libc.stdio cimport puts
from posix.unistd cimport close

cdef int shut(int fd) noexcept nogil:
    cdef int failed = close(fd)
    puts(b"closed")
    if failed != 0:
        return errno
    return 0
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

from libc.errno cimport errno
from libc.stdio cimport puts
from posix.unistd cimport close

cdef int shut(int fd) noexcept nogil:
    cdef int failed = close(fd)
    cdef int reason = errno
    puts(b"closed")
    if failed != 0:
        return reason
    return 0
"""


def check(module: Module, project: Project) -> Iterator[Finding]:
    for function in module.functions:
        for access in function.accesses:
            if access.base == "errno" and access.kind == "global" and not access.write:
                between = _between(function, access)
                if between is not None:
                    failed, call = between
                    yield Finding.at(
                        access.where,
                        ID,
                        function.name,
                        SEVERITY,
                        f"errno is read for {failed}, but {call.name} (line {call.where.line}) was called in between "
                        "and may have set it.",
                        "Copy errno into a variable in the statement after the call that may fail.",
                    )


def _between(function: Function, read: Access) -> tuple[str, Call | PythonCall] | None:
    """The variable that was tested, and a call made on the way from the call that set it to the reading of errno."""
    for test in reversed(read.context.tests):
        for name in re.findall(r"[A-Za-z_]\w*", test):
            made = [
                access
                for access in function.accesses
                if access.kind == "local" and access.write and access.base == name and access.where < read.where
            ]
            if not made or "(" not in made[-1].value or is_mentioned("errno", made[-1].value):
                continue
            start = made[-1].where.line
            calls: list[Call | PythonCall] = [*function.calls, *function.python_calls]
            for call in calls:
                on_the_way = read.context.tests[: len(call.context.tests)] == call.context.tests
                if start < call.where.line < read.where.line and on_the_way and not _is_source(call):
                    return name, call
    return None


def _is_source(call: Call | PythonCall) -> bool:
    """Calls that only look at errno or cannot fail."""
    return isinstance(call, Call) and call.kind in ("builtin", "pointer") and not call.cname
