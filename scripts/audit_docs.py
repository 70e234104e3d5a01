"""Writes what is generated in the checker's documents: the rules in docs/audit.md, the table of our own modules.

    python scripts/audit_docs.py

Generated text stands between a line `<!-- NAME: generated -->` and `<!-- end of NAME -->`; tests/test_audit_self.py
holds it equal to what the rules and an audit of pyx/ say.
"""

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from audit import catalogue  # noqa: E402
from audit.check import Audit, audit  # noqa: E402
from audit.rule import Severity  # noqa: E402
from audit.settings import Settings  # noqa: E402

MANUAL, REPORT = ROOT / "docs/audit.md", ROOT / "docs/reports/cython_nogil_audit.md"


def rules() -> str:
    """Every rule: what it means and its two examples."""
    parts = []
    for name, rule in sorted(catalogue.rules().items()):
        off = "" if catalogue.is_on(rule) else ", off by default"
        parts += [f"### `{name}` ({rule.SEVERITY}{off})", f"{rule.TITLE}.", " ".join(rule.WHY.split())]
        parts += [
            "Found in",
            f"```cython\n{rule.BAD.strip()}\n```",
            "and not in",
            f"```cython\n{rule.GOOD.strip()}\n```",
        ]
    return "\n\n".join(parts)


def modules(report: Audit) -> str:
    """A table of the files of an audit."""
    above = Counter(finding.path for finding in report.findings if finding.severity is not Severity.NOTE)
    kept = Counter(finding.path for finding, _ in report.suppressed)
    heads = ["module", "functions", "declared nogil", "of these GIL-free", "could be and are not", "findings", "kept"]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    paths = sorted({verdict.path for verdict in report.functions} | set(above) | set(kept))
    total = [0] * 6
    for path in [*paths, ""]:
        found = [verdict for verdict in report.functions if verdict.path == path]
        declared = [verdict for verdict in found if verdict.declared_nogil]
        missed = [verdict for verdict in found if verdict.could_be_nogil and not verdict.declared_nogil]
        free = [verdict for verdict in declared if verdict.gil_free]
        cells = [len(found), len(declared), len(free), len(missed), above[path], kept[path]]
        total = [one + other for one, other in zip(total, cells, strict=True)]
        name, cells = (f"`{path}`", cells) if path else ("all", total)
        rows.append(f"| {name} | {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def filled(text: str, name: str, content: str) -> str:
    """A document with one generated part replaced."""
    start, end = f"<!-- {name}: generated -->", f"<!-- end of {name} -->"
    return re.sub(
        re.escape(start) + ".*?" + re.escape(end), lambda _: f"{start}\n\n{content}\n\n{end}", text, flags=re.DOTALL
    )


def documents(report: Audit) -> dict[Path, str]:
    """The documents as they should be."""
    return {
        MANUAL: filled(MANUAL.read_text(), "rules", rules()),
        REPORT: filled(REPORT.read_text(), "modules", modules(report)),
    }


if __name__ == "__main__":
    for path, text in documents(audit(["pyx"], Settings(extend_select=("placement",)))).items():
        path.write_text(text)
