"""The job under ThreadSanitizer: what it may leave unreported, and that its own tests stay out of this suite."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SUPPRESSIONS = ROOT / "tests" / "tsan" / "suppressions.txt"
MODULES = sorted(path.stem for path in (ROOT / "pyx").glob("*.pyx"))
DECLARED = re.compile(r"^\s*(?:cpdef|cdef|def|cdef inline|cdef class)\s[^=(:]*?(\w+)\s*[(:]", re.MULTILINE)


def names_of_ours():
    """Files, modules and C functions that stand in a report on this project's code."""
    for folder in ("threading_runtime", "engine"):
        for path in (ROOT / folder).glob("*.py"):
            yield str(path.relative_to(ROOT))
    for name in [*MODULES, "_cython_shared", "racy"]:
        yield f"{name}.cpython-313t-x86_64-linux-gnu.so"
        for ending in ("pyx", "pxd", "c", "so", "cpython-313t-x86_64-linux-gnu.so"):
            yield f"/home/someone/freecfr/build/tsan/modules.1/pyx/{name}.{ending}"
    for name in MODULES:
        declared = DECLARED.findall((ROOT / "pyx" / f"{name}.pyx").read_text())
        for kind in ("f", "pf", "pw", "tp_new", "tp_dealloc", "v", "pyx"):
            for function in declared:
                yield f"__pyx_{kind}_3pyx_{len(name)}{name}_{function}"
                yield f"__pyx_{kind}_3pyx_{len(name)}{name}_4Some_{function}"
                yield f"__pyx_{kind}_3pyx_{len(name)}{name}_4Some_1{function}"
    # What Cython writes into every module, and what a .pyx brings along in C.
    yield from ("__Pyx_CyFunction_Vectorcall_NOARGS", "__Pyx_init_memviewslice", "__pyx_pymod_exec_traversal")
    yield from ("PyInit_traversal", "first_layer_float", "relu_back_float", "sum_chunk", "__pyx_memoryview_new")
    yield from ("__pyx_f_4racy_add", "/home/someone/freecfr/build/tsan/modules.1/racy.pyx")


OURS = sorted(set(names_of_ours()))


def suppressions(text):
    """(kind:pattern, the line above it), of what is neither comment nor blank."""
    lines = ["", *text.splitlines()]
    return [
        (line.strip(), above.strip())
        for above, line in zip(lines, lines[1:], strict=False)
        if line.strip() and not line.strip().startswith("#")
    ]


def faults(text):
    """What is wrong with a file of suppressions, one sentence each."""
    for suppression, above in suppressions(text):
        kind, _, pattern = suppression.partition(":")
        if not above.startswith("#") or len(above.split()) < 4:
            yield f"{suppression}: no reason stands directly above it"
        if kind not in ("race", "race_top", "thread", "mutex", "signal", "deadlock", "called_from_lib") or not pattern:
            yield f"{suppression}: ThreadSanitizer knows no such suppression"
        elif not pattern.strip("*^$."):
            yield f"{suppression}: it matches everything"
        else:
            # A pattern matches any part of a name, unless ^ or $ ties it to an end.
            start, end = "" if pattern.startswith("^") else "*", "" if pattern.endswith("$") else "*"
            whole = start + pattern.removeprefix("^").removesuffix("$").replace("[", "[[]").replace("?", "[?]") + end
            if ours := [name for name in OURS if fnmatch(name.lower(), whole.lower())]:
                yield f"{suppression}: it matches {ours[0]}"


def test_suppressions_have_reasons_and_match_nothing_of_ours():
    assert list(faults(SUPPRESSIONS.read_text())) == []


def test_names_of_ours_are_seen():
    assert "__pyx_f_3pyx_9traversal_4Some_run_lane" in OURS
    assert "__pyx_pf_3pyx_9traversal_4Some_advance" in OURS
    assert "threading_runtime/pool.py" in OURS
    assert len(OURS) > 500


REASON = "# CPython's own, and harmless: a counter.\n"


@pytest.mark.parametrize(
    "text, fault",
    [
        (REASON + "race:set_allocator_unlocked\n", None),
        (REASON + "race:^PyThread_*_lock$\n", None),
        ("race:set_allocator_unlocked\n", "no reason"),
        (REASON + "\nrace:set_allocator_unlocked\n", "no reason"),
        (REASON + "race:*\n", "everything"),
        (REASON + "race:^**$\n", "everything"),
        (REASON + "race:\n", "no such suppression"),
        (REASON + "everything:PyDict_New\n", "no such suppression"),
        (REASON + "race:__pyx_*\n", "it matches"),
        (REASON + "race:*run_lane\n", "it matches"),
        (REASON + "race:traversal\n", "it matches"),
        (REASON + "race:^__pyx_p*\n", "it matches"),
        (REASON + "race_top:pool.py$\n", "it matches"),
        (REASON + "called_from_lib:leduc.cpython\n", "it matches"),
        (REASON + "race:racy\n", "it matches"),
        (REASON + "race:.so$\n", "it matches"),
        (REASON + "race:e\n", "it matches"),
    ],
)
def test_a_file_of_suppressions_is_checked(text, fault):
    found = list(faults(text))
    assert (found == []) if fault is None else any(fault in each for each in found)


def test_its_tests_are_not_of_this_suite():
    from tests import conftest

    assert "tsan" in conftest.collect_ignore
    assert list((ROOT / "tests" / "tsan").glob("test_*.py"))
