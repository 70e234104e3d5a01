"""`# nogil-audit: ignore[RULE] reason`: findings that somebody looked at and means to keep.

It stands on the finding's line, or in a comment above it with nothing but comments between. In the comments that open
a file it also covers line 1, where what concerns the whole file is reported. `ignore-within[RULE] reason`, at the line
that opens a class or function, covers all of that: where one thread owns an object, that is said once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from audit.errors import near
from audit.rule import Finding, Severity
from audit.sources import Sources, block, comments


@dataclass(frozen=True)
class Hygiene:
    """A rule about suppressions; the same names as a module of audit/rules."""

    ID: str
    TITLE: str
    WHY: str
    BAD: str
    GOOD: str
    SEVERITY: Severity = Severity.SLOWS
    ON: bool = True


_GOOD = """\
# cython: freethreading_compatible=True
cdef int hits  # nogil-audit: ignore[module-state] written before any thread starts
def start():
    global hits
    hits = 0
"""

RULES = {
    rule.ID: rule
    for rule in (
        Hygiene(
            "suppress-no-reason",
            "A suppression says no reason",
            "Whoever reads the line later cannot tell whether it was looked at or only silenced, so nobody dares to "
            "take the suppression away or to rely on it. Write after the bracket why threads are safe there.",
            _GOOD.replace(" written before any thread starts", ""),
            _GOOD,
        ),
        Hygiene(
            "suppress-unknown",
            "A suppression cannot be understood",
            "A misspelt rule silences nothing, and a suppression without a rule would silence "
            "what nobody has seen yet.",
            _GOOD.replace("module-state", "modul-state"),
            _GOOD,
        ),
        Hygiene(
            "suppress-unused",
            "A suppression suppresses nothing",
            "The code it was written for has changed. Left in place it would hide the next fault on that line.",
            _GOOD.replace("    hits = 0", "    hits = 0  # nogil-audit: ignore[gil-block] it was here once"),
            _GOOD,
        ),
    )
}

_MARK = re.compile(r"#\s*nogil-audit\s*:\s*(?P<rest>.*)")
_IGNORE = re.compile(r"ignore(?P<within>-within)?\s*\[(?P<rules>[^\]]*)\]\s*(?P<reason>.*)")


@dataclass(frozen=True)
class Suppression:
    """One comment's."""

    path: str
    line: int  # of the comment
    column: int
    rules: tuple[str, ...]
    reason: str
    covers: frozenset[int]  # lines
    fault: str = ""  # why it cannot be understood


def find(path: str, lines: tuple[str, ...]) -> list[Suppression]:
    """The suppressions of a source."""
    if not any("nogil-audit" in line for line in lines):
        return []
    all_comments = list(comments(lines))
    alone = {comment.line for comment in all_comments if comment.alone}
    first_code = next((n for n, line in enumerate(lines, 1) if line.strip() and n not in alone), len(lines) + 1)
    found = []
    for comment in all_comments:
        mark = _MARK.search(comment.text)
        if mark is None:
            continue
        covers = {comment.line}
        if comment.alone:
            line = comment.line
            while line in alone:
                line += 1
                covers.add(line)
            if comment.line < first_code:
                covers.add(1)
        match = _IGNORE.match(mark["rest"])
        fault = ""
        if match and match["within"]:
            within = block(lines, max(covers))
            covers.update(within or ())
            if within is None:
                fault = "This suppression is for all of a class or function, and none starts here."
        rules = tuple(rule.strip() for rule in match["rules"].split(",") if rule.strip()) if match else ()
        reason = match["reason"].strip(" \t:;,.-–—#") if match else ""
        if not rules:
            fault = "This suppression names no rule."
        found.append(
            Suppression(path, comment.line, comment.column + mark.start(), rules, reason, frozenset(covers), fault)
        )
    return found


def apply(
    findings: Iterable[Finding], paths: Iterable[str], sources: Sources, known: Iterable[str], ran: Iterable[str]
) -> tuple[list[Finding], list[tuple[Finding, str]]]:
    """Findings that stay, with those about suppressions; and those suppressed, each with its reason.

    paths: the files whose suppressions count. known: all rules' ids. ran: those that were looked for; a suppression of
    another cannot be told to be unused.
    """
    suppressions = [found for path in sorted(set(paths)) for found in find(path, sources.lines(path))]
    by_place: dict[tuple[str, int, str], list[Suppression]] = {}
    for suppression in suppressions:
        for line in suppression.covers:
            for rule in suppression.rules:
                by_place.setdefault((suppression.path, line, rule), []).append(suppression)
    kept: list[Finding] = []
    suppressed: list[tuple[Finding, str]] = []
    used: set[tuple[Suppression, str]] = set()
    for finding in findings:
        matching = by_place.get((finding.path, finding.line, finding.rule), [])
        used |= {(suppression, finding.rule) for suppression in matching}
        if matching:
            # The nearest has the last word: the one on the line, else the one just above.
            nearest = max(matching, key=lambda suppression: suppression.line)
            suppressed.append((finding, nearest.reason))
        else:
            kept.append(finding)
    about = list(_about(suppressions, used, set(known), set(ran)))
    return sorted(kept + about), sorted(suppressed)


def _about(
    suppressions: list[Suppression], used: set[tuple[Suppression, str]], known: set[str], ran: set[str]
) -> Iterator[Finding]:
    """What is wrong with the suppressions themselves."""

    def finding(suppression: Suppression, rule: str, message: str, hint: str) -> Finding:
        return Finding(
            suppression.path, suppression.line, suppression.column, rule, "", RULES[rule].SEVERITY, message, hint
        )

    for suppression in suppressions:
        if suppression.fault:
            yield finding(
                suppression,
                "suppress-unknown",
                suppression.fault,
                "Write `# nogil-audit: ignore[RULE] reason`.",
            )
            continue
        if not re.search(r"\w", suppression.reason):
            yield finding(
                suppression,
                "suppress-no-reason",
                f"{', '.join(suppression.rules)} is suppressed without a reason.",
                "Write after the bracket why it is safe here.",
            )
        for rule in suppression.rules:
            if rule not in known:
                yield finding(
                    suppression,
                    "suppress-unknown",
                    f"There is no rule {rule!r} to suppress.",
                    f"{near(rule, known) or '`nogil-audit --explain all` lists the rules. '}".strip().capitalize(),
                )
            elif rule in ran and (suppression, rule) not in used:
                yield finding(
                    suppression,
                    "suppress-unused",
                    f"Nothing here is suppressed for {rule}.",
                    "Take the suppression away.",
                )
