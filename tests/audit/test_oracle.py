"""Verdicts against Cython itself, on the shared cases and on the project's own core."""

from pathlib import Path

import pytest

from audit.facts import Options
from tests.audit.oracle import judge

ROOT = Path(__file__).parents[2]
BUILD = (
    ("boundscheck", False),
    ("cdivision", True),
    ("freethreading_compatible", True),
    ("initializedcheck", False),
    ("language_level", 3),
    ("nonecheck", False),
    ("wraparound", False),
)


def agree(judged):
    assert judged.refused == [] and judged.accepted == [] and judged.takes == [] and judged.unread == []
    assert judged.quiet == []


def test_a_few_cases():
    cases = Path(__file__).parent / "cases"
    names = (
        "03_int_sentinels",
        "04_with_gil_block",
        "12_memview_slices",
        "16_cpp_except_plus",
        "29_unmarked_but_gil_free",
    )
    judged = judge([cases / f"{name}.pyx" for name in names], cases, Options())
    agree(judged)
    assert (judged.could, judged.blocked) == (14, 1) and judged.free in (8, 9)  # before Cython 3.3 and after


@pytest.mark.slow
def test_all_cases():
    cases = Path(__file__).parent / "cases"
    agree(judge(sorted(cases.glob("*.p*")), cases, Options()))


@pytest.mark.slow
def test_the_project_s_own_core():
    judged = judge(sorted((ROOT / "pyx").glob("*.p*")), ROOT, Options(directives=BUILD))
    agree(judged)
    assert judged.could > 100
