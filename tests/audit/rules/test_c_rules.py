"""Rules about C: hidden state, verbatim blocks, C++ exceptions, errno, borrowed references; and placement."""

import pytest

from audit.rules import RULES
from tests.audit.rules.marked import BEFORE_3_3, check, reported

HIDDEN = {
    "by cimport": """
from libc.stdlib cimport rand, srand
from libc.string cimport strtok, strlen, strerror
from libc.time cimport localtime, gmtime, time_t, tm, time, ctime
cdef int roll() noexcept nogil:
    return rand() % 6  # <<<
def seed(int s):
    srand(s)  # <<<
cdef size_t use(char* s, time_t* t) noexcept nogil:
    cdef char* first = strtok(s, b",")  # <<<
    cdef tm* p = localtime(t)  # <<<
    p = gmtime(t)  # <<<
    first = strerror(3)  # <<<
    time(NULL)
    return strlen(first)
""",
    "by module": """
from libc cimport stdlib
cimport libc.stdlib as lib
cdef int roll() noexcept nogil:
    return stdlib.rand() + lib.rand()  # <<<
""",
    "by another name": """
from libc.stdlib cimport rand as draw
cdef extern from "stdlib.h":
    long other "random"() nogil
    int mine "my_rand"() nogil
cdef long roll() noexcept nogil:
    draw()  # <<<
    mine()
    return other()  # <<<
""",
    "its own function of the name": """
cdef int rand() noexcept nogil:
    return 4
cdef int localtime(int x) noexcept nogil:
    return x
cdef int roll() noexcept nogil:
    return rand() + localtime(3)
""",
    "a variable and an argument of the name": """
cdef int rand_count = 0
cdef int roll(int rand) noexcept nogil:
    cdef int strtok = rand + 1
    return strtok
def use(random, setlocale):
    random()
    return setlocale(1)
""",
    "reentrant": """
cdef extern from "stdlib.h" nogil:
    int rand_r(unsigned int* seed)
cdef extern from "string.h" nogil:
    char* strtok_r(char* s, const char* d, char** p)
cdef extern from "time.h" nogil:
    ctypedef struct tm:
        int tm_year
    ctypedef long time_t
    tm* localtime_r(const time_t* t, tm* out)
cdef int roll(unsigned int* seed, char* s, char** p, time_t* t, tm* out) noexcept nogil:
    strtok_r(s, b",", p)
    localtime_r(t, out)
    return rand_r(seed)
""",
    "locked": """
cimport cython
from libc.stdlib cimport rand
cdef cython.pymutex mutex
cdef int roll() noexcept nogil:
    with mutex:
        return rand()
""",
    "notes": """
from libc.stdlib cimport getenv
from libc.math cimport lgamma, exp
cdef double use(double x) noexcept nogil:
    getenv(b"HOME")  # <<< note
    return lgamma(x) + exp(x)  # <<< note
""",
    "locale": """
from libc.locale cimport setlocale, LC_ALL
def german():
    setlocale(LC_ALL, b"de_DE")  # <<<
""",
    "posix": """
cdef extern from "<pwd.h>" nogil:
    ctypedef struct passwd:
        char* pw_name
    passwd* getpwnam(const char* name)
cdef extern from "<netdb.h>" nogil:
    void* gethostbyname(const char* name)
cdef void use(const char* s) noexcept nogil:
    getpwnam(s)  # <<<
    gethostbyname(s)  # <<<
""",
    "words only": """
def roll():
    '''rand() and strtok()'''
    # rand()
    return "rand()"
""",
}


@pytest.mark.parametrize("source", HIDDEN.values(), ids=HIDDEN)
def test_hidden_state(tmp_path, source):
    check(tmp_path, "unsafe-c", source)


def test_a_method_of_a_c_plus_plus_class_is_another_function(tmp_path):
    source = """
cdef extern from "dice.hpp" nogil:
    cdef cppclass Dice:
        int rand()
        int random()
    int free_rand "dice::rand"()
    int std_rand "std::rand"()
cdef int roll(Dice* d) noexcept nogil:
    std_rand()  # <<<
    return d.rand() + d.random() + free_rand()
"""
    check(tmp_path, "unsafe-c", source, cplus=True)


VERBATIM = {
    "static local": """
cdef extern from *:
    '''
    static int next(void) {
        static int last = 0; /* <<< */
        static const int step = 1;
        int other = 3;
        last += step;
        return last + other;
    }
    '''
    int next() nogil
""",
    "file level": """
cdef extern from *:
    '''
    static double scratch[64]; /* <<< */
    int calls = 0; /* <<< */
    static int limit = 5;
    static const char *name = "x";
    static double table[3] = {1.0, 2.0, 3.0};
    static double use(double x) { calls++; scratch[0] = x; return scratch[0] * table[1] + limit; }
    '''
    double use(double x) nogil
""",
    "pointer and buffer given away": """
cdef extern from *:
    '''
    #include <string.h>
    static char *text(const char *s) {
        static char room[16]; // <<<
        strcpy(room, s);
        return room;
    }
    static void *cached(void) {
        static void *p = 0; // <<<
        if (!p) p = (void *)text;
        return p;
    }
    '''
    char *text(const char *s) nogil
""",
    "safe ones": """
cdef extern from *:
    '''
    #include <stdatomic.h>
    #define COUNT static int hits = 0;
    static _Thread_local int depth = 0;
    static __thread int level;
    static _Atomic int hits;
    static PyMutex mutex;
    static int plain(int x);
    static inline int twice(int x) { int y = x; y += x; depth = y; level++; hits++; return y; }
    typedef struct { int a; int b; } pair;
    struct node { int value; struct node *next; };
    enum kind { ONE, TWO };
    static int plain(int x) { for (int i = 0; i < 3; i++) { x += i; } return twice(x); }
    '''
    int twice(int x) nogil
""",
    "in comments and strings": """
cdef extern from *:
    '''
    /* static int last = 0; last++; */
    // static int last = 0; last++;
    static const char *text(void) { return "static int last = 0; last++;"; }
    '''
    const char *text() nogil
""",
    "function pointer": """
cdef extern from *:
    '''
    static int (*hook)(int) = 0; /* <<< */
    static void set_hook(int (*f)(int)) { hook = f; }
    '''
    void set_hook(int (*f)(int)) nogil
""",
    "written by Cython": """
cdef extern from *:
    '''
    static int verbosity = 0; /* <<< */
    '''
    int verbosity
def loud():
    global verbosity
    verbosity = 1
""",
    "no block": """
def use():
    '''static int last = 0; last++;'''
    return "static int last; last++;"
""",
}


@pytest.mark.parametrize("source", VERBATIM.values(), ids=VERBATIM)
def test_verbatim_variables(tmp_path, source):
    check(tmp_path, "static-local", source)


THROWING = """
from libcpp.vector cimport vector
cdef extern from *:
    '''
    static int throwing(int x) { if (x < 0) throw 1; return x; }
    static int through(int x) { return throwing(x) + 1; }
    static int catching(int x) { try { return throwing(x); } catch (...) { return 0; } }
    static int plain(int x) { return x; /* throw 1; */ }
    '''
    int throwing(int x) nogil
    int told "throwing"(int x) except + nogil
    int through(int x) noexcept nogil
    int catching(int x) noexcept nogil
    int plain(int x) noexcept nogil
cdef int use(int x, vector[int]* v) noexcept nogil:
    cdef int y = throwing(x)  # <<<
    y += told(x)
    y += through(x)  # <<<
    y += catching(x)
    v.clear()
    return y + plain(x) + <int>v.size()
"""


def test_exceptions_that_nothing_catches(tmp_path):
    check(tmp_path, "cpp-cross", THROWING, cplus=True)


ERRNO = """
from libc.errno cimport errno
from libc.stdio cimport puts, FILE, fopen, fclose
from posix.unistd cimport close
cdef int late(int fd) noexcept nogil:
    cdef int failed = close(fd)
    puts(b"closed")
    if failed:
        return errno  # <<< note
    return 0
cdef int at_once(int fd) noexcept nogil:
    cdef int failed = close(fd)
    if failed:
        return errno
    puts(b"closed")
    return 0
cdef int kept(int fd) noexcept nogil:
    cdef int failed = close(fd)
    cdef int reason = errno
    puts(b"closed")
    return reason if failed else 0
"""


def test_errno_after_other_calls(tmp_path):
    check(tmp_path, "errno-reuse", ERRNO)
    assert len(reported(tmp_path, "errno-reuse", ERRNO)) == 1


BORROWED = {
    "fields": """
from cpython.ref cimport PyObject, Py_INCREF, Py_XDECREF
cdef struct slot:
    PyObject* owner  # <<<
    void* other
cdef struct counted:
    PyObject* owner
cdef class Holder:
    cdef PyObject* held  # <<<
    cdef object kept
    def put(self, x):
        self.held = <PyObject*>x
cdef void fill(counted* c, x):
    Py_INCREF(x)
    c.owner = <PyObject*>x
cdef void empty(counted* c):
    c.owner = NULL
cdef extern from *:
    "typedef struct { PyObject *a; } foreign;"
    ctypedef struct foreign:
        PyObject* a
""",
    "results": """
from cpython.list cimport PyList_GET_ITEM, PyList_GetItem
from cpython.dict cimport PyDict_GetItem, PyDict_Next, PyDict_GetItemWithError
from cpython.ref cimport PyObject
from cpython.weakref cimport PyWeakref_NewRef
def use(list xs, dict d, k):
    cdef PyObject* p = PyList_GetItem(xs, 0)  # <<<
    cdef PyObject* q
    cdef Py_ssize_t pos = 0
    q = PyDict_GetItem(d, k)  # <<<
    x = <object>PyList_GET_ITEM(xs, 1)  # <<<
    while PyDict_Next(d, &pos, &p, &q):  # <<<
        x = <object>p
    return <object>p, <object>q, x, xs[0], d.get(k)
""",
    "guarded": """
cimport cython
from cpython.list cimport PyList_GET_ITEM
from cpython.dict cimport PyDict_Next
from cpython.ref cimport PyObject
def use(list xs, dict d):
    cdef PyObject* p
    cdef PyObject* q
    cdef Py_ssize_t pos = 0
    with cython.critical_section(xs):
        p = PyList_GET_ITEM(xs, 0)
        x = <object>p
    with cython.critical_section(d):
        while PyDict_Next(d, &pos, &p, &q):
            x = <object>p
    return x
""",
    "tuples": """
from cpython.tuple cimport PyTuple_GET_ITEM
from cpython.ref cimport PyObject
cdef class A:
    cdef tuple fixed
    cdef tuple changing
    def __cinit__(self):
        self.fixed = (1, 2)
    def change(self, t):
        self.changing = t
    def use(self, tuple xs):
        a = <object>PyTuple_GET_ITEM(xs, 0)
        b = <object>PyTuple_GET_ITEM(self.fixed, 0)
        c = <object>PyTuple_GET_ITEM(self.changing, 0)  # <<<
        return a, b, c
""",
    "its own list": """
from cpython.list cimport PyList_GET_ITEM
from cpython.ref cimport PyObject
def use(n):
    xs = [n, n]
    return <object>PyList_GET_ITEM(xs, 0)
""",
    "strong": """
from cpython.list cimport PyList_GetItemRef
from cpython.object cimport PyObject_GetAttr, PyObject
def use(list xs):
    return PyList_GetItemRef(xs, 0), PyObject_GetAttr(xs, "append")
def cast(x):
    cdef PyObject* p = <PyObject*>x
    return <object>p
""",
    "stored in an array": """
from cpython.ref cimport PyObject, Py_INCREF
cdef void keep(PyObject** room, x, y):
    room[0] = <PyObject*>x  # <<<
cdef void keep_counted(PyObject** room, x):
    Py_INCREF(x)
    room[0] = <PyObject*>x
""",
    "words only": """
def use():
    '''PyList_GET_ITEM(xs, 0)'''
    return "PyDict_GetItem"
""",
}


@pytest.mark.parametrize("source", BORROWED.values(), ids=BORROWED)
def test_borrowed_references(tmp_path, source):
    if "PyList_GetItemRef" in source and BEFORE_3_3:
        pytest.skip("cpython.list has PyList_GetItemRef since Cython 3.3")
    check(tmp_path, "borrowed-ref", source)


def test_placement_is_off_and_finds_imports(tmp_path):
    assert RULES["placement"].ON is False
    source = """
import torch.nn  # <<<
from engine.config import Config  # <<<
import torchvision
import numpy as torch
def late():
    import torch  # <<<
    return torch
"""
    check(tmp_path, "placement", source)
