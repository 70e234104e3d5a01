"""Reading with Cython's front end: any input gives facts or an error, and the same ones each time."""

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from Cython.Compiler import Visitor

from audit import tree
from audit.facts import Check, Gil, GuardKind, Options
from audit.tree import analyse

CASES = Path(__file__).parent / "cases"
HEAD = "# cython: language_level=3\n"


def read(folder, source, name="m.pyx", **options):
    path = folder / name
    path.write_bytes(source if isinstance(source, bytes) else source.encode())
    return analyse(str(path), Options(**options))


def module(folder, source, name="m.pyx", **options):
    analysed = read(folder, source, name, **options)
    assert analysed.errors == []
    return analysed.module


def function(found, name):
    return next(one for one in found.functions if one.name == name)


# -- any input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "kind", "line"),
    [
        ("def f(:\n    pass\n", "parse-error", 1),
        ("x = 1\ndef f():\n  return (\n", "parse-error", 4),
        ("from nowhere.at_all cimport thing\n", "cimport", 1),
        ("x = 1\ncimport nowhere\n", "cimport", 2),
        ('x = 1\ninclude "nowhere.pxi"\n', "cimport", 2),
        ("cdef int f() nogil:\n    return undeclared_thing_of_c + <int*>'a'\n", "parse-error", 2),
        (b"x = '\xe4'\n", "parse-error", 1),
        (b"# coding: no-such-encoding\nx = 1\n", "parse-error", 1),
        (b"\x00\x01\x02", "parse-error", 1),
    ],
)
def test_bad_input_is_an_error_with_a_line_and_a_reason(tmp_path, capfd, source, kind, line):
    analysed = read(tmp_path, source)
    assert analysed.module is None
    error = analysed.errors[0]
    assert (error.kind, error.line) == (kind, line) and error.column >= 1 and len(error.reason) > 10
    assert "\n" not in error.reason and error.path.endswith("m.pyx")
    assert capfd.readouterr() == ("", "")
    assert os.listdir(tmp_path) == ["m.pyx"]


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "gone.pyx", tmp_path):
        (error,) = analyse(str(path), Options()).errors
        assert error.kind == "read" and error.path == str(path)


def test_nesting_too_deep_is_an_error(tmp_path):
    (error,) = read(tmp_path, "x = " + "(" * 3000 + "1" + ")" * 3000).errors
    assert (error.kind, error.line, error.column) == ("parse-error", 1, len("x = ") + 201)
    (error,) = read(tmp_path, "".join(f"{' ' * n}def f():\n" for n in range(1000)) + " " * 1000 + "pass\n").errors
    assert error.kind == "parse-error"
    text = "x = '''\n" + ":-( " * 300 + "'''  # " + "(" * 300 + "\ny = '" + "[" * 300 + "'\n"
    assert read(tmp_path, text + "z = " + "(" * 20 + "1" + ")" * 20 + "\n").errors == []


@pytest.mark.parametrize(
    ("source", "column"),
    [
        (b"\xef\xbb\xbfcdef void f() nogil: pass\r\n\tcdef int x\r\n"[:31] + b"\r\n", 1),
        ("# coding: latin-1\n# Größe\ncdef void f() nogil: pass\n".encode("latin-1"), 1),
        (b"cdef extern from *:\r\n\tint g()\r\ncdef void f() nogil:\r\n\tpass", 1),
        (b"cdef void f() nogil: pass", 1),
    ],
)
def test_odd_bytes(tmp_path, source, column):
    (found,) = module(tmp_path, source).functions
    assert found.check is Check.ALWAYS and found.where.column == column


@pytest.mark.parametrize(
    "name", ["1two.pyx", "with space.pyx", "a-b.pyx", "a.b.pyx", "cython.pyx", "class.pyx", "é.pyx"]
)
def test_odd_names(tmp_path, name):
    (found,) = module(tmp_path, "cdef void f() nogil: pass\n", name).functions
    assert found.name == "f" and found.where.path == str(tmp_path / name)


def test_columns_count_code_points(tmp_path):
    found = module(tmp_path, HEAD + "cdef object f(x):\n    y = 'äöü𝄞'; return x.a\n")
    (operation,) = [one for one in function(found, "f").operations if one.expression == "x.a"]
    assert operation.where.column == len("    y = 'äöü𝄞'; return ") + 1


def test_the_same_each_time_and_in_any_order():
    paths = [str(path) for path in sorted(CASES.glob("*.p*"))]
    first = [analyse(path, Options()) for path in paths]
    again = [analyse(path, Options()) for path in reversed(paths)][::-1]
    assert first == again
    assert pickle.loads(pickle.dumps(first)) == first


def test_a_declaration_file_that_changes_is_read_again(tmp_path):
    low = tmp_path / "low.pxd"
    source = HEAD + "from low cimport f\ncdef int g() noexcept nogil:\n    return f()\n"
    low.write_text(HEAD + "cdef int f() noexcept nogil\n")
    assert function(module(tmp_path, source), "g").calls[0].check is Check.NONE
    low.write_text(HEAD + "cdef int f() except? -1 nogil\n")
    assert function(module(tmp_path, source), "g").calls[0].check is Check.SENTINEL
    low.unlink()
    assert read(tmp_path, source).errors[0].kind == "cimport"
    assert read(tmp_path, source).errors[0].kind == "cimport"


def test_several_threads_at_once():
    paths = [str(path) for path in sorted(CASES.glob("*.p*"))]
    alone = [analyse(path, Options()) for path in paths]
    results = {}

    def work(number):
        results[number] = [analyse(path, Options()) for path in paths]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results[number] == alone for number in range(3))


# -- what is said of a module -------------------------------------------------------------------------------------


def test_what_cython_refuses_is_a_fact_and_no_error(tmp_path):
    found = module(tmp_path, HEAD + "cdef int f(list x) nogil:\n    y = x[0]\n    return y\n")
    kinds = {operation.kind for operation in function(found, "f").operations}
    assert {"Assignment", "Index", "Local"} <= kinds
    assert all(operation.context.gil is Gil.RELEASED for operation in function(found, "f").operations)


def test_the_language_may_be_cplus_by_the_build(tmp_path):
    source = HEAD + (
        "from libcpp.vector cimport vector\n"
        "cdef void f(vector[int] *v) noexcept nogil:\n"
        "    v.push_back(1)\n"
        "    v = new vector[int]()\n"
    )
    for options in ({}, {"cplus": True}):
        found = module(tmp_path, source, **options)
        assert found.cplus and function(found, "f").calls[0].check is Check.CPP


def test_compile_time_names(tmp_path):
    source = (
        HEAD
        + "IF WIDE:\n    cdef long f() noexcept nogil: return 1\nELSE:\n    cdef int f() noexcept nogil: return 1\n"
    )
    assert function(module(tmp_path, source, compile_time_env=(("WIDE", True),)), "f").returns == "long"
    assert function(module(tmp_path, source, compile_time_env=(("WIDE", False),)), "f").returns == "int"


def test_included_files_have_positions_of_their_own(tmp_path):
    (tmp_path / "part.pxi").write_text("\n\ncdef void f() nogil:\n    pass\n")
    found = module(tmp_path, HEAD + 'include "part.pxi"\n')
    assert function(found, "f").where == (str(tmp_path / "part.pxi"), 3, 1)
    assert found.includes == (str(tmp_path / "part.pxi"),)


def test_pure_python_mode(tmp_path):
    source = (
        "import cython\n"
        "@cython.cfunc\n"
        "@cython.nogil\n"
        "@cython.exceptval(check=False)\n"
        "def f(x: cython.int) -> cython.int:\n"
        "    return x\n"
        "@cython.cclass\n"
        "class A:\n"
        "    n: cython.int\n"
        "    @cython.cfunc\n"
        "    def get(self) -> cython.int:\n"
        "        return self.n\n"
        "def plain(x):\n"
        "    with cython.nogil:\n"
        "        pass\n"
        "    return f(x)\n"
    )
    found = module(tmp_path, source, "m.py")
    f = function(found, "f")
    assert (f.kind, f.nogil, f.check, f.where.line, f.definition) == ("cdef", True, Check.NONE, 2, 5)
    assert f.decorators == ("cython.cfunc", "cython.nogil", "cython.exceptval(check=False)")
    assert function(found, "A.get").kind == "cdef" and function(found, "plain").kind == "def"
    assert [one.name for one in found.classes] == ["A"]


def test_guards(tmp_path):
    source = HEAD + (
        "cimport cython\n"
        "cdef extern from 'Python.h':\n"
        "    ctypedef struct PyMutex:\n"
        "        int x\n"
        "    void PyMutex_Lock(PyMutex *m) nogil\n"
        "    void PyMutex_Unlock(PyMutex *m) nogil\n"
        "cdef class A:\n"
        "    cdef int n\n"
        "    cdef PyMutex m\n"
        "    cdef object lock\n"
        "    def f(self):\n"
        "        with cython.critical_section(self):\n"
        "            self.n += 1\n"
        "        PyMutex_Lock(&self.m)\n"
        "        self.n += 2\n"
        "        PyMutex_Unlock(&self.m)\n"
        "        with self.lock:\n"
        "            self.n += 3\n"
        "        self.n += 4\n"
    )
    writes = [a for a in function(module(tmp_path, source), "A.f").accesses if a.write and a.attribute == "n"]
    held = {a.value[-1]: [(guard.kind, guard.what) for guard in a.context.guards] for a in writes}
    assert held == {
        "1": [(GuardKind.CRITICAL_SECTION, "self")],
        "2": [(GuardKind.C_MUTEX, "self.m")],
        "3": [(GuardKind.PYTHON_LOCK, "self.lock")],
        "4": [],
    }
    assert all(a.augmented and a.owner == "m.A" and a.root_kind == "self" for a in writes)


def test_prange(tmp_path):
    source = HEAD + (
        "from cython.parallel cimport prange\n"
        "cdef double f(double *p, int n) noexcept nogil:\n"
        "    cdef int i, k\n"
        "    cdef double s = 0\n"
        "    for i in prange(n):\n"
        "        k = i + 1\n"
        "        s += p[i]\n"
        "        p[k] += 1\n"
        "    return s\n"
    )
    f = function(module(tmp_path, source), "f")
    (parallel,) = f.parallels
    assert parallel.target == "i" and parallel.reductions == (("s", "+"),) and not parallel.takes_gil
    (write,) = [a for a in f.accesses if a.kind == "element" and a.write]
    assert write.context.parallel == 0 and write.indices[0].names == ("k",) and write.augmented


def test_variables_and_classes(tmp_path):
    source = HEAD + (
        "cdef int n = 0\n"
        "cdef double[8] scratch\n"
        "cache = {}\n"
        "NAMES = ('a',)\n"
        "cdef struct S:\n"
        "    int a\n"
        "cdef class A:\n"
        "    cdef public object o\n"
        "    cdef double[:] view\n"
        "class P(dict):\n"
        "    pass\n"
        "def f():\n"
        "    return cache\n"
    )
    found = module(tmp_path, source)
    assert {(v.name, v.kind, v.container) for v in found.variables} == {
        ("n", "cdef", ""),
        ("scratch", "cdef", ""),
        ("cache", "python", "dict"),
        ("NAMES", "python", ""),
    }
    classes = {one.name: one for one in found.classes}
    assert {name: one.kind for name, one in classes.items()} == {"S": "struct", "A": "cdef", "P": "python"}
    assert [(a.name, a.python, a.memoryview, a.visibility) for a in classes["A"].attributes] == [
        ("o", True, False, "public"),
        ("view", False, True, "private"),
    ]


def test_directives_and_who_said_them(tmp_path):
    (tmp_path / "m.pxd").write_text("# cython: boundscheck=True\n")
    source = "# cython: language_level=3, boundscheck=False\ncdef int x\n# cython: wraparound=False\n"
    found = module(tmp_path, source, directives=(("cdivision", True),), said_by=(("cdivision", "setup.py"),))
    assert found.directives["boundscheck"] is False and found.directives["cdivision"] is True
    assert found.directives["wraparound"] is True
    assert found.said_by == {"language_level": "the file", "boundscheck": "the file", "cdivision": "setup.py"}
    assert [comment.read for comment in found.comments] == [True, False]
    assert found.pxd_directives["boundscheck"][0] is True


def test_functions_that_the_pxd_defines(tmp_path):
    (tmp_path / "m.pxd").write_text(
        "cdef inline int twice(int x) noexcept nogil:\n    return 2 * x\n\n"
        "cdef inline list boxed(int x):\n    return [x]\n\ncdef int declared(int x)\n"
    )
    found = module(tmp_path, HEAD + "cdef int declared(int x):\n    return twice(x)\n")
    assert [(one.name, os.path.basename(one.where.path), one.where.line) for one in found.functions] == [
        ("twice", "m.pxd", 1),
        ("boxed", "m.pxd", 4),
        ("declared", "m.pyx", 2),
    ]
    assert function(found, "twice").nogil and not function(found, "twice").operations
    assert function(found, "boxed").operations


def test_properties_have_names_of_their_own(tmp_path):
    source = """
cdef class A:
    cdef readonly int kept
    cdef public list shown
    cdef int z
    @property
    def half(self):
        return self.z
    @half.setter
    def half(self, int v):
        self.z = v
    property old:
        def __get__(self):
            return self.z
"""
    found = module(tmp_path, HEAD + source)
    assert [one.name for one in found.functions] == ["A.half", "A.half.__set__", "A.old"]


def test_a_fault_of_the_checker_is_told_apart_from_cythons(tmp_path, monkeypatch):
    monkeypatch.setattr("audit.tree._ModuleReader.read_variables", lambda self: 1 / 0)
    (error,) = read(tmp_path, HEAD).errors
    assert "a fault of its own: ZeroDivisionError" in error.reason and "test_tree.py" in error.reason


# -- methods without an instance ----------------------------------------------------------------------------------


def test_static_methods_of_its_own_pxd(tmp_path):
    (tmp_path / "m.pxd").write_text(
        HEAD
        + "cdef class V:\n    @staticmethod\n    cdef inline void low(int *p) nogil:\n        p[0] = 1\n"
        + "    @staticmethod\n    cdef inline void top(int *p) noexcept nogil:\n        V.low(p)\n"
    )
    found = module(tmp_path, HEAD + "cdef class V:\n    pass\n")
    assert [one.name for one in found.functions] == ["V.low", "V.top"]
    assert {one.owner for one in found.functions} == {"m.V"}
    (call,) = function(found, "V.top").calls
    assert (call.kind, call.name, call.check) == ("c", "V.low", Check.ALWAYS)
    assert call.declared == function(found, "V.low").where


def test_what_is_wrong_beside_being_cpp_is_told(tmp_path):
    analysed = read(tmp_path, "from libcpp.vector cimport vector\ncdef vector[int] v\ncdef int x = undeclared(1, 2\n")
    assert analysed.errors and not any("c++" in error.reason for error in analysed.errors)


def test_cpp_may_be_known_to_a_declaration_file_alone(tmp_path):
    source = 'cdef extern from "low.h":\n    cdef cppclass Low:\n        Low(Low && other)\n'
    (tmp_path / "low.pxd").write_text(source)
    assert module(tmp_path, HEAD + "from low cimport Low\ncdef Low *one\n").cplus


# -- what makes Cython quicker changes nothing ----------------------------------------------------------------------


@pytest.mark.parametrize("place", ["m.pyx", "part.pxi", "other.pxd"])
def test_letters_beyond_ascii(tmp_path, place):
    """In a process of its own: the scanner that knows few letters is given up for good at the first file with more."""
    texts = {
        "m.pyx": HEAD + 'from other cimport *\ninclude "part.pxi"\ncdef int last() noexcept nogil:\n    return 1\n',
        "part.pxi": "",
        "other.pxd": "",
    }
    texts[place] += "cdef inline int größe(int ñ) noexcept nogil:\n    return ñ\n"
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "before.pyx").write_text(HEAD + "x = 1\n")
    code = """
from audit.facts import Options
from audit.tree import analyse
for path in ("before.pyx", "m.pyx"):
    found = analyse(path, Options())
    assert found.errors == [], found.errors
print(ascii(sorted(one.name for one in found.module.functions)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    expected = ["last"] if place == "other.pxd" else ["größe", "last"]
    assert done.stdout.strip() == ascii(expected)


@pytest.mark.parametrize(
    ("line", "all_letters"),
    [
        ("s = 'größe'  # “größe”\n", False),
        ('s = """\n\'größe\n"""\nt = r"ñ" \'#\'\n', False),
        ("größe = 1\n", True),
        ("s = '#' + str(größe := 1)\n", True),
        ("größe = 1\ns = f'{größe}'\n", True),
        ("size = 1\ns = Rf'ñ {größe}'\n", True),
    ],
)
@pytest.mark.skipif(not Visitor.__file__.endswith(".py"), reason="a compiled Cython has all letters at once")
def test_letters_are_made_for_names_alone(tmp_path, monkeypatch, line, all_letters):
    monkeypatch.setattr(tree, "_few_letters", True)
    monkeypatch.setattr(tree._Lexicon, "make_lexicon", lambda: tree._Scanner.lexicon)
    (tmp_path / "m.pyx").write_text(HEAD + line, encoding="utf-8")
    tree._know_letters(str(tmp_path / "m.pyx"))
    assert tree._few_letters is not all_letters


@pytest.mark.skipif(not Visitor.__file__.endswith(".py"), reason="this Cython is compiled, and walks by itself")
def test_walking_finds_what_cythons_own_walking_finds(monkeypatch):
    paths = sorted(CASES.glob("*.pyx")) + sorted((CASES.parents[2] / "pyx").glob("*.pyx"))
    found = [repr(analyse(str(path), Options())) for path in paths]
    monkeypatch.setattr(Visitor.VisitorTransform, "_process_children", tree._cythons_process_children)
    assert [repr(analyse(str(path), Options())) for path in paths] == found
