"""The checker installed alone: Cython and nothing else, with no C compiler, in half a minute."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = Path(__file__).parent / "cases"


def uv():
    """uv, on PATH or where scripts/bootstrap keeps it; None where there is none."""
    cache = os.environ.get("FREECFR_CACHE") or Path(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "freecfr"
    )
    return shutil.which("uv") or shutil.which(str(Path(cache, "tools", "bin", "uv")))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Folder of an empty environment's commands after `pip install .` with a compiler that fails; seconds it took."""
    folder = tmp_path_factory.mktemp("alone")
    tree = folder / "tree"
    ignored = shutil.ignore_patterns(".venv*", "build", "*.egg-info", "*.so", "__pycache__", ".git", ".*_cache", "runs")
    shutil.copytree(ROOT, tree, ignore=ignored)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL"))}
    environment |= {"CC": "false", "CXX": "false"}
    python = folder / "venv" / "bin" / "python"
    if tool := uv():
        steps = [[tool, "venv", "--python", sys.executable, folder / "venv"]]
        steps += [[tool, "pip", "install", "--python", python, tree]]
    else:
        steps = [[sys.executable, "-m", "venv", folder / "venv"], [python, "-m", "pip", "install", tree]]
    start = time.perf_counter()
    for step in steps:
        done = subprocess.run(list(map(str, step)), env=environment, capture_output=True, text=True, timeout=300)
        if done.returncode and any(word in done.stderr.lower() for word in ("network", "connect", "resolve host")):
            pytest.skip(f"packages cannot be had here: {done.stderr[-300:]}")
        assert done.returncode == 0, done.stderr
    return python.parent, time.perf_counter() - start


def run(folder, *arguments, **options):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        [str(folder / arguments[0]), *map(str, arguments[1:])],
        env=environment, capture_output=True, text=True, timeout=120, **options,
    )  # fmt: skip


def test_installed_alone(installed, tmp_path):
    folder, seconds = installed
    assert seconds < 30
    packages = json.loads(run(folder, "python", "-c", _PACKAGES, cwd=tmp_path).stdout)
    assert {"torch", "numpy", "pydantic", "rich", "matplotlib"}.isdisjoint(packages)
    assert {name.lower() for name in packages} <= {"freecfr", "cython", "pip", "setuptools"}
    done = run(folder, "nogil-audit", CASES, "--format", "json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert (done.returncode, found["errors"]) == (1, [])
    assert {Path(path).name for path in found["files"]} == {path.name for path in CASES.glob("*.pyx")}
    assert "exc-check" in {finding["rule"] for finding in found["findings"]}
    # Nothing was compiled, and the same command is there as a module.
    assert not list((folder.parent / "lib").rglob("pyx/*.so"))
    assert run(folder, "python", "-m", "audit", "--version", cwd=tmp_path).stdout.startswith("nogil-audit 0.")


_PACKAGES = "import json, importlib.metadata as m; print(json.dumps([d.metadata['Name'] for d in m.distributions()]))"


def test_the_command_is_declared():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["nogil-audit"] == "audit.__main__:main"
    assert [name.split(">")[0] for name in project["dependencies"]] == ["Cython"]


def test_the_hook_runs_the_command():
    text = (ROOT / ".pre-commit-hooks.yaml").read_text()
    assert "id: nogil-audit" in text and "entry: nogil-audit" in text and "language: python" in text
