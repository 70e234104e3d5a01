"""What is known of a Cython module, in plain data: tree.py fills it, graph.py and the rules read it.

Everything here can be pickled and holds no object of Cython's. Lines and columns count from 1, columns in code points.
Texts of expressions are written anew from the tree: equal expressions have equal texts, however they were spaced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from audit.rule import Error, Where


@dataclass(frozen=True)
class Options:
    """How a build would compile the files."""

    include_path: tuple[str, ...] = ()  # searched for .pxd and .pxi, before the interpreter's site-packages
    directives: tuple[tuple[str, Any], ...] = ()  # of the build: name, value as Cython parses it
    said_by: tuple[tuple[str, str], ...] = ()  # directive name -> who gave it, such as "setup.py" or "-X"
    compile_time_env: tuple[tuple[str, Any], ...] = ()  # for DEF and IF
    cplus: bool | None = None  # None: as `# distutils: language = c++` in the file says

    def directive(self, name: str, default: Any = None) -> Any:
        """The build's value of a directive."""
        return dict(self.directives).get(name, default)

    def source(self, name: str) -> str:
        """Who gave a directive of the build, "the build" where that was not said."""
        return dict(self.said_by).get(name, "the build")


class Gil(StrEnum):
    """Whether the thread is attached to the interpreter, as far as the text tells."""

    HELD = "held"  # a function not marked nogil, outside of any block
    RELEASED = "released"  # a nogil function, or `with nogil`, or a prange that releases
    TAKEN = "taken"  # inside `with gil`, written out or put there by Cython around a raise


class GuardKind(StrEnum):
    CRITICAL_SECTION = "cython.critical_section"
    PYMUTEX = "cython.pymutex"
    PYTHREAD_LOCK = "PyThread_acquire_lock"
    C_MUTEX = "PyMutex"
    OPENMP_LOCK = "OpenMP lock"
    CPP_LOCK = "C++ lock"
    PYTHON_LOCK = "Python lock"  # `with lock:` on a Python object; serialises holders only


@dataclass(frozen=True)
class Guard:
    """A lock held at some point."""

    kind: GuardKind
    what: str  # text of what is locked, such as "self" or "self.mutex"
    where: Where


@dataclass(frozen=True)
class Context:
    """What surrounds a fact."""

    gil: Gil
    loops: int = 0  # loops around it, in its function
    guards: tuple[Guard, ...] = ()  # outermost first
    parallel: int | None = None  # index of the innermost prange in Function.parallels
    handled: bool = False  # inside a try that has except clauses
    tests: tuple[str, ...] = ()  # conditions of the ifs around it, innermost last; "not (...)" in an else

    @property
    def released(self) -> bool:
        return self.gil is Gil.RELEASED


@dataclass(frozen=True)
class Fact:
    where: Where
    context: Context


@dataclass(frozen=True)
class Operation(Fact):
    """Something only an attached thread may do: Cython refuses it in nogil code."""

    kind: str  # Cython's class of node without "Node", such as "SimpleCall", "Attribute", "Index", or "Local"
    expression: str
    refusal: str  # Cython's own words
    python: bool  # touches a Python object; False: a rule of Cython's about where something may stand


class Check(StrEnum):
    """How a caller finds out that a call failed."""

    NONE = "none"
    VALUE = "value"  # compared with a value that always means failure (except -1): no GIL
    SENTINEL = "sentinel"  # compared with a value; then the error indicator is asked, with the GIL
    ALWAYS = "always"  # the error indicator is asked after every call, with the GIL
    OBJECT = "object"  # NULL is failure
    CPP = "c++"  # try/catch around the call; the catch branch takes the GIL


@dataclass(frozen=True)
class Call(Fact):
    """A call that is made in C."""

    kind: str  # "c" (a function of a Cython module), "extern", "pointer", "builtin" (Cython's or CPython's own)
    target: str  # "package.module.Class.function"; of a pointer the text of what is called
    name: str  # as called, such as "self.step" or "rand"
    cname: str  # C name of an extern function
    declared: Where | None
    header: str  # module that declares an extern, such as "libc.stdlib"
    nogil: bool
    with_gil: bool
    check: Check
    sentinel: str  # text of the value, "" where there is none
    returns: str  # C type, as Cython writes it
    arguments: tuple[str, ...]  # texts, without self
    virtual: bool = False  # through a class's table: an override may run
    overridable: bool = False  # cpdef
    wrapper: bool = False  # made by Cython itself, in the Python face of a cpdef function


@dataclass(frozen=True)
class PythonCall(Fact):
    """A call through the interpreter."""

    name: str
    target: str  # dotted name of a def or cpdef function of a Cython module that is known, else ""
    callback: bool  # what is called came from outside: an argument, an attribute, a cast pointer


@dataclass(frozen=True)
class GilBlock(Fact):
    """A `with gil` block. The context is of its outside."""


@dataclass(frozen=True)
class NogilBlock(Fact):
    """A `with nogil` block. The context is of its outside; a guard of kind critical_section there is suspended."""


@dataclass(frozen=True)
class Raise(Fact):
    """A raise or an assert. `context.gil` is of its outside, before Cython takes the GIL for it."""

    kind: str  # "raise", "reraise", "assert"
    expression: str


class ErrorKind(StrEnum):
    BOUNDS = "bounds"
    DIVISION = "division"
    OVERFLOW = "overflow"
    NONE = "None"
    CONVERSION = "conversion"
    UNBOUND = "unbound"
    MEMORYVIEW = "memoryview"
    COMPARISON = "comparison"


@dataclass(frozen=True)
class ErrorPath(Fact):
    """A check that Cython puts in, whose failing branch raises, and takes the GIL for it where it is released."""

    kind: ErrorKind
    expression: str
    directive: str  # the directive or declaration that would leave it out, "" where none


@dataclass(frozen=True)
class View(Fact):
    """Something that changes a memoryview's acquisition count, or makes a memoryview."""

    kind: str  # "acquire" (from a Python object), "count" (a named slice or copy of the reference), "copy", "object"
    target: str  # name assigned to, "" for a temporary
    expression: str


@dataclass(frozen=True)
class Parallel(Fact):
    """A prange. The context is of its outside."""

    target: str  # loop variable
    takes_gil: bool  # neither nogil=True nor inside nogil code: each OpenMP thread takes the GIL
    reductions: tuple[tuple[str, str], ...]  # name, operator
    privates: tuple[str, ...]  # other variables each thread has its own of
    outer: int | None = None  # index of the prange or parallel() around it
    section: bool = False  # `with parallel()` rather than prange


@dataclass(frozen=True)
class Index:
    """One index expression."""

    text: str
    names: tuple[str, ...]  # variables in it, sorted
    constant: bool


@dataclass(frozen=True)
class Access(Fact):
    """A read or a write of a place that other threads may have too, or of a local variable."""

    kind: str  # "global", "attribute", "element" (through a pointer, memoryview, array), "item" (of a Python object),
    #            "local", "closure"
    base: str  # text of the place without its indices: "hist", "self.counts", "node.next"
    root: str  # first name in it
    root_kind: str  # "self", "argument", "local", "global", "closure", "other"
    type: str  # type of the place itself, as Cython writes it
    base_type: str  # type of what is indexed, "" where nothing is
    owner: str  # "package.module.Class" that declares the attribute (of `base`, where an element), else ""
    attribute: str  # its name there, "" where the base is no attribute
    python: bool  # the place holds a Python object
    memoryview: bool  # the place holds a memoryview
    pointer: bool  # the place holds a pointer
    write: bool
    augmented: bool = False  # read, changed and written back: += and the like
    deleted: bool = False
    indices: tuple[Index, ...] = ()
    value: str = ""  # text of what is written
    atomic: bool = False  # std::atomic, or an atomic function
    method: str = ""  # a method call that changes a Python container: "append", "update"


@dataclass(frozen=True)
class Free(Fact):
    """A call that frees or reallocates memory."""

    function: str
    expression: str  # text of the pointer
    attribute: str  # where the pointer is an attribute of `owner`
    owner: str
    root_kind: str


@dataclass(frozen=True)
class Borrow(Fact):
    """A PyObject* that owns no reference."""

    kind: str  # "call" (a function that returns a borrowed reference), "cast" (<PyObject*>object), "use" (<object>p)
    function: str  # C name of the function, "" for a cast
    variable: str  # name the pointer is kept in, "" where it is used at once
    expression: str


@dataclass(frozen=True)
class Iteration(Fact):
    """A for loop over a Python container."""

    over: str  # text
    container: str  # "dict", "list", "set" or "object"
    root_kind: str
    attribute: str  # name, where it is an attribute
    owner: str


@dataclass(frozen=True)
class Argument:
    name: str
    type: str
    python: bool
    memoryview: bool
    where: Where


@dataclass
class Function:
    """One function as written; specialisations of a fused one are merged."""

    name: str  # dotted in its module: "Class.method", "outer.inner", "outer.<lambda>"
    where: Where
    declared: Where | None  # in the .pxd, where it is there too
    kind: str  # "def", "cdef", "cpdef", "lambda", "generator"
    target: str  # as calls name it: "package.module.Class.method"
    owner: str  # "package.module.Class" for a method, else ""
    extension: bool  # `owner` is a cdef class
    nogil: bool
    with_gil: bool
    check: Check
    sentinel: str
    returns: str
    has_except: bool  # an exception clause is written at it (noexcept, except ...)
    extern: bool = False
    inline: bool = False
    decorators: tuple[str, ...] = ()
    arguments: tuple[Argument, ...] = ()
    locals: tuple[tuple[str, str], ...] = ()  # name, type
    overrides: tuple[str, ...] = ()  # target of the method of a base class that this one stands for, nearest first
    definition: int = 0  # the line of its `def`; `where`, as Cython has it, is that of its first decorator
    end: int = 0  # its last line with code
    specialisations: int = 1
    blocked: tuple[str, ...] = ()  # reasons that are no operation, such as "a generator"
    operations: list[Operation] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    python_calls: list[PythonCall] = field(default_factory=list)
    gil_blocks: list[GilBlock] = field(default_factory=list)
    nogil_blocks: list[NogilBlock] = field(default_factory=list)
    raises: list[Raise] = field(default_factory=list)
    error_paths: list[ErrorPath] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    parallels: list[Parallel] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    frees: list[Free] = field(default_factory=list)
    borrows: list[Borrow] = field(default_factory=list)
    iterations: list[Iteration] = field(default_factory=list)
    unwinds: list[Fact] = field(default_factory=list)  # clean-up that takes the GIL where nogil code is left


@dataclass(frozen=True)
class Attribute:
    """A C attribute of a cdef class, or a field of a struct."""

    name: str
    type: str
    where: Where
    python: bool
    memoryview: bool
    pointer: bool
    borrowed: bool  # PyObject*
    visibility: str  # "private", "public" (Python may write it), "readonly"


@dataclass(frozen=True)
class Class:
    """A class, or a struct or union."""

    name: str  # dotted in its module
    where: Where
    target: str  # "package.module.Class"
    kind: str  # "cdef", "python", "struct", "union", "c++"
    bases: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    decorators: tuple[str, ...] = ()
    extern: bool = False  # declared in `cdef extern from`: its code is elsewhere


@dataclass(frozen=True)
class Variable:
    """A module-level name that is neither function nor class."""

    name: str
    where: Where
    kind: str  # "cdef", "python", "constant" (enum item, DEF), "extern"
    type: str
    python: bool
    value: str  # text of what it is first set to, "" where not set
    container: str  # "dict", "list", "set", "defaultdict", ... where the value is mutable, else ""
    const: bool
    visibility: str  # "private", "public", "extern"


@dataclass(frozen=True)
class Import:
    where: Where
    module: str
    names: tuple[str, ...]
    cimport: bool
    function: str = ""  # dotted name of the function it stands in


@dataclass(frozen=True)
class Verbatim:
    """C code in a docstring of `cdef extern from *`."""

    where: Where  # of its first line
    code: str


@dataclass(frozen=True)
class Comment:
    """A comment that looks like a directive of Cython's."""

    where: Where
    text: str
    read: bool  # Cython reads it: it stands before the first code


@dataclass
class Module:
    path: str
    name: str  # "package.module"
    kind: str  # "pyx", "py", "pxd"
    lines: tuple[str, ...]
    cplus: bool
    directives: dict[str, Any]  # in force at module level
    written: dict[str, tuple[Any, Where]]  # by the file's own header comments
    said_by: dict[str, str]  # directive -> "the file", or who gave it to the build
    pxd: str  # path of its own .pxd, "" without
    pxd_directives: dict[str, tuple[Any, Where]]  # by the header comments of that
    comments: list[Comment] = field(default_factory=list)
    includes: tuple[str, ...] = ()  # paths of .pxi files read
    cimports: tuple[str, ...] = ()  # paths of .pxd files read
    functions: list[Function] = field(default_factory=list)
    toplevel: Function | None = None  # what the module does when imported; not in functions
    declarations: list[Function] = field(default_factory=list)  # extern, pointer types and .pxd ones without a body
    classes: list[Class] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)
    verbatim: list[Verbatim] = field(default_factory=list)


@dataclass
class Analysed:
    """What came out of reading one file."""

    module: Module | None  # None where nothing could be made of it
    errors: list[Error]
