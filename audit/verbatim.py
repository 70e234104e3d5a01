"""What a verbatim C block says, without comments, strings and preprocessor lines: its variables and its functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from audit.facts import Module, Verbatim
from audit.rule import Where

_BLANK = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|^[ \t]*\#(?:[^\n\\]|\\.|\\\n)*",
    re.DOTALL | re.MULTILINE,
)
_TYPE_OR_FILE = re.compile(r"^(?:typedef\s+)?(?:struct|union|enum|class)\b(?!.*\))")
_FILE = re.compile(r"^(?:inline\s+)?namespace\b|^extern\s*$|^extern\s+\"?\s*\"?$")
_NAME = re.compile(r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)*$")
_POINTER_TO_FUNCTION = re.compile(r"\(\s*\*\s*(\w+)\s*(?:\[[^\]]*\])?\s*\)\s*\(")
_FUNCTION = re.compile(r"([A-Za-z_]\w*)\s*\(")
_NO_DECLARATION = re.compile(
    r"^(?:typedef|using|extern|return|static_assert|_Static_assert|goto|template|friend|else|case)\b"
)
_WORDS_OF_CODE = frozenset({"if", "for", "while", "switch", "return", "sizeof", "catch", "else", "do"})


class Static(NamedTuple):
    """A variable of a verbatim block that lives as long as the process."""

    name: str
    declaration: str
    line: int  # from 0, in the block
    function: str  # the function it stands in, "" at file level
    start: int  # where its name stands in the code
    initialised: bool


def stripped(code: str) -> str:
    """The code with comments, strings and preprocessor lines blanked; lines stay where they were."""

    def blank(match: re.Match[str]) -> str:
        text = match.group()
        if text[0] in "\"'":
            return text[0] + " " * (len(text) - 2) + text[0]
        return re.sub(r"[^\n]", " ", text)

    return _BLANK.sub(blank, code)


def statics(code: str) -> Iterator[Static]:
    """Variables at file level, and static ones inside functions, of `stripped` code."""
    for text, start, function in _statements(code):
        static = re.search(r"\bstatic\b", text) is not None
        if function is not None and not static:
            continue
        declaration = text.strip()
        if not declaration or _NO_DECLARATION.match(declaration):
            continue
        before, equals, _ = declaration.partition("=")
        pointer = _POINTER_TO_FUNCTION.search(before)
        if pointer is not None:
            name = pointer.group(1)
        else:
            before = re.sub(r"\b(?:__attribute__|__declspec|alignas|_Alignas)\s*\(+[^)]*\)+", "", before)
            if "(" in before:
                continue
            before = before.split("{")[0]
            match = _NAME.search(before.split(",")[0].strip())
            kind = before.split(",")[0].strip()
            if match is None or len(re.findall(r"[A-Za-z_]\w*", kind)) < 2:
                continue
            name = match.group(1)
            if _TYPE_OR_FILE.match(kind.replace("static", "").strip()) and len(re.findall(r"\w+", kind)) < 3:
                continue
        place = start + text.index(name)
        yield Static(name, declaration, code.count("\n", 0, place), function or "", place, bool(equals))


def functions(code: str) -> Iterator[tuple[str, str]]:
    """Name and body of the functions of `stripped` code."""
    for match in re.finditer(r"([A-Za-z_]\w*)\s*\([^;{}]*\)[^;{}()]*\{", code):
        if match.group(1) in _WORDS_OF_CODE:
            continue
        depth, index = 1, match.end()
        while index < len(code) and depth:
            depth += {"{": 1, "}": -1}.get(code[index], 0)
            index += 1
        yield match.group(1), code[match.end() : index]


def _statements(code: str) -> Iterator[tuple[str, int, str | None]]:
    """Statements with where they start and the function around them, None at file level; types' fields left out."""
    around: list[str] = []  # "file", "type", "initialiser" or the name of a function
    start = 0
    for index, character in enumerate(code):
        if character == "{":
            text = code[start:index].strip()
            if around and around[-1] in ("initialiser", "type"):
                around.append(around[-1])
            elif _is_initialiser(text):
                around.append("initialiser")
            elif _FILE.match(text):
                around.append("file")
            elif _TYPE_OR_FILE.match(re.sub(r"\bstatic\b|\bconst\b", "", text).strip()):
                around.append("type")
            else:
                name = next((m for m in _FUNCTION.findall(text) if m not in _WORDS_OF_CODE), "")
                around.append(next((outer for outer in around if outer not in ("file", "type")), name or "a block"))
            if around[-1] not in ("initialiser", "type"):
                start = index + 1
        elif character == "}":
            kind = around.pop() if around else "file"
            if kind not in ("initialiser", "type"):
                start = index + 1
        elif character == ";" and "type" not in around:
            if "initialiser" not in around:
                function = next((outer for outer in around if outer != "file"), None)
                yield code[start:index], start, function
            start = index + 1
        elif character == ":" and around and around[-1] not in ("file", "type", "initialiser"):
            if re.fullmatch(r"\s*(?:\w+|case\b[^;{}]*)\s*", code[start:index]) and code[index : index + 2] != "::":
                start = index + 1


def _is_initialiser(text: str) -> bool:
    """Whether a brace opens a value: after =, or after the name of a variable in C++."""
    return re.search(r"=\s*$", text) is not None or (
        "=" in text and "(" not in text.partition("=")[0] and not text.startswith(("if", "for", "while"))
    )


def place_of_line(module: Module, block: Verbatim, offset: int) -> Where:
    """Where a line of a block stands in the file."""
    wanted = block.code.split("\n")[offset]
    if block.where.path == module.path:
        first = block.where.line - 1 + offset
        for line in range(max(first, 0), min(first + 40, len(module.lines))):
            if wanted.strip() and wanted.strip() in module.lines[line]:
                text = module.lines[line]
                return Where(block.where.path, line + 1, len(text) - len(text.lstrip()) + 1)
    return Where(block.where.path, block.where.line + offset, 1)
