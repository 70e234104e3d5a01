"""Mutated real sources: each gives facts or an error, in time, with nothing printed and nothing written.

A few in every run of the tests; the soak (`make soak`) goes on for SOAK_SECONDS, and puts each through the command too.
"""

import os
import shutil
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from audit.facts import Options
from audit.graph import link
from audit.rules import RULES
from audit.tree import analyse
from tests.audit.projects import Command

ROOT = Path(__file__).resolve().parents[2]
PATHS = [*sorted(ROOT.glob("pyx/*.pyx")), *sorted(Path(__file__).parent.glob("cases/*.pyx"))]
SOURCES = {path.name: path.read_bytes() for path in PATHS if path.stat().st_size}
SHORT = {name: data[:4000] for name, data in SOURCES.items()}
SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))
# What Cython cares about; put where it does not belong.
WORDS = [
    *b"nogil|with gil:|cdef|cpdef|def f(x):|except +|except *|noexcept|prange|lambda:|yield|*|[|]|(|)|:|    |'|#".split(
        b"|"
    ),
    *b"object|double[:]|class A:|raise|<int>|&|async |await |del |global x|import |cimport |DEF X = 1|IF 1:|T |0".split(
        b"|"
    ),
    *b"extern|struct|union|enum|ctypedef|public|readonly|inline|const|volatile|None|sizeof|NULL|new|operator|try:".split(
        b"|"
    ),
    *(b"\n", b"\t", b"\x00", b"\xff", b"\\", b'"""', b"cython.critical_section(x)", b"@cython.final\n", b"include 'x'"),
    *(b"ctypedef fused T:\n    int\n    double\n", b"-1", b"...", b'f"{x}"', b"0x", b"10**99", "\ufeff".encode()),
]
KEPT = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@st.composite
def mutated(draw, sources):
    """(name, bytes): a real source with some of its bytes or lines cut, doubled, moved, or replaced by words that
    mean something."""
    name = draw(st.sampled_from(sorted(sources)))
    data = sources[name]
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 40))
        if draw(st.booleans()):  # whole lines
            start = data.rfind(b"\n", 0, start) + 1
            length = data.find(b"\n", start + length) + 1 - start
        cut = data[start : start + max(length, 0)]
        put = draw(st.one_of(st.sampled_from(WORDS), st.just(b""), st.just(cut + cut), st.binary(max_size=4)))
        data = data[:start] + put + data[start + len(cut) :]
    return name, data


class Hang(BaseException):
    """Not an Exception, so that nothing takes it for a fault of the source."""


@contextmanager
def at_most(seconds):
    def stop(*_):
        raise Hang(f"nothing came back within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check(path, options, capfd):
    """Whether there was a module; that what was said of it is well formed."""
    with at_most(60):
        analysed = analyse(str(path), options)
    assert (analysed.module is None) == bool(analysed.errors)
    for error in analysed.errors:
        assert error.line >= 1 and error.column >= 1 and error.reason
        assert "a fault of its own" not in error.reason
        assert error.kind in ("read", "parse-error", "cimport")
    if analysed.module is not None:
        project = link([analysed.module])
        assert project.verdicts() is not None and project.order() is not None
        for rule in RULES.values():
            for finding in rule.check(analysed.module, project):
                assert finding.line >= 1 and finding.column >= 1
    assert capfd.readouterr() == ("", "")
    return analysed.module is not None


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=KEPT)
@given(source=mutated(SHORT))
def test_mutated_sources(tmp_path, capfd, source):
    path = tmp_path / "mutated.pyx"
    path.write_bytes(source[1])
    check(path, Options(), capfd)
    assert os.listdir(tmp_path) == ["mutated.pyx"]


def listing(folder):
    return sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*"))


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 600)
def test_mutated_sources_for_long(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    # Beside its declarations and under its own name, else Cython would refuse most of them at once.
    package = tmp_path / "pyx"
    package.mkdir()
    for path in [ROOT / "pyx" / "__init__.py", *ROOT.glob("pyx/*.pxd"), *PATHS[-1].parent.glob("*.pxd")]:
        shutil.copy(path, package)
    options = Options(include_path=(str(tmp_path),))
    command = Command(capfd)
    counts = {True: 0, False: 0}
    end = time.monotonic() + SECONDS

    @settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(source=mutated(SOURCES), form=st.sampled_from(["text", "json", "sarif", "html"]))
    def one(source, form):
        path = package / source[0]
        path.write_bytes(source[1])
        before = listing(tmp_path)
        counts[check(path, options, capfd)] += 1
        with at_most(60):
            status, out, err = command(path, "--include-path", tmp_path, "--format", form)
        assert status in (0, 1, 2) and out and "Traceback" not in out + err
        assert listing(tmp_path) == before
        path.unlink()

    while time.monotonic() < end:
        one()
    with capfd.disabled():
        print(f"\naudited {counts[True]}, refused {counts[False]}")
    assert counts[True] > 0 and counts[False] > 0
