"""What is true of public packages comes out; skipped where their wheels cannot be had.

Wheels are looked for in the folder that AUDIT_WHEELS names; `slow` tests download them otherwise.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from audit.facts import Options
from audit.graph import link
from audit.rules import RULES
from audit.tree import analyse
from tests.audit.oracle import judge

pytestmark = pytest.mark.slow

WHEELS = {  # with a Python version that they were built for
    "gensim==4.3.3": "3.12",
    "gensim==4.4.0": "3.11",
    "cymem==2.0.16": "3.12",
    "murmurhash==1.0.16": "3.12",
}


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    """A function: requirement -> folder with the sources of its wheel."""
    unpacked = {}

    def get(requirement):
        if requirement not in unpacked:
            folder = tmp_path_factory.mktemp("wheel")
            stem = requirement.replace("==", "-")
            found = sorted(Path(os.environ.get("AUDIT_WHEELS", folder)).glob(f"{stem}-*.whl"))
            if not found:
                platforms = ("manylinux2014_x86_64", "manylinux_2_24_x86_64", "manylinux_2_28_x86_64")
                command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
                command += ["--python-version", WHEELS[requirement], "-d", str(folder), requirement]
                command += [word for platform in platforms for word in ("--platform", platform)]
                if subprocess.run(command, capture_output=True).returncode != 0:
                    pytest.skip(f"{requirement} cannot be had here")
                found = sorted(folder.glob("*.whl"))
            with zipfile.ZipFile(found[0]) as wheel:
                for name in wheel.namelist():
                    if name.endswith((".pyx", ".pxd", ".pxi", "__init__.py")):
                        wheel.extract(name, folder / "sources")
            unpacked[requirement] = folder / "sources"
        return unpacked[requirement]

    return get


def audit(path):
    """Verdicts by name, and findings as (line, rule), of one file."""
    analysed = analyse(str(path), Options())
    assert not analysed.errors, analysed.errors
    project = link([analysed.module])
    findings = [finding for rule in RULES.values() for finding in rule.check(analysed.module, project)]
    return {verdict.name: verdict for verdict in project.verdicts()}, findings


def at(findings, *rules):
    return {finding.line for finding in findings if finding.rule in rules}


def test_gensim_before_and_after_its_repair(package):
    verdicts, findings = audit(package("gensim==4.3.3") / "gensim/_matutils.pyx")
    inner = verdicts["_mean_absolute_difference"]
    assert inner.line == 42 and inner.declared_nogil and inner.could_be_nogil and inner.python_lines == ()
    assert 42 in at(findings, "exc-check")
    # as many as Cython gives hints: one a declaration, one a call in each specialisation
    assert len([f for f in findings if f.rule in ("exc-check", "exc-check-call")]) == 13
    outer = verdicts["mean_absolute_difference"]
    assert outer.line == 15 and outer.python_lines == (31, 32, 34, 35, 36, 37, 38, 39)

    verdicts, findings = audit(package("gensim==4.4.0") / "gensim/_matutils.pyx")
    repaired = verdicts["_mean_absolute_difference"]
    assert repaired.line == 45 and repaired.declared_nogil and repaired.gil_free and repaired.python_lines == ()
    assert [finding for finding in findings if finding.function == "_mean_absolute_difference"] == []


def test_gensim_nmf(package):
    verdicts, findings = audit(package("gensim==4.3.3") / "gensim/models/nmf_pgd.pyx")
    assert verdicts["solve_h"].line == 19
    assert at(findings, "prange-gil") == set()
    assert at(findings, "exc-check-call-sentinel") == {57, 61}


def test_gensim_word2vec(package):
    verdicts, findings = audit(package("gensim==4.3.3") / "gensim/models/word2vec_inner.pyx")
    assert verdicts["our_dot_double"].line == 47
    for name, line in (("bisect_left", 138), ("random_int32", 150)):
        assert verdicts[name].line == line and verdicts[name].gil_free
        assert line in at(findings, "exc-check-sentinel")
    assert verdicts["init_w2v_config"].line == 463
    assert [line for line in verdicts["init_w2v_config"].python_lines if line > 463][0] == 464


def test_cymem(package):
    verdicts, findings = audit(package("cymem==2.0.16") / "cymem/cymem.pyx")
    assert (verdicts["Pool.alloc"].line, verdicts["Pool.alloc"].python_lines) == (76, (82, 83, 86, 96, 97))
    assert (verdicts["Pool.free"].line, verdicts["Pool.free"].python_lines) == (138, (150, 151))
    assert at(findings, "no-ft-directive") == set()


def test_murmurhash(package):
    verdicts, findings = audit(package("murmurhash==1.0.16") / "murmurhash/mrmr.pyx")
    assert verdicts["hash64"].line == 21 and verdicts["hash64"].gil_free
    assert verdicts["hash_bytes"].line == 49 and verdicts["hash_bytes"].python_lines == (50, 51)
    assert at(findings, "no-ft-directive") == set()


@pytest.mark.parametrize("requirement", WHEELS)
def test_verdicts_against_cython(package, requirement):
    root = package(requirement)
    judged = judge(sorted(root.rglob("*.p[yx][xd]")), root, Options())
    assert judged.refused == judged.accepted == judged.takes == judged.unread == []
