"""The checker on our own modules: nothing found, and no function of the hot path is anything but free of the GIL."""

import contextlib
import importlib.util
from pathlib import Path

import pytest

from audit.check import audit
from audit.rule import Severity
from audit.settings import Settings

ROOT = Path(__file__).parents[1]
HOT = [
    "bots.pyx",
    "cfr_math.pxd",
    "encoding.pyx",
    "game.pyx",
    "lost_cities.pyx",
    "match.pyx",
    "rng.pxd",
    "traversal.pyx",
]


@pytest.fixture(scope="module")
def report():
    settings = Settings(extend_select=("placement",))
    with contextlib.chdir(ROOT):
        return audit(["pyx"], settings)


def test_nothing_is_found(report):
    above = [finding for finding in report.findings if finding.severity is not Severity.NOTE]
    assert (above, report.errors, report.status) == ([], [], 0)
    audited = {path for module in report.modules for path in (module.path, module.pxd)}
    assert audited >= {str(path.relative_to(ROOT)) for path in ROOT.glob("pyx/*.p[yx][xd]")}


def test_what_is_kept_says_why(report):
    assert report.suppressed and all(len(reason) > 10 for _, reason in report.suppressed)


def test_every_nogil_function_is_free_of_the_gil(report):
    declared = [verdict for verdict in report.functions if verdict.declared_nogil]
    assert {verdict.path for verdict in declared} >= {f"pyx/{name}" for name in HOT}
    assert [verdict.name for verdict in declared if not verdict.gil_free] == []


def test_what_could_be_nogil_is(report):
    assert [v.name for v in report.functions if v.could_be_nogil and not v.declared_nogil] == []


def test_documents_are_up_to_date(report):
    spec = importlib.util.spec_from_file_location("audit_docs", ROOT / "scripts/audit_docs.py")
    audit_docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(audit_docs)
    for path, text in audit_docs.documents(report).items():
        assert path.read_text() == text, f"run scripts/audit_docs.py: {path.name} is not what it generates"
