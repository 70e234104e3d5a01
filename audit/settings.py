"""What an audit is asked to do: `[tool.nogil-audit]` of a pyproject.toml, then the command line over it."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit import tree
from audit.errors import BadInput, near

TABLE = "nogil-audit"
KEYS = ("select", "extend-select", "ignore", "exclude", "include-path", "directives", "compile-time-env", "baseline")


@dataclass(frozen=True)
class Settings:
    """How to audit. Paths in it are relative to the current folder or absolute."""

    select: tuple[str, ...] = ()  # rules to run; empty: those that are on
    extend_select: tuple[str, ...] = ()  # more of them
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()  # patterns of paths below a folder, such as "tests/*"
    include_path: tuple[str, ...] = ()
    directives: tuple[tuple[str, Any], ...] = ()  # of the command line and the settings file
    said_by: tuple[tuple[str, str], ...] = ()  # directive -> who gave it
    compile_time_env: tuple[tuple[str, Any], ...] = ()
    baseline: str = ""
    jobs: int = 0  # 0: as many as there are processors
    file: str = ""  # the pyproject.toml it came from


def rule_ids(text: str | Iterable[str], known: Sequence[str], where: str) -> tuple[str, ...]:
    """Rule ids of a comma-separated text or a list. Raises BadInput for one that is unknown."""
    parts = text.split(",") if isinstance(text, str) else list(text)
    ids = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    for rule in ids:
        if rule not in known:
            raise BadInput(f"{where}: there is no rule {rule!r}: {near(rule, known)}`--explain all` lists them.")
    return ids


def find(paths: Sequence[str]) -> Path | None:
    """The nearest pyproject.toml with a table [tool.nogil-audit], in the first path's folder or above it."""
    start = Path(os.path.abspath(paths[0] if paths else "."))
    for folder in (start, *start.parents) if start.is_dir() else start.parents:
        file = folder / "pyproject.toml"
        # Another project's file is not read further than to see that it says nothing to us.
        if file.is_file() and TABLE.encode() in file.read_bytes() and TABLE in _tools(file):
            return file
    return None


def read(file: Path, known: Sequence[str]) -> Settings:
    """The settings of a pyproject.toml. Raises BadInput for unknown keys, rules and directives, and for wrong types."""
    table = _tools(file)[TABLE]
    shown = os.path.relpath(file)
    where = f"{shown}, [tool.{TABLE}]"
    if not isinstance(table, dict):
        raise BadInput(f"{where}: it has to be a table of settings.")
    for key in table:
        if key not in KEYS:
            raise BadInput(f"{where}: there is no setting {key!r}: {near(key, KEYS)}there are {', '.join(KEYS)}.")

    def texts(key: str) -> tuple[str, ...]:
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise BadInput(f"{where}: {key} = {value!r} cannot be used; give a list of texts.")
        return tuple(value)

    def beside(path: str) -> str:
        return os.path.relpath(file.parent / path) if not os.path.isabs(path) else path

    values = _table(table, "directives", where)
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        try:
            parsed |= tree.directive(name, value)
        except BadInput as error:
            raise BadInput(f"{where}: {error}") from None
    baseline = table.get("baseline", "")
    if not isinstance(baseline, str):
        raise BadInput(f"{where}: baseline = {baseline!r} cannot be used; give a file's path.")
    return Settings(
        select=rule_ids(texts("select"), known, where),
        extend_select=rule_ids(texts("extend-select"), known, where),
        ignore=rule_ids(texts("ignore"), known, where),
        exclude=texts("exclude"),
        include_path=tuple(beside(path) for path in texts("include-path")),
        directives=tuple(parsed.items()),
        said_by=tuple((name, f"{shown} [tool.{TABLE}]") for name in parsed),
        compile_time_env=tuple(_table(table, "compile-time-env", where).items()),
        baseline=beside(baseline) if baseline else "",
        file=shown,
    )


def _tools(file: Path) -> dict[str, Any]:
    """The tables below [tool]. Raises BadInput for a file that is no TOML."""
    try:
        tools = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{os.path.relpath(file)} cannot be read: {error}.") from None
    return tools if isinstance(tools, dict) else {}


def _table(table: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict) or any(isinstance(item, dict | list) for item in value.values()):
        raise BadInput(f"{where}: {key} = {value!r} cannot be used; give a table of names and plain values.")
    return value


def assignments(texts: Iterable[str], option: str) -> dict[str, str]:
    """NAME=VALUE texts of an option, each of which may hold several separated by commas."""
    found = {}
    for text in texts:
        for part in text.split(","):
            name, equals, value = part.partition("=")
            if not equals or not name.strip():
                raise BadInput(f"{option} {text!r} cannot be used; give NAME=VALUE, such as {_EXAMPLES[option]}.")
            found[name.strip()] = value.strip()
    return found


_EXAMPLES = {"-X": "freethreading_compatible=True", "-E": "USE_FLOAT=True"}
