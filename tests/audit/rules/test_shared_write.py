"""Parallel loops: which writes are an iteration's own."""

import pytest

from tests.audit.rules.marked import BEFORE_3_3, check

PRELUDE = """
from cython.parallel cimport prange, parallel, threadid
from libc.stdlib cimport malloc, free
cimport cython
"""

LOOP = {
    "own element": "out[i] = x[i]",
    "own element, added": "out[i] += x[i]",
    "shifted": "out[i + 1] = x[i]",
    "strided": "out[3 * i] = x[i]",
    "strided and shifted": "out[i * k + 2] = x[i]",
    "stretch of its own": "for j in range(k):\n            out[i * k + j] = x[j]",
    "shifted left": "out[i << 2] = 1",
    "reversed": "out[n - 1 - i] = x[i]",
    "private index": "t = i * 2\n        out[t] = x[i]",
    "private index of a private index": "t = i + 1\n        u = t * k\n        out[u] = x[i]",
    "cast index": "out[<Py_ssize_t>i] = x[i]",
    "pointer of its own": "p = out + i * k\n        p[0] = 1\n        p[j0] += 1",
    "address of its own": "p = &out[i * k]\n        p[1] = 1",
    "fresh memory": "p = <double*>malloc(8)\n        p[0] = 1\n        free(p)",
    "row of pointers": "rows[i][0] += 1",
    "its own row's stretch": "for j in range(ptr[i], ptr[i + 1]):\n            out[j] = 1",
    "its own row's stretch, named": "a, b = ptr[i], ptr[i + 1]\n        for j in range(a, b):\n            out[j] = 1",
    "offset and step": "a = ptr[i]\n        for j in range(k):\n            out[a + j] = 1",
    "field of its own struct": "items[i].n += 1",
    "only one iteration": "if i == 0:\n            out[0] = 1",
    "private scalar": "t = 0\n        for j in range(k):\n            t = t + j\n        out[i] = t",
    "index by table": "hist[data[i]] += 1  # <<<",
    "index by table, plain write": "hist[data[i]] = 1  # <<<",
    "index by table, private": "t = data[i]\n        hist[t] += 1  # <<<",
    "index by table and step": "for j in range(k):\n            hist[data[i] * k + j] += 1  # <<<",
    "index by a permutation": "out[permutation[i]] = x[i]",
    "index or table": "t = i\n        if k > 3:\n            t = data[i]\n        out[t] = x[i]",
    "remainder": "out[i % 4] = 1  # <<<",
    "quotient": "out[i // 2] = 1  # <<<",
    "masked": "out[i & 3] = 1  # <<<",
    "halved": "out[i >> 1] = 1  # <<<",
    "sum divided": "out[(i + k) // 2] = 1  # <<<",
    "product with nothing": "out[i * 0] = 1  # <<<",
    "difference with itself": "out[i - i] = 1  # <<<",
    "shifted by a table": "out[i + data[i]] = 1  # <<<",
    "constant cell": "out[0] += x[i]  # <<<",
    "constant cell, plain": "out[0] = x[i]  # <<<",
    "flag": "if x[i] < 0:\n            out[0] = 1  # <<<",
    "inner loop only": "for j in range(k):\n            out[j] += x[i]  # <<<",
    "from zero to its own": "for j in range(0, i):\n            out[j] += 1  # <<<",
    "pointer to all": "p = out\n        p[0] += 1  # <<<",
    "dereferenced": "(out + k)[0] += 1  # <<<",
    "field of a struct passed in": "one.n += 1  # <<<",
    "array of the function": "room[0] = x[i]  # <<<",
    "global": "global total\n        total += 1  # <<<",
    "one of a few iterations": "if data[i] == 0:\n            out[1] = 1  # <<<",
    "sum by hand": "s = s + x[i]  # <<<",
    "maximum": "s = x[i] if x[i] > s else s  # <<<",
    "maximum by a test": "if x[i] > s:\n            s = x[i]  # <<<",
    "reduction": "s += x[i]",
    "product reduction": "s *= x[i]",
}


@pytest.mark.parametrize("body", LOOP.values(), ids=LOOP)
def test_a_loop_body(tmp_path, body):
    if "s = " in body and BEFORE_3_3:
        pytest.skip("Cython before 3.3 refuses to compile it")
    declared, body = ("    global total\n", body.split("\n", 1)[1].strip()) if "global" in body else ("", body)
    check(
        tmp_path,
        "shared-write",
        f"""{PRELUDE}
cdef struct item:
    int n
cdef int total = 0

cdef double run(double* out, const double* x, int* hist, const int* data, double** rows, item* items, item* one,
                const int* ptr, const int* permutation, Py_ssize_t n, int k, int j0) noexcept nogil:
{declared}    cdef Py_ssize_t i, j, t, u, a, b
    cdef double s = 0.0
    cdef double[4] room
    cdef double* p
    for i in prange(n):
        {body}
    return s
""",
    )


SOURCES = {
    "memoryview rows": """
def scale(double[:, ::1] out, double[::1] x):
    cdef Py_ssize_t i, j
    for i in prange(out.shape[0], nogil=True):
        for j in range(out.shape[1]):
            out[i, j] = x[j]
""",
    "memoryview column": """
def add(double[:, ::1] out, double[::1] acc):
    cdef Py_ssize_t i, j
    for i in prange(out.shape[0], nogil=True):
        for j in range(out.shape[1]):
            acc[j] += out[i, j]  # <<<
            out[j, i] = 0.0
""",
    "attribute": """
cdef class Sum:
    cdef double total
    cdef double[::1] each
    def run(self, double[::1] x):
        cdef Py_ssize_t i
        for i in prange(x.shape[0], nogil=True):
            self.each[i] = x[i]
            self.total += x[i]  # <<<
""",
    "a method that counts": """
cdef class Sum:
    cdef double total
    cdef double[::1] each
    cdef void take(self, Py_ssize_t i, double x) noexcept nogil:
        self.each[i] = x
    cdef void count(self, double x) noexcept nogil:
        self.total += x
    def run(self, double[::1] x):
        cdef Py_ssize_t i
        for i in prange(x.shape[0], nogil=True):
            self.take(i, x[i])
            self.count(x[i])  # <<<
""",
    "functions called": """
cdef void put(double* out, double x) noexcept nogil:
    out[0] = x
cdef void put_at(double* out, Py_ssize_t at, double x) noexcept nogil:
    out[at] += x
cdef double local_only(double x) noexcept nogil:
    cdef double[2] room
    room[0] = x
    return room[0]
cdef void run(double* out, const double* x, const int* data, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cdef double y
    for i in prange(n):
        put(&out[i], x[i])
        put(out + i, x[i])
        put_at(out, i, x[i])
        y = local_only(x[i])
        put(&y, x[i])
        put(out, x[i])  # <<<
        put_at(out, data[i], x[i])  # <<<
""",
    "threads of their own": """
cdef void run(double* out, const double* x, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cdef int t
    cdef double* mine
    with parallel():
        t = threadid()
        mine = <double*>malloc(80)
        mine[0] = 0
        out[t] = 0
        for i in prange(n):
            mine[0] += x[i]
            out[t] += x[i]
        out[n] += mine[0]  # <<<
        free(mine)
""",
    "the thread's number": """
cdef void run(double[:, ::1] out, const double* x, const int* data, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in prange(n):
        out[threadid(), data[i]] += x[i]
""",
    "a lock": """
from openmp cimport omp_lock_t, omp_set_lock, omp_unset_lock
cdef void run(double* out, const double* x, omp_lock_t* lock, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in prange(n):
        omp_set_lock(lock)
        out[0] += x[i]
        omp_unset_lock(lock)
        out[1] += x[i]  # <<<
""",
    "a mutex": """
cdef class Sum:
    cdef double total
    cdef cython.pymutex mutex
    cdef void run(self, const double* x, Py_ssize_t n) noexcept nogil:
        cdef Py_ssize_t i
        for i in prange(n):
            with self.mutex:
                self.total += x[i]
""",
    "a Python object": """
cdef double half(double x):
    y = x / 2
    return y
def run(double[::1] x):
    cdef Py_ssize_t i
    cdef object y
    cdef double s = 0
    for i in prange(x.shape[0], nogil=True):
        with gil:
            s += half(x[i])
            y = x[i]  # <<<
    return s
""",
    "not in a loop": """
cdef void run(double* out, const double* x, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        out[0] += x[i]
    for i in prange(n):
        out[i] = x[i]
    out[0] = 0
""",
    "words only": """
def run():
    '''for i in prange(n): hist[data[i]] += 1'''
    # for i in prange(n): acc[0] += 1
    return "prange(n): acc[0] += 1"
""",
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_source(tmp_path, source):
    check(tmp_path, "shared-write", PRELUDE + source)


def test_containers_and_atomics(tmp_path):
    check(
        tmp_path,
        "shared-write",
        PRELUDE
        + """
from libcpp.atomic cimport atomic
from libcpp.vector cimport vector
cdef void run(vector[int]* out, vector[vector[int]]* rows, atomic[int]* total, const int* x,
              Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in prange(n):
        total[0].fetch_add(x[i])
        rows[0][i].push_back(x[i])
        out[0][i] = x[i]
        out.push_back(x[i])  # <<<
""",
        cplus=True,
    )
