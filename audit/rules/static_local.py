"""Variables of verbatim C blocks that live as long as the process."""

from __future__ import annotations

import re
from collections.abc import Iterator

from audit.facts import Module
from audit.graph import Project
from audit.rule import Finding, Severity
from audit.verbatim import Static, place_of_line, statics, stripped

ID = "static-local"
SEVERITY = Severity.RACES
TITLE = "A verbatim C block keeps a variable that all threads write"
WHY = """\
C code in the docstring of `cdef extern from *` is part of the module, and Cython does not look into it. A static
variable there, in a function or at file level, exists once for the process: a scratch buffer that two threads fill at
once, a counter, a pointer that is set on the first call. What is const, thread-local, atomic or a lock is left alone,
and so is what the block sets once where it is declared and never writes."""
BAD = '''\
# cython: language_level=3, freethreading_compatible=True

cdef extern from *:
    """
    static int next_id(void) {
        static int last = 0;
        last += 1;
        return last;
    }
    """
    int next_id() noexcept nogil
'''
GOOD = '''\
# cython: language_level=3, freethreading_compatible=True

cdef extern from *:
    """
    /* static int last = 0; is what this was */
    static const int STEP = 1;
    static int next_id(int* last) {
        *last += STEP;
        return *last;
    }
    """
    int next_id(int* last) noexcept nogil
'''

_SAFE = re.compile(
    r"\b(?:const|constexpr|_Thread_local|thread_local|__thread|_Atomic|atomic_\w+|atomic|PyMutex|pthread_\w+_t|mtx_t|"
    r"once_flag|omp_lock_t|omp_nest_lock_t|mutex|shared_mutex|recursive_mutex|PyThread_type_lock|PyTypeObject|PyMethodDef|"
    r"PyModuleDef|PyModuleDef_Slot|PyGetSetDef|PyMemberDef|PyType_Slot|PyType_Spec)\b|__declspec\s*\(\s*thread"
)


def check(module: Module, project: Project) -> Iterator[Finding]:
    outside = {
        access.root
        for function in module.functions
        for access in function.accesses
        if access.write and access.root_kind == "global"
    }
    for block in module.verbatim:
        code = stripped(block.code)
        thread_local = {
            word
            for line in block.code.splitlines()
            if _is_tls(line)
            for word in re.findall(r"#\s*define\s+(\w+)", line)
        }
        for static in statics(code):
            if _SAFE.search(static.declaration) or thread_local & set(re.findall(r"\w+", static.declaration)):
                continue
            if not _is_written(code, static) and static.name not in outside:
                continue
            where = place_of_line(module, block, static.line)
            place = f"of the function {static.function}" if static.function else "of the C block"
            yield Finding.at(
                where,
                ID,
                "",
                SEVERITY,
                f"The static variable {static.name} {place} is written, and exists once for all threads.",
                "Pass it in as an argument, make it _Thread_local or _Atomic (C11), or lock it (PyMutex, Python 3.13).",
            )


def _is_tls(line: str) -> bool:
    return re.search(r"\b(?:_Thread_local|thread_local|__thread)\b|__declspec\s*\(\s*thread", line) is not None


def _is_written(code: str, static: Static) -> bool:
    """Whether the block changes the variable after its declaration, or hands out its address."""
    name = re.escape(static.name)
    rest = code[: static.start] + " " * len(static.name) + code[static.start + len(static.name) :]
    target = rf"(?<![\w.>]){name}\b(?:\s*\[[^\]]*\]|\s*(?:\.|->)\s*\w+)*\s*(?:=(?!=)|[-+*/%&|^]=|<<=|>>=|\+\+|--)"
    before = rf"(?:\+\+|--)\s*\(?\s*{name}\b|(?<!&)&\s*{name}\b|\*\s*{name}\s*=(?!=)"
    if re.search(target, rest) or re.search(before, rest):
        return True
    if "[" in static.declaration.partition("=")[0]:  # an array: given away by its bare name
        return re.search(rf"(?<![\w.>]){name}\b(?!\s*\[)", rest) is not None
    grows = r"(?:push_back|insert|clear|append|emplace\w*|resize|erase)\b"
    return re.search(rf"(?<![\w.>]){name}\s*(?:\.|->)\s*{grows}", rest) is not None
