"""Cython itself as the judge: marks functions nogil in a copy and compiles to C, and looks for the GIL in the C.

    python -m tests.audit.oracle PATH... [-X NAME=VALUE]... [-I FOLDER]...

prints, per package or folder, how many verdicts Cython agrees with and each that it does not. No C compiler is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from Cython.Compiler import Main
from Cython.Compiler import Options as CythonOptions

from audit.facts import Check, Function, Module, Options
from audit.files import discover
from audit.graph import Project, link
from audit.tree import analyse

GIL = re.compile(
    r"PyGILState_Ensure\(|ErrOccurredWithGIL\(|__Pyx_WriteUnraisable\(|__Pyx_\w+Nogil\(|__PYX_INC_MEMVIEW\(|"
    r"__PYX_XCLEAR_MEMVIEW\(|__PYX_XDEC_MEMVIEW\(|__pyx_memoryview_slice_memviewslice\(|PyErr_\w+\(|__Pyx_AddTraceback\("
)
C_NOISE = re.compile(r"/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)+'", re.DOTALL)
CHECK = re.compile(
    r"if \((?P<test>[^;{}\n]*)__Pyx_ErrOccurredWithGIL\(\)\)*\s*__PYX_ERR\((?P<file>\d+), (?P<line>\d+),"
)
FILES = re.compile(r"__pyx_f\[\] = \{(?P<names>[^}]*)\}")
BRACE = re.compile(r"[{}]")
ERROR = re.compile(r"^(?P<path>[^\s:][^:\n]*):(?P<line>\d+):(?P<column>\d+): (?P<message>.+)$", re.MULTILINE)


@dataclass
class Judged:
    """What the judge said of one set of files."""

    modules: int = 0
    could: int = 0  # functions said to be markable
    refused: list[str] = field(default_factory=list)  # ... that Cython refuses
    blocked: int = 0  # C functions said not to be
    accepted: list[str] = field(default_factory=list)  # ... that Cython accepts
    free: int = 0  # functions called GIL-free
    proved: int = 0  # ... whose C was there to be read
    takes: list[str] = field(default_factory=list)  # ... with the GIL in their C
    quiet: list[str] = field(default_factory=list)  # markable, not called GIL-free, but nothing is in their C
    checks: int = 0  # lines said to ask for an exception with the GIL
    unasked: list[str] = field(default_factory=list)  # ... that do not in C
    unsaid: list[str] = field(default_factory=list)  # lines that do, and were not said to
    unread: list[str] = field(default_factory=list)

    def agreement(self) -> float:
        """Share of could-be-nogil verdicts that Cython shares."""
        total = self.could + self.blocked
        return 1.0 if total == 0 else 1 - (len(self.refused) + len(self.accepted)) / total


def judge(paths: Iterable[Path], root: Path, options: Options) -> Judged:
    """Compares every verdict on these files, which lie below `root`, with what Cython does."""
    judged = Judged()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve() / "copy"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns("*.so", "*.c", "*.cpp", "*.html", ".git"))
        modules = []
        for path in paths:
            analysed = analyse(str(copy / path.resolve().relative_to(root.resolve())), options)
            if analysed.module is None:
                judged.unread.append(f"{path}: {analysed.errors[0].reason}")
            else:
                modules.append(analysed.module)
        judged.modules = len(modules)
        project = link(modules)
        functions = [function for _, function in project.functions() if function.kind in ("cdef", "cpdef")]
        could = [function for function in functions if project.could_be_nogil(function)]
        blocked = [function for function in functions if not project.could_be_nogil(function)]
        judged.could, judged.blocked = len(could), len(blocked)
        originals = {Path(name): Path(name).read_bytes() for name in _files(functions)}

        def trial(
            marked: list[Function], texts: dict[str, str] | None = None, only: Module | None = None
        ) -> dict[str, list[tuple[int, str]]]:
            """Compiles with these marked, everything or one module; Cython's errors by file."""
            _mark(originals, marked)
            errors: dict[str, list[tuple[int, str]]] = {}
            seen = set()
            for module in modules if only is None else [only]:
                text, said = compile_to_c(module, options)
                if texts is not None:
                    texts[module.path] = text
                for match in ERROR.finditer(said):
                    where = os.path.abspath(match["path"])
                    if (where, match["line"], match["message"]) not in seen:
                        seen.add((where, match["line"], match["message"]))
                        errors.setdefault(where, []).append((int(match["line"]), match["message"]))
            return errors

        texts: dict[str, str] = {}
        plain = trial([], texts)
        compiled = [module for module in modules if texts[module.path]]
        said = {module.path: said_checks(module) for module in compiled}
        known = set().union(*said.values(), *(said_checks(module, builtin=True) for module in compiled))
        ours = {Path(name).name for name in [*_files(functions), *said]}  # not what comes from others' .pxd
        for module in compiled:
            found = c_checks(texts[module.path])
            judged.checks += len(said[module.path])
            judged.unasked += [f"{module.path}: {check}" for check in sorted(said[module.path] - found)]
            judged.unsaid += [f"{module.path}: {check}" for check in sorted(found - known) if check[0] in ours]
        texts.clear()
        # 1. All that could be, together
        errors = _new(trial(could, texts), plain)
        for function in could:
            if said := _inside(function, errors):
                judged.refused.append(f"{_name(function)}: {said}")
                errors = _without(function, errors)
        judged.refused += [f"{path}:{line}: {message}" for path, found in errors.items() for line, message in found]
        # 2. Those blocked by themselves, all at once; by their callees, in groups that do not call one another
        own = [function for function in blocked if project.own_blockers(function)]
        errors = trial([*could, *own])
        for function in own:
            # An error that Cython meets early hides what it says of other functions: those are asked about alone
            if not function.nogil and not _inside(function, errors):
                if not _inside(function, trial([*could, function], only=project.module_of(function))):
                    judged.accepted.append(_name(function))
        waiting = [function for function in blocked if not project.own_blockers(function) and not function.nogil]
        while waiting:
            group: list[Function] = []
            for function in waiting:
                if all(not _related(project, function, other) for other in group):
                    group.append(function)
            waiting = [function for function in waiting if function not in group]
            errors = trial([*could, *group])
            judged.accepted += [  # Cython may refuse an override for what it overrides
                _name(function)
                for function in group
                if not any(_inside(one, errors) for one in project.overriding(function))
            ]
        # 3. The C of what could be, marked
        for function in could:
            module = project.module_of(function)
            bodies = c_bodies(texts[module.path], module, function)
            for text in texts.values():  # an inline function that only others use
                bodies = bodies or c_bodies(text, module, function)
            hits = sorted({match.group().rstrip("(") for body in bodies for match in GIL.finditer(body)})
            if project.gil_free(function):
                judged.free += 1
                judged.proved += bool(bodies)
                if hits:
                    judged.takes.append(f"{_name(function)}: {', '.join(hits)}")
            elif bodies and not hits and not _through_callees(project, function):
                judged.quiet.append(_name(function))
        _mark(originals, [])
    return judged


def compile_to_c(module: Module, options: Options) -> tuple[str, str]:
    """The C that Cython makes of a module ("" where it refuses), and what it said."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / ("module.cpp" if module.cplus else "module.c")
        compilation = CythonOptions.CompilationOptions(
            CythonOptions.default_options,
            compiler_directives=dict(options.directives),
            include_path=list(options.include_path),
            compile_time_env=dict(options.compile_time_env) or None,
            cplus=int(module.cplus),
            output_file=str(out),
        )
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            try:
                Main.compile_single(module.path, compilation, module.name)
            except Exception as error:  # noqa: BLE001  a crash of the compiler is what it says
                said.write(f"{module.path}:1:0: {type(error).__name__}: {error}\n")
        text = out.read_text(encoding="utf-8") if out.exists() else ""
        return text, said.getvalue()


def c_bodies(text: str, module: Module, function: Function) -> list[str]:
    """The C functions made of one function, without comments."""
    *scopes, name = function.name.split(".")
    prefix = "_".join(f"{len(part)}{part}" for part in [*module.name.split("."), *scopes])
    pattern = re.compile(
        rf"^(?!.*;$).*\b(?:__pyx_fuse_\w*?)?__pyx_f_{re.escape(prefix)}_(?:__pyx_fuse_\w*?)?{re.escape(name)}\(.*\{{$",
        re.MULTILINE,
    )
    if f"_{name}(" not in text:
        return []
    text, bodies = _quiet(text), []
    for match in pattern.finditer(text):
        depth, index = 1, match.end()
        while depth and (brace := BRACE.search(text, index)):
            depth += 1 if brace.group() == "{" else -1
            index = brace.end()
        bodies.append(text[match.end() : index])
    return bodies


def said_checks(module: Module, builtin: bool = False) -> set[tuple[str, int, Check]]:
    """File name, line and kind of the calls (of Cython's own functions) said to ask for an exception with the GIL."""
    return {
        (Path(call.where.path).name, call.where.line, call.check)
        for function in [*module.functions, module.toplevel]
        if function is not None
        for call in function.calls
        if call.context.released
        and call.check in (Check.ALWAYS, Check.SENTINEL)
        and (call.kind == "builtin") == builtin
    }


def c_checks(text: str) -> set[tuple[str, int, Check]]:
    """The same of those in the C."""
    match = FILES.search(text)
    names = re.findall(r'"([^"]*)"', match["names"]) if match else []
    return {
        (
            Path(names[int(match["file"])]).name,
            int(match["line"]),
            Check.SENTINEL if "&&" in match["test"] else Check.ALWAYS,
        )
        for match in CHECK.finditer(text)
    }


@functools.lru_cache(maxsize=4)
def _quiet(text: str) -> str:
    """C without comments and strings."""
    return C_NOISE.sub(" ", text)


def _files(functions: Iterable[Function]) -> set[str]:
    return {where.path for function in functions for where in (function.where, function.declared) if where is not None}


def _name(function: Function) -> str:
    return f"{function.where.path}:{function.where.line} {function.name}"


def _new(errors: dict[str, list[tuple[int, str]]], known: dict[str, list[tuple[int, str]]]):
    return {
        path: rest for path, found in errors.items() if (rest := [e for e in found if e not in known.get(path, [])])
    }


def _inside(function: Function, errors: dict[str, list[tuple[int, str]]]) -> str:
    """The first error that stands in a function or at its declaration."""
    for line, message in errors.get(os.path.abspath(function.where.path), ()):
        if function.where.line <= line <= max(function.end, function.where.line):
            return f"line {line}: {message}"
    return ""


def _without(function: Function, errors: dict[str, list[tuple[int, str]]]):
    path = os.path.abspath(function.where.path)
    rest = [
        e for e in errors.get(path, ()) if not function.where.line <= e[0] <= max(function.end, function.where.line)
    ]
    return {**errors, path: rest}


def _related(project: Project, one: Function, other: Function) -> bool:
    return any(
        found is other or found is one
        for function in (one, other)
        for found in [*project.overriding(function), *(project.resolve(call) for call in function.calls)]
        if found is not function
    )


def _through_callees(project: Project, function: Function) -> bool:
    return any(
        not project.gil_free(one)
        for callee in map(project.resolve, function.calls)
        if callee is not None
        for one in project.overriding(callee)
    )


def _mark(originals: dict[Path, bytes], functions: list[Function]) -> None:
    """Writes the files anew, with these functions marked nogil, in their .pxd too."""
    places: dict[Path, set[int]] = {path: set() for path in originals}
    for function in functions:
        if function.nogil:
            continue
        for where in {function.where, function.declared} - {None}:
            line = function.definition if where == function.where else where.line
            places[Path(where.path)].add(line)
    for path, data in originals.items():
        lines = data.decode("utf-8-sig").replace("\r\n", "\n").split("\n")
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line) + 1)
        text = "\n".join(lines)
        for line in sorted(places[path], reverse=True):
            text = _marked(text, starts[line - 1], path.suffix == ".py")
        path.write_text(text, encoding="utf-8")


def _marked(text: str, start: int, pure: bool) -> str:
    """The text with the declaration that starts at or after `start` marked nogil."""
    if pure:
        indent = re.match(r"\s*", text[start:]).group()
        return f"{text[:start]}{indent}@__import__('cython').nogil\n{text[start:]}"
    depth, index, seen = 0, start, False
    while index < len(text):
        char = text[index]
        if char in "([{":
            depth += 1
            seen = seen or char == "("
        elif char in ")]}":
            depth -= 1
        elif char in "\"'":
            end = index + 1
            while text[end] != char:
                end += 2 if text[end] == "\\" else 1
            index = end
        elif char == "#":
            if depth == 0 and seen:
                break
            index = text.find("\n", index) - 1
        elif char in ":\n" and depth == 0 and seen:
            break
        index += 1
    head = re.sub(r"\bwith\s+gil\b", "", text[start:index]).rstrip()
    return f"{text[:start]}{head} nogil{text[index:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("-X", dest="directives", action="append", default=[])
    parser.add_argument("-I", dest="include_path", action="append", default=[])
    parser.add_argument("--root", type=Path)
    given = parser.parse_args()
    directives: dict[str, object] = {}
    for item in given.directives:
        CythonOptions.parse_directive_list(item, current_settings=directives)
    for path in given.paths:
        files = [Path(file) for file in discover([str(path)]).files]
        root = given.root or (path if path.is_dir() else path.parent)
        options = Options(tuple(given.include_path), tuple(sorted(directives.items())))
        judged = judge(files, root, options)
        print(
            f"{path}: {judged.modules} modules, {judged.could} could be nogil, {judged.blocked} blocked; agreement "
            f"{judged.agreement():.2%}; {judged.free} GIL-free ({judged.proved} read in C); "
            f"{judged.checks} exception checks"
        )
        for title in ("refused", "accepted", "takes", "quiet", "unasked", "unsaid", "unread"):
            for line in getattr(judged, title):
                print(f"  {title}: {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
