"""The doctor: what it finds, and whom it names."""

import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine import doctor, hardware
from tests.runs import ROOT
from threading_runtime.gil import KEPT_OUT, free_threaded_build


@pytest.mark.skipif(not free_threaded_build(), reason="this Python has the GIL always")
def test_what_switched_the_gil_on_is_named(monkeypatch):
    """The optimizer's import of triton, once it is not prevented."""
    try:
        importlib.metadata.distribution("triton")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("triton is not installed")
    unprevented = doctor._PROBE.replace("\nkeep_gil_off()\n", "\n")
    assert unprevented != doctor._PROBE
    monkeypatch.setattr(doctor, "_PROBE", unprevented)
    monkeypatch.setattr(doctor, "IMPORTED", ("numpy", "torch"))
    assert "triton" in " ".join(doctor.gil_enabled_by())


# An extension module as all were before free threading: it says nothing of whether it needs the GIL.
SPOILER = """
#include <Python.h>
static PyModuleDef spoiler = {PyModuleDef_HEAD_INIT, "spoiler", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_spoiler(void) { return PyModule_Create(&spoiler); }
"""


@pytest.fixture(scope="module")
def spoiler(tmp_path_factory):
    """A folder with the extension module `spoiler`."""
    folder = tmp_path_factory.mktemp("spoiler")
    (folder / "spoiler.c").write_text(SPOILER)
    target = folder / f"spoiler{sysconfig.get_config_var('EXT_SUFFIX')}"
    compiler = sysconfig.get_config_var("CC").split()
    include = sysconfig.get_path("include")
    subprocess.run([*compiler, "-shared", "-fPIC", f"-I{include}", folder / "spoiler.c", "-o", target], check=True)
    return folder


@pytest.mark.one_build
@pytest.mark.skipif(not free_threaded_build(), reason="this Python has the GIL always")
@pytest.mark.parametrize("who, option", [("sitecustomize", []), ("tensorboardX", ["--tensorboard"])])
def test_an_extension_that_needs_the_gil_is_named_and_refused(tmp_path, spoiler, who, option):
    """Whether it comes with the interpreter's start or with a library that a run imports."""
    (tmp_path / f"{who}.py").write_text("import spoiler\nSummaryWriter = None\n")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHON_GIL"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, [tmp_path, spoiler]))

    def freecfr(*arguments):
        command = [sys.executable, "-m", "engine", *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)

    run, other = tmp_path / "run", tmp_path / "other"
    train = ["train", "configs/smoke.toml", "--set", "iterations=1", "--json", "--run"]
    with ThreadPoolExecutor(2) as pool:
        told = pool.submit(freecfr, "doctor", "--json")
        refused = pool.submit(freecfr, *train, run, *option).result()
        allowed = None if option else pool.submit(freecfr, *train, other, "--allow-gil").result()
    found = json.loads(told.result().stdout)
    assert found["gil_enabled"] is True and found["gil_enabled_by"] == ["spoiler"]
    assert any("spoiler" in advice and "--allow-gil" in advice for advice in found["advice"])

    assert refused.returncode == 2 and not run.exists()
    assert "switched on by spoiler" in refused.stderr and "Traceback" not in refused.stderr
    if allowed is not None:
        assert allowed.returncode == 0 and json.loads(allowed.stdout)["gil_enabled"] is True


@pytest.mark.skipif(not free_threaded_build(), reason="this Python has the GIL always")
def test_what_is_kept_out_is_looked_at_again():
    assert doctor.kept_out_needs_gil("json") is False
    assert doctor.kept_out_needs_gil("no_such_module") is None
    result = doctor.examine()
    assert result["gil_enabled"] is False
    for module in KEPT_OUT:
        assert (module in result["kept_out"]) is (doctor.kept_out_needs_gil(module) is True)
    assert "json leaves the GIL off now" in doctor._advice(False, [], True, ["json"])[0]


def test_no_module_is_named_where_the_gil_is_always_on(monkeypatch):
    monkeypatch.setattr(doctor, "free_threaded_build", lambda: False)
    assert doctor.gil_enabled_by() == []


def test_advice(monkeypatch):
    monkeypatch.setattr(doctor, "free_threaded_build", lambda: False)
    assert "built with the GIL" in doctor._advice(True, [], True)[0]
    monkeypatch.setattr(doctor, "free_threaded_build", lambda: True)
    monkeypatch.setattr(doctor, "gil_forced", lambda: False)
    assert "switched on by spoiler" in doctor._advice(True, ["spoiler"], True)[0]
    assert doctor._advice(False, [], True) == ["Nothing is in the way."]
    assert "float32" in doctor._advice(False, [], False)[0]
    monkeypatch.setattr(doctor, "gil_forced", lambda: True)
    assert "unset PYTHON_GIL" in doctor._advice(True, [], True)[0]


def test_notice_on_a_build_that_always_has_the_gil(monkeypatch):
    monkeypatch.setattr(doctor, "gil_enabled", lambda: True)
    monkeypatch.setattr(doctor, "free_threaded_build", lambda: False)
    assert "has the GIL" in doctor.gil_notice(False)
    monkeypatch.setattr(doctor, "gil_enabled", lambda: False)
    assert doctor.gil_notice(False) == ""


def test_processor_is_read_from_the_system(tmp_path, monkeypatch):
    assert hardware._cpuinfo(str(tmp_path / "nope")) == {}
    path = tmp_path / "cpuinfo"
    path.write_text("processor : 0\nmodel name : A Processor\nflags : fpu avx512_bf16\n\nprocessor : 1\n")
    fields = hardware._cpuinfo(str(path))
    monkeypatch.setattr(hardware, "_cpuinfo", lambda: fields)
    assert hardware.processor() == "A Processor" and hardware.cpu_has_bf16()
    monkeypatch.setattr(hardware, "_cpuinfo", lambda: {})
    assert hardware.processor() and not hardware.cpu_has_bf16()
