"""The command line as it is promised: statuses, what goes where, a sentence for what is wrong."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.audit.projects import CLEAN, MIXED, Command, write


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """The command, in an empty folder that is outside of every project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Command(capsys)


def test_statuses(run, tmp_path):
    write(tmp_path, clean=CLEAN, mixed=MIXED, broken="cdef int f(:\n")
    assert run("clean.pyx")[0] == 0
    assert run("mixed.pyx")[0] == 1
    assert run("broken.pyx")[0] == 2
    status, out, err = run("broken.pyx", "mixed.pyx", "clean.pyx")
    assert status == 2 and "exc-check" in out and "parse-error" in out and err == ""
    assert run("mixed.pyx", "--select", "could-be-nogil")[0] == 0  # a note


def test_json(run, tmp_path):
    write(tmp_path / "pkg", mixed=MIXED, broken="x = (\n")
    found = run.json("pkg")
    assert found["status"] == 2
    assert found["files"] == ["pkg/broken.pyx", "pkg/mixed.pyx"]
    first = next(finding for finding in found["findings"] if finding["rule"] == "exc-check")
    assert set(first) >= {"path", "line", "column", "function", "rule", "severity", "message", "hint"}
    assert (first["path"], first["line"], first["function"]) == ("pkg/mixed.pyx", 3, "bump")
    assert first["severity"] == "slows"
    functions = {function["name"]: function for function in found["functions"]}
    assert list(functions) == ["bump", "run", "half"]
    assert functions["half"] == {
        "path": "pkg/mixed.pyx", "line": 11, "name": "half", "declared_nogil": False, "could_be_nogil": True,
        "gil_free": functions["half"]["gil_free"], "python_lines": [],
    }  # fmt: skip
    assert 9 in functions["run"]["python_lines"] and functions["run"]["could_be_nogil"] is False
    assert [(error["path"], error["kind"]) for error in found["errors"]] == [("pkg/broken.pyx", "parse-error")]
    assert found["order_of_work"]["today"] == [{"path": "pkg/mixed.pyx", "line": 11, "name": "half", "after": []}]


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ([], "name the files or folders to audit"),
        (["--formt", "json", "x.pyx"], "there is no option --formt: did you mean '--format'"),
        (["--format", "jsn", "x.pyx"], "there is no format 'jsn': did you mean 'json'"),
        (["--select", "exc-chek", "x.pyx"], "there is no rule 'exc-chek': did you mean 'exc-check'"),
        (["--ignore", "nonsense", "x.pyx"], "there is no rule 'nonsense'"),
        (["--explain", "exc-chek"], "there is no rule 'exc-chek'"),
        (["-X", "boundchek=True", "x.pyx"], "no directive 'boundchek': did you mean 'boundscheck'"),
        (["-X", "boundscheck=maybe", "x.pyx"], "boundscheck=maybe cannot be used"),
        (["-X", "boundscheck", "x.pyx"], "give NAME=VALUE"),
        (["-E", "FAST", "x.pyx"], "give NAME=VALUE"),
        (["--include-path", "no/such", "x.pyx"], "--include-path no/such: there is no such folder"),
        (["--baseline", "no.json", "x.pyx"], "The baseline no.json cannot be read"),
        (["--jobs", "0", "x.pyx"], "'0' jobs cannot work"),
        (["--color", "sometimes", "x.pyx"], "there is no colour 'sometimes'"),
        (["--output", "no/such/file", "x.pyx"], "--output no/such/file: it cannot be written"),
        (["--format"], "expected one argument"),
    ],
)
def test_bad_usage_is_one_sentence(run, tmp_path, arguments, sentence):
    write(tmp_path, x=CLEAN)
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert sentence in err and err.startswith("nogil-audit: ") and err.count("\n") == 1
    assert sorted(os.listdir()) == ["x.pyx"]


def test_what_is_not_there(run, tmp_path):
    write(tmp_path, clean=CLEAN)
    (tmp_path / "empty").mkdir()
    assert run("no.pyx") == (2, "", "nogil-audit: no.pyx:1:1: read: There is no such file or folder.\n")
    status, out, err = run("empty")
    assert (status, out) == (2, "") and "no Cython source in this folder" in err
    found = run.json("no.pyx", "clean.pyx")
    assert (found["status"], found["files"]) == (2, ["clean.pyx"])
    assert [(error["path"], error["kind"]) for error in found["errors"]] == [("no.pyx", "read")]


def test_a_broken_settings_file(run, tmp_path):
    write(tmp_path, x=CLEAN)
    (tmp_path / "pyproject.toml").write_text('[tool.nogil-audit]\nignor = ["exc-check"]\n')
    status, out, err = run("x.pyx")
    assert (status, out) == (2, "") and "no setting 'ignor': did you mean 'ignore'" in err


def test_settings_and_command_line(run, tmp_path):
    write(tmp_path, x=MIXED)
    (tmp_path / "pyproject.toml").write_text('[tool.nogil-audit]\nignore = ["exc-check"]\n')
    rules = {finding["rule"] for finding in run.json("x.pyx")["findings"]}
    assert "exc-check" not in rules and len(rules) > 1
    assert {finding["rule"] for finding in run.json("x.pyx", "--select", "exc-check")["findings"]} == {"exc-check"}
    assert not {"exc-check", *rules} & {
        finding["rule"] for finding in run.json("x.pyx", "--ignore", ",".join(rules))["findings"]
    }


def test_directives_of_the_build(run, tmp_path):
    write(tmp_path, x="cdef double half(double x) noexcept nogil:\n    return x * 0.5\n")
    assert run("x.pyx", "-X", "language_level=3")[0] == 1
    status, out, _ = run("x.pyx", "-X", "freethreading_compatible=True", "-X", "language_level=3")
    assert status == 0 and "-X: freethreading_compatible=True, language_level=3" in out
    (tmp_path / "setup.py").write_text("cythonize('*.pyx', compiler_directives={'freethreading_compatible': True})")
    status, out, _ = run("x.pyx")
    assert status == 0 and "setup.py: freethreading_compatible=True" in out
    assert run.json("x.pyx")["build_directives"] == [
        {"name": "freethreading_compatible", "value": "True", "source": "setup.py:1"}
    ]


def test_baseline(run, tmp_path):
    write(tmp_path, x=MIXED)
    status, out, err = run("x.pyx", "--write-baseline", "accepted.json")
    assert (status, out) == (0, "") and "accepted.json accepts" in err
    status, out, _ = run("x.pyx", "--baseline", "accepted.json")
    assert status == 0 and "accepted by accepted.json" in out
    write(tmp_path, x="# one more line\n" + MIXED + "\ncdef void more(double *p) nogil:\n    p[0] = 1\n")
    found = run.json("x.pyx", "--baseline", "accepted.json")
    assert found["status"] == 1 and {finding["line"] for finding in found["findings"]} == {15}
    write(tmp_path, x=CLEAN)
    status, out, _ = run("x.pyx", "--baseline", "accepted.json")
    assert status == 0 and "accepted but gone: write the baseline again" in out


def test_suppression(run, tmp_path):
    write(tmp_path, x=MIXED.replace("(double *p) nogil:", "(double *p) nogil:  # nogil-audit: ignore[exc-check] rare"))
    found = run.json("x.pyx")
    assert "exc-check" not in {finding["rule"] for finding in found["findings"]}
    assert [(entry["rule"], entry["reason"]) for entry in found["suppressed"]] == [("exc-check", "rare")]
    write(tmp_path, x=CLEAN + "# nogil-audit: ignore[exc-check] rare\n")
    found = run.json("x.pyx")
    assert (found["status"], [finding["rule"] for finding in found["findings"]]) == (1, ["suppress-unused"])
    assert run.json("x.pyx", "--select", "gil-block")["findings"] == []


def test_explain(run):
    status, out, _ = run("--explain", "exc-check")
    assert status == 0 and out.startswith("exc-check (slows): ") and "noexcept" in out
    status, out, _ = run("--explain", "all")
    assert status == 0 and "suppress-unused" in out and "gil-block" in out


def test_help_and_version(run, tmp_path):
    for option in ("--help", "--version"):
        with pytest.raises(SystemExit) as ended:
            run(option)
        assert ended.value.code == 0
    with pytest.raises(SystemExit):
        run("--help")
    last = run.capsys.readouterr().out.strip().split("\n")[-1].strip()
    assert last.startswith("nogil-audit ")
    write(tmp_path, x=CLEAN)
    assert run(*last.split()[1:])[0] == 0  # the example works


def test_colour(run, tmp_path, monkeypatch):
    write(tmp_path, x=MIXED)
    assert "\x1b[" not in run("x.pyx")[1]
    assert "\x1b[" in run("x.pyx", "--color", "always")[1]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "\x1b[" in run("x.pyx")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run("x.pyx")[1]


def test_output(run, tmp_path):
    write(tmp_path, x=MIXED)
    for form in ("json", "sarif", "html", "text"):
        printed = run("x.pyx", "--format", form)[1]
        assert run("x.pyx", "--format", form, "--output", f"{form}.out") == (1, "", "")
        assert (tmp_path / f"{form}.out").read_text() == printed


ODD = {
    "empty": b"",
    "mark": b"\xef\xbb\xbf" + CLEAN.encode(),
    "crlf": CLEAN.replace("\n", "\r\n").encode(),
    "tabs": CLEAN.replace("    ", "\t").encode(),
    "latin": "# -*- coding: latin-1 -*-\n# cython: freethreading_compatible=True\nx = 'Größe'\n".encode("latin-1"),
    "nothing_but_comments": b"# cython: freethreading_compatible=True\n# nothing",
    "no_end": CLEAN.rstrip("\n").encode(),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_input(run, tmp_path, name):
    write(tmp_path, **{name: ODD[name]})
    found = run.json(f"{name}.pyx")
    assert found["errors"] == []
    assert [finding["rule"] for finding in found["findings"]] == (["no-ft-directive"] if name == "empty" else [])
    for form in ("text", "sarif", "html"):
        assert run(f"{name}.pyx", "--format", form)[0] == found["status"]


@pytest.mark.parametrize(
    "data", [b"x = '\xff'\n", b"# coding: no-such\nx = 1\n", b"x = \x00\n", b"cimport no.such.module\n", b"(" * 500]
)
def test_what_cannot_be_audited_is_an_error(run, tmp_path, data):
    write(tmp_path, x=data, y=MIXED)
    found = run.json(".")
    assert found["status"] == 2
    assert {error["path"] for error in found["errors"]} == {"x.pyx"}
    assert {error["kind"] for error in found["errors"]} <= {"parse-error", "cimport"}
    assert "y.pyx" in {finding["path"] for finding in found["findings"]}
    status, out, err = run(".")
    assert status == 2 and "Traceback" not in out + err


def test_a_file_that_cannot_be_read(run, tmp_path):
    write(tmp_path, y=MIXED)
    (tmp_path / "self.pyx").symlink_to("self.pyx")
    found = run.json(".")
    assert [(error["path"], error["kind"]) for error in found["errors"]] == [("self.pyx", "read")]


def command(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "audit", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_whoever_reads_may_stop(tmp_path):
    write(tmp_path, **{f"m{number}": MIXED for number in range(3)})
    process = command(tmp_path, "--format", "html")
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.wait(60)


@pytest.mark.parametrize("everybody", [False, True], ids=["the program", "as a terminal does"])
def test_interrupt(tmp_path, everybody):
    write(tmp_path, **{f"m{number}": MIXED * 20 for number in range(300)})
    process = command(tmp_path, "--jobs", "2", start_new_session=True)
    time.sleep(4)
    (os.killpg if everybody else os.kill)(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == "" and err == "nogil-audit: interrupted\n"


@pytest.mark.slow
def test_a_file_of_twenty_thousand_lines(run, tmp_path):
    kernel = "\ncdef double k%d(double *p, int n) noexcept nogil:\n    cdef int i\n    cdef double s = 0\n"
    kernel += "    for i in range(n):\n        if p[i] > 0:\n            s += p[i]\n"
    kernel += "        else:\n            s -= 1\n    return s\n"
    write(tmp_path, x="# cython: freethreading_compatible=True\n" + "".join(kernel % number for number in range(2000)))
    found = run.json("x.pyx")
    assert (found["status"], found["summary"]["lines"], len(found["functions"])) == (0, 20_002, 2000)
    assert run("x.pyx", "--format", "html")[0] == 0
