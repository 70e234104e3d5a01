"""Text for people: findings by file with their lines, errors, what to do in which order, one line that sums it up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TypeVar

from audit.check import Audit
from audit.output import counts
from audit.output.terminal import excerpt, paint, shown
from audit.rule import Error, Finding, Severity

Key = TypeVar("Key")
_STYLES = {
    Severity.BLOCKS: ("bold", "red"),
    Severity.SLOWS: ("bold", "yellow"),
    Severity.RACES: ("bold", "magenta"),
    Severity.NOTE: ("cyan",),
}
# Lines of the order of work; all of it is in the JSON and HTML reports.
_STEPS = 10


def render(audit: Audit, color: bool = False, statistics: bool = False, notes: bool = False) -> str:
    """The whole report, ending in a newline; errors alone where there was nothing else to read.

    Notes are one line a rule and file, unless they are asked for.
    """
    printer = _Printer(audit, color, notes)
    parts = [*printer.findings(), *printer.order(), *printer.build()]
    if statistics:
        parts += printer.statistics()
    return "\n".join([*parts, counts.summary(audit)]) + "\n"


def error_line(error: Error) -> str:
    """One error as one line."""
    return f"{_plain(error.path)}:{error.line}:{error.column}: {error.kind}: {_plain(error.reason)}"


def _plain(text: str) -> str:
    return "".join(shown(character) for character in text)


class _Printer:
    def __init__(self, audit: Audit, color: bool, notes: bool) -> None:
        self.audit = audit
        self.color = color
        self.notes = notes

    def paint(self, text: str, *styles: str) -> str:
        return paint(text, *styles) if self.color else text

    def findings(self) -> Iterator[str]:
        by_path: dict[str, list[Finding | Error]] = {}
        entries: list[Finding | Error] = [*self.audit.findings, *self.audit.errors]
        for entry in sorted(entries, key=lambda entry: (entry.path, entry.line)):
            by_path.setdefault(entry.path, []).append(entry)
        for path, found in by_path.items():
            yield self.paint(_plain(path), "bold")
            notes: dict[str, list[int]] = {}
            for entry in found:
                if isinstance(entry, Error):
                    yield from self._error(entry)
                elif entry.severity is Severity.NOTE and not self.notes:
                    notes.setdefault(entry.rule, []).append(entry.line)
                else:
                    yield from self._finding(entry)
            for rule, lines in sorted(notes.items()):
                where = _some(dict.fromkeys(map(str, lines)), 12)
                yield f"  {self.paint(str(Severity.NOTE), *_STYLES[Severity.NOTE])}  {rule}  at {where}"
            yield ""

    def _finding(self, finding: Finding) -> Iterator[str]:
        place = self.paint(f"{finding.line}:{finding.column}", "bold")
        severity = self.paint(finding.severity, *_STYLES[finding.severity])
        where = f"  in {finding.function}" if finding.function else ""
        yield f"  {place}  {severity}  {finding.rule}{self.paint(where, 'dim')}"
        yield f"    {_plain(finding.message)}"
        yield from self._line(finding.path, finding.line, finding.column, _STYLES[finding.severity][-1])
        if finding.hint:
            yield f"    {self.paint('->', 'green')} {_plain(finding.hint)}"

    def _error(self, error: Error) -> Iterator[str]:
        place = self.paint(f"{error.line}:{error.column}", "bold")
        yield f"  {place}  {self.paint('error', 'bold', 'red')}  {error.kind}"
        yield f"    {_plain(error.reason)}"
        if error.kind != "read":
            yield from self._line(error.path, error.line, error.column, "red")

    def _line(self, path: str, line: int, column: int, style: str) -> Iterator[str]:
        text = self.audit.sources.line(path, line)
        if not text.strip():
            return
        line_shown, before = excerpt(text, column)
        gutter = f"{line:>7} | "
        yield f"{self.paint(gutter, 'dim')}{line_shown}"
        yield f"{self.paint(' ' * 8 + '| ', 'dim')}{' ' * before}{self.paint('^', 'bold', style)}"

    def order(self) -> Iterator[str]:
        """What to mark first, and what that makes possible."""
        order = self.audit.order
        if order is None or not (order.today or order.later):
            return
        yield self.paint("Order of work", "bold")
        if order.today:
            yield f"  {counts.plural(len(order.today), 'function')} can be marked nogil today:"
            yield from self._steps(f"{step.name} ({_plain(step.path)}:{step.line})" for step in order.today)
        if order.later:
            yield f"  {counts.plural(len(order.later), 'function')} once blockers are gone:"
            yield from self._steps(
                f"{step.name} ({_plain(step.path)}:{step.line})"
                + (f" after {_some(step.after)}" if tuple(step.after) != (step.name,) else " after its own blockers")
                for step in order.later
            )
        if order.share:
            yield "  Where the blockers are:"
            yield from self._steps(
                f"{_plain(path)}: {counts.plural(count, 'blocker')} ({100 * part:.0f} %)"
                for path, count, part in order.share
            )
        yield ""

    def _steps(self, steps: Iterable[str]) -> Iterator[str]:
        listed = list(steps)
        shown_steps = listed if len(listed) <= _STEPS else listed[: _STEPS - 1]
        yield from (f"    {step}" for step in shown_steps)
        if len(listed) > len(shown_steps):
            yield f"    and {len(listed) - len(shown_steps):,} more (--format json or html has all of them)"

    def build(self) -> Iterator[str]:
        """Which directives of the build were used, and who gave them."""
        audit = self.audit
        if not audit.files:
            return
        if audit.used:
            yield self.paint("Build directives", "bold")
            for source, used in groupby(
                sorted(audit.used, key=lambda one: _file(one.source)), key=lambda one: _file(one.source)
            ):
                yield f"  {_plain(source)}: {', '.join(f'{one.name}={one.value}' for one in used)}"
        else:
            yield "Build directives: none found beyond what the files themselves say; -X NAME=VALUE gives some."
        for sentence in audit.unread:
            yield f"  not read: {_plain(sentence)}"
        if audit.settings_file:
            yield f"  settings: {_plain(audit.settings_file)}"
        yield ""

    def statistics(self) -> Iterator[str]:
        """Findings by rule and by file, functions by verdict."""
        audit = self.audit
        yield self.paint("Statistics", "bold")
        rules = Counter((finding.rule, str(finding.severity)) for finding in audit.findings)
        yield from _table([(str(count), *about) for about, count in _most(rules)], "by rule")
        files = Counter(finding.path for finding in audit.findings)
        yield from _table([(str(count), _plain(path)) for path, count in _most(files)], "by file")
        total = counts.functions(audit)
        yield "  functions"
        for name in ("declared nogil", "could be nogil", "GIL-free"):
            yield f"    {counts.share(total[name], total['functions'])} {name}"
        yield ""


def _file(source: str) -> str:
    """A source without the line in it."""
    head, colon, line = source.rpartition(":")
    return head if colon and line.isdigit() else source


def _some(names: Iterable[str], most: int = 3) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _most(counted: Counter[Key]) -> list[tuple[Key, int]]:
    """Largest first."""
    return sorted(counted.items(), key=lambda item: (-item[1], item[0]))


def _table(rows: list[tuple[str, ...]], title: str) -> Iterator[str]:
    if not rows:
        return
    yield f"  {title}"
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].rjust(widths[0]), *(cell.ljust(wide) for cell, wide in zip(row[1:], widths[1:], strict=True))]
        yield "    " + "  ".join(cells).rstrip()
