"""Mutated sources: no traceback, no hang, no file written. Runs for SOAK_SECONDS (make soak)."""

import os
import random
import shutil
import signal
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from audit import tree
from audit.facts import Options
from tests.audit.projects import Command

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*ROOT.glob("pyx/*.pyx"), *Path(__file__).parent.glob("cases/*.pyx")])
SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))
# What Cython cares about; put where it does not belong.
WORDS = """cdef cpdef def class nogil gil with noexcept except except+ * & ( ) [ ] { } : , . ; = == += -> @ lambda yield
async await return raise assert try finally del global nonlocal import cimport from include extern struct union enum
ctypedef fused public readonly inline const volatile int double object void None True sizeof NULL new operator prange
parallel
cython.critical_section f"{x}" ''' \\ \\t \\x00 # 0x 1e 10**99 \ufeff \u202e DEF IF ELSE IF:""".split(" ")


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


def mutated(source, others, chance):
    """A few changes to lines, tokens, characters or bytes of a source."""
    lines = source.decode("utf-8", "replace").split("\n")
    for _ in range(chance.choice([1, 1, 1, 2, 3, 6])):
        at = chance.randrange(len(lines))
        words = lines[at].split(" ")
        match chance.randrange(9):
            case 0:
                del lines[at : at + chance.randint(1, 3)]
            case 1:
                lines.insert(at, chance.choice(lines))
            case 2:
                lines[at] = " " * chance.randint(0, 9) + lines[at].lstrip()
            case 3:
                words[chance.randrange(len(words))] = chance.choice(WORDS)
                lines[at] = " ".join(words)
            case 4:
                words.insert(chance.randrange(len(words) + 1), chance.choice(WORDS))
                lines[at] = " ".join(words)
            case 5:
                chance.shuffle(words)
                lines[at] = " ".join(words)
            case 6:
                lines = lines[: at + 1]
            case 7:
                other = chance.choice(others).decode("utf-8", "replace").split("\n")
                start = chance.randrange(len(other))
                lines[at:at] = other[start : start + chance.randint(1, 10)]
            case 8:
                lines[at] = lines[at][: chance.randrange(len(lines[at]) + 1)]
        lines = lines or [""]
    data = bytearray("\n".join(lines).encode("utf-8", "surrogatepass"))
    if chance.random() < 0.1 and data:
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def ours(error):
    """Whether an exception rose where the checker reads Cython's tree, not inside Cython's own stages."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).parent.name == "audit"
    ]
    return frames[-1].name not in ("_analyse", "_tree")


def listing(folder):
    return sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*"))


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 600)
def test_mutated_sources(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # Beside its declarations and under its own name, else Cython would refuse most of them at once.
    package = tmp_path / "pyx"
    package.mkdir()
    for path in [ROOT / "pyx" / "__init__.py", *SOURCES[0].parent.glob("*.pxd"), *SOURCES[-1].parent.glob("*.pxd")]:
        shutil.copy(path, package)
    sources = {path.name: path.read_bytes() for path in SOURCES}
    options = Options(include_path=(str(tmp_path),))
    command = Command(capsys)
    counts = {"audited": 0, "refused": 0, "Cython failed": 0}
    end = time.monotonic() + SECONDS

    @settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**64 - 1))
    def check(seed):
        chance = random.Random(seed)
        path = package / chance.choice(sorted(sources))
        path.write_bytes(mutated(sources[path.name], list(sources.values()), chance))
        before = listing(tmp_path)
        with at_most(60):
            try:
                result = tree._analyse(str(path), path.read_bytes(), options)
            except RecursionError:
                counts["refused"] += 1
            except Exception as error:
                assert not ours(error), "".join(traceback.format_exception(error))
                counts["Cython failed"] += 1
            else:
                counts["audited" if result.module else "refused"] += 1
            form = chance.choice(["text", "json", "sarif", "html"])
            status, out, err = command(path, "--include-path", tmp_path, "--format", form)
        assert status in (0, 1, 2) and out and "Traceback" not in out + err
        assert listing(tmp_path) == before
        path.unlink()

    while time.monotonic() < end:
        check()
    with capsys.disabled():
        print(f"\n{counts}")
    assert counts["audited"] > 0 and counts["refused"] > 0
