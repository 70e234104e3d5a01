"""Mutated real sources: every one gives facts or an error, in time, with nothing printed and nothing written."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from audit.facts import Options
from audit.graph import link
from audit.rules import RULES
from audit.tree import analyse

ROOT = Path(__file__).parents[2]
SOURCES = [path.read_bytes() for path in sorted((ROOT / "tests/audit/cases").glob("*.pyx")) if path.stat().st_size]
SOURCES += [path.read_bytes()[:4000] for path in sorted((ROOT / "pyx").glob("*.pyx"))]
WORDS = [
    *b"nogil|with gil:|cdef|cpdef|def f(x):|except +|except *|noexcept|prange|lambda:|yield|*|[|]|(|)|:|    |'|#".split(
        b"|"
    ),
    *b"object|double[:]|class A:|raise|<int>|&|async |await |del |global x|import |cimport |DEF X = 1|IF 1:|T |0".split(
        b"|"
    ),
    *(b"\n", b"\t", b"\x00", b"\xff", b"\\", b'"""', b"cython.critical_section(x)", b"@cython.final\n", b"include 'x'"),
    *(b"ctypedef fused T:\n    int\n    double\n", b"-1", b"..."),
]


@st.composite
def mutated(draw):
    """A real source with some of its bytes cut, doubled, or replaced by words that mean something."""
    data = draw(st.sampled_from(SOURCES))
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 40))
        cut = data[start : start + length]
        put = draw(st.one_of(st.sampled_from(WORDS), st.just(b""), st.just(cut + cut), st.binary(max_size=4)))
        data = data[:start] + put + data[start + length :]
    return data


def check(folder, data, capfd):
    path = folder / "mutated.pyx"
    path.write_bytes(data)
    started = time.monotonic()
    analysed = analyse(str(path), Options())
    assert time.monotonic() - started < 60
    assert (analysed.module is None) == bool(analysed.errors)
    for error in analysed.errors:
        assert (
            error.line >= 1 and error.column >= 1 and error.kind in ("read", "parse-error", "cimport") and error.reason
        )
    if analysed.module is not None:
        project = link([analysed.module])
        assert project.verdicts() is not None and project.order() is not None
        for rule in RULES.values():
            for finding in rule.check(analysed.module, project):
                assert finding.line >= 1 and finding.column >= 1
    assert capfd.readouterr() == ("", "")
    assert os.listdir(folder) == ["mutated.pyx"]


KEPT = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=KEPT)
@given(data=mutated())
def test_mutated_sources(tmp_path, capfd, data):
    check(tmp_path, data, capfd)


@pytest.mark.soak
def test_many_mutated_sources(tmp_path, capfd):
    """Minutes of it; AUDIT_FUZZ_SECONDS says how many seconds."""
    until = time.monotonic() + float(os.environ.get("AUDIT_FUZZ_SECONDS", "180"))

    @settings(max_examples=200, deadline=None, database=None, suppress_health_check=KEPT)
    @given(data=mutated())
    def batch(data):
        check(tmp_path, data, capfd)

    while time.monotonic() < until:
        batch()
