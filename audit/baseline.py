"""Accepted findings: what a first run found and is left for later, so that a run tells what is new.

A finding is known again by its file (relative to the baseline), rule, function and the text of its line, not by the
line's number. Equal ones are counted.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from audit.errors import BadInput
from audit.rule import Finding
from audit.sources import Sources

FORMAT = 1


class Key(NamedTuple):
    """What a finding is known by."""

    path: str
    rule: str
    function: str
    text: str


@dataclass
class Compared:
    """Findings against a baseline."""

    new: list[Finding] = field(default_factory=list)
    accepted: list[Finding] = field(default_factory=list)
    stale: list[tuple[Key, int]] = field(default_factory=list)  # accepted ones that are gone, and how many


def key(finding: Finding, sources: Sources, folder: str) -> Key:
    """`folder` is where the baseline stands."""
    path = Path(os.path.relpath(finding.path, folder)).as_posix()
    return Key(path, finding.rule, finding.function, sources.line(finding.path, finding.line).strip())


def fingerprints(findings: Sequence[Finding], sources: Sources, folder: str = ".") -> list[str]:
    """One hexadecimal text a finding, which stays the same while lines above it come and go."""
    seen: Counter[Key] = Counter()
    found = []
    for finding in findings:
        known = key(finding, sources, folder)
        seen[known] += 1
        found.append(hashlib.sha256("\0".join([*known, str(seen[known])]).encode("utf-8", "replace")).hexdigest()[:32])
    return found


def read(file: str) -> dict[Key, int]:
    """How often each finding is accepted. Raises BadInput for what is no baseline."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise BadInput(f"The baseline {file} cannot be read ({reason}); --write-baseline {file} makes one.") from None
    again = f"restore it, or make it again with --write-baseline {file}"
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise BadInput(f"The baseline {file} is damaged{where}; {again}.") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("findings"), list):
        raise BadInput(f"{file} is no baseline of nogil-audit in format {FORMAT}; {again}.")
    accepted: dict[Key, int] = {}
    for number, entry in enumerate(data["findings"], 1):
        entry = entry if isinstance(entry, dict) else {}
        texts = [entry.get(name) for name in Key._fields]
        count = entry.get("count", 1)
        if not all(isinstance(text, str) for text in texts) or type(count) is not int or count < 1:
            raise BadInput(f"The baseline {file} is damaged (entry {number}); {again}.")
        known = Key(*texts)  # type: ignore[arg-type]
        accepted[known] = accepted.get(known, 0) + count
    return accepted


def compare(
    findings: Iterable[Finding], accepted: dict[Key, int], sources: Sources, folder: str, files: Iterable[str]
) -> Compared:
    """Tell new findings from accepted ones. `files` were audited: only theirs can be stale."""
    left = dict(accepted)
    result = Compared()
    for finding in findings:
        known = key(finding, sources, folder)
        if left.get(known, 0) > 0:
            left[known] -= 1
            result.accepted.append(finding)
        else:
            result.new.append(finding)
    audited = {Path(os.path.relpath(file, folder)).as_posix() for file in files}
    result.stale = sorted((known, count) for known, count in left.items() if count > 0 and known.path in audited)
    return result


def write(file: str, findings: Iterable[Finding], sources: Sources) -> int:
    """Accept these findings; how many they are. Raises BadInput where the file cannot be written."""
    folder = os.path.dirname(os.path.abspath(file))
    counted = Counter(key(finding, sources, folder) for finding in findings)
    entries = [known._asdict() | {"count": count} for known, count in sorted(counted.items())]
    text = json.dumps({"format": FORMAT, "findings": entries}, indent=1, ensure_ascii=False) + "\n"
    beside = f"{file}.tmp"
    try:
        Path(beside).write_text(text, encoding="utf-8", errors="backslashreplace")
        os.replace(beside, file)
    except OSError as error:
        raise BadInput(f"The baseline {file} cannot be written ({error.strerror}); name another file.") from None
    return sum(counted.values())
