"""An audit as a whole: the same in any order and with any number of jobs, each finding once, losses reported."""

import os
import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from audit import check, tree
from audit.check import audit
from audit.facts import Analysed
from audit.rule import Error, Finding, Severity
from audit.settings import Settings
from tests.audit.projects import CLEAN, MIXED, write


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kernel = "# cython: language_level=3\ncdef void step(double *p) nogil:\n    p[0] += 1\n"
    user = "from kernel cimport step\ncdef void go(double *p) noexcept nogil:\n    step(p)\n"
    write(tmp_path, mixed=MIXED, clean=CLEAN, kernel=kernel, user=user, broken="def f(:\n", empty="")
    (tmp_path / "kernel.pxd").write_text("cdef void step(double *p) nogil\n")
    return tmp_path


def as_text(report):
    return repr((report.files, report.functions, report.findings, report.errors, report.order, report.used))


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_same_in_any_order_with_any_jobs(folder, jobs):
    names = sorted(path.name for path in folder.glob("*.pyx"))
    expected = as_text(audit(names, Settings(jobs=1)))
    assert as_text(audit(["."], Settings(jobs=jobs))) == expected
    shuffled = list(names)
    random.Random(jobs).shuffle(shuffled)
    assert as_text(audit(shuffled, Settings(jobs=jobs))) == expected


def test_calls_between_files_are_seen(folder):
    report = audit(["user.pyx", "kernel.pyx"], Settings())
    assert ("user.pyx", "exc-check-call") in {(finding.path, finding.rule) for finding in report.findings}


def test_a_file_that_vanishes(folder):
    def analyse(path, options):
        if path == "clean.pyx":
            os.remove(path)
        return tree.analyse(path, options)

    report = audit(["."], Settings(jobs=1), analyse=analyse)
    assert {(error.path, error.kind) for error in report.errors} == {
        ("broken.pyx", "parse-error"),
        ("clean.pyx", "read"),
    }
    assert report.status == 2 and any(finding.path == "mixed.pyx" for finding in report.findings)


@dataclass
class FakeModule:
    path: str
    lines: tuple[str, ...] = ("f()", "g()")
    pxd: str = ""
    includes: tuple[str, ...] = ("shared.pxi",)
    functions: list = field(default_factory=list)


def project(modules):
    return SimpleNamespace(verdicts=lambda: [], order=lambda: None, modules=list(modules))


def test_what_is_shared_is_found_once(folder, monkeypatch):
    """Two files include the same lines: one finding. A suppression there counts for both."""
    finding = Finding("shared.pxi", 1, 1, "exc-check", "f", Severity.SLOWS, "m.", "h.")
    rule = SimpleNamespace(ID="exc-check", SEVERITY=Severity.SLOWS, check=lambda module, project: iter([finding]))
    monkeypatch.setattr(check.catalogue, "rules", lambda: {"exc-check": rule})
    (folder / "shared.pxi").write_text("f()\n")

    def fake(path, options):
        return Analysed(FakeModule(path), [])

    report = audit(["mixed.pyx", "clean.pyx"], Settings(jobs=1), analyse=fake, link=project)
    assert report.findings == [finding] and report.status == 1
    (folder / "shared.pxi").write_text("f()  # nogil-audit: ignore[exc-check] once\n")
    report = audit(["mixed.pyx", "clean.pyx"], Settings(jobs=1), analyse=fake, link=project)
    assert (report.findings, report.suppressed, report.status) == ([], [(finding, "once")], 0)


def test_errors_win(folder):
    def fake(path, options):
        return Analysed(None, [Error(path, 3, 1, "cimport", "x is not found.")])

    report = audit(["mixed.pyx"], Settings(), analyse=fake, link=project)
    assert (report.status, report.errors[0].line, report.findings) == (2, 3, [])
