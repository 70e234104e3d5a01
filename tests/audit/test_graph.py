"""The call graph: what could be nogil and what is GIL-free, callees included; the order of work."""

import random

from audit.facts import Options
from audit.graph import link
from audit.tree import analyse

HEAD = "# cython: language_level=3\n"


def project(folder, **sources):
    """Modules written to a folder, linked. Names end in _pxd for declarations."""
    for name, source in sources.items():
        stem, _, kind = name.rpartition("_")
        path = folder / (f"{stem}.{kind}" if kind == "pxd" else f"{name}.pyx")
        path.write_text(HEAD + source)
    modules = []
    for path in sorted(folder.glob("*.p*")):
        analysed = analyse(str(path), Options())
        assert not analysed.errors, analysed.errors
        modules.append(analysed.module)
    return link(modules)


def verdicts(linked):
    return {v.name: (v.could_be_nogil, v.gil_free) for v in linked.verdicts()}


def test_callees_count(tmp_path):
    linked = project(
        tmp_path,
        a=(
            "cdef int leaf(int x) noexcept:\n    return x\n"
            "cdef int middle(int x) noexcept:\n    return leaf(x)\n"
            "cdef int bad(int x) noexcept:\n    print(x)\n    return x\n"
            "cdef int above(int x) noexcept:\n    return bad(x) + leaf(x)\n"
            "cdef int loop(int x) noexcept:\n    return loop(x - 1) if x else 0\n"
            "def face(int x):\n    return middle(x)\n"
        ),
    )
    assert verdicts(linked) == {
        "leaf": (True, True),
        "middle": (True, True),
        "bad": (False, False),
        "above": (False, False),
        "loop": (True, True),
        "face": (False, False),
    }
    above = next(f for _, f in linked.functions() if f.name == "above")
    assert [blocker.call for blocker in linked.blockers(above)] == ["bad"]


def test_calls_across_modules(tmp_path):
    linked = project(
        tmp_path,
        low="cdef int low(int x) noexcept:\n    return x\ncdef int lower(int x) noexcept:\n    return [x][0]\n",
        low_pxd="cdef int low(int x) noexcept\ncdef int lower(int x) noexcept\n",
        top=(
            "from low cimport low, lower\n"
            "cdef int yes(int x) noexcept:\n    return low(x)\n"
            "cdef int no(int x) noexcept:\n    return lower(x)\n"
        ),
    )
    assert verdicts(linked)["yes"] == (True, True) and verdicts(linked)["no"] == (False, False)


def test_a_callee_that_is_not_audited_blocks(tmp_path):
    (tmp_path / "far.pxd").write_text(HEAD + "cdef int held(int x) noexcept\ncdef int free(int x) noexcept nogil\n")
    path = tmp_path / "near.pyx"
    source = "from far cimport held, free\ncdef int f(int x):\n    return held(x)\n"
    source += "cdef int g(int x):\n    return free(x)\n"
    path.write_text(HEAD + source)
    linked = link([analyse(str(path), Options()).module])
    assert verdicts(linked) == {"f": (False, False), "g": (True, True)}


def test_methods_that_override_go_together(tmp_path):
    linked = project(
        tmp_path,
        a=(
            "cdef class A:\n"
            "    cdef int f(self) noexcept:\n        return 1\n"
            "    cdef int g(self) noexcept:\n        return 1\n"
            "cdef class B(A):\n"
            "    cdef int f(self) noexcept:\n        return len([])\n"
            "    cdef int g(self) noexcept:\n        return 2\n"
            "cdef int use(A a) noexcept:\n    return a.g()\n"
            "cdef int stuck(A a) noexcept:\n    return a.f()\n"
        ),
    )
    found = verdicts(linked)
    assert found["A.f"] == found["B.f"] == found["stuck"] == (False, False)
    assert found["A.g"] == found["B.g"] == found["use"] == (True, True)


def test_an_error_path_is_not_gil_free(tmp_path):
    linked = project(
        tmp_path,
        a=(
            "cdef int check(int x) except -1 nogil:\n    return x\n"
            "cdef int caller(int x) noexcept nogil:\n    return check(x)\n"
            "cdef int above(int x) noexcept nogil:\n    return caller(x)\n"
            "cdef int block(int x) noexcept nogil:\n    with gil:\n        pass\n    return x\n"
            "cdef double row(double[:] m) noexcept nogil:\n    return m[0]\n"
        ),
    )
    assert verdicts(linked) == {
        "check": (True, True),
        "caller": (True, False),
        "above": (True, False),
        "block": (True, False),
        "row": (True, False),
    }


def test_nested_functions_lambdas_and_generators_are_never_markable(tmp_path):
    linked = project(
        tmp_path,
        a=(
            "def outer(int n):\n"
            "    def inner(y):\n        return y + n\n"
            "    f = lambda x: x * n\n"
            "    return inner, f, [x for x in (z for z in range(n))]\n"
            "def stream(n):\n    yield n\n"
        ),
    )
    found = verdicts(linked)
    assert set(found) == {"outer", "outer.inner", "outer.<lambda>", "outer.<genexpr>", "stream"}
    assert set(found.values()) == {(False, False)}


def test_fused_functions_have_one_verdict(tmp_path):
    linked = project(
        tmp_path,
        a=(
            "ctypedef fused T:\n    int\n    object\n"
            "ctypedef fused R:\n    int\n    double\n"
            "cdef int mixed(T x) except -1:\n    return <int>x\n"
            "cdef R plain(R x) noexcept:\n    return x + 1\n"
            "cdef int use(int x) noexcept:\n    return plain[int](x)\n"
        ),
    )
    assert verdicts(linked) == {"mixed": (False, False), "plain": (True, True), "use": (True, True)}


def test_order_of_work(tmp_path):
    linked = project(
        tmp_path,
        a=(
            "cdef int ready(int x) noexcept:\n    return x\n"
            "cdef int root(int x) noexcept:\n    print(x)\n    return x\n"
            "cdef int waits(int x) noexcept:\n    return root(x)\n"
            "cdef int other(int x) noexcept:\n    print(x)\n    return waits(x)\n"
            "cdef int done(int x) noexcept nogil:\n    return x\n"
        ),
    )
    order = linked.order()
    assert [step.name for step in order.today] == ["ready"]
    assert [(step.name, step.after) for step in order.later] == [
        ("root", ("root",)),
        ("waits", ("root",)),
        ("other", ("other", "root")),
    ]
    ((path, count, share),) = order.share
    assert path.endswith("a.pyx") and count > 0 and share == 1.0


def test_the_path_from_code_without_the_gil(tmp_path):
    linked = project(
        tmp_path,
        a=(
            "cdef int low(int x) noexcept nogil:\n    return x\n"
            "cdef int middle(int x) noexcept nogil:\n    return low(x)\n"
            "cdef int apart(int x) noexcept:\n    return x\n"
            "def face(int x):\n    apart(x)\n    with nogil:\n        x = middle(x)\n    return x\n"
        ),
    )
    functions = {function.name: function for _, function in linked.functions()}
    assert linked.path(functions["low"])[-1] == "low" and linked.path(functions["middle"]) == ("face", "middle")
    assert linked.path(functions["apart"]) == () == linked.path(functions["face"])


def test_the_order_of_modules_does_not_matter(tmp_path):
    linked = project(
        tmp_path,
        low="cdef int low(int x) noexcept:\n    return x\n",
        low_pxd="cdef int low(int x) noexcept\n",
        top=(
            "from low cimport low\n"
            "cdef int top(int x) noexcept:\n    return low(x)\n"
            "cdef int low2():\n    return top(2)\n"
        ),
    )
    modules = list(linked.modules)
    for _ in range(5):
        random.shuffle(modules)
        again = link(modules)
        assert again.verdicts() == linked.verdicts() and again.order() == linked.order()


def test_cpdef(tmp_path):
    linked = project(
        tmp_path,
        a=(
            "cimport cython\n"
            "cpdef int alone(int x) noexcept:\n    return x\n"
            "cdef class A:\n    cpdef int f(self) noexcept:\n        return 1\n"
            "@cython.final\ncdef class B:\n    cpdef int f(self) noexcept:\n        return 1\n"
        ),
    )
    assert verdicts(linked) == {"alone": (True, True), "A.f": (False, False), "B.f": (True, True)}


def test_a_raise_keeps_no_function_from_being_nogil(tmp_path):
    linked = project(
        tmp_path,
        a=(
            "cdef int f(int x) except -1:\n    if x: raise ValueError(x)\n    return x\n"
            "cdef int g(int x) except -1:\n"
            "    try:\n        f(x)\n    except ValueError:\n        raise\n    return x\n"
            "cdef int h(int x) except -1:\n    try:\n        f(x)\n    finally:\n        x = 1\n    return x\n"
        ),
    )
    assert verdicts(linked) == {"f": (True, False), "g": (False, False), "h": (True, False)}


def test_memoryviews(tmp_path):
    linked = project(
        tmp_path,
        a=(
            "cdef double[:] same(double[:] m):\n    return m\n"
            "cdef double kept(double[:] m) noexcept:\n    cdef double[:] n = m\n    return 0.0\n"
            "cdef double got(object m) noexcept:\n    cdef double[:] n = m\n    return 0.0\n"
        ),
    )
    found = verdicts(linked)
    assert found["same"] == found["kept"] == (True, False) and found["got"][1] is False


def test_comparing_strings_may_fail(tmp_path):
    linked = project(
        tmp_path,
        a=(
            "cdef int which(str x) noexcept:\n    if x == 'start':\n        return 1\n    return 0\n"
            "cdef int same(str x, str y) noexcept:\n    return x is y\n"
        ),
    )
    assert verdicts(linked) == {"which": (True, False), "same": (True, True)}


def test_a_static_method_is_a_callee_like_any_other(tmp_path):
    linked = project(
        tmp_path,
        a=(
            "cdef class V:\n    @staticmethod\n    cdef int low(int x) noexcept:\n        return x\n"
            "    @staticmethod\n    cdef int bad(int x) noexcept:\n        print(x)\n        return x\n"
            "cdef int yes(int x) noexcept:\n    return V.low(x)\n"
            "cdef int no(int x) noexcept:\n    return V.bad(x)\n"
        ),
    )
    assert verdicts(linked)["yes"] == (True, True) and verdicts(linked)["no"] == (False, False)
