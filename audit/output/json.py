"""JSON for scripts: the keys `findings`, `files`, `functions` and `errors` are a contract, others may be added."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from audit.check import Audit
from audit.output import counts
from audit.rule import Finding


def render(audit: Audit) -> str:
    """One JSON object, ending in a newline. Text that is no Unicode is escaped."""
    return json.dumps(document(audit), indent=1) + "\n"


def document(audit: Audit) -> dict[str, Any]:
    """The object."""
    order = audit.order
    return {
        "findings": [_finding(finding) for finding in audit.findings],
        "files": list(audit.files),
        "functions": [asdict(function) for function in audit.functions],
        "errors": [asdict(error) for error in audit.errors],
        "suppressed": [_finding(finding) | {"reason": reason} for finding, reason in audit.suppressed],
        "accepted": [_finding(finding) for finding in audit.accepted],
        "stale": [known._asdict() | {"count": count} for known, count in audit.stale],
        "build_directives": [asdict(used) for used in audit.used],
        "build_not_read": list(audit.unread),
        "order_of_work": None
        if order is None
        else {
            "today": [_step(step) for step in order.today],
            "later": [_step(step) for step in order.later],
            "blockers": [{"path": path, "count": count, "share": part} for path, count, part in order.share],
        },
        "summary": {
            **{str(severity): count for severity, count in counts.by_severity(audit).items()},
            "lines": audit.lines,
            "text": counts.summary(audit),
        },
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return asdict(finding) | {"severity": str(finding.severity)}


def _step(step: Any) -> dict[str, Any]:
    return {"path": step.path, "line": step.line, "name": step.name, "after": list(step.after)}
