"""How a project's build compiles each file: directives and language, from -X, pyproject, setup.py and meson.build.

Build scripts are read, never run. What they set under a condition is taken where the condition asks for a version (it
was written for a newer Cython), and is left out elsewhere; what cannot be read is said.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from audit import tree
from audit.errors import BadInput
from audit.facts import Options
from audit.settings import Settings
from audit.setup_script import FREE_THREADING_MACRO, read_setup


@dataclass(frozen=True, order=True)
class Used:
    """A directive of the build that was used."""

    name: str
    value: str
    source: str  # such as "-X" or "pkg/setup.py:12"


@dataclass
class _Part:
    """What one build script says of some files."""

    sources: tuple[str, ...] | None = None  # patterns of paths below the script's folder; None: all
    directives: dict[str, Any] = field(default_factory=dict)
    said_by: dict[str, str] = field(default_factory=dict)
    cplus: bool | None = None
    include_path: tuple[str, ...] = ()
    compile_time_env: dict[str, Any] = field(default_factory=dict)


class Build:
    """Tells how files are compiled; remembers each build script. Not for several threads at once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.used: set[Used] = set()
        self.unread: set[str] = set()  # one sentence each: what a build script says that could not be read
        self._scripts: dict[Path, list[_Part]] = {}

    def options(self, path: str) -> Options:
        """How `path` is compiled."""
        said: dict[str, tuple[Any, str]] = {}
        cplus: bool | None = None
        include_path = [*self.settings.include_path]
        environment: dict[str, Any] = {}
        file = Path(os.path.abspath(path))
        for script in _scripts_above(file):
            relative = file.relative_to(script.parent).as_posix()
            roots = (script.parent, script.parent / "src")
            include_path += [os.path.relpath(root) for root in roots if root.is_dir()]
            # What names the file says more than what is for all.
            parts = [part for part in self._parts(script) if _concerns(part, relative)]
            for part in sorted(parts, key=lambda part: part.sources is None):
                for name, value in part.directives.items():
                    said.setdefault(name, (value, part.said_by[name]))
                cplus = part.cplus if cplus is None else cplus
                include_path += part.include_path
                environment = part.compile_time_env | environment
        of_settings = dict(self.settings.said_by)
        said |= {name: (value, of_settings.get(name, "-X")) for name, value in self.settings.directives}
        self.used |= {Used(name, str(value), source) for name, (value, source) in said.items()}
        return Options(
            include_path=tuple(dict.fromkeys(include_path)),
            directives=tuple(sorted((name, _frozen(value)) for name, (value, _) in said.items())),
            said_by=tuple(sorted((name, source) for name, (_, source) in said.items())),
            compile_time_env=tuple((environment | dict(self.settings.compile_time_env)).items()),
            cplus=cplus,
        )

    def _parts(self, script: Path) -> list[_Part]:
        if script not in self._scripts:
            read = self._setup if script.suffix == ".py" else self._meson
            try:
                self._scripts[script] = read(script, script.read_text(encoding="utf-8", errors="replace"))
            except OSError as error:
                self.unread.add(f"{os.path.relpath(script)} cannot be read ({error.strerror}).")
                self._scripts[script] = []
        return self._scripts[script]

    def _part(self, source: str, values: Iterable[tuple[str, Any, str]], **more: Any) -> _Part:
        """A part with directives given as (name, value, where in `source`), those Cython refuses left out and said."""
        part = _Part(**more)
        for name, value, where in values:
            try:
                parsed = tree.directive(name, value)
            except BadInput as error:
                self.unread.add(f"{source}{where}: {error}")
                continue
            part.directives |= parsed
            part.said_by |= dict.fromkeys(parsed, f"{source}{where}")
        return part

    def _setup(self, script: Path, text: str) -> list[_Part]:
        shown = os.path.relpath(script)
        said = read_setup(text)
        self.unread |= {f"{shown}:{line}: {sentence}" for line, sentence in said.unread}
        parts = []
        for group in said.groups:
            values = [(name, value, f":{line}") for name, value, line in group.directives]
            folders = tuple(os.path.relpath(script.parent / folder) for folder in group.include_path)
            parts.append(
                self._part(
                    shown,
                    values,
                    sources=group.sources,
                    cplus=group.cplus,
                    include_path=folders,
                    compile_time_env=group.compile_time_env,
                )
            )
        return parts

    def _meson(self, script: Path, text: str) -> list[_Part]:
        """All arguments for Cython in the file, wherever they stand: Meson's language is not evaluated."""
        shown = os.path.relpath(script)
        text = re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0]), text)
        values = []
        for match in _MESON_DIRECTIVE.finditer(text):
            values.append((match["name"], match["value"], f":{text.count(chr(10), 0, match.start()) + 1}"))
        for match in re.finditer(FREE_THREADING_MACRO + r"=1", text):
            values.append(("freethreading_compatible", True, f":{text.count(chr(10), 0, match.start()) + 1}"))
        for match in _MESON_LEVEL.finditer(text):
            values.append(("language_level", match["level"], f":{text.count(chr(10), 0, match.start()) + 1}"))
        parts = [self._part(shown, values)]
        cplus = tuple(
            os.path.normpath(name)
            for statement in _statements(text)
            if "cython_language=cpp" in statement or re.search(r"cpp|'--cplus'", statement.split("(")[0])
            for name in re.findall(r"'([^'\n]+\.(?:pyx|py))'", statement)
        )
        if cplus:
            parts.append(_Part(sources=cplus, cplus=True))
        return parts


_MESON_DIRECTIVE = re.compile(
    r"'(?:-X|--directive(?:=|'\s*,\s*')|-X'\s*,\s*')\s*(?P<name>[\w.]+)\s*=\s*(?P<value>[\w.@]+)'"
)
_MESON_LEVEL = re.compile(r"'(?:-|--)(?P<level>2|3|3str)'")


def _statements(text: str) -> list[str]:
    """Statements of a meson.build: what stands between line ends that no bracket encloses."""
    statements, start, depth = [], 0, 0
    for match in re.finditer(r"'(?:[^'\\\n]|\\.)*'|[(\[{]|[)\]}]|\n", text):
        mark = match[0]
        if mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1
        elif mark == "\n" and depth <= 0:
            statements.append(text[start : match.start()])
            start = match.end()
    return [*statements, text[start:]]


def _scripts_above(file: Path) -> list[Path]:
    """Build scripts in the folders above a file, nearest first, up to the project's own folder."""
    scripts = []
    for folder in file.parents:
        scripts += [folder / name for name in ("setup.py", "meson.build") if (folder / name).is_file()]
        if any((folder / name).exists() for name in (".git", "pyproject.toml", "setup.py")):
            break
    return scripts


def _concerns(part: _Part, relative: str) -> bool:
    """Whether a part is about the file."""
    if part.sources is None:
        return True
    return any(fnmatch.fnmatch(relative, pattern.replace("**/", "*")) for pattern in part.sources)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
