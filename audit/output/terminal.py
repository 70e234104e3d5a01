"""Source lines and carets as a terminal shows them: tabs, wide and combining characters, nothing it would obey."""

from __future__ import annotations

import unicodedata

TAB = " " * 4
CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "magenta": "35", "cyan": "36"}


def paint(text: str, *styles: str) -> str:
    return f"\x1b[{';'.join(CODES[style] for style in styles)}m{text}\x1b[0m"


def shown(character: str) -> str:
    """What stands for a character; those that steer a terminal are shown as their pictures."""
    if character == "\t":
        return TAB
    if character < " ":
        return chr(0x2400 + ord(character))
    if character == "\x7f":
        return "\u2421"
    # Surrogates, controls, and marks that would turn the direction of the text.
    return "\ufffd" if unicodedata.category(character) in ("Cc", "Cs", "Cf") and character != "\u200d" else character


def width(text: str) -> int:
    """Columns that a text takes."""
    total = 0
    for character in text:
        if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
            continue
        total += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return total


def excerpt(line: str, column: int, room: int = 110) -> tuple[str, int]:
    """A line as shown and the columns before its caret; of a long one what stands around the caret.

    column: from 1, in code points.
    """
    cells = [shown(character) for character in line.rstrip()]
    at = max(0, min(column - 1, len(cells)))
    start = 0
    before, after = "", ""
    if width("".join(cells)) > room:
        if at > room // 2:
            start = at - room // 3
            before = "… "
        if len(cells) - start > room:
            after = " …"
    text = before + "".join(cells[start : start + room]) + after
    return text, width(before + "".join(cells[start:at]))
