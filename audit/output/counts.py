"""Figures that several formats show: findings by severity, and how many functions are free of the GIL."""

from __future__ import annotations

from collections import Counter

from audit.check import Audit
from audit.rule import Severity


def plural(count: int, noun: str, many: str = "") -> str:
    """`1 file`, `2 files`."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def by_severity(audit: Audit) -> dict[Severity, int]:
    """How many findings of each severity count, worst first."""
    counted = Counter(finding.severity for finding in audit.findings)
    return {severity: counted[severity] for severity in Severity}


def functions(audit: Audit) -> dict[str, int]:
    """Functions in all, declared nogil, that could be nogil, and GIL-free."""
    return {
        "functions": len(audit.functions),
        "declared nogil": sum(function.declared_nogil for function in audit.functions),
        "could be nogil": sum(function.could_be_nogil for function in audit.functions),
        "GIL-free": sum(function.gil_free for function in audit.functions),
    }


def share(part: int, whole: int) -> str:
    """`12 of 40 (30 %)`."""
    return f"{part:,} of {whole:,}" + (f" ({100 * part / whole:.0f} %)" if whole else "")


def summary(audit: Audit) -> str:
    """The whole result in one line."""
    above = {severity: count for severity, count in by_severity(audit).items() if severity is not Severity.NOTE}
    notes = by_severity(audit)[Severity.NOTE]
    parts = [f"{plural(len(audit.files), 'file')}, {plural(audit.lines, 'line')}"]
    total = functions(audit)
    parts.append(f"{plural(total['functions'], 'function')} ({total['GIL-free']:,} GIL-free)")
    found = plural(sum(above.values()), "finding")
    if any(above.values()):
        found += f" ({', '.join(f'{count:,} {severity}' for severity, count in above.items() if count)})"
    parts.append(f"{found}, {plural(notes, 'note')}" if notes else found)
    if audit.suppressed:
        parts.append(f"{len(audit.suppressed):,} suppressed")
    if audit.baseline:
        parts.append(f"{len(audit.accepted):,} accepted by {audit.baseline}")
    if gone := sum(count for _, count in audit.stale):
        parts.append(f"{gone:,} accepted but gone: write the baseline again")
    if audit.errors:
        parts.append(f"{plural(len(audit.errors), 'error')}")
    return "; ".join(parts) + "."
