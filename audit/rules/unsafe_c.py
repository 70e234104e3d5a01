"""C functions that keep hidden state of the whole process."""

from __future__ import annotations

from collections.abc import Iterator

from audit.facts import Call, Module
from audit.graph import Project
from audit.rule import Finding, Severity
from audit.sharing import sharing_of

ID = "unsafe-c"
SEVERITY = Severity.RACES
TITLE = "A C function with hidden state of the whole process"
WHY = """\
Some functions of the C library keep what they work on in static memory: rand its state, strtok the rest of the
string, localtime the struct it returns a pointer to, setlocale the locale of the process. Two threads in such a
function mix their states, and the result of one is overwritten while it is read. The GIL hid that as long as all
calls were made with it; on a free-threaded build nothing does. Most have a twin with _r that takes the memory as an
argument. What counts is which C function a name stands for: a variable called rand is none. getenv and lgamma are
notes: the first is safe while nobody calls setenv, the second writes the global signgam, which few read."""
BAD = """\
# cython: language_level=3, freethreading_compatible=True

from libc.stdlib cimport rand

cdef int roll() noexcept nogil:
    return rand() % 6
"""
GOOD = """\
# cython: language_level=3, freethreading_compatible=True

from libc.stdint cimport uint64_t

cdef int roll(uint64_t* state) noexcept nogil:
    cdef uint64_t rand = state[0]
    rand ^= rand << 13
    rand ^= rand >> 7
    rand ^= rand << 17
    state[0] = rand
    return <int>(rand % 6)
"""

_GENERATOR = (
    "keeps one random state for the process",
    "Use a generator whose state the thread owns (rand_r, erand48, or a few lines of C)",
)
_SEED = "seeds the random state of the whole process", _GENERATOR[1]
_BUFFER = "returns memory that the next call on any thread overwrites"
_SAVED = "keeps its place in the string in static memory"
_PROCESS = "changes a setting of the whole process that others read without a lock"

_FUNCTIONS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("rand", "random", "drand48", "lrand48", "mrand48"), _GENERATOR),
    **dict.fromkeys(("srand", "srandom", "srand48", "seed48", "lcong48", "initstate", "setstate"), _SEED),
    "random_shuffle": ("may draw from rand", "Use std::shuffle with a generator that the thread owns"),
    "strtok": (_SAVED, "Use strtok_r"),
    "wcstok": (_SAVED, "Use the form of wcstok with three arguments"),
    "localtime": (_BUFFER, "Use localtime_r"),
    "gmtime": (_BUFFER, "Use gmtime_r"),
    "ctime": (_BUFFER, "Use ctime_r, or localtime_r and strftime"),
    "asctime": (_BUFFER, "Use asctime_r, or strftime"),
    "strerror": (_BUFFER, "Use strerror_r"),
    "strsignal": (_BUFFER, "Look the name up once at start, or use sigdescr_np"),
    "tmpnam": (_BUFFER, "Use mkstemp"),
    "tempnam": ("gives a name that another thread may take first", "Use mkstemp"),
    "ttyname": (_BUFFER, "Use ttyname_r"),
    "getlogin": (_BUFFER, "Use getlogin_r"),
    "ctermid": (_BUFFER, "Pass a buffer of your own"),
    "getpwnam": (_BUFFER, "Use getpwnam_r"),
    "getpwuid": (_BUFFER, "Use getpwuid_r"),
    "getpwent": (_BUFFER, "Use getpwnam_r or getpwuid_r"),
    "getgrnam": (_BUFFER, "Use getgrnam_r"),
    "getgrgid": (_BUFFER, "Use getgrgid_r"),
    "gethostbyname": (_BUFFER, "Use getaddrinfo"),
    "gethostbyaddr": (_BUFFER, "Use getnameinfo"),
    "getservbyname": (_BUFFER, "Use getaddrinfo"),
    "getprotobyname": (_BUFFER, "Use getaddrinfo"),
    "inet_ntoa": (_BUFFER, "Use inet_ntop"),
    "readdir": ("returns memory of the directory stream", "Let one thread own the stream, or lock it"),
    "crypt": (_BUFFER, "Use crypt_r"),
    "encrypt": ("works on the key of the whole process", "Use encrypt_r"),
    "setkey": ("sets the key of the whole process", "Use setkey_r"),
    "hsearch": ("works on one table for the process", "Use hsearch_r"),
    "hcreate": ("makes one table for the process", "Use hcreate_r"),
    "ecvt": (_BUFFER, "Use snprintf"),
    "fcvt": (_BUFFER, "Use snprintf"),
    "l64a": (_BUFFER, "Format into a buffer of your own"),
    "dlerror": (_BUFFER, "Read it under the lock that the failing call was made under"),
    "mblen": ("keeps a shift state", "Use mbrlen"),
    "mbtowc": ("keeps a shift state", "Use mbrtowc"),
    "wctomb": ("keeps a shift state", "Use wcrtomb"),
    "setlocale": (_PROCESS, "Set it once at start, or use newlocale and uselocale, which are of the thread"),
    "localeconv": (_BUFFER, "Use nl_langinfo_l, or read it once at start"),
    "setenv": (_PROCESS, "Set it before threads start, or pass the value as an argument"),
    "unsetenv": (_PROCESS, "Set it before threads start, or pass the value as an argument"),
    "putenv": (_PROCESS, "Set it before threads start, or pass the value as an argument"),
    "clearenv": (_PROCESS, "Set it before threads start, or pass the value as an argument"),
    "chdir": (_PROCESS, "Use paths from a directory that you opened (openat)"),
    "umask": (_PROCESS, "Set it before threads start"),
    "tzset": (_PROCESS, "Call it once at start"),
    "getenv": ("reads what setenv on another thread may be freeing", "Read it once at start"),
    **dict.fromkeys(("lgamma", "lgammaf", "lgammal", "gamma"), ("writes the global signgam", "Use lgamma_r")),
}
_NOTES = frozenset(
    {"getenv", "lgamma", "lgammaf", "lgammal", "gamma", "readdir", "chdir", "umask", "tzset", "localeconv"}
)
_LIBRARIES = ("libc.", "posix.", "libcpp.", "cpython.")


def check(module: Module, project: Project) -> Iterator[Finding]:
    sharing = sharing_of(project)
    toplevel = [module.toplevel] if module.toplevel is not None else []
    for function in [*module.functions, *toplevel]:
        at_import = function is module.toplevel or id(function) in sharing.at_import
        for call in function.calls:
            name = call.cname.removeprefix("std::").removeprefix("::")
            if call.kind != "extern" or name not in _FUNCTIONS or not _is_free_function(module, call):
                continue
            if sharing.locks(function, call):
                continue
            fault, remedy = _FUNCTIONS[name]
            yield Finding.at(
                call.where,
                ID,
                function.name,
                Severity.NOTE if at_import or name in _NOTES else SEVERITY,
                f"{call.name} is the C function {name}, which {fault}.",
                f"{remedy}.",
            )


def _is_free_function(module: Module, call: Call) -> bool:
    """No method of a C++ class: called by its name, or as an attribute of the module that declares it."""
    receiver = call.name.rpartition(".")[0]
    if not receiver or call.header.startswith(_LIBRARIES):
        return True
    return receiver in (call.header, call.header.rpartition(".")[2])
