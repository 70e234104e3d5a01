"""Small projects to audit in tests, and the command run on them inside this process."""

from __future__ import annotations

import json
from pathlib import Path

from audit.__main__ import main

# Two findings above note (an exc-check at line 3, what calls it at line 8), functions of every verdict.
MIXED = """\
# cython: freethreading_compatible=True, language_level=3

cdef void bump(double *p) nogil:
    p[0] += 1

def run(double[::1] x):
    with nogil:
        bump(&x[0])
    print(x)

cdef double half(double x) noexcept:
    return x / 2
"""
CLEAN = """\
# cython: freethreading_compatible=True, language_level=3

cdef double half(double x) noexcept nogil:
    return x * 0.5
"""


def write(folder: Path, **files: str | bytes) -> Path:
    """Files by stem; they get .pyx. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for stem, text in files.items():
        (folder / f"{stem}.pyx").write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


class Command:
    """nogil-audit, run here; `capsys` takes what it prints."""

    def __init__(self, capsys) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        """Status, standard output, standard error."""
        self.capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        printed = self.capsys.readouterr()
        return status, printed.out, printed.err

    def json(self, *arguments: object) -> dict:
        status, out, _ = self(*arguments, "--format", "json")
        return json.loads(out) | {"status": status}
