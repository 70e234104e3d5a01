"""What a rule and a finding are, and what an audit ends with."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Where(NamedTuple):
    """A position. `path` differs from the module's in what it includes or declares in its .pxd."""

    path: str
    line: int  # from 1
    column: int  # from 1, in code points


class Severity(StrEnum):
    """How much a finding matters on many threads."""

    BLOCKS = "blocks"  # Cython would refuse nogil on the function
    SLOWS = "slows"  # the C takes the GIL somewhere, or waits for other threads
    RACES = "races"  # threads share what nothing guards
    NOTE = "note"  # worth knowing; changes no exit status


@dataclass(frozen=True, order=True)
class Finding:
    """One thing to change. Findings sort by where they stand."""

    path: str  # as given on the command line, or below a folder given there
    line: int  # from 1
    column: int  # from 1, in code points
    rule: str  # stable id, such as "exc-check"
    function: str  # dotted name in its module, "" at module level
    severity: Severity
    message: str  # what is wrong, one sentence
    hint: str  # what to do, one sentence

    @classmethod
    def at(cls, where: Where, rule: str, function: str, severity: Severity, message: str, hint: str) -> Finding:
        """A finding at a position."""
        return cls(where.path, where.line, where.column, rule, function, severity, message, hint)


@dataclass(frozen=True, order=True)
class Error:
    """Something that could not be audited."""

    path: str
    line: int
    column: int
    kind: str  # "read", "parse-error" or "cimport"
    reason: str


@dataclass(frozen=True, order=True)
class Verdict:
    """What is known of one function."""

    path: str
    line: int
    name: str  # dotted: "Class.method", "function.inner"
    declared_nogil: bool
    could_be_nogil: bool  # Cython would accept nogil on it, callees included
    gil_free: bool  # could be, and its C takes the GIL on no path, error paths included
    python_lines: tuple[int, ...]  # lines that touch Python objects


@dataclass
class Report:
    """An audit's result; the same whatever order files were read in."""

    files: list[str] = field(default_factory=list)
    functions: list[Verdict] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    errors: list[Error] = field(default_factory=list)
