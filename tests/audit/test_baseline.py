"""Baselines: accepted findings stay accepted while lines move, new ones show, and damage is one sentence."""

import json

import pytest

from audit import baseline
from audit.errors import BadInput
from audit.rule import Finding, Severity
from audit.sources import Sources


def found(line, rule="exc-check", path="m.pyx", function="f"):
    return Finding(path, line, 1, rule, function, Severity.SLOWS, f"message {line}.", "hint.")


def compare(accepted_text, accepted, text, findings, tmp_path, files=("m.pyx",)):
    """Write a baseline over one text, compare over another."""
    file = str(tmp_path / "accepted.json")
    place = lambda finding: Finding(str(tmp_path / finding.path), *list(vars(finding).values())[1:])  # noqa: E731
    path = str(tmp_path / "m.pyx")
    baseline.write(file, map(place, accepted), Sources({path: tuple(accepted_text.split("\n"))}))
    return baseline.compare(
        map(place, findings),
        baseline.read(file),
        Sources({path: tuple(text.split("\n"))}),
        str(tmp_path),
        [str(tmp_path / name) for name in files],
    )


def test_moved_lines_stay_accepted(tmp_path):
    result = compare("g()\n\nh()", [found(1), found(3)], "# new\n\n    g()\nh()", [found(3), found(4)], tmp_path)
    assert (result.new, len(result.accepted), result.stale) == ([], 2, [])


@pytest.mark.parametrize(
    "finding, text",
    [
        (found(1, rule="gil-block"), "g()"),
        (found(1, function="other"), "g()"),
        (found(1), "g(2)"),
        (found(1, path="n.pyx"), "g()"),
    ],
)
def test_another_finding_is_new(tmp_path, finding, text):
    result = compare("g()", [found(1)], text, [finding], tmp_path)
    assert (len(result.new), len(result.accepted)) == (1, 0)
    assert [(known.path, count) for known, count in result.stale] == [("m.pyx", 1)]


def test_equal_ones_are_counted(tmp_path):
    result = compare("g()\ng()", [found(1), found(2)], "g()\ng()\ng()", [found(1), found(2), found(3)], tmp_path)
    assert ([finding.line for finding in result.new], len(result.accepted)) == ([3], 2)
    result = compare("g()\ng()", [found(1), found(2)], "g()", [found(1)], tmp_path)
    assert [count for _, count in result.stale] == [1]


def test_only_audited_files_can_be_stale(tmp_path):
    assert compare("g()", [found(1)], "", [], tmp_path, files=["other.pyx"]).stale == []


def test_the_file_can_be_read_and_compared(tmp_path, monkeypatch):
    """Sorted, one entry a finding, the same whatever the order and the folder it was written from."""
    (tmp_path / "sub").mkdir()
    source = tmp_path / "sub" / "m.pyx"
    source.write_text("g()\nh()\ng()\n")
    texts = []
    for folder, path in ((tmp_path, "sub/m.pyx"), (tmp_path / "sub", "m.pyx")):
        monkeypatch.chdir(folder)
        for order in ((1, 2, 3), (3, 2, 1)):
            baseline.write(str(tmp_path / "b.json"), [found(line, path=path) for line in order], Sources())
            texts.append((tmp_path / "b.json").read_text())
    assert len(set(texts)) == 1
    assert json.loads(texts[0])["findings"] == [
        {"path": "sub/m.pyx", "rule": "exc-check", "function": "f", "text": "g()", "count": 2},
        {"path": "sub/m.pyx", "rule": "exc-check", "function": "f", "text": "h()", "count": 1},
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.json", "sub"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 2, "findings": []}',
        '{"format": 1, "findings": {}}',
        '{"format": 1, "findings": [3]}',
        '{"format": 1, "findings": [{"path": "a", "rule": "b", "function": "c", "text": "d", "count": true}]}',
        '{"format": 1, "findings": [{"path": "a", "rule": "b", "function": "c", "text": null}]}',
        "\x00\udcff",
    ],
)
def test_damage_is_one_sentence(tmp_path, text):
    file = tmp_path / "b.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadInput) as caught:
        baseline.read(str(file))
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_what_cannot_be_read_or_written(tmp_path):
    with pytest.raises(BadInput, match="cannot be read"):
        baseline.read(str(tmp_path / "no.json"))
    with pytest.raises(BadInput, match="cannot be written"):
        baseline.write(str(tmp_path / "no" / "b.json"), [], Sources())


def test_fingerprints():
    sources = Sources({"m.pyx": ("g()", "g()"), "n.pyx": ("", "g()", "g()")})
    first = baseline.fingerprints([found(1), found(2)], sources)
    assert len(set(first)) == 2
    moved = Sources({"m.pyx": ("", "  g()", "g()")})
    assert baseline.fingerprints([found(2), found(3)], moved) == first
