"""Module-level state: what functions change, and what nobody changes."""

import pytest

from tests.audit.rules.marked import check

SOURCES = {
    "counter": """
cdef int hits = 0  # <<<
cdef void touch() noexcept nogil:
    global hits
    hits += 1
""",
    "struct": """
cdef struct point:
    int x
cdef point here  # <<<
cdef point there
cdef void move() noexcept nogil:
    here.x = 1
cdef int look() noexcept nogil:
    return there.x
""",
    "arrays": """
cdef double[16] scratch  # <<<
cdef double[16] table
cdef double[4][4] grid  # <<<
cdef double *heap = NULL  # <<<
cdef double use(int i) noexcept nogil:
    scratch[i] = 1
    grid[i][0] += 1
    heap[i] = 2
    return table[i]
""",
    "through a local pointer": """
cdef double[16] scratch  # <<<
cdef double[16] table
cdef double use(int i) noexcept nogil:
    cdef double* p = scratch
    cdef double* q = table
    p[i] = 1
    return q[i]
""",
    "through an address": """
cdef int state = 1  # <<<
cdef int limit = 1
cdef void step(int* s) noexcept nogil:
    s[0] += 1
cdef int look(const int* s) noexcept nogil:
    return s[0]
cdef int use() noexcept nogil:
    step(&state)
    return look(&limit)
""",
    "filled by C": """
from libc.string cimport memset, memcpy, strlen
cdef char[64] text  # <<<
cdef char[64] other
cdef void use(const char* s) noexcept nogil:
    memcpy(text, s, strlen(s))
cdef size_t length() noexcept nogil:
    return strlen(other)
""",
    "objects": """
_memo = {}  # <<<
_seen = set()  # <<<
_log = []  # <<<
_count = 0  # <<<
_names = {"a": 1}
_last = None  # <<<
cdef dict typed = {}  # <<<
cdef object held = None  # <<<
def use(k):
    global _count, _last, held
    _memo[k] = 1
    _seen.add(k)
    _log.append(k)
    _count += 1
    _last = k
    typed[k] = 2
    held = k
    return _names[k]
""",
    "removed from": """
_memo = {}  # <<<
_queue = []  # <<<
_other = {}  # <<<
def use(k):
    del _memo[k]
    _queue.pop()
    _other.clear()
""",
    "locals and arguments of the same name": """
memo = {}
hits = 0
def use(k, memo):
    hits = 0
    hits += 1
    memo[k] = hits
    cdef dict own = {}
    own[k] = 1
    return own
""",
    "constants": """
import logging
LIMIT = 64
NAMES = ("a", "b")
TABLE = {"a": 1}
__all__ = ["use"]
__version__ = "1"
logger = logging.getLogger(__name__)
cdef const double HALF = 0.5
cdef enum:
    SIZE = 16
DEF WIDTH = 8
def use(k):
    logger.info("%s", k)
    return TABLE[k] * LIMIT * HALF * SIZE * WIDTH
""",
    "filled at import": """
cdef double[16] table
cdef int ready = 0
_codes = {}
cdef void fill() noexcept nogil:
    cdef int i
    for i in range(16):
        table[i] = i
cdef int both():
    global ready
    ready = 1
    fill()
    return 0
def _register(name):
    _codes[name] = len(_codes)
_register("a")
for _n in range(3):
    _codes[_n] = _n
both()
cdef double look(int i) noexcept nogil:
    return table[i] * ready
""",
    "filled at import and later": """
cdef double[16] table  # <<<
cdef void fill() noexcept nogil:
    table[0] = 1
fill()
def again():
    fill()
""",
    "locked everywhere": """
cimport cython
cdef cython.pymutex mutex
cdef int hits = 0
_memo = {}
def touch(k):
    global hits
    with mutex:
        hits += 1
        _memo[k] = hits
def reset():
    global hits
    with mutex:
        hits = 0
""",
    "locked by those who call": """
cimport cython
cdef cython.pymutex mutex
cdef int hits = 0
cdef void _touch() noexcept nogil:
    global hits
    hits += 1
def touch():
    with mutex:
        _touch()
""",
    "locked by some": """
cimport cython
cdef cython.pymutex mutex
cdef int hits = 0  # <<< note
def touch():
    global hits
    with mutex:
        hits += 1
def reset():
    global hits
    hits = 0
""",
    "Python lock": """
import threading
_lock = threading.Lock()
_memo = {}
def touch(k):
    with _lock:
        _memo[k] = 1
""",
    "of the thread": """
import threading
_local = threading.local()
cdef extern from *:
    \"\"\"
    #define tls_int _Thread_local int
    static _Thread_local int depth;
    \"\"\"
    ctypedef int tls_int
    int depth
cdef tls_int hits
def touch():
    global hits, depth
    hits += 1
    depth = 1
    _local.value = 3
""",
    "errno": """
from libc.errno cimport errno
cdef int clear() noexcept nogil:
    global errno
    errno = 0
    return 0
""",
    "caches": """
import functools
from functools import lru_cache
@lru_cache(maxsize=None)  # <<<
def slow(int k):
    return k
@functools.cache  # <<<
def slower(k):
    return k
@functools.lru_cache  # <<<
def slowest(k):
    return k
def _plain(k):
    return k
quick = lru_cache(maxsize=8)(_plain)  # <<<
cdef class A:
    @lru_cache()  # <<<
    def method(self):
        return 1
def make():
    @lru_cache(maxsize=None)
    def inner(k):
        return k
    return inner
""",
    "an object's attribute": """
class Settings:
    pass
settings = Settings()  # <<<
def use(v):
    settings.value = v
""",
    "a memoryview": """
cdef double[::1] shared  # <<<
cdef double[::1] fixed
def use(double[::1] x):
    global shared
    shared = x
    return fixed[0]
""",
    "words only": """
cdef int hits = 0
cdef const char* text = "global hits; hits += 1; lru_cache"
def use():
    '''hits += 1'''
    # hits += 1
    return hits
""",
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_module_state(tmp_path, source):
    check(tmp_path, "module-state", source)


def test_atomics_are_safe(tmp_path):
    source = """
from libcpp.atomic cimport atomic
cdef atomic[int] hits
cdef int plain  # <<<
cdef void touch() noexcept nogil:
    global plain
    hits.fetch_add(1)
    plain = 1
"""
    check(tmp_path, "module-state", source, cplus=True)


REBOUND = """
cdef double[::1] current
cdef double[::1] other
cdef void use(double[::1] x) noexcept nogil:
    global current
    cdef double[::1] mine
    mine = x
    current = mine  # <<<
    other[0] = 1
def at_leisure(double[::1] x):
    global other
    other = x
"""


def test_a_module_memoryview_that_nogil_code_replaces(tmp_path):
    check(tmp_path, "memoryview-rebind", REBOUND)
