"""Which files are audited: those named, and what git does not ignore in folders that are named."""

from __future__ import annotations

import ast
import fnmatch
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from audit.rule import Error

SUFFIXES = (".pyx", ".pxd", ".pxi", ".py")
_SKIPPED = {"__pycache__", "build", "dist", "node_modules", "venv", "env"}
_SKIPPED_SUFFIXES = (".egg-info", ".egg", ".dist-info")


@dataclass
class Found:
    """Files to audit, sorted, each once however often it was named; and what was named in vain."""

    files: list[str] = field(default_factory=list)
    errors: list[Error] = field(default_factory=list)


def discover(paths: Iterable[str], exclude: Sequence[str] = ()) -> Found:
    """What to audit of the files and folders named. Never raises for what is on the disk.

    A .pxd is audited with its .pyx, alone only where there is none; a .pxi with the files that include it. Links to
    folders are not followed below a folder. `exclude` has patterns (as in fnmatch) of paths below a folder.
    """
    found = Found()
    candidates: list[str] = []
    for path in paths:
        try:
            named = list(_named(path, exclude, found.errors))
        except OSError as error:
            found.errors.append(_error(path, f"It cannot be read: {error.strerror}."))
            continue
        candidates.extend(named)
    seen: dict[str, str] = {}
    # A link and the file it leads to are one: the file's own name is kept.
    for path in sorted(candidates, key=lambda path: (os.path.islink(path), path)):
        seen.setdefault(os.path.realpath(path), path)
    found.files = sorted(seen.values())
    found.errors = sorted(set(found.errors))
    return found


def _error(path: str, reason: str) -> Error:
    return Error(path, 1, 1, "read", reason)


def _named(path: str, exclude: Sequence[str], errors: list[Error]) -> Iterator[str]:
    """Files that one argument stands for."""
    if os.path.isdir(path):
        files = [file for file in _below(path) if not _excluded(os.path.relpath(file, path), exclude)]
        chosen = list(_chosen(files))
        if not chosen:
            errors.append(_error(path, "There is no Cython source in this folder that git does not ignore."))
        yield from chosen
        return
    suffix = os.path.splitext(path)[1].lower()
    if not os.path.lexists(path):
        errors.append(_error(path, "There is no such file or folder."))
    elif not os.path.exists(path):
        errors.append(_error(path, "It is a link that leads nowhere."))
    elif not os.path.isfile(path):
        errors.append(_error(path, "It is neither a file nor a folder."))
    elif suffix not in SUFFIXES:
        errors.append(_error(path, f"It is no Cython source: its name does not end with {', '.join(SUFFIXES)}."))
    elif suffix == ".pxd":
        yield _implementation(path) or path
    elif suffix == ".pxi":
        includers = list(_includers(path))
        if not includers:
            errors.append(_error(path, "No .pyx or .pxd beside it includes it; name the file that does."))
        yield from includers
    else:
        yield path


def _chosen(files: list[str]) -> Iterator[str]:
    """Of a folder's files those that are audited by themselves."""
    for path in files:
        suffix = os.path.splitext(path)[1].lower()
        if (
            suffix == ".pyx"
            or (suffix == ".pxd" and _implementation(path) is None)
            or (suffix == ".py" and is_pure_mode(path))
        ):
            yield path


def _implementation(pxd: str) -> str | None:
    """The .pyx or .py whose declarations a .pxd has."""
    stem = os.path.splitext(pxd)[0]
    return next((stem + suffix for suffix in (".pyx", ".py") if os.path.isfile(stem + suffix)), None)


def _includers(pxi: str) -> Iterator[str]:
    """Files beside a .pxi that include it."""
    folder, name = os.path.split(pxi)
    statement = re.compile(rb"^\s*include\s+[\"'](?:[^\"'\n]*/)?" + re.escape(os.fsencode(name)) + rb"[\"']", re.M)
    for other in sorted(os.listdir(folder or ".")):
        path = os.path.join(folder, other)
        if other.endswith((".pyx", ".pxd")) and statement.search(_bytes(path)):
            yield path


def _bytes(path: str) -> bytes:
    """A file's content, empty where it cannot be read: whoever audits it then says why."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


# --- folders ---------------------------------------------------------------------------------------------------------


def _below(folder: str) -> list[str]:
    """Paths of the sources in a folder, sorted."""
    listed = _by_git(folder)
    names = _by_walking(folder) if listed is None else listed
    join = (lambda name: name) if folder in (".", "./") else (lambda name: os.path.join(folder, name))
    return sorted(join(name) for name in names if name.lower().endswith(SUFFIXES))


def _git(folder: str, *arguments: str) -> subprocess.CompletedProcess[bytes] | None:
    """Runs git, kept from starting a program that the repository names; None where there is no git."""
    command = ["git", "-C", folder, "-c", "core.fsmonitor=false", *arguments]
    try:
        return subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
        )
    except OSError:
        return None


def _by_git(folder: str) -> list[str] | None:
    """What git tracks or would track; None outside of a repository, or where git ignores the folder itself."""
    listing = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ".")
    if listing is None or listing.returncode != 0:
        return None
    names = [os.fsdecode(name) for name in listing.stdout.split(b"\0") if name]
    if not names:
        ignored = _git(folder, "check-ignore", "-q", os.path.abspath(folder))
        if ignored is None or ignored.returncode == 0:
            return None
    found = []
    for name in dict.fromkeys(names):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):  # a repository inside
            inside = _by_git(path) if os.path.exists(os.path.join(path, ".git")) else None
            found += [os.path.join(name, below) for below in (_by_walking(path) if inside is None else inside)]
        elif os.path.lexists(path):
            found.append(name)
    return found


def _by_walking(folder: str) -> list[str]:
    """Everything but hidden folders and what builds and environments leave."""
    found = []
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _SKIPPED
            and not name.endswith(_SKIPPED_SUFFIXES)
            and not os.path.exists(os.path.join(where, name, "pyvenv.cfg"))
        )
        found += [os.path.relpath(os.path.join(where, name), folder) for name in files]
    return found


def _excluded(path: str, patterns: Sequence[str]) -> bool:
    """Whether a path or a folder it is in matches one of the patterns."""
    parts = path.split(os.sep)
    above = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    return any(fnmatch.fnmatch(part, pattern.rstrip("/")) for pattern in patterns for part in above)


# --- pure-Python mode ------------------------------------------------------------------------------------------------

_IMPORTS = re.compile(r"^\s*(?:c?import|from)\s+cython\b", re.MULTILINE)
_DECORATORS = re.compile(r"^\s*@\s*cython\.\w+", re.MULTILINE)
# Names of the module `cython` that a file may use without being meant for compilation.
_ORDINARY = {"compiled", "inline", "compile"}


def is_pure_mode(path: str) -> bool:
    """Whether a .py file is meant to be compiled: it imports cython, and decorates or declares by it.

    A .pxd of the same name beside it says so as well.
    """
    if os.path.isfile(os.path.splitext(path)[0] + ".pxd") and not os.path.isfile(os.path.splitext(path)[0] + ".pyx"):
        return True
    data = _bytes(path)
    if b"cython" not in data:
        return False
    text = data.decode("utf-8", "replace")
    if not _IMPORTS.search(text):
        return False
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return bool(_DECORATORS.search(text))
    return _uses_cython(tree)


def _uses_cython(tree: ast.Module) -> bool:
    modules, names = set(), set()  # what stands for the module, and for things in it
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or "cython" for alias in node.names if alias.name.split(".")[0] == "cython"}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "cython":
            names |= {alias.asname or alias.name for alias in node.names if alias.name not in _ORDINARY}
    if not modules and not names:
        return False

    def of_cython(node: ast.expr) -> bool:
        return any(
            (
                isinstance(part, ast.Attribute)
                and isinstance(part.value, ast.Name)
                and part.value.id in modules
                and part.attr not in _ORDINARY
            )
            or (isinstance(part, ast.Name) and part.id in names)
            for part in ast.walk(node)
        )

    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if any(of_cython(decorator) for decorator in node.decorator_list):
                return True
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns and of_cython(node.returns):
            return True
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None and of_cython(node.annotation):
            return True
        if isinstance(node, ast.Call) and of_cython(node.func):
            return True
    return False
