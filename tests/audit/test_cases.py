"""The shared cases: what must be reported is, and what must not be is not."""

import json
from pathlib import Path

import pytest
from Cython import __version__

from audit.facts import Options
from audit.graph import link
from audit.rule import Severity
from audit.rules import RULES
from audit.tree import analyse

CASES = Path(__file__).parent / "cases"
EXPECTED = {name: case for name, case in json.loads((CASES / "expected.json").read_text()).items() if name[0] != "_"}


@pytest.fixture(scope="module")
def found():
    """Findings of all cases, by file name."""
    modules = []
    for path in sorted(CASES.glob("*.p*")):
        analysed = analyse(str(path), Options())
        assert not analysed.errors, analysed.errors
        modules.append(analysed.module)
    project = link(modules)
    findings = {Path(module.path).name: [] for module in modules}
    for module in modules:
        for rule in RULES.values():
            for finding in rule.check(module, project):
                findings[Path(finding.path).name].append(finding)
    return findings


# The cases were made with Cython 3.3; before it a slice that is passed on was counted too.
BEFORE_3_3 = {("12_memview_slices.pyx", 15)} if tuple(map(int, __version__.split(".")[:2])) < (3, 3) else set()
PAIRS = [(name, want) for name, case in EXPECTED.items() for want in case["must"]]


@pytest.mark.parametrize(("name", "want"), PAIRS, ids=lambda value: value if isinstance(value, str) else value["kind"])
def test_what_must_be_reported(found, name, want):
    if want["kind"] not in RULES:
        pytest.skip(f"no rule of kind {want['kind']} yet")
    lines = {finding.line for finding in found[name] if finding.rule == want["kind"]}
    assert lines & {want["line"], *want.get("also_lines", ())}, f"{want['kind']} in line {want['line']}, not {lines}"


@pytest.mark.parametrize("name", EXPECTED)
def test_what_must_not_be_reported(found, name):
    case = EXPECTED[name]
    for unwanted in case["must_not"]:
        if (name, unwanted["line"]) in BEFORE_3_3:
            continue
        for finding in found[name]:
            if finding.line == unwanted["line"] and unwanted["kind"] in ("*", finding.rule):
                assert not case["must"] and finding.severity is Severity.NOTE, finding


def test_an_empty_file_has_one_finding(found):
    assert [finding.rule for finding in found["21_empty.pyx"]] == ["no-ft-directive"]
