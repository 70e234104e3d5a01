"""The only file that touches Cython's compiler: reads one source file and says what its functions do.

Cython's front end runs up to its own check of nogil code, and one stage more, right after it, turns the typed tree into
the plain facts of facts.py; nothing is generated and nothing written. What Cython would say on standard error is
collected instead.

Threads and processes: `analyse` may run in several threads at once. Each keeps what it has read of .pxd files for
itself, and Cython keeps its errors per thread; results are the same as alone. But most of the time is spent in Python
code that writes the reference counts of types all threads share: on a free-threaded build two threads are 1.2 times as
fast as one, two processes 1.8 times, so whoever has many files starts processes.
"""

from __future__ import annotations

import os
import re
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from Cython.Compiler import Lexicon as _Lexicon
from Cython.Compiler import Scanning as _Scanning

from audit.errors import BadInput, near
from audit.facts import (
    Access,
    Analysed,
    Argument,
    Attribute,
    Borrow,
    Call,
    Check,
    Class,
    Comment,
    Context,
    ErrorKind,
    ErrorPath,
    Fact,
    Free,
    Function,
    Gil,
    GilBlock,
    Guard,
    GuardKind,
    Import,
    Index,
    Iteration,
    Module,
    NogilBlock,
    Operation,
    Options,
    Parallel,
    PythonCall,
    Raise,
    Variable,
    Verbatim,
    View,
)
from audit.rule import Error, Where

# ---------------------------------------------------------------------------------------------------------------------
# Loading Cython
# ---------------------------------------------------------------------------------------------------------------------

_Scanner: Any = _Scanning
_LETTERS = ("unicode_start_ch_any", "unicode_start_ch_range", "unicode_continuation_ch_any",
            "unicode_continuation_ch_range")  # fmt: skip
_LETTERS_LOCK = threading.Lock()
_few_letters = False


def _know_few_letters() -> None:
    """Gives Cython's scanner, which is made while Cython is loaded, no letters for names but ASCII's.

    Where it is not compiled, half of the time and three quarters of the memory that loading takes go into a table of
    all letters; few files need it.
    """
    global _few_letters
    saved = {name: vars(_Lexicon)[name] for name in _LETTERS if name in vars(_Lexicon)}
    if _Scanner.__file__.endswith(".py") and _Scanner.lexicon is None and len(saved) == len(_LETTERS):
        vars(_Lexicon).update(zip(_LETTERS, ("_", "AZaz", "_", "09"), strict=True))
        _Scanner.lexicon = _Lexicon.make_lexicon()
        vars(_Lexicon).update(saved)
        _few_letters = True


# Comments and strings, and whatever a pattern looks for beside them
_TEXT = r"""#[^\n]*|('''|\"\"\")(?:\\.|(?!\1).)*(?:\1)?|'(?:\\.|[^'\\\n])*'?|"(?:\\.|[^"\\\n])*"?|"""
_BEYOND_ASCII = re.compile(_TEXT + r"[^\x00-\x7f]", re.DOTALL)


def _may_name(text: str, match: re.Match[str]) -> bool:
    """Whether letters beyond ASCII in a comment, a string or by themselves may be of a name: an f-string has names."""
    found = match.group()
    prefix = text[max(0, match.start() - 2) : match.start()].lower().rstrip("r")
    formatted = found[0] in "'\"" and prefix.endswith(("f", "t"))
    return not found.isascii() and (len(found) == 1 or formatted)


def _know_letters(path: str) -> None:
    """Gives the scanner all letters where a file that is to be read next has names with more than ASCII's."""
    global _few_letters
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return  # Cython says so
    text = _decode(data)[0]
    if text.isascii() or not any(_may_name(text, match) for match in _BEYOND_ASCII.finditer(text)):
        return
    with _LETTERS_LOCK:
        if _few_letters:
            _Scanner.lexicon = _Lexicon.make_lexicon()
            _few_letters = False


_know_few_letters()
from Cython import Utils
from Cython.Compiler import Errors as _Errors
from Cython.Compiler import ExprNodes as _ExprNodes
from Cython.Compiler import Main as _Main
from Cython.Compiler import Nodes as _Nodes
from Cython.Compiler import Options as CythonOptions
from Cython.Compiler import Pipeline, Visitor
from Cython.Compiler.Optimize import IterationTransform
from Cython.Compiler.ParseTreeTransforms import GilCheck
from Cython.Compiler.Scanning import FileSourceDescriptor

# Cython's classes set most attributes of their nodes from outside, so nothing can be said of their types.
Errors: Any = _Errors
ExprNodes: Any = _ExprNodes
Main: Any = _Main
Nodes: Any = _Nodes
_CythonContext: Any = _Main.Context


def _process_children(self: Any, parent: Any, attrs: Any = None, exclude: Any = None) -> dict[str, Any]:
    """As Cython's VisitorTransform has it, in one function instead of five: a third of the time goes into walking.

    What a transform would only walk through is walked through here at once.
    """
    handlers, path, passed = self.dispatch_table, self.access_path, _PASSED[type(self)]
    results: dict[str, Any] = {}
    child = parent
    try:
        for name in parent.child_attrs:
            if (attrs is not None and name not in attrs) or (exclude is not None and name in exclude):
                continue
            child = parent
            value = getattr(parent, name)
            if value is None:
                continue
            several = type(value) is list
            made: Any = []
            for index, child in enumerate(value if several else (value,)):
                kind = type(child)
                if kind in passed and not child.child_attrs:
                    made.append(child)
                    continue
                path.append((parent, name, index if several else None))
                if kind in passed:
                    _process_children(self, child)
                    made.append(child)
                else:
                    handler = handlers.get(kind)
                    if handler is None:
                        handler = handlers[kind] = self.find_handler(child)
                        if getattr(handler, "__func__", None) in _PASSING:
                            passed.add(kind)
                    made.append(handler(child))
                path.pop()
            if not several:
                made = made[0]
                assert not isinstance(made, list), f"Cannot insert list here: {name} in {parent!r}"
            results[name] = made
    except (Errors.CompileError, Errors.AbortError):
        raise
    except Exception as error:  # noqa: BLE001  as Cython does
        self._raise_compiler_error(child, error)
    for name, made in results.items():
        setattr(parent, name, Visitor._flatten_list(made) if type(made) is list else made)
    return results


# Methods that visit a node's children and leave it as it is
_PASSING = {Visitor.CythonTransform.visit_Node, Visitor.VisitorTransform.recurse_to_children}
_PASSED: defaultdict[type, set[type]] = defaultdict(set)  # by transform, the nodes for which it has no method but those
if Visitor.__file__.endswith(".py"):  # compiled, Cython's own is quicker
    _Transform: Any = Visitor.VisitorTransform
    _cythons_process_children = _Transform._process_children
    _Transform._process_children = _process_children

# ---------------------------------------------------------------------------------------------------------------------
# Directives
# ---------------------------------------------------------------------------------------------------------------------


def directives() -> list[str]:
    """Names of the compiler directives that Cython knows, sorted."""
    return sorted(CythonOptions.get_directive_defaults())


def directive(name: str, value: Any) -> dict[str, Any]:
    """A directive as Cython takes it; several where the name is a group such as `warn.all`.

    Raises BadInput for a name that Cython does not know and for a value that it does not take.
    """
    name = name.strip()
    if name not in directives() and not name.endswith(".all"):
        raise BadInput(
            f"Cython has no directive {name!r}: {near(name, directives())}see its documentation for their names."
        )
    try:
        parsed = CythonOptions.parse_directive_list(f"{name}={str(value).strip()}", relaxed_bool=True)
    except (ValueError, AssertionError) as error:
        raise BadInput(
            f"{name}={value} cannot be used: {' '.join(str(error).split()) or 'it is none for a whole module'}."
        ) from None
    if None in parsed.values():
        raise BadInput(f"{name} cannot be given for a whole module; write it where it applies.")
    return parsed


# ---------------------------------------------------------------------------------------------------------------------
# Running Cython
# ---------------------------------------------------------------------------------------------------------------------

_DIRECTIVE = re.compile(r"^#\s*cython\s*:\s*((?:\w|[.])+\s*=.*)$")
_DISTUTILS_CPLUS = re.compile(r"^#\s*distutils\s*:\s*language\s*=\s*c\+\+\s*$", re.IGNORECASE)
_NOT_FOUND = re.compile(
    r"'[^']*' not found$|is not a cimported module|not declared in module|has no attribute '.*' in module"
)
# Words by which Cython refuses what needs the GIL; such refusals are findings, not errors.
_REFUSALS = re.compile(
    r"without (the )?gil|require the gil|cannot be declared nogil|declared nogil has|acquire the gil while|"
    r"release the gil while|don't have the gil",
    re.IGNORECASE,
)


_ONLY_CPP = re.compile(r"only allowed in c\+\+")
_ABSENT = re.compile(r"'[^']*' not found$")


class _Listing:
    """Takes what Cython would print. Errors come as one text with the position in it."""

    _POSITION = re.compile(r"^(?P<path>[^\n]*?):(?P<line>\d+):(?P<column>\d+): (?P<message>.*)$", re.DOTALL)

    def __init__(self) -> None:
        self.errors: list[tuple[str, int, int, str]] = []

    def write(self, text: str) -> None:
        if text.startswith(("warning:", "note:", "performance hint:")):
            return
        after = text.rpartition("-" * 60 + "\n")[2].strip("\n")
        if match := self._POSITION.match(after):
            self.errors.append((match["path"], int(match["line"]), int(match["column"]) + 1, match["message"].strip()))
        elif message := after.strip():
            self.errors.append(("", 1, 1, message))

    def close(self) -> None:
        pass


@contextmanager
def _listening() -> Iterator[_Listing]:
    """Cython's diagnostics of this thread, collected instead of printed."""
    listing = _Listing()
    Errors.init_thread()
    Errors.open_listing_file(None, echo_to_stderr=False)
    Errors.threadlocal.cython_errors_listing_file = listing
    try:
        yield listing
    finally:
        Errors.init_thread()


def _module_name(path: str) -> str:
    """The dotted name by the packages around the file; what is no name in a file's name becomes one."""
    folder, file = os.path.split(os.path.abspath(path))
    stem = os.path.splitext(file)[0]
    parts = [] if stem == "__init__" else [stem.partition(".")[0]]
    while any(os.path.isfile(os.path.join(folder, f"__init__.{suffix}")) for suffix in ("py", "pyx", "pxd")):
        folder, name = os.path.split(folder)
        if not name:
            break
        parts.append(name)
    names = [re.sub(r"\W", "_", part) or "_" for part in reversed(parts)] or ["__init__"]
    names = [f"_{name}" if name[0].isdigit() else name for name in names]
    if names[0] == "cython":  # forbidden by Cython itself
        names[0] = "_cython"
    return ".".join(names)


def _compilation(options: Options, lines: Iterable[str], suffix: str) -> Any:
    """Cython's options for one file."""
    cplus = options.cplus
    if cplus is None:
        cplus = False
        for line in lines:
            if line.strip() and not line.lstrip().startswith("#"):
                break
            cplus = cplus or bool(_DISTUTILS_CPLUS.match(line.strip()))
    directives = dict(options.directives)
    compilation = CythonOptions.CompilationOptions(
        CythonOptions.default_options,
        compiler_directives=directives,
        include_path=list(options.include_path),
        compile_time_env=dict(options.compile_time_env) or None,
        cplus=int(cplus),
        errors_to_stderr=0,
    )
    compilation.configure_language_defaults(suffix)
    return compilation


@dataclass
class _Kept:
    scope: Any
    name: str
    path: str
    stamp: tuple[int, int] | None
    level: Any  # the language level in force after it
    needs: list[tuple[str, Any]]  # modules that it cimports, with their scopes


@dataclass
class _Shelf:
    """What was read of .pxd files under the same settings."""

    kept: dict[tuple[str, str], _Kept] = field(default_factory=dict)  # by module name and path
    by_scope: dict[int, _Kept] = field(default_factory=dict)  # the same by id
    cython_scope: Any = None


class _Library(threading.local):
    """What one thread has read of .pxd files, for the files it reads next.

    NumPy's alone takes longer than most modules. A declaration file is kept where Cython found no fault in it and all
    that it cimports is kept too, so that whatever is taken from here fits together; types that exist twice would not.
    Files of one project differ in their settings, most often in being C++ or not: some shelves are kept side by side.
    """

    def __init__(self) -> None:
        self.shelves: dict[str, _Shelf] = {}  # by all that has a say in what a .pxd means; the last used comes last
        self.shelf = _Shelf()

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Nothing is there for a while."""
        saved = dict(self.__dict__)
        self.__init__()  # type: ignore[misc]
        try:
            yield
        finally:
            self.__dict__.update(saved)

    def fit(self, settings: Any) -> None:
        """Takes the shelf of these settings, an empty one where something on it has changed since."""
        key = repr(settings)
        shelf = self.shelves.pop(key, None)
        if (
            shelf is None
            or len(shelf.kept) > 1000
            or any(_stamp(path) != kept.stamp for (_, path), kept in shelf.kept.items())
        ):
            shelf = _Shelf()
        self.shelves[key] = self.shelf = shelf
        while len(self.shelves) > _SHELVES:
            del self.shelves[next(iter(self.shelves))]


_LIBRARY = _Library()
# Shelves at once, at up to 100 MB each.
_SHELVES = 4


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


class _Context(_CythonContext):
    """Cython's context, which takes .pxd files from the library where it can."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._reading: list[list[tuple[str, Any]]] = []  # per .pxd in hand, what it has asked for
        self.took = False  # something from the library
        self.own = ""  # name of the module in hand: its scope gets the implementation too, so it is never kept
        load = self.cython_scope.load_cythonscope

        def load_once() -> None:
            scope, known = self.cython_scope, _LIBRARY.shelf.cython_scope
            if known is None and not scope._cythonscope_initialized:
                load()
                _LIBRARY.shelf.cython_scope = scope
            elif not scope._cythonscope_initialized:
                scope._cythonscope_initialized = True
                scope.viewscope = known.viewscope
                for name, entry in known.entries.items():
                    scope.entries.setdefault(name, entry)

        self.cython_scope.load_cythonscope = load_once

    def find_module(self, module_name: str, from_module: Any = None, *args: Any, **keywords: Any) -> Any:
        if from_module is None and keywords.get("need_pxd", 1) and not args:
            self._take(str(module_name), keywords.get("pos"), not keywords.get("relative_import", False))
        scope = super().find_module(module_name, from_module, *args, **keywords)
        for asked in self._reading:
            asked.append((str(scope.qualified_name), scope))
        return scope

    def parse(self, source_desc: Any, *args: Any, **keywords: Any) -> Any:
        if _few_letters and isinstance(source_desc, FileSourceDescriptor):
            _know_letters(str(source_desc.filename))
        return super().parse(source_desc, *args, **keywords)

    def find_include_file(self, *args: Any, **keywords: Any) -> Any:
        path = super().find_include_file(*args, **keywords)
        if _few_letters and path:
            _know_letters(str(path))
        return path

    def process_pxd(self, source_desc: Any, scope: Any, module_name: str) -> Any:
        before = Errors.get_errors_count()
        self._reading.append([])
        result = super().process_pxd(source_desc, scope, module_name)
        needs = self._reading.pop()
        path = getattr(source_desc, "filename", "")
        held = _LIBRARY.shelf.by_scope
        if (
            path.endswith(".pxd")
            and str(module_name) != self.own
            and result[0] is None
            and Errors.get_errors_count() == before
            and not Errors.threadlocal.cython_errors_stack
            and all(id(need) in held or not need.pxd_file_loaded or need is self.cython_scope for _, need in needs)
        ):
            needs = [(name, need) for name, need in needs if id(need) in held]
            name = str(module_name)
            kept = _Kept(scope, name, path, _stamp(path), self.language_level, needs)
            _LIBRARY.shelf.kept[name, path] = held[id(scope)] = kept
        return result

    def _take(self, name: str, pos: Any, sys_path: bool) -> None:
        """Puts a module from the library into this context, with all that it cimports."""
        if name == self.own or not Main.module_name_pattern.match(name) or self._loaded(name) is not None:
            return
        path = self.find_pxd_file(name, pos, sys_path=sys_path)
        kept = _LIBRARY.shelf.kept.get((name, os.path.abspath(path))) if path else None
        if kept is None or not self._fits(kept, set()):
            return
        self._graft(kept)

    def _loaded(self, name: str) -> Any:
        scope: Any = self
        for part in name.split("."):
            scope = scope.lookup_submodule(part)
            if scope is None:
                return None
        return scope if scope.pxd_file_loaded else None

    def _fits(self, kept: _Kept, seen: set[str]) -> bool:
        """Whether nothing that it needs stands here already in another copy."""
        here = self._loaded(kept.name)
        if here is not None and here is not kept.scope:
            return False
        for _, need in kept.needs:
            found = _LIBRARY.shelf.by_scope.get(id(need))
            if found is None or (found.name not in seen and not self._fits(found, seen | {kept.name})):
                return False
        return True

    def _graft(self, kept: _Kept) -> None:
        if self._loaded(kept.name) is kept.scope:
            return
        self.took = True
        *packages, last = kept.name.split(".")
        parent: Any = self
        for package in packages:
            parent = parent.find_submodule(package, as_package=True)
        entries = self.modules if parent is self else parent.module_entries
        old = entries.get(last)
        kept.scope.module_entries = dict(old.module_entries) if old is not None else {}
        setattr(kept.scope, "_context" if hasattr(kept.scope, "_context") else "context", self)
        kept.scope.parent_module = None if parent is self else parent
        entries[last] = kept.scope
        for _, need in kept.needs:
            self._graft(_LIBRARY.shelf.by_scope[id(need)])
        if kept.level is not None and kept.level != self.language_level:
            self.set_language_level(kept.level)


def analyse(path: str, options: Options) -> Analysed:
    """What one .pyx, .pxd or .py file says; never raises, prints or writes.

    `path` is used in the facts as given. Errors have kind "read" (the file cannot be read), "parse-error" (Cython does
    not accept it, other than for want of the GIL) or "cimport" (something it cimports or includes cannot be found).
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        return Analysed(None, [Error(path, 1, 1, "read", f"It cannot be read: {error.strerror or error}.")])
    try:
        return _analyse(path, data, options)
    except RecursionError:
        return Analysed(None, [Error(path, 1, 1, "parse-error", "It is nested too deeply for Cython.")])
    except Exception as error:  # noqa: BLE001  Cython's front end may fail in any way on odd input; that is a result
        return Analysed(None, [Error(path, 1, 1, "parse-error", f"Cython fails on it: {_told(error)}")])


def _told(error: Exception) -> str:
    """An exception in one line, with the place it rose at."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]} ({where})"


def _analyse(path: str, data: bytes, options: Options) -> Analysed:
    suffix = os.path.splitext(path)[1].lower().lstrip(".")
    kind = suffix if suffix in ("py", "pxd") else "pyx"
    text, undecodable = _decode(data)
    if undecodable is not None:
        return Analysed(None, [Error(path, undecodable[0], undecodable[1], "parse-error", undecodable[2])])
    if (too_deep := _too_deep(path, text)) is not None:
        return Analysed(None, [too_deep])
    lines = tuple(text.split("\n"))
    Utils.clear_function_caches()  # what was found where: a file may have come or gone since
    for library in (nullcontext(), _LIBRARY.set_aside()):
        with library:
            found, context = _attempt(path, kind, lines, options)
            took = context.took
            if found.errors and options.cplus is None and not context.cpp:
                # The build may say that it is C++, and neither the file nor the .pxd in which a class is then not found
                again, context = _attempt(path, kind, lines, replace(options, cplus=True))
                took = took or context.took
                if again.module is not None or any(_ONLY_CPP.search(error.reason) for error in found.errors):
                    found = again
        # What is wrong shall not depend on what was read before; what is absent cannot
        if not found.errors or not took or any(_ABSENT.search(error.reason) for error in found.errors):
            break
    return found


def _attempt(path: str, kind: str, lines: tuple[str, ...], options: Options) -> tuple[Analysed, Any]:
    """What it says, read once, and Cython's context."""
    with _listening() as listing:
        tree, context = _tree(path, kind, lines, options)
        said = list(listing.errors)
    errors = _errors(path, said)
    if tree is None and not errors:
        errors = [Error(path, 1, 1, "parse-error", "Cython stops on it without saying why.")]
    if errors:
        return Analysed(None, errors), context
    refusals = {(where, line): message for where, line, _, message in said if _REFUSALS.search(message)}
    try:
        module = _ModuleReader(path, kind, lines, tree, context, options, refusals).read()
    except RecursionError:
        raise
    except Exception as error:  # noqa: BLE001  one file that cannot be read does not take the others' findings away
        reason = f"The checker fails on it, a fault of its own: {_told(error)}"
        return Analysed(None, [Error(path, 1, 1, "parse-error", reason)]), context
    return Analysed(module, []), context


def _decode(data: bytes) -> tuple[str, tuple[int, int, str] | None]:
    """The text as Cython reads it, or where and why it cannot be decoded."""
    cookie = re.match(rb"^(?:\xef\xbb\xbf)?(?:[^\n]*\n)?[ \t\f]*#[^\n]*?coding[:=][ \t]*([-_.a-zA-Z0-9]+)", data)
    first = data.lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0].strip()
    if cookie and not (b"coding" in first or not first or first.startswith(b"#")):
        cookie = None  # the second line counts only below an empty line or a comment
    encoding = cookie.group(1).decode("ascii") if cookie else "utf-8"
    if encoding.lower() in ("c_string_encoding",):
        encoding = "utf-8"
    try:
        text = data.decode(encoding)
    except LookupError:
        return "", (1, 1, f"Its coding cookie names {encoding!r}, which is no encoding that Python knows.")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        return "", (line, column, f"It cannot be decoded as {encoding}: {error.reason}; name its encoding in a cookie.")
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"), None


# CPython's own tokenizer allows as many. Cython's parser, where it is compiled, goes on until the C stack ends.
_DEEPEST = 200
_BRACKET = re.compile(r"[(\[{]|[)\]}]")
_BRACKET_BESIDE_TEXT = re.compile(_TEXT + r"[(\[{]|[)\]}]", re.DOTALL)


def _too_deep(path: str, text: str) -> Error | None:
    """An error where brackets nest so deeply that Cython could end the process."""
    for pattern in (_BRACKET, _BRACKET_BESIDE_TEXT):  # the second, slower, knows strings and comments
        depth = 0
        for match in pattern.finditer(text):
            if match.group() in "([{":
                depth += 1
                if depth > _DEEPEST:
                    break
            elif match.group() in ")]}":
                depth = max(0, depth - 1)
        else:
            return None
    line = text.count("\n", 0, match.start()) + 1
    column = match.start() - text.rfind("\n", 0, match.start())
    return Error(path, line, column, "parse-error", f"Brackets nest more than {_DEEPEST} deep, too deeply for Cython.")


def _errors(path: str, said: list[tuple[str, int, int, str]]) -> list[Error]:
    """Cython's errors that are no refusals. What cannot be found comes alone: the rest follows from it."""
    found = []
    for where, line, column, message in said:
        if _REFUSALS.search(message):
            continue
        here = path if not where or os.path.abspath(where) == os.path.abspath(path) else where
        kind = "cimport" if _NOT_FOUND.search(message) else "parse-error"
        if message.startswith("Compiler crash"):
            message = f"{message.split(' File ')[0].strip()}: {message.rstrip().splitlines()[-1].strip()}"
        found.append(Error(here, line, column, kind, " ".join(message.split())))
    missing = [error for error in found if error.kind == "cimport"]
    return list(dict.fromkeys(missing or found))[:20]


# Stages that make documentation or names, or C that is quicker but takes the GIL no less: an if stays an if.
_NOT_NEEDED = {"AutoTestDictTransform", "CalculateQualifiedNamesTransform", "EmbedSignature", "SwitchTransform"}


def _tree(path: str, kind: str, lines: tuple[str, ...], options: Options) -> tuple[Any, Any]:
    """The tree right after GilCheck, None where Cython stopped before, and its context."""
    compilation = _compilation(options, lines, kind)
    _LIBRARY.fit((options.directives, options.include_path, options.compile_time_env, compilation.cplus, kind == "py"))
    context = _Context.from_options(compilation)
    kept: list[Any] = []

    def keep(tree: Any) -> Any:
        kept.append(tree)
        return tree

    name = context.own = _module_name(path)
    if kind == "pxd":
        scope: Any = context
        *packages, last = name.split(".")
        for package in packages:
            scope = scope.find_submodule(package, as_package=True)
        scope = scope.find_submodule(last, as_package=os.path.basename(path).startswith("__init__."))
        scope.pxd_file_loaded = True
        source: Any = FileSourceDescriptor(os.path.abspath(path), path)
        stages = Pipeline.create_pxd_pipeline(context, scope, name)
    else:
        source = Main.setup_source_object(path, f".{kind}", name, compilation, context)
        result = Main.create_default_resultobj(source, compilation)
        make = Pipeline.create_py_pipeline if kind == "py" else Pipeline.create_pyx_pipeline
        stages = make(context, compilation, result)
    last_stage = max(index for index, stage in enumerate(stages) if isinstance(stage, GilCheck))
    stages = [stage for stage in stages[: last_stage + 1] if type(stage).__name__ not in _NOT_NEEDED]
    loops = _Loops()
    rewriters = [index for index, stage in enumerate(stages) if isinstance(stage, IterationTransform)]
    before = rewriters[0] if rewriters else len(stages) - 1
    Pipeline.run_pipeline([*stages[:before], loops, *stages[before:], keep], source)
    if kept:
        kept[0].loops_over = loops.found
    return (kept[0] if kept else None), context


class _Loops(Visitor.TreeVisitor):
    """Notes what loops run over before Cython rewrites those over dicts and lists; changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, Any] = {}  # position of a loop -> the expression

    def __call__(self, tree: Any) -> Any:
        self.visit(tree)
        return tree

    def visit_Node(self, node: Any) -> None:
        self.visitchildren(node)

    def visit_ForInStatNode(self, node: Any) -> None:
        sequence = getattr(getattr(node, "iterator", None), "sequence", None)
        if sequence is not None:
            self.found.setdefault(node.pos, sequence)
        self.visitchildren(node)


# ---------------------------------------------------------------------------------------------------------------------
# Expressions as text
# ---------------------------------------------------------------------------------------------------------------------


def _text(node: Any, depth: int = 0) -> str:
    """An expression written anew; what Cython put around it is left out."""
    if node is None:
        return ""
    if depth > 12:
        return "..."
    for kind in type(node).__mro__:
        write = _WRITERS.get(kind.__name__)
        if write is not None:
            try:
                return write(node, depth + 1)
            except AttributeError:
                return "..."  # another version's node has other parts; a text is not worth failing for
    return "..."


def _arguments(nodes: Iterable[Any], depth: int) -> str:
    return ", ".join(_text(node, depth) for node in nodes)


def _call_text(node: Any, depth: int) -> str:
    function = getattr(node, "function", None)
    args = getattr(node, "args", None)
    if args is None:
        args = getattr(getattr(node, "arg_tuple", None), "args", None) or ()
    args = list(args)
    if args and type(args[0]).__name__ == "CloneNode" and getattr(node, "self", None) is not None:
        args = args[1:]
    name = _text(function, depth)
    return f"{name}({_arguments(args, depth)})"


_BINDING = {"or": 1, "and": 2, "|": 5, "^": 6, "&": 7, "<<": 8, ">>": 8, "+": 9, "-": 9, "**": 12}
_COMPARISON, _FACTOR, _UNARY, _POSTFIX = 4, 10, 11, 13


def _binds(node: Any) -> int:
    """How tightly an expression's outermost operator binds."""
    node = _unwrapped(node)
    if isinstance(node, ExprNodes.BoolBinopResultNode):
        return _binds(node.arg)
    if isinstance(node, ExprNodes.BinopNode | ExprNodes.BoolBinopNode):
        return _BINDING.get(str(node.operator), _FACTOR)
    if isinstance(node, ExprNodes.PrimaryCmpNode):
        return _COMPARISON
    if isinstance(node, ExprNodes.NotNode):
        return 3
    if isinstance(node, ExprNodes.CondExprNode | ExprNodes.LambdaNode):
        return 0
    if isinstance(node, ExprNodes.UnopNode | ExprNodes.TypecastNode | ExprNodes.AmpersandNode):
        return _UNARY
    return _POSTFIX


def _operand(node: Any, depth: int, least: int) -> str:
    """An operand, in parentheses where its own operator binds less tightly than `least`."""
    text = _text(node, depth)
    return f"({text})" if node is not None and _binds(node) < least else text


def _binary(node: Any, depth: int) -> str:
    level = _BINDING.get(str(node.operator), _FACTOR)
    return f"{_operand(node.operand1, depth, level)} {node.operator} {_operand(node.operand2, depth, level + 1)}"


def _compare(node: Any, depth: int) -> str:
    operator = str(node.operator).replace("_", " ")
    rest = _compare(node.cascade, depth) if getattr(node, "cascade", None) else ""
    left = _operand(node.operand1, depth, 5) if hasattr(node, "operand1") and node.operand1 is not None else ""
    return f"{left} {operator} {_operand(node.operand2, depth, 5)}{rest}"


def _conditional(node: Any, depth: int) -> str:
    condition = getattr(node, "condition", None) or node.test  # its name before Cython 3.3
    return f"{_text(node.true_val, depth)} if {_text(condition, depth)} else {_text(node.false_val, depth)}"


def _slice_text(node: Any, depth: int) -> str:
    parts = [_text(getattr(node, name), depth) for name in ("start", "stop", "step")]
    parts = ["" if part == "None" else part for part in parts]
    return ":".join(parts[:2]) + (f":{parts[2]}" if parts[2] else "")


def _constant(node: Any, depth: int) -> str:
    return str(node.value)


def _of(name: str) -> Callable[[Any, int], str]:
    return lambda node, depth: _text(getattr(node, name, None), depth)


_WRITERS: dict[str, Callable[[Any, int], str]] = {
    "NameNode": lambda node, depth: str(node.name),
    "AttributeNode": lambda node, depth: f"{_operand(node.obj, depth, _POSTFIX)}.{node.attribute}",
    "IndexNode": lambda node, depth: f"{_operand(node.base, depth, _POSTFIX)}[{_text(node.index, depth)}]",
    "BufferIndexNode": lambda node, depth: f"{_operand(node.base, depth, _POSTFIX)}[{_arguments(node.indices, depth)}]",
    "MemoryViewSliceNode": lambda node, depth: (
        f"{_text(node.base, depth)}[{_arguments(getattr(node, 'original_indices', node.indices), depth)}]"
    ),
    "SliceIndexNode": lambda node, depth: (
        f"{_text(node.base, depth)}[{_text(node.start, depth)}:{_text(node.stop, depth)}]"
    ),
    "SliceNode": _slice_text,
    "CallNode": _call_text,
    "SimpleCallNode": _call_text,
    "GeneralCallNode": lambda node, depth: (
        f"{_text(node.function, depth)}({_text(node.positional_args, depth).strip('(),')}, ...)"
    ),
    "PyMethodCallNode": _call_text,
    "CachedBuiltinMethodCallNode": lambda node, depth: (
        f"{_text(node.obj, depth)}.{node.method_name}({_arguments(node.args, depth)})"
    ),
    "PythonCapiCallNode": lambda node, depth: (
        f"{getattr(node.function, 'cname', '').removeprefix('__Pyx_')}({_arguments(node.args, depth)})"
    ),
    "NewExprNode": lambda node, depth: f"new {node.class_type}" if getattr(node, "class_type", None) else "new ...",
    "ConstNode": _constant,
    "UnicodeNode": lambda node, depth: repr(str(node.value)),
    "BytesNode": lambda node, depth: "b" + repr(str(node.value)),
    "NoneNode": lambda node, depth: "None",
    "NullNode": lambda node, depth: "NULL",
    "EllipsisNode": lambda node, depth: "...",
    "TupleNode": lambda node, depth: f"({_arguments(node.args, depth)}{',' if len(node.args) == 1 else ''})",
    "ListNode": lambda node, depth: f"[{_arguments(node.args, depth)}]",
    "SetNode": lambda node, depth: f"{{{_arguments(node.args, depth)}}}",
    "DictNode": lambda node, depth: (
        "{" + ", ".join(f"{_text(p.key, depth)}: {_text(p.value, depth)}" for p in node.key_value_pairs) + "}"
    ),
    "JoinedStrNode": lambda node, depth: f"f'{''.join('{' + _text(v, depth) + '}' for v in node.values)}'",
    "FormattedValueNode": _of("value"),
    "BinopNode": _binary,
    "BoolBinopNode": _binary,
    "BoolBinopResultNode": _of("arg"),
    "PrimaryCmpNode": _compare,
    "CascadedCmpNode": _compare,
    "UnopNode": lambda node, depth: f"{node.operator}{_operand(node.operand, depth, _UNARY)}",
    "NotNode": lambda node, depth: f"not {_operand(node.operand, depth, 3)}",
    "AmpersandNode": lambda node, depth: f"&{_operand(node.operand, depth, _UNARY)}",
    "TypecastNode": lambda node, depth: f"<{node.type}>{_operand(node.operand, depth, _UNARY)}",
    "CondExprNode": _conditional,
    "LambdaNode": lambda node, depth: "lambda",
    "ComprehensionNode": lambda node, depth: "a comprehension",
    "GeneratorExpressionNode": lambda node, depth: "a generator expression",
    "PyCFunctionNode": lambda node, depth: str(getattr(getattr(node, "def_node", None), "name", "a function")),
    "InnerFunctionNode": lambda node, depth: str(getattr(getattr(node, "def_node", None), "name", "a function")),
    "ImportNode": lambda node, depth: f"import {_text(node.module_name, depth).strip(chr(39))}",
    "IteratorNode": _of("sequence"),
    "NextNode": lambda node, depth: f"next of {_text(node.iterator, depth)}",
    "CoercionNode": _of("arg"),
    "NoneCheckNode": _of("arg"),
    "ParallelThreadIdNode": lambda node, depth: "threadid()",
    "SortedListNode": lambda node, depth: f"sorted({_text(node.arg, depth)})",
    "CloneNode": _of("arg"),
    "ProxyNode": _of("arg"),
    "ResultRefNode": _of("expression"),
    "EvalWithTempExprNode": _of("subexpression"),
    "TempResultFromStatNode": lambda node, depth: "...",
    "AttributeLookup": _of("obj"),
    "MemoryCopyNode": _of("dst"),
    "ConsolidatedNode": _of("arg"),
    "AwaitExprNode": lambda node, depth: f"await {_text(node.arg, depth)}",
    "YieldExprNode": lambda node, depth: f"yield {_text(node.arg, depth)}".strip(),
    "RawCNameExprNode": lambda node, depth: "the Python override",
    "SizeofNode": lambda node, depth: "sizeof(...)",
    "ScopedExprNode": lambda node, depth: "...",
    "StarredUnpackingNode": lambda node, depth: f"*{_text(node.target, depth)}",
    "MergedSequenceNode": lambda node, depth: _arguments(node.args, depth),
    "MergedDictNode": lambda node, depth: "{...}",
    "KeywordArgs": lambda node, depth: "...",
}


def _unwrapped(node: Any) -> Any:
    """Without the coercions and copies that Cython put around an expression."""
    while node is not None:
        if isinstance(node, ExprNodes.CoercionNode) or type(node).__name__ in (
            "CloneNode",
            "ProxyNode",
            "NoneCheckNode",
        ):
            node = node.arg
        elif type(node).__name__ == "ResultRefNode" and node.expression is not None:
            node = node.expression
        else:
            break
    return node


def _start(node: Any) -> tuple[int, int]:
    """Line of an expression as Cython marks it, and the first column of it on that line (from 0)."""
    line, column = node.pos[1], node.pos[2]
    step = node
    for _ in range(50):
        step = _unwrapped(step)
        for name in ("obj", "operand1", "base", "function", "lhs", "target"):
            inner = getattr(step, name, None)
            if isinstance(inner, Nodes.Node) and inner.pos is not None and inner.pos[0] is node.pos[0]:
                if inner.pos[1] == line and inner.pos[2] <= column:
                    column = min(column, inner.pos[2])
                    step = inner
                    break
        else:
            break
    return line, column


# ---------------------------------------------------------------------------------------------------------------------
# From the typed tree to facts
# ---------------------------------------------------------------------------------------------------------------------

_DEF_LINE = re.compile(r"^\s*(?:async\s+)?(?:def|cdef|cpdef|class)\b")
_LOCKS = re.compile(r"lock|mutex|semaphore|condition", re.IGNORECASE)
_LOCK_CALLS = {  # C name -> kind, and whether it locks
    "PyMutex_Lock": (GuardKind.C_MUTEX, True),
    "PyMutex_Unlock": (GuardKind.C_MUTEX, False),
    "PyThread_acquire_lock": (GuardKind.PYTHREAD_LOCK, True),
    "PyThread_release_lock": (GuardKind.PYTHREAD_LOCK, False),
    "omp_set_lock": (GuardKind.OPENMP_LOCK, True),
    "omp_unset_lock": (GuardKind.OPENMP_LOCK, False),
    "omp_set_nest_lock": (GuardKind.OPENMP_LOCK, True),
    "omp_unset_nest_lock": (GuardKind.OPENMP_LOCK, False),
    "pthread_mutex_lock": (GuardKind.C_MUTEX, True),
    "pthread_mutex_unlock": (GuardKind.C_MUTEX, False),
    "mtx_lock": (GuardKind.C_MUTEX, True),
    "mtx_unlock": (GuardKind.C_MUTEX, False),
}
_LOCK_METHODS = {"lock": True, "acquire": True, "lock_shared": True, "unlock": False, "release": False,
                 "unlock_shared": False}  # fmt: skip
_CPP_GUARDS = re.compile(r"\b(lock_guard|unique_lock|scoped_lock|shared_lock|py_safe_lock\w*)\b")
_CPP_MUTEX = re.compile(r"\b(mutex|timed_mutex|recursive_mutex|shared_mutex)\b")
_ATOMIC = re.compile(r"^_*(sync|atomic|Py_atomic|_Py_atomic|pyx_atomic|Interlocked)_*\w*", re.IGNORECASE)
_FREES = {"free", "realloc", "PyMem_Free", "PyMem_Realloc", "PyMem_RawFree", "PyMem_RawRealloc", "PyObject_Free",
          "PyObject_Realloc"}  # fmt: skip
_BORROWED = {"PyList_GetItem", "PyList_GET_ITEM", "PyTuple_GetItem", "PyTuple_GET_ITEM", "PyDict_GetItem",
             "PyDict_GetItemString", "PyDict_GetItemWithError", "PyDict_SetDefault", "PyDict_Next",
             "PyWeakref_GetObject", "PyWeakref_GET_OBJECT", "PyImport_AddModule", "PyModule_GetDict",
             "PySys_GetObject", "PyCell_GET",
             "PySequence_Fast_GET_ITEM", "PyErr_Occurred", "PyEval_GetLocals", "PyEval_GetGlobals",
             "PyEval_GetBuiltins", "PyThreadState_GetDict", "_PyDict_GetItem_KnownHash",
             "__Pyx_PyDict_GetItemStr"}  # fmt: skip
_MUTATORS = {"append", "extend", "insert", "pop", "popitem", "popleft", "appendleft", "remove", "clear", "sort",
             "reverse", "update", "setdefault", "add", "discard", "difference_update", "intersection_update",
             "symmetric_difference_update"}  # fmt: skip
# The C that Cython writes for a method of a list, a dict or a set
_CHANGES = re.compile(
    r"Py(?:List|Dict|Set|Object|ByteArray)_"
    r"(Append|Extend|Insert|Pop|Reverse|Sort|Clear|Add|Discard|Remove|SetDefault|Update)"
)
_CONTAINERS = {"DictNode": "dict", "ListNode": "list", "SetNode": "set", "ComprehensionNode": "list",
               "DictComprehensionAppendNode": "dict"}  # fmt: skip
_CONTAINER_CALLS = {"dict", "list", "set", "bytearray", "defaultdict", "OrderedDict", "Counter", "deque", "ChainMap",
                    "WeakValueDictionary", "WeakKeyDictionary", "WeakSet", "array", "zeros", "empty", "ones",
                    "Queue", "SimpleQueue"}  # fmt: skip


class _ModuleReader:
    """Walks a typed tree once and fills a Module."""

    def __init__(
        self,
        path: str,
        kind: str,
        lines: tuple[str, ...],
        tree: Any,
        context: Any,
        options: Options,
        refusals: dict[tuple[str, int], str],
    ) -> None:
        self.path, self.kind, self.lines, self.tree, self.context, self.options = (
            path,
            kind,
            lines,
            tree,
            context,
            options,
        )
        self.refusals = refusals
        self.absolute = os.path.abspath(path)
        self.scope = tree.scope
        self.shown: dict[str, str] = {self.absolute: path}
        self.sources: dict[str, tuple[str, ...]] = {path: lines}
        self.handlers: dict[type, Callable[[Any], None]] = {}
        self.names: list[str] = []  # of the classes and functions around
        self.owner: Any = None  # type of the cdef class around, or name of a Python class
        self.function = Function(
            "", Where(path, 1, 1), None, "def", str(self.scope.qualified_name), "", False, False, False, Check.NONE, "",
            "object", False,
        )  # fmt: skip
        self.toplevel = self.function
        self.merged: dict[tuple[Where, str], Function] = {}
        self.seen: set[Any] = set()
        self.env: Any = self.scope
        self.directives: dict[str, Any] = dict(tree.directives or self.scope.directives or {})
        # What surrounds the node in hand
        self.gil = Gil.HELD
        self.injects = False  # whether Cython would take the GIL by itself for a raise here
        self.loops = 0
        self.guards: list[Guard] = []
        self.parallel: int | None = None
        self.handled = False
        self.tests: tuple[str, ...] = ()
        self.containers: dict[Where, str] = {}  # where a name is set to something mutable, and what
        self.assigned = ""  # name that the expression in hand is assigned to
        self.module = Module(path, str(self.scope.qualified_name), kind, lines, bool(context.cpp), {}, {}, {}, "", {})

    # -- the module -----------------------------------------------------------------------------------------------

    def read(self) -> Module:
        module = self.module
        module.directives = {name: value for name, value in self.directives.items() if _plain(value)}
        module.comments = _comments(self.path, self.lines)
        module.written = _written(self.path, module.comments)
        module.said_by = {name: self.options.source(name) for name, _ in self.options.directives}
        module.said_by |= dict.fromkeys(module.written, "the file")
        self.read_pxd()
        self.visit(self.tree.body)
        if self.kind == "pxd":
            self.toplevel.operations.clear()
        else:
            self.read_pxd_functions()
        module.toplevel = self.toplevel
        module.functions = sorted(self.merged.values(), key=lambda function: (function.where, function.name))
        self.read_variables()
        self.read_declarations()
        self.read_refusals()
        module.classes.sort(key=lambda found: found.where)
        module.variables.sort(key=lambda found: (found.where, found.name))
        module.includes = tuple(sorted(self.shown[name] for name in self.shown if name.endswith(".pxi")))
        return module

    def read_pxd(self) -> None:
        """The module's own .pxd: its header's directives."""
        if self.kind == "pxd":
            return
        beside = os.path.splitext(self.path)[0] + ".pxd"
        if not os.path.isfile(beside):
            return
        self.module.pxd = beside
        try:
            with open(beside, "rb") as file:
                text, undecodable = _decode(file.read())
        except OSError:
            return
        if undecodable is None:
            self.module.pxd_directives = _written(beside, _comments(beside, tuple(text.split("\n"))))

    def read_pxd_functions(self) -> None:
        """The functions that the module's own .pxd defines; Cython keeps them apart until it writes C."""
        code, scope = self.context.pxds.get(str(self.scope.qualified_name), (None, None))
        if code is not None:
            saved, self.directives = self.directives, dict(scope.directives or {})
            self.visit(code)
            self.directives = saved

    def read_variables(self) -> None:
        """Module-level names that are neither functions nor classes."""
        firsts: dict[str, tuple[str, str, Where]] = {}
        for access in self.toplevel.accesses:
            if access.kind == "global" and access.write and access.base not in firsts:
                firsts[access.base] = (access.value, self.containers.get(access.where, ""), access.where)
        defined = {function.name for function in self.module.functions} | {found.name for found in self.module.classes}
        for entry in self.scope.entries.values():
            if not entry.is_variable or entry.is_builtin or not self.is_file(entry.pos):
                continue
            name = str(entry.name)
            if entry.scope is not self.scope or name.startswith("__pyx_") or name == "__test__" or name in defined:
                continue
            type_ = entry.type
            value, container, where = firsts.get(name, ("", "", self.where(entry.pos)))
            if entry.in_cinclude:
                kind = "extern"
            elif type_.is_pyobject and entry.is_pyglobal:
                kind = "python"
                if not value and name not in firsts:
                    continue  # an import, a function, a class, or a builtin that was looked up
            elif getattr(entry, "is_const", False) and not type_.is_const and not entry.is_cglobal:
                kind = "constant"
            else:
                kind = "cdef"
                where = self.where(entry.pos)
            self.module.variables.append(
                Variable(name, where, kind, str(type_), bool(type_.is_pyobject), value, container,
                         bool(getattr(type_, "is_const", False)), str(entry.visibility))
            )  # fmt: skip

    def read_refusals(self) -> None:
        """What Cython has refused and taken out of the tree, or refused for where it stands."""
        known = {
            (one.where.path, one.where.line)
            for function in [*self.module.functions, self.toplevel]
            for one in [*function.operations, *(call for call in function.calls if not call.nogil)]
        }
        for (path, line), message in sorted(self.refusals.items()):
            path = self.shown.get(os.path.abspath(path), path)
            lines = self.source(path)
            text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
            where = Where(path, line, len(lines[line - 1]) - len(lines[line - 1].lstrip()) + 1 if text else 1)
            around = [one for one in self.module.functions if one.where.path == path and one.where.line <= line]
            function = max(around, key=lambda one: one.where.line, default=self.toplevel)
            if message.startswith(("prange() can only", "The parallel section may only")):
                section = message.startswith("The")
                function.parallels.append(Parallel(where, Context(Gil.HELD), "", True, (), (), None, section))
            elif (path, line) not in known and line not in {one.where.line for one in function.parallels}:
                function.operations.append(
                    Operation(where, Context(Gil.RELEASED), "Refused", text or "this", message.rstrip("."), False)
                )

    # -- positions ------------------------------------------------------------------------------------------------

    def is_file(self, pos: Any) -> bool:
        return pos is not None and isinstance(pos[0], FileSourceDescriptor)

    def show(self, source: Any) -> str:
        """The path of a source as the person gave it, or near that."""
        name = os.path.abspath(source.filename)
        if name not in self.shown:
            folder = os.path.dirname(self.absolute)
            if name.startswith(folder + os.sep):
                self.shown[name] = os.path.join(os.path.dirname(self.path), name[len(folder) + 1 :])
            else:
                self.shown[name] = name
        return self.shown[name]

    def where(self, pos: Any) -> Where:
        if not self.is_file(pos):
            return Where(self.path, 1, 1)
        return Where(self.show(pos[0]), pos[1], pos[2] + 1)

    def at(self, node: Any) -> Where:
        if not self.is_file(node.pos):
            return Where(self.path, 1, 1)
        line, column = _start(node)
        return Where(self.show(node.pos[0]), line, column + 1)

    def context_here(self) -> Context:
        return Context(self.gil, self.loops, tuple(self.guards), self.parallel, self.handled, self.tests)

    def add(self, facts: list[Any], fact: Any) -> None:
        """One fact, once: specialisations of a fused function and copies of a finally clause repeat them."""
        key = (id(facts), fact)
        if key not in self.seen:
            self.seen.add(key)
            facts.append(fact)

    # -- walking --------------------------------------------------------------------------------------------------

    def visit(self, node: Any) -> None:
        kind = type(node)
        handler = self.handlers.get(kind)
        if handler is None:
            handler = self.on_Node
            for base in kind.__mro__:
                found = getattr(self, f"on_{base.__name__}", None)
                if found is not None:
                    handler = found
                    break
            self.handlers[kind] = handler
        handler(node)

    def visit_all(self, nodes: Any) -> None:
        if isinstance(nodes, Nodes.Node):
            self.visit(nodes)
        elif isinstance(nodes, list | tuple):
            for node in nodes:
                self.visit_all(node)

    def children(self, node: Any, *but: str) -> None:
        for name in node.child_attrs:
            if name not in but:
                self.visit_all(getattr(node, name, None))

    def on_Node(self, node: Any) -> None:
        self.refuse(node)
        self.children(node)

    def refuse(self, node: Any) -> None:
        """Asks Cython whether it would refuse this node, its children apart, in nogil code."""
        check = node.nogil_check
        if check is None or (self.function is self.toplevel and self.gil is Gil.HELD):
            return
        with Errors.local_errors(ignore=True) as errors:
            check(self.env)
        for error in errors:
            self.operation(node, error.message_only)

    def operation(self, node: Any, refusal: str, kind: str = "", expression: str = "") -> None:
        if not self.is_file(node.pos) or (self.function is self.toplevel and self.gil is Gil.HELD):
            return
        fact = Operation(
            self.at(node),
            self.context_here(),
            kind or type(node).__name__.removesuffix("Node"),
            expression or _text(_unwrapped(node)) or "...",
            refusal,
            True,
        )
        self.add(self.function.operations, fact)

    # -- functions ------------------------------------------------------------------------------------------------

    def on_CFuncDefNode(self, node: Any) -> None:
        if node.body is None or not self.is_file(node.pos):
            return
        type_ = node.type
        entry = node.entry
        if not self.names and getattr(entry.scope, "parent_type", None) is not None:
            # A method that the module's own .pxd defines: Cython keeps those without their classes
            self.names, self.owner = [str(entry.scope.name)], entry.scope.parent_type
            self.on_CFuncDefNode(node)
            self.names, self.owner = [], None
            return
        base = getattr(entry, "fused_cfunction", None)
        name = str(base.entry.name if base is not None and getattr(base, "entry", None) else node.declared_name())
        function = self.start(node, name, "cpdef" if node.overridable or entry.is_overridable else "cdef")
        self.signature(function, type_, entry)
        declarator = node.declarator
        while declarator is not None and not hasattr(declarator, "has_explicit_exc_clause"):
            declarator = getattr(declarator, "base", None)
        function.has_except = bool(getattr(declarator, "has_explicit_exc_clause", False))
        function.inline = "inline" in (node.modifiers or ())
        function.arguments = tuple(
            Argument(str(arg.name), str(arg.type), bool(arg.type.is_pyobject), bool(arg.type.is_memoryviewslice),
                     self.where(arg.pos))
            for arg in type_.args
        )  # fmt: skip
        function.overrides = self.overridden(entry)
        if type_.return_type.is_memoryviewslice:  # tested for being set on the way out, with the GIL if it is not
            self.add(function.unwinds, Fact(function.where, Context(Gil.RELEASED)))
        self.body(function, node, node.body, nogil=bool(node.local_scope.nogil))

    def on_OverrideCheckNode(self, node: Any) -> None:
        refusal = "Calling gil-requiring function not allowed without gil"
        self.operation(node, refusal, "Override", "the look-up of a Python override")

    def on_FusedCFuncDefNode(self, node: Any) -> None:
        for inner in node.nodes:
            self.visit(inner)

    def on_DefNode(self, node: Any) -> None:
        if getattr(node, "is_wrapper", False) or not self.is_file(node.pos):
            return
        name = str(node.name)
        function = self.start(node, name, "generator" if node.is_generator else "def")
        self.def_arguments(function, node)
        self.body(function, node, node.body, nogil=False)

    def on_GeneratorDefNode(self, node: Any) -> None:
        if not self.is_file(node.pos):
            return
        function = self.start(node, str(node.name), "generator")
        self.def_arguments(function, node)
        self.body(function, node.gbody, node.gbody.body, nogil=False)

    def on_LambdaNode(self, node: Any) -> None:
        self.refuse(node)
        definition = node.def_node
        function = self.start(definition, "<lambda>", "lambda")
        self.def_arguments(function, definition)
        self.body(function, definition, definition.body, nogil=False)

    def on_GeneratorExpressionNode(self, node: Any) -> None:
        self.refuse(node)
        definition = node.def_node
        body = getattr(definition, "gbody", None) or definition
        function = self.start(definition, "<genexpr>", "generator")
        self.body(function, body, body.body, nogil=False)

    def on_PyCFunctionNode(self, node: Any) -> None:
        self.refuse(node)

    def def_arguments(self, function: Function, node: Any) -> None:
        function.arguments = tuple(
            Argument(str(arg.name), str(arg.type), bool(arg.type and arg.type.is_pyobject),
                     bool(arg.type and arg.type.is_memoryviewslice), self.where(arg.pos))
            for arg in node.args
        )  # fmt: skip

    def start(self, node: Any, name: str, kind: str) -> Function:
        """A new function, or the one that another specialisation of it has begun."""
        dotted = ".".join([*self.names, name]).removesuffix(".__get__")
        where = self.where(node.pos)
        definition, decorators = self.definition(where)
        key = (where, dotted)
        if key in self.merged:
            self.merged[key].specialisations += 1
            return self.merged[key]
        owner, extension = "", False
        if self.owner is not None:
            extension = not isinstance(self.owner, str)
            owner = self.type_name(self.owner) if extension else self.owner
        function = Function(
            dotted, where, None, kind, f"{self.module.name}.{dotted}", owner, extension, False, False, Check.OBJECT, "",
            "object", False, decorators=decorators, definition=definition,
        )  # fmt: skip
        entry = getattr(node, "entry", None)
        if entry is not None and self.is_file(entry.pos):
            function.declared = self.where(entry.pos)
        self.merged[key] = function
        return function

    def definition(self, where: Where) -> tuple[int, tuple[str, ...]]:
        """The line of the `def` or `class` itself, and the decorators: Cython's position may be the first of them."""
        lines = self.source(where.path)
        first = index = where.line - 1
        if not 0 <= index < len(lines):
            return where.line, ()
        if lines[index].lstrip().startswith("@"):
            while index < min(first + 60, len(lines) - 1) and not _DEF_LINE.match(lines[index]):
                index += 1
        while first > 0 and lines[first - 1].lstrip().startswith("@"):
            first -= 1
        decorators = [line.strip()[1:].strip() for line in lines[first:index] if line.lstrip().startswith("@")]
        return index + 1, tuple(decorators)

    def source(self, path: str) -> tuple[str, ...]:
        """Lines of this file or of one that it includes."""
        if path not in self.sources:
            self.sources[path] = ()
            try:
                with open(path, "rb") as file:
                    self.sources[path] = tuple(_decode(file.read())[0].split("\n"))
            except OSError:
                pass  # it went away since Cython read it; only decorators are missed
        return self.sources[path]

    def signature(self, function: Function, type_: Any, entry: Any) -> None:
        check, sentinel = _check(type_)
        if function.specialisations == 1 or check is Check.ALWAYS:
            function.check, function.sentinel = check, sentinel
        function.nogil = bool(type_.nogil and not type_.with_gil)
        function.with_gil = bool(type_.with_gil)
        function.returns = str(type_.return_type)

    def overridden(self, entry: Any) -> tuple[str, ...]:
        """Methods of base classes that this one stands for."""
        scope = getattr(entry, "scope", None)
        parent = getattr(scope, "parent_type", None)
        found = []
        base = getattr(parent, "base_type", None)
        while base is not None and getattr(base, "scope", None) is not None:
            inherited = base.scope.entries.get(entry.name)
            if inherited is not None and inherited.is_cfunction:
                found.append(f"{self.type_name(base)}.{entry.name}")
            base = base.base_type
        return tuple(dict.fromkeys(found))

    def type_name(self, type_: Any) -> str:
        """The dotted name of an extension type or struct."""
        entry = getattr(type_, "entry", None)
        scope = getattr(entry, "scope", None)
        name = str(getattr(type_, "name", "") or type_)
        return f"{scope.qualified_name}.{name}" if scope is not None else name

    def body(self, function: Function, node: Any, body: Any, nogil: bool) -> None:
        """Reads a function's body; what surrounds it does not surround its code."""
        saved = (
            self.function, self.env, self.gil, self.injects, self.loops, self.guards, self.parallel, self.handled,
            self.tests, self.names, self.owner, self.assigned,
        )  # fmt: skip
        self.function, self.env = function, node.local_scope
        self.gil = Gil.RELEASED if nogil else Gil.HELD
        self.injects, self.loops, self.guards, self.parallel = True, 0, [], None
        self.handled, self.tests, self.assigned = False, (), ""
        self.names = [*function.name.split(".")]
        self.owner = None
        if function.kind in ("cdef", "cpdef"):
            self.refuse_signature(function, node)
        function.end = max(function.end, function.where.line, _last_line(body, self))
        scope = node.local_scope
        function.locals = tuple(
            sorted({(str(e.name), str(e.type)) for e in scope.var_entries} | set(function.locals), key=lambda v: v)
        )
        self.visit_all(body)
        (
            self.function, self.env, self.gil, self.injects, self.loops, self.guards, self.parallel, self.handled,
            self.tests, self.names, self.owner, self.assigned,
        ) = saved  # fmt: skip

    def refuse_signature(self, function: Function, node: Any) -> None:
        """What CFuncDefNode.nogil_check and its declaration refuse."""
        type_ = node.type
        if type_.return_type.is_pyobject:
            refusal = "Function with Python return type cannot be declared nogil"
            self.operation(node, refusal, "ReturnType", f"returns {type_.return_type}")
        for arg in type_.args:
            if arg.type.is_buffer or arg.type.is_pythran_expr:
                refusal = "Buffer may not be acquired without the GIL. Consider using memoryview slices instead."
                self.operation(node, refusal, "Buffer", str(arg.name))
        for entry in node.local_scope.var_entries:
            if entry.type.is_pyobject and not entry.in_with_gil_block and self.is_file(entry.pos):
                refusal = "Function declared nogil has Python locals or temporaries"
                where = self.where(entry.pos)
                fact = Operation(where, self.context_here(), "Local", str(entry.name), refusal, True)
                self.add(function.operations, fact)

    # -- classes and declarations ---------------------------------------------------------------------------------

    def on_CClassDefNode(self, node: Any) -> None:
        if node.body is None or getattr(node, "entry", None) is None or not self.is_file(node.pos):
            return
        type_ = node.entry.type
        self.module.classes.append(self.class_of(node.entry, type_, "cdef", self.where(node.pos)))
        saved = (self.names, self.owner)
        self.names, self.owner = [*self.names, str(node.class_name)], type_
        self.visit(node.body)
        self.names, self.owner = saved

    def on_PropertyNode(self, node: Any) -> None:
        """A property somebody wrote; what Cython makes of a readonly or public attribute is in the class's facts."""
        scope = getattr(self.owner, "scope", None)
        if scope is not None and any(str(member.name) == str(node.name) for member in scope.var_entries):
            return
        saved, self.names = self.names, [*self.names, str(node.name)]
        self.visit(node.body)
        self.names = saved

    def class_of(self, entry: Any, type_: Any, kind: str, where: Where) -> Class:
        bases, base = [], getattr(type_, "base_type", None)
        while base is not None:
            bases.append(self.type_name(base))
            base = getattr(base, "base_type", None)
        attributes = []
        for member in type_.scope.var_entries if type_.scope is not None else ():
            if getattr(member, "is_inherited", False) or not self.is_file(member.pos):
                continue
            attributes.append(self.attribute(member))
        _, decorators = self.definition(where)
        return Class(
            ".".join([*self.names, str(entry.name)]), where, self.type_name(type_), kind, tuple(bases),
            tuple(sorted(attributes, key=lambda found: found.where)), decorators,
            bool(getattr(entry, "in_cinclude", False)),
        )  # fmt: skip

    def attribute(self, member: Any) -> Attribute:
        type_ = member.type
        return Attribute(
            str(member.name), str(type_), self.where(member.pos), bool(type_.is_pyobject),
            bool(type_.is_memoryviewslice), bool(type_.is_ptr), _is_borrowed(type_), str(member.visibility),
        )  # fmt: skip

    def on_PyClassDefNode(self, node: Any) -> None:
        name = str(node.name)
        dotted = ".".join([*self.names, name])
        where = self.where(node.pos)
        _, decorators = self.definition(where)
        if self.is_file(node.pos):
            self.module.classes.append(
                Class(dotted, where, f"{self.module.name}.{dotted}", "python", (), (), decorators)
            )
        self.refuse(node)
        saved = (self.names, self.owner)
        self.children(node, "body")
        self.names, self.owner = [*self.names, name], f"{self.module.name}.{dotted}"
        self.visit_all(node.body)
        self.names, self.owner = saved

    def on_CDefExternNode(self, node: Any) -> None:
        code = getattr(node, "verbatim_include", None)
        if code and self.is_file(node.pos):
            where = self.where(node.pos)
            self.module.verbatim.append(Verbatim(Where(where.path, where.line + 1, 1), str(code)))
        self.children(node)

    def read_declarations(self) -> None:
        """Functions declared without a body here, function-pointer types, and structs."""
        defined = {where for function in self.merged.values() for where in (function.where, function.declared)}
        scopes = [(self.scope, "")]
        for entry in self.scope.c_class_entries:
            if entry.type.scope is not None and entry.scope is self.scope:
                scopes.append((entry.type.scope, f"{entry.name}."))
        for scope, prefix in scopes:
            for entry in scope.entries.values():
                if entry.is_cfunction and not getattr(entry, "is_inherited", False) and self.is_here(entry.pos):
                    if self.where(entry.pos) not in defined:
                        kind = "extern" if entry.visibility == "extern" or entry.in_cinclude else "cdef"
                        self.declaration(f"{prefix}{entry.name}", entry, entry.type, kind)
        for entry in self.scope.type_entries:
            type_ = entry.type
            if not self.is_here(entry.pos):
                continue
            if type_.is_struct_or_union or type_.is_cpp_class:
                kind = "c++" if type_.is_cpp_class else str(type_.kind)
                self.module.classes.append(self.class_of(entry, type_, kind, self.where(entry.pos)))
            elif type_.is_typedef and type_.typedef_base_type.is_ptr:
                self.declaration(str(entry.name), entry, type_.typedef_base_type.base_type, "pointer")
        self.module.declarations.sort(key=lambda found: (found.where, found.name))

    def is_here(self, pos: Any) -> bool:
        """In this file or one that it includes."""
        return self.is_file(pos) and (
            os.path.abspath(pos[0].filename) == self.absolute or pos[0].filename.endswith(".pxi")
        )

    def declaration(self, dotted: str, entry: Any, type_: Any, kind: str) -> None:
        if not type_.is_cfunction:
            return
        function = Function(
            dotted, self.where(entry.pos), None, kind, f"{self.module.name}.{dotted}", "", False, False, False,
            Check.NONE, "", "", False, extern=kind == "extern",
        )  # fmt: skip
        self.signature(function, type_, entry)
        self.module.declarations.append(function)

    def on_CVarDefNode(self, node: Any) -> None:
        if node.visibility != "extern" and self.function is not self.toplevel:
            self.children(node)

    def on_CompilerDirectivesNode(self, node: Any) -> None:
        saved, self.directives = self.directives, node.directives
        self.children(node)
        self.directives = saved

    # -- imports --------------------------------------------------------------------------------------------------

    def imported(self, node: Any, module: str, names: Iterable[str], cimport: bool) -> None:
        if self.is_file(node.pos):
            self.module.imports.append(Import(self.where(node.pos), module, tuple(names), cimport, self.function.name))

    def on_CImportStatNode(self, node: Any) -> None:
        self.imported(node, str(node.module_name), (), True)

    def on_FromCImportStatNode(self, node: Any) -> None:
        self.imported(node, "." * (node.relative_level or 0) + str(node.module_name), _imported_names(node), True)

    def on_FromImportStatNode(self, node: Any) -> None:
        self.imported(
            node, str(_text(node.module.module_name)).strip("'"), [str(name) for name, _ in node.items], False
        )
        self.on_Node(node)

    def on_ImportNode(self, node: Any) -> None:
        if getattr(node, "name_list", None) is None or not getattr(node.name_list, "args", None):
            self.imported(node, str(_text(node.module_name)).strip("'"), (), False)
        self.refuse(node)

    # -- blocks ---------------------------------------------------------------------------------------------------

    def on_GILStatNode(self, node: Any) -> None:
        body = node.body
        if node.state == "gil" and isinstance(body, Nodes.RaiseStatNode):
            self.visit(body)  # put there by Cython
            return
        generated = isinstance(body, Nodes.ParallelStatNode | Nodes.PrintStatNode)
        if not generated:
            kind = GilBlock if node.state == "gil" else NogilBlock
            facts: list[Any] = self.function.gil_blocks if node.state == "gil" else self.function.nogil_blocks
            self.add(facts, kind(self.where_of_with(node), self.context_here()))
        saved = (self.gil, self.injects)
        self.gil = Gil.TAKEN if node.state == "gil" else Gil.RELEASED
        self.injects = node.state == "nogil"
        self.visit(body)
        self.gil, self.injects = saved

    def where_of_with(self, node: Any) -> Where:
        """Of the `with`, which Cython does not keep."""
        where = self.where(node.pos)
        lines = self.source(where.path)
        if 0 < where.line <= len(lines):
            before = lines[where.line - 1][: where.column - 1]
            start = before.rfind("with")
            if start >= 0:
                return Where(where.path, where.line, start + 1)
        return where

    def on_RaiseStatNode(self, node: Any) -> None:
        self.raised(node, "raise", f"raise {_text(node.exc_type) or ''}".strip())

    def raised(self, node: Any, kind: str, expression: str) -> None:
        if self.is_file(node.pos):
            self.add(self.function.raises, Raise(self.where(node.pos), self.context_here(), kind, expression))
        if not self.injects:
            self.refuse(node)
        saved = self.gil
        if self.injects:
            self.gil = Gil.TAKEN
        self.children(node)
        self.gil = saved

    def on_ReraiseStatNode(self, node: Any) -> None:
        if self.is_file(node.pos):
            self.add(self.function.raises, Raise(self.where(node.pos), self.context_here(), "reraise", "raise"))
        self.refuse(node)

    def on_AssertStatNode(self, node: Any) -> None:
        self.visit(node.condition)
        exception = node.exception
        while isinstance(exception, Nodes.GILStatNode | Nodes.StatListNode):
            exception = exception.body if isinstance(exception, Nodes.GILStatNode) else exception.stats[0]
        if isinstance(exception, Nodes.RaiseStatNode):
            self.raised(exception, "assert", f"assert {_text(node.condition)}")
        else:
            self.visit_all(node.exception)

    def on_TryFinallyStatNode(self, node: Any) -> None:
        before = list(self.guards)
        self.visit(node.body)
        self.visit_all(node.finally_clause)
        self.guards[:] = (
            [guard for guard in before if guard in self.guards] if len(self.guards) < len(before) else before
        )

    def on_CriticalSectionStatNode(self, node: Any) -> None:
        self.refuse(node)
        self.visit_all(node.args)
        self.guarded(node, GuardKind.CRITICAL_SECTION, ", ".join(_text(_unwrapped(arg)) for arg in node.args))

    def on_CythonLockStatNode(self, node: Any) -> None:
        self.visit(node.arg)
        kind = GuardKind.PYTHREAD_LOCK if "thread_type_lock" in str(node.arg.type) else GuardKind.PYMUTEX
        self.guarded(node, kind, _text(_unwrapped(node.arg)))

    def guarded(self, node: Any, kind: GuardKind, what: str) -> None:
        self.guards.append(Guard(kind, what, self.where_of_with(node)))
        self.visit(node.body)
        self.guards.pop()

    def on_WithStatNode(self, node: Any) -> None:
        self.refuse(node)
        manager = _text(_unwrapped(node.manager))
        held = bool(_LOCKS.search(manager))
        self.children(node, "body")
        if held:
            self.guards.append(Guard(GuardKind.PYTHON_LOCK, manager, self.where_of_with(node)))
        self.visit(node.body)
        if held:
            self.guards.pop()

    def on_TryExceptStatNode(self, node: Any) -> None:
        self.refuse(node)
        saved, self.handled = self.handled, True
        self.visit(node.body)
        self.handled = saved
        self.children(node, "body")

    def on_IfStatNode(self, node: Any) -> None:
        saved = self.tests
        before = list(self.guards)
        failed: tuple[str, ...] = ()
        for clause in node.if_clauses:
            self.tests = saved + failed
            self.visit(clause.condition)
            condition = _text(_unwrapped(clause.condition))
            self.tests = (*saved, *failed, condition)
            self.visit(clause.body)
            self.guards[:] = before
            failed = (*failed, f"not ({condition})")
        self.tests = saved + failed
        self.visit_all(node.else_clause)
        self.guards[:] = before
        self.tests = saved

    def loop(self, node: Any, *first: str) -> None:
        """A loop: what `first` names is evaluated once."""
        self.refuse(node)
        for name in first:
            self.visit_all(getattr(node, name, None))
        sequence = getattr(self.tree, "loops_over", {}).get(node.pos)
        if sequence is not None:
            self.iterate(node, sequence)
        before = list(self.guards)
        self.loops += 1
        self.children(node, *first, "else_clause")
        self.loops -= 1
        self.guards[:] = before
        self.visit_all(getattr(node, "else_clause", None))

    def on_WhileStatNode(self, node: Any) -> None:
        self.loop(node)

    def on_ForFromStatNode(self, node: Any) -> None:
        self.target(node.target, f"range({_text(_unwrapped(node.bound1))}, {_text(_unwrapped(node.bound2))})")
        self.loop(node, "bound1", "bound2", "step")

    def on__ForInStatNode(self, node: Any) -> None:
        sequence = getattr(getattr(node, "iterator", None), "sequence", None)
        self.target(node.target, _text(_unwrapped(sequence)) if _is_range(sequence) else "")
        self.loop(node, "iterator")

    def on_ParallelRangeNode(self, node: Any) -> None:
        takes = bool(getattr(node, "acquire_gil", False))
        operators = {  # with whether the last value is kept, before Cython 3.3
            str(entry.name): value[0] if isinstance(value, tuple) else value for entry, value in node.privates.items()
        }
        reductions = tuple(sorted((name, str(operator)) for name, operator in operators.items() if operator))
        privates = tuple(sorted(name for name, operator in operators.items() if not operator))
        outer = self.parallel
        fact = Parallel(self.at_for(node), self.context_here(), _text(node.target), takes, reductions, privates, outer)
        saved = (self.gil, self.injects, self.parallel, self.loops)
        self.refuse(node)
        self.visit_all(node.args)
        self.parallel = self.enter(fact)
        if takes:
            self.gil = Gil.HELD
        # Only `nogil=True` makes Cython take the GIL for a raise; afterwards the two look alike in nogil code, where
        # it has then been taken already.
        self.injects = not takes
        self.loops += 1
        self.target(node.target, "")
        self.visit(node.body)
        self.gil, self.injects, self.parallel, self.loops = saved
        self.visit_all(getattr(node, "else_clause", None))

    def enter(self, parallel: Parallel) -> int:
        """Its index among the function's; another specialisation of a fused function may have met it."""
        self.add(self.function.parallels, parallel)
        return self.function.parallels.index(parallel)

    def at_for(self, node: Any) -> Where:
        """Of the `for`."""
        where = self.where(node.pos)
        lines = self.source(where.path)
        if 0 < where.line <= len(lines):
            start = lines[where.line - 1].find("for")
            if 0 <= start < where.column:
                return Where(where.path, where.line, start + 1)
        return where

    def on_ParallelWithBlockNode(self, node: Any) -> None:
        takes = bool(getattr(node, "acquire_gil", False))
        privates = tuple(sorted(str(e.name) for e in node.privates))
        fact = Parallel(self.where(node.pos), self.context_here(), "", takes, (), privates, self.parallel, True)
        saved = (self.gil, self.injects, self.parallel)
        self.refuse(node)
        self.parallel = self.enter(fact)
        if takes:
            self.gil = Gil.HELD
        self.injects = not takes
        self.visit(node.body)
        self.gil, self.injects, self.parallel = saved

    # -- assignments ----------------------------------------------------------------------------------------------

    def on_SingleAssignmentNode(self, node: Any) -> None:
        rhs = node.rhs
        operation = _unwrapped(rhs)
        augmented = isinstance(operation, ExprNodes.BinopNode) and bool(getattr(operation, "inplace", False))
        self.assign(node.lhs, rhs, augmented)
        if augmented:
            operation = _unwrapped(operation.operand2)
        saved, self.assigned = self.assigned, _text(node.lhs)
        self.visit(rhs)
        self.assigned = saved

    def on_CascadedAssignmentNode(self, node: Any) -> None:
        for lhs in node.lhs_list:
            self.assign(lhs, node.rhs, False)
        saved, self.assigned = self.assigned, _text(node.lhs_list[0])
        self.children(node, "lhs_list")
        self.assigned = saved

    def on_InPlaceAssignmentNode(self, node: Any) -> None:
        self.assign(node.lhs, node.rhs, True)
        self.refuse(node)
        self.visit(node.rhs)

    def assign(self, lhs: Any, rhs: Any, augmented: bool) -> None:
        if lhs.type is not None and lhs.type.is_pyobject:
            self.operation(lhs, "Assignment of Python object not allowed without gil", "Assignment")
        value = _unwrapped(rhs)
        if (
            lhs.type is not None
            and lhs.type.is_memoryviewslice
            and not isinstance(value, ExprNodes.CoerceToMemViewSliceNode)
        ):
            if not isinstance(_first(rhs), ExprNodes.CoerceToMemViewSliceNode) and not isinstance(
                lhs, ExprNodes.MemoryCopyNode
            ):
                self.view(lhs, "count", _text(lhs), _text(value))
        self.target(lhs, _text(value), augmented)
        container = _container(value)
        if container and self.function is self.toplevel:
            self.containers[self.at(lhs)] = container

    def view(self, node: Any, kind: str, target: str, expression: str) -> None:
        if self.is_file(node.pos):
            self.add(self.function.views, View(self.at(node), self.context_here(), kind, target, expression))

    def target(self, node: Any, value: str, augmented: bool = False) -> None:
        """A place that is written."""
        if isinstance(node, ExprNodes.TupleNode | ExprNodes.ListNode):
            for item in node.args:
                self.target(item, "", augmented)
            self.refuse(node)
            return
        if isinstance(node, ExprNodes.StarredUnpackingNode):
            self.target(node.target, "", augmented)
            return
        self.access(node, write=True, augmented=augmented, value=value)
        self.place(node)

    def place(self, node: Any) -> None:
        """The parts of a written place, and what Cython says of the place itself."""
        self.refuse(node)
        self.checks(node)
        if isinstance(node, ExprNodes.AttributeNode):
            self.visit(node.obj)
        elif isinstance(node, ExprNodes.NameNode):
            pass
        else:
            self.children(node)

    def on_DelStatNode(self, node: Any) -> None:
        self.refuse(node)
        for arg in node.args:
            self.access(arg, write=True, deleted=True)
            self.place(arg)

    # -- places ---------------------------------------------------------------------------------------------------

    def on_NameNode(self, node: Any) -> None:
        self.refuse(node)
        self.checks(node)
        entry = node.entry
        if entry is not None and _root_kind(self, node) in ("global", "closure"):
            self.access(node)

    def on_AttributeNode(self, node: Any) -> None:
        self.refuse(node)
        self.checks(node)
        entry = node.entry
        if not (entry is not None and (entry.is_cfunction or entry.is_type)) and node.obj.type is not None:
            if not getattr(node, "is_memslice_transpose", False) and not _is_shape(node):
                self.access(node)
        self.visit(node.obj)

    def on_IndexNode(self, node: Any) -> None:
        self.refuse(node)
        self.checks(node)
        self.access(node)
        self.children(node)

    on_BufferIndexNode = on_IndexNode

    def on_MemoryViewSliceNode(self, node: Any) -> None:
        self.refuse(node)
        self.checks(node)
        if not getattr(node, "is_ellipsis_noop", False) and not getattr(node, "use_borrowed_ref", False):
            if not self.assigned:
                self.view(node, "count", "", _text(node))
        self.children(node)

    def on_CoerceToMemViewSliceNode(self, node: Any) -> None:
        self.refuse(node)
        self.view(node, "acquire", self.assigned, _text(_unwrapped(node)))
        self.children(node)

    def on_AmpersandNode(self, node: Any) -> None:
        self.on_Node(node)

    def access(
        self, node: Any, write: bool = False, augmented: bool = False, value: str = "", deleted: bool = False
    ) -> None:
        """A read or write of the place that `node` is."""
        node = _unwrapped(node)
        if isinstance(node, ExprNodes.MemoryCopyNode):
            node = node.dst
        if not isinstance(node, ExprNodes.ExprNode) or not self.is_file(node.pos):
            return
        type_ = node.type
        if type_ is None:
            return
        base: Any = node
        indices: list[Index] = []
        while isinstance(base, ExprNodes.IndexNode | ExprNodes.BufferIndexNode | ExprNodes.SliceIndexNode):
            indices[:0] = _indices(base)
            base = _unwrapped(base.base)
        base_type = base.type if base is not node else None
        root_kind = _root_kind(self, base)
        owner, attribute = "", ""
        if isinstance(base, ExprNodes.AttributeNode):
            attribute = str(base.attribute)
            owner = self.attribute_owner(base)
        if base_type is not None and base_type.is_pyobject:
            kind = "item"
        elif base is not node:
            kind = "element"
        elif attribute:
            kind = "attribute"
        elif isinstance(base, ExprNodes.NameNode) and root_kind in ("global", "closure"):
            kind = root_kind
        elif isinstance(base, ExprNodes.NameNode):
            kind = "local"
        else:
            return
        if kind == "local" and not write:
            return
        held = base_type if base_type is not None else type_
        fact = Access(
            self.at(node), self.context_here(), kind, _text(base), _root(base), root_kind, str(type_),
            str(base_type or ""), owner, attribute, bool(type_.is_pyobject), bool(type_.is_memoryviewslice),
            bool(type_.is_ptr), write, augmented, deleted, tuple(indices), value, _is_atomic(held) or _is_atomic(type_),
        )  # fmt: skip
        self.add(self.function.accesses, fact)

    def attribute_owner(self, node: Any) -> str:
        type_ = node.obj.type
        if type_ is not None and type_.is_ptr:
            type_ = type_.base_type
        if type_ is None:
            return ""
        if type_.is_extension_type:
            # the class that declares it
            declaring = type_
            while getattr(declaring, "base_type", None) is not None and declaring.base_type.scope is not None:
                if node.attribute not in declaring.base_type.scope.entries:
                    break
                declaring = declaring.base_type
            return self.type_name(declaring)
        if type_.is_struct_or_union or type_.is_cpp_class:
            return self.type_name(type_)
        if isinstance(node.obj, ExprNodes.NameNode) and node.obj.name == "self" and len(self.names) > 1:
            return f"{self.module.name}.{'.'.join(self.names[:-1])}"
        return ""

    # -- checks that Cython puts in ---------------------------------------------------------------------------------

    def error_path(self, node: Any, kind: ErrorKind, directive: str) -> None:
        if self.is_file(node.pos):
            text = _text(_unwrapped(node))
            self.add(self.function.error_paths, ErrorPath(self.at(node), self.context_here(), kind, text, directive))

    def checks(self, node: Any) -> None:
        """Error branches of an expression, as its code generator would write them."""
        directives = self.directives
        if isinstance(node, ExprNodes.MemoryViewSliceNode):
            if not getattr(node, "is_ellipsis_noop", False):
                for index in getattr(node, "original_indices", ()):
                    if index.is_none:
                        continue
                    if index.is_slice:
                        if not (index.start.is_none and index.stop.is_none and index.step.is_none):
                            self.error_path(node, ErrorKind.MEMORYVIEW, "")
                    elif directives.get("boundscheck"):
                        self.error_path(node, ErrorKind.BOUNDS, "boundscheck")
        elif isinstance(node, ExprNodes.BufferIndexNode):
            if directives.get("boundscheck"):
                self.error_path(node, ErrorKind.BOUNDS, "boundscheck")
        elif isinstance(node, ExprNodes.IndexNode):
            if node.base.type is not None and node.base.type.is_pyobject and not node.type.is_pyobject:
                self.error_path(node, ErrorKind.BOUNDS, "boundscheck" if directives.get("boundscheck") else "")
        elif isinstance(node, ExprNodes.SliceIndexNode):
            if node.base.type is not None and not node.base.type.is_pyobject and not node.type.is_pyobject:
                if node.base.type.is_array and (node.start is not None or node.stop is not None):
                    self.error_path(node, ErrorKind.BOUNDS, "")
        elif isinstance(node, ExprNodes.MemoryCopySlice):
            self.error_path(node, ErrorKind.MEMORYVIEW, "")
        elif isinstance(node, ExprNodes.NameNode):
            entry = node.entry
            if entry is not None and entry.type is not None and not getattr(node, "allow_null", False):
                if (node.cf_maybe_null or node.cf_is_null) and not self.is_target(node):
                    if entry.type.is_pyobject and (entry.is_local or entry.in_closure or entry.from_closure):
                        self.error_path(node, ErrorKind.UNBOUND, "")
                    elif entry.type.is_memoryviewslice and node.initialized_check:
                        self.error_path(node, ErrorKind.UNBOUND, "initializedcheck")
                    elif getattr(entry, "is_cpp_optional", False) and node.initialized_check:
                        self.error_path(node, ErrorKind.UNBOUND, "initializedcheck")
        elif isinstance(node, ExprNodes.AttributeNode):
            if node.type is not None and node.type.is_memoryviewslice:
                if getattr(node, "is_memslice_transpose", False):
                    self.error_path(node, ErrorKind.MEMORYVIEW, "")
                    self.view(node, "count", self.assigned, _text(node))
                elif node.initialized_check:
                    self.error_path(node, ErrorKind.UNBOUND, "initializedcheck")
        elif isinstance(node, ExprNodes.PrimaryCmpNode | ExprNodes.CascadedCmpNode):
            # Cython lets nogil code compare Python objects, strings for one, which may fail
            operands = [getattr(node, "operand1", None), node.operand2]
            if str(node.operator) not in ("is", "is_not") and node.type is not None and not node.type.is_pyobject:
                if any(operand is not None and operand.type.is_pyobject for operand in operands):
                    self.error_path(node, ErrorKind.COMPARISON, "")
        if getattr(node, "zerodivision_check", False) and node.type is not None and not node.type.is_pyobject:
            self.error_path(node, ErrorKind.DIVISION, "cdivision")
        elif isinstance(node, ExprNodes.DivNode) and directives.get("cdivision_warnings") and node.operator != "/":
            if node.type is not None and not node.type.is_pyobject:
                self.error_path(node, ErrorKind.DIVISION, "cdivision_warnings")
        if getattr(node, "overflow_check", False):
            self.error_path(node, ErrorKind.OVERFLOW, "overflowcheck")
        if isinstance(node, ExprNodes.NoneCheckNode):
            self.error_path(node, ErrorKind.NONE, "nonecheck")
        if getattr(node, "exception_check", None) == "+" and not isinstance(node, ExprNodes.CallNode):
            self.cpp_operator(node)

    def is_target(self, node: Any) -> bool:
        return bool(getattr(node, "is_target", False))

    def cpp_operator(self, node: Any) -> None:
        if self.is_file(node.pos):
            text = _text(node)
            call = Call(
                self.at(node), self.context_here(), "extern", "", text, "", None, "", True, False, Check.CPP, "",
                str(node.type), (),
            )  # fmt: skip
            self.add(self.function.calls, call)

    def on_BinopNode(self, node: Any) -> None:
        self.refuse(node)
        self.checks(node)
        self.children(node)

    on_UnopNode = on_BinopNode
    on_SliceIndexNode = on_BinopNode
    on_NoneCheckNode = on_BinopNode
    on_PrimaryCmpNode = on_BinopNode
    on_CascadedCmpNode = on_BinopNode
    on_MemoryCopyNode = on_BinopNode

    def on_CoerceToTempNode(self, node: Any) -> None:
        self.refuse(node)
        self.children(node)

    # -- calls ----------------------------------------------------------------------------------------------------

    def on_SimpleCallNode(self, node: Any) -> None:
        function_type = node.function_type()
        if function_type is None or function_type.is_pyobject or not function_type.is_cfunction:
            self.refuse(node)
            if function_type is not None and function_type.is_pyobject:
                self.python_call(node)
        else:
            self.c_call(node, function_type)
        self.visit_all(getattr(node, "self", None))
        self.function_part(node.function)
        self.call_arguments(node.args)
        self.visit_all(getattr(node, "arg_tuple", None))

    def function_part(self, function: Any) -> None:
        """What is called: the reading of a C function's name is no access."""
        entry = getattr(function, "entry", None)
        if isinstance(function, ExprNodes.NameNode) and entry is not None and entry.is_cfunction:
            self.refuse(function)
        else:
            self.visit_all(function)

    def call_arguments(self, args: Iterable[Any]) -> None:
        for arg in args or ():
            if isinstance(arg, ExprNodes.CoerceToTempNode) and arg.type is not None and arg.type.is_pyobject:
                # A reference that Cython holds during the call, and would not hold in nogil code
                self.visit(arg.arg)
            else:
                saved, self.assigned = self.assigned, ""
                self.visit(arg)
                self.assigned = saved

    def on_GeneralCallNode(self, node: Any) -> None:
        self.refuse(node)
        self.python_call(node)
        self.children(node)

    on_PyMethodCallNode = on_GeneralCallNode

    def on_CachedBuiltinMethodCallNode(self, node: Any) -> None:
        # Cython's own check fails on it; it is a Python call put in place of one
        self.operation(node, "Calling gil-requiring function not allowed without gil")
        if self.is_file(node.pos):
            name = f"{_text(node.obj)}.{node.method_name}"
            self.add(self.function.python_calls, PythonCall(self.at(node), self.context_here(), name, "", False))
            if str(node.method_name) in _MUTATORS:
                self.mutated(node.obj, str(node.method_name))
        self.children(node)

    def on_PythonCapiCallNode(self, node: Any) -> None:
        function_type = node.function_type()
        if not function_type.nogil:
            self.refuse(node)
        name = str(getattr(node.function, "cname", ""))
        check, sentinel = _check(function_type)
        if function_type.nogil and self.is_file(node.pos):
            call = Call(
                self.at(node), self.context_here(), "builtin", "", name, name, None, "", True, False, check, sentinel,
                str(function_type.return_type), tuple(_text(arg) for arg in node.args),
            )  # fmt: skip
            self.add(self.function.calls, call)
        if (match := _CHANGES.search(name)) is not None and node.args:
            self.mutated(node.args[0], match.group(1).lower())
        self.visit_all(node.args)

    def python_call(self, node: Any) -> None:
        if not self.is_file(node.pos):
            return
        function = _unwrapped(getattr(node, "function", None))  # a cached method of a builtin type has none:
        if function is None or isinstance(function, ExprNodes.RawCNameExprNode):
            return  # that, or the override of a cpdef method
        target, callback = "", False
        if isinstance(function, ExprNodes.NameNode) and function.entry is not None:
            entry = function.entry
            callback = bool(entry.is_arg or (entry.is_local and not entry.is_pyglobal))
            if entry.is_pyglobal and entry.scope is self.scope:
                target = f"{self.module.name}.{entry.name}"
        elif isinstance(function, ExprNodes.AttributeNode):
            owner = self.attribute_owner(function)
            entry = function.entry
            if function.is_py_attr and owner:
                target = f"{owner}.{function.attribute}"
            callback = bool(not function.is_py_attr and entry is not None and entry.is_variable)
        elif isinstance(function, ExprNodes.TypecastNode):
            callback = True
        name = _text(function)
        self.add(self.function.python_calls, PythonCall(self.at(node), self.context_here(), name, target, callback))
        if isinstance(function, ExprNodes.AttributeNode) and str(function.attribute) in _MUTATORS:
            self.mutated(function.obj, str(function.attribute))

    def mutated(self, place: Any, method: str) -> None:
        """A method call that changes a Python container."""
        before = len(self.function.accesses)
        self.access(place, write=True)
        if len(self.function.accesses) > before:
            last = self.function.accesses.pop()
            self.add(self.function.accesses, replace(last, method=method))

    def c_call(self, node: Any, function_type: Any) -> None:
        function = node.function
        entry: Any = getattr(function, "entry", None)
        bound = entry is not None and entry.is_cfunction
        check, sentinel = _check(function_type)
        name, target, cname, header, kind = _text(function), "", "", "", "pointer"
        declared: Where | None = None
        virtual = False
        if bound:
            scope = entry.scope
            if not self.is_file(entry.pos) and getattr(entry, "is_unbound_cmethod", False):
                # Class.method(...): Cython makes an entry for the call, without a place
                name = f"{scope.name}.{entry.name}"
                entry = scope.lookup_here(entry.name) or entry
            cname = str(entry.func_cname or entry.cname or "")
            header = str(getattr(scope, "qualified_name", "") or "")
            target = f"{header}.{entry.name}"
            base = getattr(entry, "fused_cfunction", None)
            if base is not None and getattr(base, "entry", None) is not None:
                target = f"{header}.{base.entry.name}"
            if not self.is_file(entry.pos):
                kind = "builtin"
            elif entry.visibility == "extern" or entry.in_cinclude or getattr(scope, "is_cpp_class_scope", False):
                kind = "extern"
                declared = self.where(entry.pos)
            else:
                kind = "c"
                declared = self.where(entry.pos)
            virtual = bool(
                entry.is_cmethod
                and isinstance(function, ExprNodes.AttributeNode)
                and not getattr(entry, "is_final_cmethod", False)
                and not getattr(entry, "is_inline_cmethod", False)
            )
        if isinstance(function, ExprNodes.NewExprNode):
            kind, name = "extern", f"new {function.class_type}"
        args = list(node.args)
        if args and getattr(node, "self", None) is not None and type(args[0]).__name__ == "CloneNode":
            args = args[1:]
        if self.is_file(node.pos):
            call = Call(
                self.at(node), self.context_here(), kind, target or name, name, cname, declared, header,
                bool(function_type.nogil), bool(function_type.with_gil), check, sentinel,
                str(function_type.return_type), tuple(_text(_unwrapped(arg)) for arg in args), virtual,
                bool(function_type.is_overridable), bool(getattr(node, "wrapper_call", False)),
            )  # fmt: skip
            self.add(self.function.calls, call)
            self.special_calls(node, call, args)
        if function_type.return_type.is_pyobject and not function_type.nogil and kind != "c":
            self.refuse(node)

    def special_calls(self, node: Any, call: Call, args: list[Any]) -> None:
        """Calls of C that mean something to threads: locks, atomics, free, borrowed references."""
        cname = call.cname or call.name.rpartition(".")[2]
        function = node.function
        if call.kind == "builtin" and isinstance(function, ExprNodes.AttributeNode):
            if str(function.attribute) in _MUTATORS:
                self.mutated(function.obj, str(function.attribute))
        if cname in _LOCK_CALLS and args:
            kind, locks = _LOCK_CALLS[cname]
            self.lock(node, kind, _text(_unwrapped(args[0])).lstrip("&"), locks)
        elif isinstance(function, ExprNodes.AttributeNode) and str(function.attribute) in _LOCK_METHODS:
            type_name = str(function.obj.type)
            what = _text(_unwrapped(function.obj))
            locks = _LOCK_METHODS[str(function.attribute)]
            if _CPP_GUARDS.search(type_name) or _CPP_MUTEX.search(type_name):
                self.lock(node, GuardKind.CPP_LOCK, what, locks)
            elif getattr(function.obj.type, "is_cython_lock_type", False):
                self.lock(node, GuardKind.PYMUTEX, what, locks)
        elif _CPP_GUARDS.search(call.returns) or _CPP_GUARDS.search(call.name):
            self.lock(node, GuardKind.CPP_LOCK, _text(_unwrapped(args[0])) if args else call.name, True)
        if _ATOMIC.match(cname):
            for arg in args:
                place = _unwrapped(arg)
                if isinstance(place, ExprNodes.TypecastNode):
                    place = _unwrapped(place.operand)
                if isinstance(place, ExprNodes.AmpersandNode):
                    self.atomic(place.operand, cname)
        if cname in _FREES and args:
            place = _unwrapped(args[0])
            while isinstance(place, ExprNodes.TypecastNode):
                place = _unwrapped(place.operand)
            attribute, owner = "", ""
            if isinstance(place, ExprNodes.AttributeNode):
                attribute, owner = str(place.attribute), self.attribute_owner(place)
            self.add(
                self.function.frees,
                Free(call.where, call.context, cname, _text(place), attribute, owner, _root_kind(self, place)),
            )
        if _is_borrowed(node.type) and (cname in _BORROWED or call.kind == "extern"):
            self.add(self.function.borrows, Borrow(call.where, call.context, "call", cname, self.assigned, _text(node)))

    def lock(self, node: Any, kind: GuardKind, what: str, locks: bool) -> None:
        if locks:
            self.guards.append(Guard(kind, what, self.at(node)))
            return
        for index in range(len(self.guards) - 1, -1, -1):
            if self.guards[index].what == what:
                del self.guards[index]
                return

    def atomic(self, place: Any, cname: str) -> None:
        before = len(self.function.accesses)
        self.access(place, write="load" not in cname.lower())
        if len(self.function.accesses) > before:
            last = self.function.accesses.pop()
            self.add(self.function.accesses, replace(last, atomic=True))

    def on_TypecastNode(self, node: Any) -> None:
        self.refuse(node)
        operand = _unwrapped(node.operand)
        if _is_borrowed(node.type) and operand.type is not None and operand.type.is_pyobject:
            fact = Borrow(self.at(node), self.context_here(), "cast", "", self.assigned, _text(node))
            self.add(self.function.borrows, fact)
        elif node.type is not None and node.type.is_pyobject and _is_borrowed(operand.type):
            name = _text(operand)
            self.add(self.function.borrows, Borrow(self.at(node), self.context_here(), "use", "", name, _text(node)))
        self.children(node)

    def iterate(self, node: Any, sequence: Any) -> None:
        """A for loop over a Python container."""
        sequence = _unwrapped(sequence)
        if isinstance(sequence, ExprNodes.CachedBuiltinMethodCallNode):
            if str(sequence.method_name) in ("items", "keys", "values"):
                sequence = _unwrapped(sequence.obj)
        elif isinstance(sequence, ExprNodes.SimpleCallNode | ExprNodes.PyMethodCallNode):
            function = _unwrapped(sequence.function)
            if isinstance(function, ExprNodes.AttributeNode) and function.attribute in ("items", "keys", "values"):
                sequence = _unwrapped(function.obj)
        type_ = sequence.type
        if type_ is None or not type_.is_pyobject or not self.is_file(node.pos):
            return
        names = {"dict object": "dict", "list object": "list", "set object": "set"}
        attribute, owner = "", ""
        if isinstance(sequence, ExprNodes.AttributeNode):
            attribute, owner = str(sequence.attribute), self.attribute_owner(sequence)
        fact = Iteration(
            self.at_for(node), self.context_here(), _text(sequence), names.get(str(type_), "object"),
            _root_kind(self, sequence), attribute, owner,
        )  # fmt: skip
        self.add(self.function.iterations, fact)


# ---------------------------------------------------------------------------------------------------------------------
# Small questions about Cython's nodes, entries and types
# ---------------------------------------------------------------------------------------------------------------------


def _check(type_: Any) -> tuple[Check, str]:
    """How a call of a function of this type finds out that it failed, and the value it compares with."""
    returned = type_.return_type
    if returned.is_pyobject:
        return Check.OBJECT, "NULL"
    if returned.is_memoryviewslice:
        return Check.VALUE, "an unset memoryview"
    if type_.exception_check == "+":
        return Check.CPP, ""
    value = type_.exception_value
    if value is None:
        return (Check.ALWAYS, "") if type_.exception_check else (Check.NONE, "")
    text = re.sub(r"^\(([^()]*)\)$", r"\1", str(getattr(value, "python_value", value)))  # C has (-1.0)
    return (Check.SENTINEL if type_.exception_check else Check.VALUE), text


def _last_line(node: Any, reader: _ModuleReader) -> int:
    """The last line that something in a tree stands on."""
    last = 0
    waiting = [node]
    while waiting:
        step = waiting.pop()
        if isinstance(step, list | tuple):
            waiting.extend(step)
        elif isinstance(step, Nodes.Node):
            if reader.is_file(step.pos) and step.pos[1] > last:
                last = step.pos[1]
            waiting.extend(getattr(step, name, None) for name in step.child_attrs)
    return last


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _imported_names(node: Any) -> list[str]:
    return [str(item[1]) for item in node.imported_names]


def _is_borrowed(type_: Any) -> bool:
    """Whether it is PyObject*, by whichever declaration."""
    if type_ is None or not type_.is_ptr:
        return False
    base = type_.base_type
    return bool(base.is_struct_or_union and getattr(base, "cname", "") == "PyObject") or str(base) == "PyObject"


def _is_atomic(type_: Any) -> bool:
    if type_ is None:
        return False
    name = str(type_)
    return name.startswith(("atomic[", "atomic_", "std::atomic")) or "atomic_int_type" in name


def _is_range(sequence: Any) -> bool:
    """Whether what a loop runs over is a call of range or prange."""
    function = getattr(_unwrapped(sequence), "function", None)
    return isinstance(function, ExprNodes.NameNode) and function.name in ("range", "xrange")


def _is_shape(node: Any) -> bool:
    """An attribute that a memoryview has of its own."""
    return bool(
        node.obj.type is not None
        and node.obj.type.is_memoryviewslice
        and node.attribute in ("shape", "strides", "suboffsets", "T", "size", "nbytes", "itemsize", "base")
    )


def _root_node(node: Any) -> Any:
    node = _unwrapped(node)
    while True:
        if isinstance(node, ExprNodes.AttributeNode):
            node = _unwrapped(node.obj)
        elif isinstance(node, ExprNodes.IndexNode | ExprNodes.BufferIndexNode | ExprNodes.SliceIndexNode):
            node = _unwrapped(node.base)
        elif isinstance(node, ExprNodes.TypecastNode | ExprNodes.AmpersandNode):
            node = _unwrapped(node.operand)
        else:
            return node


def _root(node: Any) -> str:
    root = _root_node(node)
    return str(root.name) if isinstance(root, ExprNodes.NameNode) else ""


def _root_kind(reader: _ModuleReader, node: Any) -> str:
    root = _root_node(node)
    if not isinstance(root, ExprNodes.NameNode) or root.entry is None:
        return "other"
    entry = root.entry
    if entry.from_closure:
        return "closure"
    if entry.is_arg:
        arguments = reader.function.arguments
        if reader.function.owner and arguments and arguments[0].name == str(root.name):
            return "self"
        return "argument"
    if entry.is_cglobal or entry.is_pyglobal or entry.is_builtin:
        return "global"
    if entry.scope is not None and entry.scope.is_module_scope:
        return "global"
    if entry.in_closure:
        return "closure" if entry.scope is not reader.env else "local"
    return "local"


def _indices(node: Any) -> list[Index]:
    """The index expressions of one subscription."""
    if isinstance(node, ExprNodes.SliceIndexNode):
        found = [part for part in (node.start, node.stop) if part is not None]
        text = f"{_text(node.start)}:{_text(node.stop)}"
        return [Index(text, tuple(sorted({name for part in found for name in _names(part)})), False)]
    if isinstance(node, ExprNodes.BufferIndexNode):
        nodes = list(getattr(node, "original_indices", None) or node.indices)
    elif isinstance(_unwrapped(node.index), ExprNodes.TupleNode):
        nodes = list(_unwrapped(node.index).args)
    else:
        nodes = [node.index]
    return [
        Index(_text(_unwrapped(index)), tuple(sorted(_names(index))), bool(index.has_constant_result()))
        for index in nodes
        if index is not None
    ]


def _names(node: Any) -> set[str]:
    """Variables in an expression."""
    found: set[str] = set()
    waiting = [node]
    while waiting:
        step = waiting.pop()
        if isinstance(step, ExprNodes.NameNode):
            found.add(str(step.name))
        if isinstance(step, ExprNodes.CloneNode | ExprNodes.ProxyNode):
            waiting.append(step.arg)
        elif type(step).__name__ == "ResultRefNode":
            waiting.append(step.expression)
        elif isinstance(step, Nodes.Node):
            for name in step.child_attrs:
                child = getattr(step, name, None)
                waiting.extend(child if isinstance(child, list | tuple) else [child])
    return found


def _first(node: Any) -> Any:
    """Without copies, but with coercions."""
    while isinstance(node, ExprNodes.CloneNode | ExprNodes.ProxyNode | ExprNodes.CoerceToTempNode):
        node = node.arg
    return node


def _container(node: Any) -> str:
    """What kind of mutable container an expression makes, "" for none."""
    kind = _CONTAINERS.get(type(node).__name__, "")
    if kind == "list" and isinstance(node, ExprNodes.ComprehensionNode):
        return {"dict object": "dict", "set object": "set"}.get(str(node.type), "list")
    if kind:
        return kind
    if isinstance(node, ExprNodes.CallNode) and getattr(node, "function", None) is not None:
        name = _text(node.function).rpartition(".")[2]
        if name in _CONTAINER_CALLS:
            return name
    return ""


def _comments(path: str, lines: tuple[str, ...]) -> list[Comment]:
    """Comments that are, or look like, directives."""
    found = []
    header = True
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if header and text and not text.startswith("#"):
            header = False
        start = line.find("#")
        if start >= 0 and re.match(r"#\s*cython\s*:", line[start:], re.IGNORECASE) and not line[:start].strip():
            read = header and bool(_DIRECTIVE.match(line[start:].rstrip()))
            found.append(Comment(Where(path, number, start + 1), line[start:].rstrip(), read))
    return found


def _written(path: str, comments: list[Comment]) -> dict[str, tuple[Any, Where]]:
    """Directives that a file's header sets."""
    written: dict[str, tuple[Any, Where]] = {}
    for comment in comments:
        match = _DIRECTIVE.match(comment.text)
        if not comment.read or match is None:
            continue
        try:
            parsed = CythonOptions.parse_directive_list(match.group(1).strip(), ignore_unknown=True)
        except ValueError:
            continue  # Cython's own error says so
        for name, value in parsed.items():
            written.setdefault(name, (value, comment.where))
    return written
