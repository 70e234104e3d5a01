"""Suppressions: which lines they cover, what is said of those that are careless, none in strings."""

import pytest

from audit.rule import Finding, Severity
from audit.sources import Sources, comments, decode
from audit.suppress import RULES, apply, find

KNOWN = ["exc-check", "gil-block", "no-ft-directive", *RULES]


def settle(text, *places, ran=KNOWN):
    """What stays of findings at (line, rule), as such pairs, and the reasons of what went."""
    lines = tuple(text.split("\n"))
    findings = [Finding("m.pyx", line, 1, rule, "f", Severity.SLOWS, "m.", "h.") for line, rule in places]
    kept, suppressed = apply(findings, ["m.pyx"], Sources({"m.pyx": lines}), KNOWN, ran)
    return [(finding.line, finding.rule) for finding in kept], [reason for _, reason in suppressed]


def test_on_the_line():
    assert settle("x\nf()  # nogil-audit: ignore[exc-check] once a run", (2, "exc-check")) == ([], ["once a run"])


def test_other_lines_and_rules_stay():
    text = "f()  # nogil-audit: ignore[exc-check] once a run\nf()"
    kept, suppressed = settle(text, (1, "exc-check"), (1, "gil-block"), (2, "exc-check"))
    assert (kept, suppressed) == ([(1, "gil-block"), (2, "exc-check")], ["once a run"])


def test_above_the_line():
    text = "x\n# nogil-audit: ignore[exc-check, gil-block] why\n# more words\nf()\nf()"
    assert settle(text, (4, "exc-check"), (4, "gil-block")) == ([], ["why", "why"])
    assert settle(text, (4, "gil-block"), (5, "exc-check"))[0] == [(2, "suppress-unused"), (5, "exc-check")]
    assert settle("# nogil-audit: ignore[exc-check] why\n\nf()", (3, "exc-check"))[0] == [
        (1, "suppress-unused"),
        (3, "exc-check"),
    ]


def test_what_concerns_the_whole_file():
    text = "# cython: language_level=3\n# nogil-audit: ignore[no-ft-directive] built with -X\nf()"
    assert settle(text, (1, "no-ft-directive")) == ([], ["built with -X"])
    assert settle("x = 1\n" + text, (1, "no-ft-directive"))[0] == [(1, "no-ft-directive"), (3, "suppress-unused")]


WITHIN = '''\
cdef class A:  # nogil-audit: ignore-within[exc-check] one thread has it
    cdef int f(self,
  int x) noexcept:
        s = """
no code
"""
        # nogil-audit: ignore-within[gil-block] at the end only
        @final
        def g(
    ):
            y

    z
w
'''


def test_within_a_class_or_a_function():
    for line in range(1, 14):
        assert settle(WITHIN, (line, "exc-check"))[1] == ["one thread has it"], line
    assert settle(WITHIN, (14, "exc-check"))[1] == []
    for line in (7, 8, 9, 10, 11):
        assert settle(WITHIN, (line, "gil-block"))[1] == ["at the end only"], line
    for line in (6, 13, 14):
        assert settle(WITHIN, (line, "gil-block"))[1] == [], line


@pytest.mark.parametrize("line", ["x = 1", "if x:", "cdef int x", "", "define(x)[1:"])
def test_within_nothing(line):
    text = f"# nogil-audit: ignore-within[exc-check] why\n{line}\n    f()"
    assert settle(text, (3, "exc-check"))[0] == [(1, "suppress-unknown"), (3, "exc-check")]


def test_within_is_unused_like_any_other():
    text = "def f():  # nogil-audit: ignore-within[exc-check] why\n    x\ny"
    assert settle(text, (3, "exc-check"))[0] == [(1, "suppress-unused"), (3, "exc-check")]


@pytest.mark.parametrize("reason", ["", " ", " :", " -- "])
def test_without_a_reason(reason):
    assert settle(f"f()  # nogil-audit: ignore[exc-check]{reason}", (1, "exc-check")) == (
        [(1, "suppress-no-reason")],
        [""],
    )


@pytest.mark.parametrize("mark", ["ignore[exc-chek] why", "ignore why", "ignore[] why", "disable=exc-check", ""])
def test_without_a_rule_that_exists(mark):
    assert settle(f"f()  # nogil-audit: {mark}", (1, "exc-check"))[0] == [(1, "exc-check"), (1, "suppress-unknown")]


def test_near_matches_are_named():
    lines = ("f()  # nogil-audit: ignore[exc-chek] why",)
    kept, _ = apply([], ["m.pyx"], Sources({"m.pyx": lines}), KNOWN, KNOWN)
    assert kept[0].hint == "Did you mean 'exc-check'?"
    assert kept[0].column == 6


def test_unused_is_known_only_of_rules_that_ran():
    text = "f()  # nogil-audit: ignore[exc-check] why"
    assert settle(text)[0] == [(1, "suppress-unused")]
    assert settle(text, ran=["gil-block"])[0] == []


def test_findings_about_suppressions_count():
    assert all(rule.SEVERITY is not Severity.NOTE for rule in RULES.values())


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.ID)
def test_the_examples_show_what_they_say(rule):
    known = ["module-state", "gil-block", *RULES]
    for source, expected in ((rule.BAD, True), (rule.GOOD, False)):
        lines = tuple(source.split("\n"))
        finding = Finding("m.pyx", 2, 1, "module-state", "", Severity.RACES, "m.", "h.")
        kept, _ = apply([finding], ["m.pyx"], Sources({"m.pyx": lines}), known, known)
        assert (rule.ID in {finding.rule for finding in kept}) is expected


@pytest.mark.parametrize(
    "text",
    [
        '"""\n# nogil-audit: ignore[exc-check] why\n"""',
        "x = '# nogil-audit: ignore[exc-check] why'",
        'x = r"\\" # nogil-audit: ignore[exc-check] why"',
        "x = '''a\\''' # nogil-audit: ignore[exc-check] why'''",
        'x = "\\\n# nogil-audit: ignore[exc-check] why"',
        "x = 'never closed # nogil-audit: ignore[exc-check] why",
    ],
)
def test_not_in_strings(text):
    assert find("m.pyx", tuple(text.split("\n"))) == []


def test_comments_of_cython():
    text = "cdef int f(int *p) except? -1:  # one\n    c'#'  # two\n    x = \"'\"  # three\n\t# four"
    assert [(found.line, found.column, found.text, found.alone) for found in comments(tuple(text.split("\n")))] == [
        (1, 33, "# one", False),
        (2, 11, "# two", False),
        (3, 14, "# three", False),
        (4, 2, "# four", True),
    ]


@pytest.mark.parametrize(
    "data, text",
    [
        (b"\xef\xbb\xbfa\r\nb\rc", "a\nb\nc"),
        ("# coding: latin-1\nö".encode("latin-1"), "# coding: latin-1\nö"),
        ("ö".encode("latin-1"), "\ufffd"),
        (b"# coding: no-such\nx", "# coding: no-such\nx"),
        (b"", ""),
    ],
)
def test_decoding(data, text):
    assert decode(data) == text


def test_lines_of_a_file_that_is_not_there(tmp_path):
    sources = Sources()
    assert (sources.lines(str(tmp_path / "no")), sources.line(str(tmp_path / "no"), 1)) == ((), "")
