"""Who may import whom: the table of the design."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OWN = {"audit", "engine", "pyx", "threading_runtime"}
LIBRARIES = {"matplotlib", "psutil", "pydantic", "rich", "tensorboardX"}  # the engine's own
ALLOWED = {
    "pyx": {"numpy", "pyx", "libc", "libcpp", "cython", "cpython"},
    "threading_runtime": {"torch", "numpy", "threading_runtime"},
    "engine": {"pyx", "threading_runtime", "torch", "numpy", "engine"} | LIBRARIES,
    "audit": {"Cython", "audit"},
}
STANDARD = set(sys.stdlib_module_names)
CIMPORT = re.compile(r"^\s*(?:cimport|from)\s+([\w.]+)(?:\s+c?import\b|\s*$|\s+as\b|\s*,)", re.MULTILINE)
IMPORT = re.compile(r"^\s*c?import\s+([\w.]+)", re.MULTILINE)


def imported(path):
    """Top-level names of what a file imports."""
    text = path.read_text()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                yield from (alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                yield node.module.split(".")[0]
    else:
        for pattern in (CIMPORT, IMPORT):
            yield from (name.split(".")[0] for name in pattern.findall(text))


FILES = sorted(
    path for folder in OWN for suffix in ("py", "pyx", "pxd") for path in (ROOT / folder).rglob(f"*.{suffix}")
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_what_its_folder_may(path):
    folder = path.relative_to(ROOT).parts[0]
    # The compiled core's Python faces use the standard library; nothing hot does.
    allowed = ALLOWED[folder] | STANDARD
    assert set(imported(path)) <= allowed


def test_the_patterns_see_imports(tmp_path):
    path = tmp_path / "a.pyx"
    path.write_text("import torch\nfrom engine.x cimport y\n    from libc.math cimport exp\ncimport cython\n")
    assert set(imported(path)) == {"torch", "engine", "libc", "cython"}
