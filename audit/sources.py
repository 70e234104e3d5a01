"""Lines of the files that a report speaks of, read once, and the comments in them."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

# Comments and what may hold a # without being one. Cython's own marks break Python's tokenizer, so only these are read.
_LEXICAL = re.compile(
    r'"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*(?:"""|\Z)'
    r"|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*(?:'''|\Z)"
    r'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"?'
    r"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'?"
    r"|(?P<comment>\#[^\n]*)",
    re.DOTALL,
)


class Comment(NamedTuple):
    line: int  # from 1
    column: int  # of the #, from 1, in code points
    text: str  # with the #
    alone: bool  # nothing else stands on the line


def decode(data: bytes) -> str:
    """A source's text by its mark or cookie; what does not fit is replaced. Line ends become newlines."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except (SyntaxError, UnicodeError):
        encoding = "utf-8"
    text = data.decode(encoding, "replace").removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n")


class Sources:
    """Lines by path. Files that cannot be read have none."""

    def __init__(self, lines: dict[str, tuple[str, ...]] | None = None) -> None:
        self._lines = dict(lines or {})

    def lines(self, path: str) -> tuple[str, ...]:
        if path not in self._lines:
            try:
                with open(path, "rb") as file:
                    self._lines[path] = tuple(decode(file.read()).split("\n"))
            except OSError:
                self._lines[path] = ()
        return self._lines[path]

    def line(self, path: str, number: int) -> str:
        """A line's text, "" where there is none."""
        lines = self.lines(path)
        return lines[number - 1] if 0 < number <= len(lines) else ""


# What opens a block that a suppression may stand for.
_OPENS = re.compile(r"\s*(async\s+def|def|cdef|cpdef|class)\b.*:\s*$", re.DOTALL)


def _statements(lines: tuple[str, ...], line: int) -> Iterator[tuple[int, str]]:
    """(last line, text) of each statement from a line on, without comments and what its strings say."""

    def emptied(match: re.Match[str]) -> str:
        return "" if match["comment"] else re.sub(r"[^\n]", "_", match[0]).replace("\n", "\\\n")

    statement = ""
    for number, row in enumerate(_LEXICAL.sub(emptied, "\n".join(lines)).split("\n"), 1):
        if number < line or not (statement or row.strip()):
            continue
        row = row.rstrip()
        statement += row.removesuffix("\\") + " "
        is_open = sum(map(statement.count, "([{")) > sum(map(statement.count, ")]}"))
        if not is_open and not row.endswith("\\"):
            yield number, statement.expandtabs()
            statement = ""


def block(lines: tuple[str, ...], line: int) -> range | None:
    """The lines of the class or function whose header, or first decorator, is at a line; None where there is none."""
    header, last = None, line
    for end, statement in _statements(lines, line):
        indentation = len(statement) - len(statement.lstrip())
        if header is None:
            if statement.lstrip().startswith("@"):
                continue
            if not _OPENS.match(statement):
                return None
            header = indentation
        elif indentation <= header:
            break
        last = end
    return None if header is None else range(line, last + 1)


def comments(lines: tuple[str, ...]) -> Iterator[Comment]:
    """The comments of a source, none that stands in a string."""
    text = "\n".join(lines)
    position, line, start = 0, 1, 0  # of what was counted last; where its line starts
    for match in _LEXICAL.finditer(text):
        if match["comment"] is None:
            continue
        line += text.count("\n", position, match.start())
        start = text.rfind("\n", 0, match.start()) + 1
        position = match.start()
        yield Comment(line, position - start + 1, match["comment"], not text[start:position].strip())
