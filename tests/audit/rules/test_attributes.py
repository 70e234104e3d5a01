"""Attributes of cdef classes: who changes them, when, and under which lock."""

import pytest

from tests.audit.rules.marked import check

PRELUDE = """
cimport cython
from libc.stdlib cimport malloc, realloc, free
"""

OBJECTS = {
    "replaced": """
cdef class A:
    cdef object x  # <<< note
    cdef list items  # <<< note
    def __cinit__(self):
        self.x = None
        self.items = []
    def put(self, x):
        self.x = x  # <<<
        self.items = [x]  # <<<
    cpdef take(self):
        x = self.x
        self.x = None  # <<<
        return x
""",
    "set in construction only": """
cdef class A:
    cdef object x
    cdef double[::1] v
    def __cinit__(self, x):
        self.x = x
        self._prepare()
    def __init__(self, x):
        self.v = x
    cdef _prepare(self):
        self.x = [self.x]
    def look(self):
        return self.x, self.v[0]
""",
    "prepared again later": """
cdef class A:
    cdef object x
    def __cinit__(self, x):
        self._prepare()
    cdef _prepare(self):
        self.x = []  # <<<
    def reset(self):
        self._prepare()
""",
    "critical section": """
cdef class A:
    cdef object x
    def put(self, x):
        with cython.critical_section(self):
            self.x = x
    @cython.critical_section
    def put_too(self, x):
        self.x = x
""",
    "mutex": """
cdef class A:
    cdef object x
    cdef cython.pymutex mutex
    def put(self, x):
        with self.mutex:
            self.x = x
    def put_too(self, x):
        self.mutex.acquire()
        try:
            self.x = x
        finally:
            self.mutex.release()
""",
    "lock of CPython": """
from cpython.pythread cimport PyThread_acquire_lock, PyThread_release_lock, PyThread_type_lock, WAIT_LOCK
cdef class A:
    cdef object x
    cdef PyThread_type_lock lock
    def put(self, x):
        PyThread_acquire_lock(self.lock, WAIT_LOCK)
        self.x = x
        PyThread_release_lock(self.lock)
""",
    "lock of those who call": """
cdef class A:
    cdef object x
    def put(self, x):
        with cython.critical_section(self):
            self._put(x)
    def put_too(self, x):
        with cython.critical_section(self):
            self._deeper(x)
    cdef _deeper(self, x):
        self._put(x)
    cdef _put(self, x):
        self.x = x
""",
    "memoryviews": """
cdef class A:
    cdef double[::1] v  # <<< note
    cdef double[::1] w
    cdef void slide(self, double[::1] v) noexcept nogil:
        self.v = v  # <<<
        self.w[0] = 1
    def move(self, double[::1] v):
        self.v = v  # <<<
        self.w[:] = 0
""",
    "a fresh object": """
cdef class A:
    cdef object x
    @staticmethod
    def make(x):
        cdef A a = A.__new__(A)
        a.x = x
        return a
    def copy(self):
        cdef A a = A()
        a.x = self.x
        return a
""",
    "prepared where it is made": """
cdef class A:
    cdef object x
    cdef _prepare(self, x):
        self.x = x
cdef _fill(A a):
    a.x = 1
def make():
    cdef A a = A.__new__(A)
    a._prepare(1)
    _fill(a)
    return a
""",
    "called init": """
cdef class A:
    cdef object x
    cdef object y
    cdef init(self, x):
        self.x = x
    cdef _init_rows(self, x):
        self.x = x
    cdef initial(self, y):
        self.y = y  # <<<
""",
    "a property that is set": """
cdef class A:
    @property
    def tail(self):
        return 1
    @tail.setter
    def tail(self, value):
        print(value)
    def use(self, A other):
        self.tail = 2
        other.tail = 3
""",
    "Python class": """
class A:
    def put(self, x):
        self.x = x
""",
    "property": """
cdef class A:
    cdef object _x
    @property
    def x(self):
        return self._x
    @x.setter
    def x(self, value):
        self._x = value  # <<<
""",
    "counted in a dict": """
cdef class A:
    cdef dict counts  # <<< note
    cdef dict seen
    def put(self, k):
        self.counts[k] += 1  # <<<
    def note(self, k):
        self.counts[k] = self.counts.get(k, 0) + 1  # <<<
""",
    "public": """
cdef class A:
    cdef public object x  # <<< note
    cdef readonly object y
    cdef public int n
    def look(self):
        return self.x, self.y
""",
    "deleted": """
cdef class A:
    cdef object x
    def drop(self):
        del self.x  # <<<
""",
    "locked elsewhere, or filled late": """
cdef class A:
    cdef object x
    cdef object y
    def put(self, x):
        with cython.critical_section(self):
            self.x = x
    def drop(self):
        self.x = None  # <<< note
    def get(self):
        if self.y is None:
            self.y = [1]  # <<< note
        return self.y
""",
    "suspended section": """
cdef class A:
    cdef double[::1] v
    cdef void slide(self, double[::1] v) noexcept nogil:
        self.v = v  # <<<
    def move(self, double[::1] v):
        with cython.critical_section(self):
            with nogil:
                self.slide(v)
""",
}


@pytest.mark.parametrize("source", OBJECTS.values(), ids=OBJECTS)
def test_objects_and_memoryviews(tmp_path, source):
    check(tmp_path, "shared-attr", PRELUDE + source)


C_ATTRIBUTES = {
    "changed": """
cdef class A:
    cdef long n  # <<< note
    cdef int[4] each
    cdef double* room
    cdef double[::1] view
    def __cinit__(self):
        self.n = 0
        self.n += 1
    def add(self, long k):
        self.n += k  # <<<
        self.each[1] += 1  # <<<
        self.room[k] = self.room[k] + 1  # <<<
        self.view[0] *= 2  # <<<
    cpdef long more(self):
        self.n = self.n * 3 + 1  # <<<
        return self.n
    def set(self, long n):
        self.n = n
        return self.n
    def __dealloc__(self):
        self.n -= 1
        free(self.room)
""",
    "by a local variable": """
cdef class A:
    cdef unsigned long state
    def draw(self):
        cdef unsigned long x = self.state
        x ^= x << 13
        x ^= x >> 7
        self.state = x  # <<<
        return x
""",
    "under a test of itself": """
cdef class A:
    cdef int n
    cdef int limit
    cdef bint closed
    def take(self):
        if self.n < self.limit:
            self.n = self.limit  # <<<
    def close(self):
        if not self.closed:
            self.closed = True  # <<<
    def other(self, int k):
        if k > self.limit:
            self.n = k
""",
    "freed": """
cdef class A:
    cdef double* room
    cdef int size
    def close(self):
        free(self.room)  # <<<
        self.room = NULL
    def grow(self, int size):
        self.room = <double*>realloc(self.room, size)  # <<<
        self.size = size
    def __dealloc__(self):
        free(self.room)
    def local(self):
        cdef double* p = <double*>malloc(8)
        free(p)
""",
    "struct inside": """
cdef struct point:
    int x
cdef class A:
    cdef point at
    cdef point* far
    def move(self):
        self.at.x += 1  # <<<
        self.far.x += 1  # <<<
""",
    "another object": """
cdef class Stats:
    cdef long n
cdef class A:
    cdef Stats stats
    def move(self):
        self.stats.n += 1  # <<<
""",
    "iterator and property": """
cdef class A:
    cdef int at
    def __next__(self):
        self.at += 1  # <<<
        return self.at
    @property
    def here(self):
        return self.at
    @here.setter
    def here(self, int at):
        self.at = at
    def rewind(self):
        self.at = 0
""",
    "guarded": """
cdef class A:
    cdef int n
    cdef int m
    cdef cython.pymutex mutex
    def add(self):
        with cython.critical_section(self):
            self.n += 1
    def add_nogil(self):
        with nogil, self.mutex:
            self.m += 1
    def close(self):
        with self.mutex:
            self.m = self.m - 1
""",
    "guarded in one place only": """
cdef class A:
    cdef int n
    def add(self):
        with cython.critical_section(self):
            self.n += 1
    def sub(self):
        self.n -= 1  # <<< note
""",
    "cdef methods of an owner": """
cdef class A:
    cdef int n
    cdef void add(self) noexcept nogil:
        self.n += 1
    def run(self):
        with nogil:
            self.add()  # <<< note
""",
    "struct passed by pointer": """
cdef struct counters:
    long n
cdef void add(counters* c) noexcept nogil:
    c.n += 1
def run():
    cdef counters c
    c.n = 0
    add(&c)
    c.n += 1
    return c.n
""",
    "public": """
cdef class A:
    cdef public int n  # <<< note
    cdef readonly int m
    cdef int k
""",
    "Python class": """
class A:
    def add(self):
        self.n += 1
""",
    "words only": """
cdef class A:
    cdef int n
    def add(self):
        '''self.n += 1'''
        # self.n += 1
        return "self.n += 1"
""",
}


@pytest.mark.parametrize("source", C_ATTRIBUTES.values(), ids=C_ATTRIBUTES)
def test_c_attributes(tmp_path, source):
    check(tmp_path, "shared-attr-c", PRELUDE + source)


def test_an_atomic_attribute(tmp_path):
    source = """
from libcpp.atomic cimport atomic
cdef class A:
    cdef atomic[int] n
    cdef int m
    def add(self):
        self.n.fetch_add(1)
        self.m += 1  # <<<
"""
    check(tmp_path, "shared-attr-c", source, cplus=True)


def test_a_class_declared_in_its_pxd(tmp_path):
    source = """
cdef class A:
    def add(self):
        self.n += 1  # <<<
"""
    check(tmp_path, "shared-attr-c", source, others=[("example.pxd", "cdef class A:\n    cdef int n\n")])


GUARDS = {
    "one writer without": """
cdef class A:
    cdef int n
    cdef cython.pymutex mutex
    def __cinit__(self):
        self.n = 0
    def add(self):
        with self.mutex:
            self.n += 1
    def reset(self):
        self.n = 0  # <<<
""",
    "one reader without": """
cdef class A:
    cdef object x
    def put(self, x):
        with cython.critical_section(self):
            self.x = x
    def get(self):
        return self.x  # <<<
""",
    "all with": """
cdef class A:
    cdef int n
    cdef int limit
    cdef cython.pymutex mutex
    def __cinit__(self, int limit):
        self.limit = limit
    def add(self):
        with self.mutex:
            if self.n < self.limit:
                self._add()
    cdef void _add(self) noexcept:
        self.n += 1
    def room(self):
        return self.limit
""",
    "all without": """
cdef class A:
    cdef int n
    def add(self):
        self.n += 1
    def reset(self):
        self.n = 0
""",
    "two locks": """
cdef class A:
    cdef int n
    cdef cython.pymutex first
    cdef cython.pymutex second
    def add(self):
        with self.first:
            self.n += 1
    def sub(self):
        with self.first:
            self.n -= 1
    def reset(self):
        with self.second:
            self.n = 0  # <<<
""",
    "tested twice": """
cdef class A:
    cdef object x
    def get(self):
        if self.x is None:
            with cython.critical_section(self):
                if self.x is None:
                    self.x = [1]
        return self.x
""",
    "globals": """
cdef cython.pymutex mutex
cdef int hits = 0
cdef int limit = 5
def add():
    global hits
    with mutex:
        if hits < limit:
            hits += 1
def reset():
    global hits
    hits = 0  # <<<
""",
    "container": """
cdef class A:
    cdef dict d
    def __cinit__(self):
        self.d = {}
    def put(self, k):
        with cython.critical_section(self):
            self.d[k] = 1
    def drop(self, k):
        del self.d[k]  # <<<
    def size(self):
        return len(self.d)
""",
    "another object's": """
cdef class A:
    cdef int n
    def join(self, A other):
        with cython.critical_section(self, other):
            self.n += other.n
""",
    "in a section given up": """
cdef class A:
    cdef int n
    def add(self):
        with cython.critical_section(self):
            self.n += 1
    def add_all(self):
        with cython.critical_section(self):
            with nogil:
                self.n += 2  # <<<
""",
}


@pytest.mark.parametrize("source", GUARDS.values(), ids=GUARDS)
def test_locks_taken_by_some(tmp_path, source):
    check(tmp_path, "inconsistent-guard", PRELUDE + source)


RELEASED = """
from cython.parallel cimport prange
cdef class A:
    cdef int n
    cdef cython.pymutex mutex
    def run(self, double[::1] x):
        cdef Py_ssize_t i
        cdef double s = 0
        with cython.critical_section(self):
            with nogil:  # <<<
                self.n += 1
        with nogil:
            with gil:
                with cython.critical_section(self):
                    self.n += 1
        with self.mutex:
            with nogil:
                self.n += 1
        with cython.critical_section(self):
            for i in prange(x.shape[0], nogil=True):  # <<<
                s += x[i]
        with cython.critical_section(self):
            self.other()  # <<<
            self.harmless()
        return s
    cdef other(self):
        with nogil:
            self.n += 1
    cdef harmless(self):
        self.n += 1
    @cython.critical_section
    def whole(self):
        with nogil:  # <<<
            self.n += 1
"""


def test_sections_given_up(tmp_path):
    check(tmp_path, "critical-section-released", PRELUDE + RELEASED)


LAZY = {
    "attribute": """
cdef class A:
    cdef object x
    cdef double* p
    def get(self):
        if self.x is None:
            self.x = [1]  # <<<
        return self.x
    def get_too(self):
        if not self.x:
            self.x = [1]  # <<<
        return self.x
    def memory(self):
        if self.p == NULL:
            self.p = <double*>malloc(8)  # <<<
    def other(self):
        if self.x is not None:
            return self.x
        else:
            self.x = 1  # <<<
    def unrelated(self, y):
        if y is None:
            self.x = y
""",
    "container": """
cache = {}
cdef class A:
    cdef dict d
    def get(self, k):
        if k not in self.d:
            self.d[k] = [k]  # <<<
        return self.d[k]
    def ask(self, k):
        v = self.d.get(k)
        if v is None:
            v = [k]
            self.d[k] = v  # <<<
        return v
def get(k):
    if k not in cache:
        cache[k] = k  # <<<
    return cache[k]
def at_once(k):
    return cache.setdefault(k, k)
def own(k):
    cache = {}
    if k not in cache:
        cache[k] = 1
    return cache
""",
    "guarded": """
cdef cython.pymutex mutex
cdef object held = None
cdef class A:
    cdef object x
    def get(self):
        with cython.critical_section(self):
            if self.x is None:
                self.x = [1]
            return self.x
def get():
    global held
    if held is None:
        with mutex:
            if held is None:
                held = [1]
    return held
""",
    "construction": """
cdef class A:
    cdef object x
    def __init__(self):
        if self.x is None:
            self.x = [1]
""",
    "global": """
_table = None
def table():
    global _table
    if _table is None:
        _table = [1]  # <<<
    return _table
""",
    "of the thread": """
import threading
_local = threading.local()
def get():
    if _local.x is None:
        _local.x = [1]
    return _local.x
""",
}


@pytest.mark.parametrize("source", LAZY.values(), ids=LAZY)
def test_caches_filled_late(tmp_path, source):
    check(tmp_path, "lazy-cache", PRELUDE + source)


LOOPS = {
    "dict": """
cdef class A:
    cdef dict d
    cdef dict fixed
    def put(self, k):
        self.d[k] = 1
    def each(self):
        for k in self.d:  # <<<
            print(k)
        for k, v in self.d.items():  # <<<
            print(k, v)
        for k in list(self.d):
            print(k)
        for k in self.fixed:
            print(k)
        return [k for k in self.d.values()]  # <<<
    def size(self):
        return len(self.d)
""",
    "list and object": """
cdef class A:
    cdef list items
    cdef object other
    cdef list slots
    def put(self, x):
        self.items.append(x)
        self.other.add(x)
        self.slots[0] = x
    def each(self):
        for x in self.items:  # <<<
            print(x)
        for x in self.other:  # <<<
            print(x)
        for x in self.slots:
            print(x)
        for x in sorted(self.items):
            print(x)
""",
    "module": """
handlers = {}
names = ["a"]
def register(k, f):
    handlers[k] = f
def run():
    for k in handlers:  # <<<
        print(k)
    for n in names:
        print(n)
""",
    "guarded": """
cdef class A:
    cdef dict d
    def put(self, k):
        with cython.critical_section(self):
            self.d[k] = 1
    def each(self):
        with cython.critical_section(self):
            for k in self.d:
                print(k)
""",
    "changed inside": """
cdef class A:
    cdef list rows
    def put(self, x):
        self.rows[0].append(x)
    def each(self):
        return [list(row) for row in self.rows]
""",
    "filled in construction": """
cdef class A:
    cdef dict d
    def __cinit__(self):
        self.d = {}
        self.d[1] = 2
    def each(self):
        for k in self.d:
            print(k)
""",
}


@pytest.mark.parametrize("source", LOOPS.values(), ids=LOOPS)
def test_loops_over_what_others_change(tmp_path, source):
    check(tmp_path, "dict-iteration", PRELUDE + source)
