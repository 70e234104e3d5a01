"""scripts/bootstrap: quick when there is nothing to do, and one sentence when it cannot go on."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BOOTSTRAP = ROOT / "scripts" / "bootstrap"
GIL_BUILD = not hasattr(sys, "_is_gil_enabled")


def bootstrap(*arguments, path=None, **variables):
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHON", "VENV")} | variables
    if path is not None:
        environment["PATH"] = str(path)
    return subprocess.run(
        [shutil.which("bash"), BOOTSTRAP, *arguments], env=environment, capture_output=True, text=True, timeout=120
    )


def command(folder, name, script):
    """A command of that name, in a folder to be put on PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!{shutil.which('bash')}\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def path(tmp_path):
    """A PATH with what the scripts themselves need and no way to get a Python: as on a machine without network."""
    folder = tmp_path / "path"
    needed = "bash cat cksum cut dirname env find flock grep id ls mkdir mktemp pwd rm sed sort tail tee xargs"
    for name in needed.split():
        if found := shutil.which(name):
            command(folder, name, f'exec {found} "$@"')
    command(folder, "uv", "echo 'error: the download was refused' >&2; exit 1")
    command(folder, "apt-get", "echo 'E: Unable to find a source package' >&2; exit 100")
    command(folder, "make", "exit 1")
    command(folder, "cc", "exit 1")
    return folder


def test_is_quick_and_silent_when_up_to_date():
    if bootstrap("--check", VENV=sys.prefix).returncode != 0:
        pytest.skip("this environment is not of scripts/bootstrap, or sources have changed since")
    start = time.perf_counter()
    done = bootstrap(VENV=sys.prefix)
    assert time.perf_counter() - start < 5  # a few tenths on an idle machine
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_interpreter_that_is_not_there_is_refused(tmp_path):
    done = bootstrap(PYTHON="/no/such/python", VENV=str(tmp_path / "venv"), FREECFR_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 2
    assert done.stderr == "bootstrap: PYTHON=/no/such/python cannot be used: it does not run\n"
    assert list(tmp_path.iterdir()) == []


def test_an_interpreter_without_headers_is_refused(tmp_path):
    script = "import sys, sysconfig; sysconfig.get_paths = lambda: {'include': '/nowhere'}; exec(sys.stdin.read())"
    command(tmp_path / "bin", "bare", f'exec {sys.executable} -c "{script}"')
    done = bootstrap(PYTHON=str(tmp_path / "bin" / "bare"), VENV=str(tmp_path / "venv"))
    assert done.returncode == 2
    assert "C headers are not installed (there is no /nowhere/Python.h)" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_unknown_options_are_refused():
    done = bootstrap("--force")
    assert done.returncode == 2
    assert done.stderr == "bootstrap: there is no option --force; there are --check and --interpreter\n"


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    done = bootstrap(VENV=str(tmp_path), FREECFR_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 2
    assert "is no virtual environment" in done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_the_search_says_one_line_a_step_and_ends_at_the_gil(tmp_path, path):
    command(path, "python3", f'exec {sys.executable} "$@"')
    done = bootstrap("--interpreter", path=path, FREECFR_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{path / 'python3'}\n"
    steps = [line.removeprefix("bootstrap: trying ") for line in done.stderr.splitlines()]
    assert [step.split(" ... ")[1].split(":")[0] for step in steps] == ["no"] * 5 + [str(path / "python3")]
    assert steps[0].startswith("python3.14t and python3.13t, on PATH or kept in ")
    assert steps[1] == "uv python install 3.14t ... no: the download was refused"
    assert steps[2] == "uv python install 3.13t ... no: the download was refused"
    for step, version in zip(steps[3:5], ("3.14", "3.13"), strict=True):
        assert step.startswith(f"CPython {version} from Debian's source archive")
        assert not step.endswith("no: ")
    assert steps[5].startswith("a Python with the GIL, 3.11 or later")
    assert not list((tmp_path / "cache").glob("work.*"))


def test_without_any_python_it_ends_with_a_sentence(tmp_path, path):
    done = bootstrap("--interpreter", path=path, FREECFR_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("bootstrap: no usable Python was found; install Python 3.11")


@pytest.mark.skipif(GIL_BUILD, reason="needs a free-threaded interpreter to find")
def test_a_free_threaded_python_on_path_comes_first(tmp_path, path):
    name = f"python{sys.version_info.major}.{sys.version_info.minor}t"
    command(path, name, f'exec {sys.executable} "$@"')
    done = bootstrap("--interpreter", path=path, FREECFR_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{path / name}\n"
    assert len(done.stderr.splitlines()) == 1
