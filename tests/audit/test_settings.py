"""Settings: what they say, and a sentence for what they cannot."""

import pytest

from audit.errors import BadInput
from audit.settings import Settings, assignments, find, read, rule_ids

KNOWN = ["exc-check", "gil-block", "module-state"]


def project(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(text)
    return folder / "pyproject.toml"


def test_all_keys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = project(
        tmp_path / "pkg",
        """
        [tool.nogil-audit]
        select = ["exc-check"]
        extend-select = ["gil-block"]
        ignore = ["module-state"]
        exclude = ["tests"]
        include-path = ["include"]
        baseline = "accepted.json"
        directives = {boundscheck = false, language_level = 3}
        compile-time-env = {FAST = true}
        """,
    )
    assert read(file, KNOWN) == Settings(
        select=("exc-check",),
        extend_select=("gil-block",),
        ignore=("module-state",),
        exclude=("tests",),
        include_path=("pkg/include",),
        directives=(("boundscheck", False), ("language_level", "3")),
        said_by=(
            ("boundscheck", "pkg/pyproject.toml [tool.nogil-audit]"),
            ("language_level", "pkg/pyproject.toml [tool.nogil-audit]"),
        ),
        compile_time_env=(("FAST", True),),
        baseline="pkg/accepted.json",
        file="pkg/pyproject.toml",
    )


@pytest.mark.parametrize(
    "text, sentence",
    [
        ('[tool.nogil-audit]\nselct = ["exc-check"]', "no setting 'selct': did you mean 'select'"),
        ('[tool.nogil-audit]\nselect = ["exc-chek"]', "no rule 'exc-chek': did you mean 'exc-check'"),
        ('[tool.nogil-audit]\nselect = "exc-check"', "select = 'exc-check' cannot be used; give a list of texts"),
        ("[tool.nogil-audit]\ndirectives = {boundchek = true}", "no directive 'boundchek': did you mean 'boundscheck'"),
        ("[tool.nogil-audit]\ndirectives = {boundscheck = 7}", "boundscheck=7 cannot be used"),
        ("[tool.nogil-audit]\ndirectives = [1]", "give a table"),
        ("[tool.nogil-audit]\nbaseline = 3", "baseline = 3 cannot be used"),
        ("[tool]\nnogil-audit = 3", "has to be a table"),
    ],
)
def test_what_cannot_be_used(tmp_path, text, sentence):
    with pytest.raises(BadInput, match=sentence.replace("(", r"\(")):
        read(project(tmp_path, text), KNOWN)


def test_the_nearest_file_that_speaks_to_us(tmp_path):
    outer = project(tmp_path, "[tool.nogil-audit]\n")
    project(tmp_path / "a", "[tool.other]\n")
    project(tmp_path / "a" / "b", "this is = = no TOML")
    assert find([str(tmp_path / "a" / "b" / "x.pyx")]) == outer
    inner = project(tmp_path / "a", "[tool.nogil-audit]\n")
    assert find([str(tmp_path / "a")]) == inner
    with pytest.raises(BadInput, match="cannot be read"):
        project(tmp_path / "a", "[tool.nogil-audit\n")
        find([str(tmp_path / "a")])


def test_ids_and_assignments():
    assert rule_ids(" gil-block,exc-check, gil-block,", KNOWN, "--select") == ("gil-block", "exc-check")
    with pytest.raises(BadInput, match="--ignore: there is no rule 'x'"):
        rule_ids("x", KNOWN, "--ignore")
    assert assignments(["a=1,b=2", "a = 3"], "-X") == {"a": "3", "b": "2"}
    with pytest.raises(BadInput, match="give NAME=VALUE"):
        assignments(["boundscheck"], "-X")
