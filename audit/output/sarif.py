"""SARIF 2.1.0, which sites that host code show beside the lines of a change.

Files that could not be audited are notifications of the run, not results; inline ignores are suppressions with their
reasons; what a baseline accepts is `unchanged`, all else `new`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import Cython

from audit import catalogue
from audit.baseline import fingerprints
from audit.check import Audit
from audit.output import counts
from audit.rule import Error, Finding, Severity

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {Severity.BLOCKS: "error", Severity.RACES: "error", Severity.SLOWS: "warning", Severity.NOTE: "note"}
_ROOT = "SRCROOT"


def render(audit: Audit) -> str:
    """One log with one run, ending in a newline."""
    return json.dumps(document(audit), indent=1) + "\n"


def document(audit: Audit) -> dict[str, Any]:
    """The log."""
    rules = list(catalogue.rules())
    reported = [(finding, "", False) for finding in audit.findings]
    reported += [(finding, reason, False) for finding, reason in audit.suppressed]
    reported += [(finding, "", True) for finding in audit.accepted]
    reported.sort(key=lambda entry: entry[0])
    prints = fingerprints([finding for finding, _, _ in reported], audit.sources)
    suppressed = {finding for finding, _ in audit.suppressed}
    results = []
    for (finding, reason, accepted), mark in zip(reported, prints, strict=True):
        result = _result(audit, finding, rules.index(finding.rule) if finding.rule in rules else -1)
        result["partialFingerprints"] = {"nogilAudit/v1": mark}
        if audit.baseline:
            result["baselineState"] = "unchanged" if accepted else "new"
        if finding in suppressed:
            result["suppressions"] = [{"kind": "inSource", "justification": reason or "no reason was given"}]
        elif accepted:
            result["suppressions"] = [{"kind": "external", "justification": f"accepted by {audit.baseline}"}]
        results.append(result)
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "nogil-audit",
                "semanticVersion": _version(),
                "shortDescription": {"text": "Says what keeps Cython source from running on many threads at once."},
                "properties": {"cython": Cython.__version__},
                "rules": [_rule(rule, about) for rule, about in catalogue.rules().items()],
            }
        },
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"uri": Path.cwd().as_uri().rstrip("/") + "/"}},
        "invocations": [
            {
                "executionSuccessful": not audit.errors,
                "exitCode": audit.status,
                "toolExecutionNotifications": [_notification(audit, error) for error in audit.errors],
            }
        ],
        "artifacts": [{"location": _location(path), "sourceLanguage": "cython"} for path in audit.files],
        "results": results,
        "properties": {"summary": counts.summary(audit)},
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("freecfr")
    except PackageNotFoundError:
        return "0.0.0"


def _rule(rule: str, about: catalogue.Rule) -> dict[str, Any]:
    text = f"{about.WHY.strip()}\n\nFound in:\n\n{about.BAD.strip()}\n\nNot found in:\n\n{about.GOOD.strip()}"
    fenced = (
        f"{about.WHY.strip()}\n\nFound in:\n\n```cython\n{about.BAD.strip()}\n```\n\n"
        f"Not found in:\n\n```cython\n{about.GOOD.strip()}\n```"
    )
    title = about.TITLE.strip().rstrip(".")
    return {
        "id": rule,
        "name": "".join(part.capitalize() for part in rule.split("-")),
        "shortDescription": {"text": f"{title}."},
        "fullDescription": {"text": about.WHY.strip()},
        "help": {"text": text, "markdown": fenced},
        "defaultConfiguration": {"level": LEVELS[about.SEVERITY], "enabled": catalogue.is_on(about)},
        "properties": {"tags": ["concurrency", "gil", str(about.SEVERITY)]},
    }


def _result(audit: Audit, finding: Finding, index: int) -> dict[str, Any]:
    location: dict[str, Any] = {"physicalLocation": _place(audit, finding.path, finding.line, finding.column)}
    if finding.function:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.function, "kind": "function"}]
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": LEVELS[finding.severity],
        "message": {"text": f"{finding.message} {finding.hint}".strip()},
        "locations": [location],
    }
    if index >= 0:
        result["ruleIndex"] = index
    return result


def _notification(audit: Audit, error: Error) -> dict[str, Any]:
    place = _place(audit, error.path, error.line, error.column)
    return {
        "level": "error",
        "descriptor": {"id": error.kind},
        "message": {"text": error.reason or f"It could not be audited ({error.kind})."},
        "locations": [{"physicalLocation": place}],
    }


def _place(audit: Audit, path: str, line: int, column: int) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": max(1, line), "startColumn": max(1, column)}
    if text := audit.sources.line(path, line).rstrip():
        region["snippet"] = {"text": text}
    return {"artifactLocation": _location(path), "region": region}


def _location(path: str) -> dict[str, Any]:
    """Below the current folder a relative address, elsewhere a whole one."""
    relative = os.path.relpath(path)
    if relative.split(os.sep)[0] == os.pardir or os.path.isabs(relative):
        return {"uri": "file://" + quote(os.fsencode(Path(os.path.abspath(path)).as_posix()))}
    return {"uri": quote(os.fsencode(Path(relative).as_posix())), "uriBaseId": _ROOT}
