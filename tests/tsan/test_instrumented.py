"""That the other tests run what ThreadSanitizer watches, and nothing that switches the GIL on."""

import importlib
import sys
import sysconfig
from pathlib import Path

import pytest

import pyx

MODULES = sorted(path.stem for path in Path(pyx.__file__).parent.glob("*.pyx"))


def test_there_are_modules():
    assert "traversal" in MODULES and len(MODULES) > 10


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_compiled_for_it(name):
    module = importlib.import_module(f"pyx.{name}")
    assert b"__tsan_" in Path(module.__file__).read_bytes()


def test_the_interpreter_is_compiled_for_it_and_free_threaded():
    assert "--with-thread-sanitizer" in sysconfig.get_config_var("CONFIG_ARGS")
    assert not sys._is_gil_enabled()
