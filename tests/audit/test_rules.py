"""Rules: each finds its own bad example and not its good one, and says what it is."""

import re

import pytest

from audit.facts import Options
from audit.graph import link
from audit.rule import Severity
from audit.rules import RULES
from audit.tree import analyse


def find(folder, source, pxd=None, options=None):
    """Findings of every rule on one module."""
    folder.mkdir()
    path = folder / "example.pyx"
    path.write_text(source)
    if pxd is not None:
        (folder / "example.pxd").write_text(pxd)
    analysed = analyse(str(path), options or Options())
    assert not analysed.errors, analysed.errors
    project = link([analysed.module])
    return [finding for rule in RULES.values() for finding in rule.check(analysed.module, project)]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_finds_its_bad_example_and_not_its_good_one(tmp_path, name):
    rule = RULES[name]
    bad = [f for f in find(tmp_path / "bad", rule.BAD, getattr(rule, "BAD_PXD", None)) if f.rule == name]
    assert bad and all(finding.line >= 1 and finding.column >= 1 for finding in bad)
    good = find(tmp_path / "good", rule.GOOD, getattr(rule, "GOOD_PXD", None))
    assert [finding for finding in good if finding.rule == name] == []


@pytest.mark.parametrize("name", RULES)
def test_a_rule_says_what_it_is(tmp_path, name):
    rule = RULES[name]
    assert rule.ID == name and re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
    assert isinstance(rule.SEVERITY, Severity)
    assert len(rule.TITLE) < 100 and "\n" not in rule.TITLE and len(rule.WHY) > 100
    for finding in find(tmp_path / "bad", rule.BAD, getattr(rule, "BAD_PXD", None)):
        if finding.rule == name:
            assert finding.message.endswith((".", "!")) and finding.hint.endswith(".") and "\n" not in finding.message


HEAD = "# cython: language_level=3, freethreading_compatible=True\n"


def rules_at(findings):
    return {(finding.line, finding.rule) for finding in findings}


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ("# cython: language_level=3\n", "Neither this file nor the build"),
        ("# cython: freethreading_compatible=False\n", "Line 1 sets freethreading_compatible to False"),
        ("# cython: free_threading_compatible=True\n", "Line 1 says free_threading_compatible"),
        ("cdef int y = 0\n# cython: freethreading_compatible=True\n", "line 2 stands after the first code"),
    ],
)
def test_why_a_module_is_not_marked(tmp_path, head, reason):
    findings = find(tmp_path / "m", head + "cdef int x = 1\n")
    (finding,) = [finding for finding in findings if finding.rule == "no-ft-directive"]
    assert reason in finding.message and (finding.line, finding.column) == (1, 1)


def test_the_build_may_mark_a_module(tmp_path):
    options = Options(directives=(("freethreading_compatible", True),), said_by=(("freethreading_compatible", "-X"),))
    assert "no-ft-directive" not in {f.rule for f in find(tmp_path / "m", "cdef int x = 1\n", options=options)}
    options = Options(directives=(("freethreading_compatible", False),), said_by=(("freethreading_compatible", "-X"),))
    (finding,) = [f for f in find(tmp_path / "n", "", options=options) if f.rule == "no-ft-directive"]
    assert finding.message.startswith("-X sets freethreading_compatible to False")


def test_a_c_macro_may_mark_a_module(tmp_path):
    source = 'cdef extern from *:\n    """\n    #define CYTHON_FREETHREADING_COMPATIBLE 1\n    """\n'
    assert "no-ft-directive" not in {f.rule for f in find(tmp_path / "m", source)}


def test_error_branches(tmp_path):
    source = HEAD + (
        "cdef int f(int[:] m, int i, int j) noexcept nogil:\n"
        "    i = m[i]\n"
        "    j = i // j\n"
        "    return j\n"
        "cdef double g(double x, double y) noexcept nogil:\n"
        "    return x / y\n"
        "cdef int[:] h(int[:] m) nogil:\n"
        "    return m[1:]\n"
        "def held(int[:] m, int i):\n"
        "    return m[i] // i\n"
    )
    found = {line for line, rule in rules_at(find(tmp_path / "m", source)) if rule == "gil-on-error"}
    assert found == {3, 4, 7, 9}


def test_directives_of_a_function_count(tmp_path):
    source = "cimport cython\n" + (
        "@cython.boundscheck(False)\n"
        "@cython.cdivision(True)\n"
        "cdef int f(int[:] m, int i, int j) noexcept nogil:\n"
        "    return m[i] // j\n"
        "cdef int g(int[:] m, int i, int j) noexcept nogil:\n"
        "    with cython.boundscheck(False):\n"
        "        i = m[i]\n"
        "    return m[i]\n"
    )
    assert {line for line, rule in rules_at(find(tmp_path / "m", HEAD + source)) if rule == "gil-on-error"} == {10}


def test_overflow_and_none_checks(tmp_path):
    source = "# cython: overflowcheck=True, nonecheck=True\n" + (
        "cdef class A:\n    cdef int n\ncdef int f(A a, int i) noexcept nogil:\n    i = i * i\n    return a.n\n"
    )
    assert {line for line, rule in rules_at(find(tmp_path / "m", HEAD + source)) if rule == "gil-on-error"} == {6, 7}


def test_raise_and_assert(tmp_path):
    source = HEAD + (
        "cdef int f(int x) except -1 nogil:\n"
        "    assert x > 0, 'no'\n"
        "    if x > 3:\n"
        "        raise ValueError(x)\n"
        "    return x\n"
        "cdef int g(int x) except -1:\n"
        "    raise ValueError\n"
        "def h(int x):\n"
        "    with nogil:\n"
        "        if x: raise KeyError\n"
    )
    findings = find(tmp_path / "m", source)
    assert {line for line, rule in rules_at(findings) if rule == "raise-nogil"} == {3, 5, 11}
    # what Cython takes the GIL for by itself keeps no function from being nogil
    assert (7, "could-be-nogil") in rules_at(findings)


def test_declarations_without_a_body(tmp_path):
    pxd = (
        HEAD
        + "cdef void far(int x) nogil\nctypedef void (*loose)(int) nogil\nctypedef void (*tight)(int) noexcept nogil\n"
    )
    path = tmp_path / "only.pxd"
    path.write_text(pxd)
    module = analyse(str(path), Options()).module
    findings = [f for rule in RULES.values() for f in rule.check(module, link([module]))]
    assert rules_at(findings) == {(2, "exc-check"), (3, "exc-check")}


def test_a_definition_speaks_for_its_declaration(tmp_path):
    (tmp_path / "both.pxd").write_text(HEAD + "cdef void far(int x) nogil\n")
    (tmp_path / "both.pyx").write_text(HEAD + "cdef void far(int x) nogil:\n    pass\n")
    modules = [analyse(str(tmp_path / f"both.{kind}"), Options()).module for kind in ("pxd", "pyx")]
    project = link(modules)
    found = [f for module in modules for f in RULES["exc-check"].check(module, project)]
    assert [f.path.rpartition(".")[2] for f in found] == ["pyx"]


def test_the_interpreter_between_compiled_functions(tmp_path):
    source = HEAD + (
        "cdef class A:\n"
        "    def slow(self):\n"
        "        return 1\n"
        "    cpdef int both(self):\n"
        "        return 2\n"
        "    cdef int use(self):\n"
        "        return self.slow() + self.both()\n"
        "def once(A a):\n"
        "    return a.slow()\n"
    )
    findings = [f for f in find(tmp_path / "m", source) if f.rule == "def-overhead"]
    assert {(f.line, f.function) for f in findings} == {(8, "A.use")} and len(findings) == 2
