"""Cythonizes pyx/ with one table of directives; metadata is in pyproject.toml.

FREECFR_NATIVE=1 compiles for this machine's processor (results may then differ in the last bits from other
machines'); FREECFR_ANNOTATE=1 also writes Cython's annotated pages, below build/.
"""

import os
import sys
import sysconfig
import tempfile
from pathlib import Path

import Cython
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools._distutils.ccompiler import new_compiler
from setuptools._distutils.errors import CompileError
from setuptools._distutils.sysconfig import customize_compiler

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "nonecheck": False,
    "cdivision": True,
    "embedsignature": True,
    "freethreading_compatible": True,
}
# No fused multiply-add and no fast-math: the same bits wherever the same sources are compiled.
COMPILE_ARGS = ["-O3", "-fno-math-errno", "-ffp-contract=off"]
if os.environ.get("FREECFR_NATIVE") == "1":
    COMPILE_ARGS.append("-march=native")
# Cython's own code for memoryviews, compiled once instead of into every module.
SHARED = "pyx._cython_shared"
ANNOTATE = os.environ.get("FREECFR_ANNOTATE") == "1"

# One folder a build: 3.13 with and without the GIL would otherwise share object files.
BUILD = Path("build") / sysconfig.get_config_var("SOABI")


def compiler_works() -> bool:
    """Whether a C file compiles; asked first, so that the checker alone installs in seconds without."""
    compiler = new_compiler()
    customize_compiler(compiler)
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.c"
        probe.write_text("#include <Python.h>\n")
        try:
            compiler.compile([str(probe)], output_dir=folder, include_dirs=[sysconfig.get_path("include")])
        except CompileError:
            return False
    return True


def main() -> None:
    asked_for = "build_ext" in sys.argv  # as bootstrap does: then a module that does not compile is an error
    names = sorted(path.stem for path in Path("pyx").glob("*.pyx"))
    if not asked_for and not compiler_works():
        names = []

    # Neither Cython nor setuptools builds again because these changed.
    settings = repr((Cython.__version__, DIRECTIVES, COMPILE_ARGS, SHARED, ANNOTATE))
    stamp = BUILD / "settings"
    changed = not stamp.exists() or stamp.read_text() != settings

    modules = names and cythonize(
        [
            Extension(f"pyx.{name}", [f"pyx/{name}.pyx"], extra_compile_args=COMPILE_ARGS, optional=not asked_for)
            for name in names
        ]
        + [Extension(SHARED, [f"{SHARED.replace('.', '/')}.c"], optional=not asked_for)],
        shared_utility_qualified_name=SHARED,
        compiler_directives=DIRECTIVES,
        build_dir=str(BUILD / "cython"),
        nthreads=os.cpu_count() or 1,
        annotate=ANNOTATE,
        force=changed,
    )
    setup(
        ext_modules=modules,
        options={"build": {"build_base": str(BUILD)}, "build_ext": {"force": changed, "parallel": os.cpu_count()}},
    )
    if asked_for:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(settings)


if __name__ == "__main__":  # cythonize's worker processes import this file
    main()
