"""What a setup.py tells Cython, as far as its text says so without being run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

FREE_THREADING_MACRO = "CYTHON_FREETHREADING_COMPATIBLE"
# Names by which scripts change Cython's defaults instead of passing directives.
_DEFAULTS = {"directive_defaults", "_directive_defaults", "get_directive_defaults"}


@dataclass
class Group:
    """What is said of some sources."""

    sources: tuple[str, ...] | None = None  # patterns relative to the script; None: all
    directives: list[tuple[str, Any, int]] = field(default_factory=list)  # name, value, line
    cplus: bool | None = None
    include_path: tuple[str, ...] = ()
    compile_time_env: dict[str, Any] = field(default_factory=dict)


@dataclass
class Said:
    groups: list[Group] = field(default_factory=list)
    unread: list[tuple[int, str]] = field(default_factory=list)  # line, sentence


class _Unknown(Exception):
    """An expression whose value only running the script would show."""


def read_setup(text: str) -> Said:
    """Directives, language and search paths given to cythonize and to extensions."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        return Said(unread=[(getattr(error, "lineno", None) or 1, "it does not parse as Python, so it was not read.")])
    return _Reader(tree).read()


class _Reader:
    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.said = Said()
        self.certain: set[ast.stmt] = set()  # statements that run whenever their function does
        self.names: dict[str, list[ast.AST]] = {}  # statements that set a name or change what it holds, in order
        self._mark(tree.body, True)
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt):
                for name in _changed(node):
                    self.names.setdefault(name, []).append(node)
        for statements in self.names.values():
            statements.sort(key=lambda node: (node.lineno, node.col_offset))  # type: ignore[attr-defined]

    def read(self) -> Said:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                name = _last_name(node.func)
                if name == "cythonize":
                    self._cythonize(node)
                elif name == "Extension":
                    self._extension(node)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Attribute) and target.attr == "cython_directives":
                        self._add(Group(), node.value)
        for name in _DEFAULTS & self.names.keys():
            group = Group(directives=self._changes(name, []))
            if group.directives:
                self.said.groups.append(group)
        return self.said

    def _mark(self, body: list[ast.stmt], certain: bool) -> None:
        """Tell statements that surely run from those that depend on a condition which is no version's."""
        for node in body:
            if certain:
                self.certain.add(node)
            if isinstance(node, ast.If):
                versioned = "version" in ast.unparse(node.test).lower()
                main = ast.unparse(node.test).replace('"', "'") == "__name__ == '__main__'"
                self._mark(node.body, certain and (versioned or main))
                self._mark(node.orelse, False)
            elif isinstance(node, ast.For | ast.While):
                self._mark(node.body, certain)
                self._mark(node.orelse, certain)
            elif isinstance(node, ast.Try):
                self._mark(node.body, certain)
                for handler in node.handlers:
                    self._mark(handler.body, False)
                self._mark([*node.orelse, *node.finalbody], certain)
            elif isinstance(node, ast.With | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self._mark(node.body, certain)

    # --- calls ---

    def _cythonize(self, call: ast.Call) -> None:
        group = Group()
        for keyword, value in self._keywords(call):
            if keyword == "compiler_directives":
                group.directives += self._directives(value)
            elif keyword == "language_level":
                try:
                    group.directives.append((keyword, self._value(value), value.lineno))
                except _Unknown:
                    self._unread(value, "language_level")
            elif keyword == "language":
                group.cplus = self._language(value)
            elif keyword == "include_path":
                group.include_path = self._texts(value)
            elif keyword == "compile_time_env":
                try:
                    environment = self._value(value)
                except _Unknown:
                    self._unread(value, "compile_time_env")
                    continue
                if isinstance(environment, dict):
                    group.compile_time_env = environment
        self.said.groups.append(group)

    def _extension(self, call: ast.Call) -> None:
        keywords = dict(self._keywords(call))
        sources = keywords.get("sources", call.args[1] if len(call.args) > 1 else None)
        patterns = self._patterns(sources) if sources is not None else None
        group = Group(sources=patterns)
        if "language" in keywords:
            group.cplus = self._language(keywords["language"])
        if "cython_directives" in keywords:
            group.directives += self._directives(keywords["cython_directives"])
        for name in ("define_macros", "extra_compile_args"):
            if name in keywords and self._defines_macro(keywords[name]):
                group.directives.append(("freethreading_compatible", True, keywords[name].lineno))
        # Without its sources being known, a C++ extension may be any file: then the files' own words count.
        if patterns is None:
            group.cplus = None
        if group.directives or group.cplus is not None:
            self.said.groups.append(group)

    def _keywords(self, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
        for keyword in call.keywords:
            if keyword.arg is not None:
                yield keyword.arg, keyword.value
                continue
            try:
                found = self._resolve(keyword.value)
            except _Unknown:
                continue
            if isinstance(found, ast.Dict):
                for key, value in zip(found.keys, found.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield key.value, value
            elif isinstance(found, ast.Call) and _last_name(found.func) == "dict":
                yield from self._keywords(found)

    def _resolve(self, node: ast.expr) -> ast.expr:
        """What a name was last set to."""
        if not isinstance(node, ast.Name):
            return node
        for statement in reversed(self.names.get(node.id, [])):
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                return statement.value
        raise _Unknown

    def _add(self, group: Group, value: ast.expr) -> None:
        group.directives += self._directives(value)
        if group.directives:
            self.said.groups.append(group)

    def _unread(self, node: ast.expr, what: str) -> None:
        self.said.unread.append(
            (node.lineno, f"{what} = {ast.unparse(node)[:60]} depends on what runs, so it was not read.")
        )

    def _language(self, node: ast.expr) -> bool | None:
        try:
            return str(self._value(node)).lower() in ("c++", "cpp")
        except _Unknown:
            return None

    def _texts(self, node: ast.expr) -> tuple[str, ...]:
        try:
            value = self._value(node)
        except _Unknown:
            return ()
        return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list | tuple) else ()

    def _patterns(self, node: ast.expr) -> tuple[str, ...] | None:
        """Sources as patterns: what cannot be known of a path stands for any text. None where nothing is known."""
        try:
            items = self._resolve(node)
        except _Unknown:
            return None
        if not isinstance(items, ast.List | ast.Tuple):
            return None
        patterns = tuple(self._pattern(item).replace("\\", "/").removeprefix("./") for item in items.elts)
        return (
            None if not patterns or any(pattern.strip("*/.") in ("", "pyx", "py") for pattern in patterns) else patterns
        )

    def _pattern(self, node: ast.expr) -> str:
        if isinstance(node, ast.JoinedStr):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
        if isinstance(node, ast.Call) and _last_name(node.func) == "join":
            return "/".join(self._pattern(part) for part in node.args)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._pattern(node.left) + self._pattern(node.right)
        try:
            value = self._value(node)
        except _Unknown:
            return "*"
        return value if isinstance(value, str) else "*"

    def _defines_macro(self, node: ast.expr) -> bool:
        """Whether the macro that makes modules compatible is set, in define_macros or as -D."""
        try:
            value = self._value(node)
        except _Unknown:
            return False
        if not isinstance(value, list | tuple):
            return False
        for item in value:
            if isinstance(item, tuple | list) and len(item) == 2 and item[0] == FREE_THREADING_MACRO:
                return str(item[1]) == "1"
            if isinstance(item, str) and item in (f"-D{FREE_THREADING_MACRO}", f"-D{FREE_THREADING_MACRO}=1"):
                return True
        return False

    # --- values ---

    def _directives(self, node: ast.expr) -> list[tuple[str, Any, int]]:
        """Names, values and lines of a table of directives; says what it cannot read."""
        try:
            return self._table(node, [])
        except _Unknown:
            self._unread(node, "a table of directives")
            return []

    def _table(self, node: ast.expr, asked: list[str]) -> list[tuple[str, Any, int]]:
        """`asked` are the names being resolved, against circles. Raises _Unknown for what is no table."""
        if isinstance(node, ast.Dict):
            found = []
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    found += self._table(value, asked)
                else:
                    found += self._entry(key, value)
            return _last(found)
        if isinstance(node, ast.Call) and _last_name(node.func) == "dict":
            found = [entry for argument in node.args for entry in self._table(argument, asked)]
            for keyword in node.keywords:
                if keyword.arg is None:
                    found += self._table(keyword.value, asked)
                else:
                    found += self._entry(ast.Constant(keyword.arg), keyword.value)
            return _last(found)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "copy":
            return self._table(node.func.value, asked)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return _last(self._table(node.left, asked) + self._table(node.right, asked))
        if isinstance(node, ast.Name) and node.id in self.names and node.id not in asked:
            return self._changes(node.id, [*asked, node.id])
        if isinstance(node, ast.Constant) and node.value is None:
            return []
        raise _Unknown

    def _changes(self, name: str, asked: list[str]) -> list[tuple[str, Any, int]]:
        """What a table held by a name ends up with."""
        found: list[tuple[str, Any, int]] = []
        known = name in _DEFAULTS
        for statement in self.names[name]:
            entries: list[tuple[str, Any, int]] = []
            if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
                target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
                if isinstance(target, ast.Subscript):
                    assert statement.value is not None
                    entries = self._entry(target.slice, statement.value)
                elif statement.value is not None and name not in _DEFAULTS:
                    try:
                        entries = self._table(statement.value, asked)
                    except _Unknown:
                        continue
                    if statement in self.certain and not isinstance(statement, ast.AugAssign):
                        found = []
                    known = True
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                call = statement.value
                for argument in call.args:
                    entries += self._directives(argument)
                for keyword in call.keywords:
                    if keyword.arg is not None:
                        entries += self._entry(ast.Constant(keyword.arg), keyword.value)
            if statement in self.certain:
                found += entries
            else:
                self.said.unread += [
                    (line, f"{key} = {value} is set under a condition, so it was not taken.")
                    for key, value, line in entries
                ]
        if not known:
            raise _Unknown
        return _last(found)

    def _entry(self, key: ast.expr, value: ast.expr) -> list[tuple[str, Any, int]]:
        try:
            return [(str(self._value(key)), self._value(value), value.lineno)]
        except _Unknown:
            self._unread(value, ast.unparse(key).strip("'\""))
            return []

    def _value(self, node: ast.expr, asked: tuple[str, ...] = ()) -> Any:
        """A literal, or a name that was set to one once. Raises _Unknown for what needs running."""
        if isinstance(node, ast.Name):
            statements = self.names.get(node.id, [])
            if len(statements) != 1 or node.id in asked or statements[0] not in self.certain:
                raise _Unknown
            statement = statements[0]
            if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
                raise _Unknown
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            if not isinstance(target, ast.Name):
                raise _Unknown
            return self._value(statement.value, (*asked, node.id))
        if isinstance(node, ast.List | ast.Tuple):
            items = [self._value(item, asked) for item in node.elts]
            return items if isinstance(node, ast.List) else tuple(items)
        if isinstance(node, ast.Dict):
            pairs = [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None]
            try:
                return {self._value(key, asked): self._value(value, asked) for key, value in pairs}
            except TypeError:  # a key that is no key
                raise _Unknown from None
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            raise _Unknown from None


def _last(entries: list[tuple[str, Any, int]]) -> list[tuple[str, Any, int]]:
    """The last entry of each name."""
    return list({entry[0]: entry for entry in entries}.values())


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _changed(node: ast.stmt) -> Iterator[str]:
    """Names that a statement sets, or whose table it changes."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func
        if isinstance(function, ast.Attribute) and function.attr == "update":
            targets = [function.value]
    for target in targets:
        if isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Call):
            target = target.func
        if name := _last_name(target):
            yield name
