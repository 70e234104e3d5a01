"""Directives of the build: each source is understood, says who it is, and gives way in the promised order."""

import textwrap

import pytest

from audit.build import Build
from audit.settings import Settings


def options(folder, path="pkg/m.pyx", settings=None, **scripts):
    """Options for a file of a project with these scripts, and the Build that made them."""
    (folder / "pkg").mkdir(exist_ok=True)
    (folder / path).touch()
    (folder / ".git").mkdir(exist_ok=True)
    for name, text in scripts.items():
        (folder / name.replace("__", "/").replace("_py", ".py").replace("_build", ".build")).write_text(
            textwrap.dedent(text)
        )
    build = Build(settings or Settings())
    return build.options(path), build


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "script",
    [
        "cythonize('x', compiler_directives={'boundscheck': False, 'language_level': 3})",
        "D = {'boundscheck': False}\ncythonize('x', compiler_directives={**D, 'language_level': '3'})",
        "D = dict(language_level=3)\nD['boundscheck'] = False\ncythonize('x', compiler_directives=D)",
        "D = {}\nD.update({'boundscheck': False}, language_level=3)\ncythonize('x', compiler_directives=D)",
        "A = {'boundscheck': True}\nB = {'boundscheck': False}\n"
        "cythonize('x', language_level=3, compiler_directives=A | B)",
        "kw = dict(compiler_directives={'boundscheck': False, 'language_level': 3})\ncythonize('x', **kw)",
        "def f():\n    d = {'boundscheck': False, 'language_level': 3}\n    cythonize('x', compiler_directives=d)",
        "for e in exts:\n    e.cython_directives = {'boundscheck': False, 'language_level': 3}",
        "get_directive_defaults().update(boundscheck=False)\nget_directive_defaults()['language_level'] = 3",
        "OFF = False\nLEVEL = 3\ncythonize('x', compiler_directives={'boundscheck': OFF, 'language_level': LEVEL})",
        "Extension('pkg.m', ['pkg/m.pyx'], cython_directives={'boundscheck': False, 'language_level': 3})",
        "Extension(f'pkg.{n}', sources=[f'pkg/{n}.pyx'], cython_directives=dict(boundscheck=False, language_level=3))",
        "D = {'boundscheck': True}\nD = {'boundscheck': False, 'language_level': 3}\n"
        "cythonize('x', compiler_directives=D)",
    ],
)
def test_setup_py(tmp_path, script):
    found, build = options(tmp_path, setup_py=script)
    assert dict(found.directives) == {"boundscheck": False, "language_level": "3"}
    assert all(source.startswith("setup.py:") for source in dict(found.said_by).values())
    assert not build.unread


def test_lines_are_named(tmp_path):
    found, build = options(
        tmp_path, setup_py="D = {\n  'boundscheck':\n    False}\ncythonize('x', compiler_directives=D)"
    )
    assert found.source("boundscheck") == "setup.py:3"
    assert [(used.name, used.value, used.source) for used in build.used] == [("boundscheck", "False", "setup.py:3")]


def test_conditions(tmp_path):
    """A test of a version was written for newer Cythons; another may not hold."""
    found, build = options(
        tmp_path,
        setup_py="""
        D = {"boundscheck": False}
        if parse_version(Cython.__version__) >= parse_version("3.1"):
            D["freethreading_compatible"] = True
        if os.environ.get("TRACE"):
            D["linetrace"] = True
        cythonize("x", compiler_directives=D)
        """,
    )
    assert dict(found.directives) == {"boundscheck": False, "freethreading_compatible": True}
    assert any("linetrace = True is set under a condition" in sentence for sentence in build.unread)


@pytest.mark.parametrize(
    "script, said",
    [
        ("cythonize('x', compiler_directives=make())", "depends on what runs"),
        ("cythonize('x', compiler_directives={'boundscheck': flag()})", "boundscheck = flag() depends on what runs"),
        ("cythonize('x', compiler_directives={'boundchek': True})", "no directive 'boundchek'"),
        ("D = D\ncythonize('x', compiler_directives=D)", "depends on what runs"),
        ("def f(:", "does not parse"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, script, said):
    found, build = options(tmp_path, setup_py=script)
    assert found.directives == ()
    assert len(build.unread) == 1 and said in next(iter(build.unread))
    assert next(iter(build.unread)).startswith("setup.py:")


def test_an_extension_of_other_files_does_not_count(tmp_path):
    script = "Extension('pkg.other', ['pkg/other.pyx'], language='c++', cython_directives={'boundscheck': False})"
    found, _ = options(tmp_path, setup_py=script)
    assert (found.directives, found.cplus) == ((), None)
    found, _ = options(tmp_path, path="pkg/other.pyx")
    assert (found.directives, found.cplus) == ((("boundscheck", False),), True)


@pytest.mark.parametrize(
    "more",
    [
        "define_macros=[('CYTHON_FREETHREADING_COMPATIBLE', '1')]",
        "extra_compile_args=['-O3', '-DCYTHON_FREETHREADING_COMPATIBLE=1']",
    ],
)
def test_the_macro_that_makes_modules_compatible(tmp_path, more):
    found, _ = options(tmp_path, setup_py=f"Extension('pkg.m', ['pkg/m.pyx'], {more})")
    assert found.directive("freethreading_compatible") is True


def test_search_path_language_and_environment(tmp_path):
    (tmp_path / "src").mkdir()
    script = "cythonize('x', language='c++', include_path=['inc'], compile_time_env={'N': 3})"
    found, _ = options(tmp_path, setup_py=script, settings=Settings(include_path=("mine",)))
    assert found.include_path == ("mine", ".", "src", "inc")
    assert (found.cplus, found.compile_time_env) == (True, (("N", 3),))


MESON = """
project('p', 'cython')
cython_args = ['-Xboundscheck=False', '--directive', 'language_level=3', '-X', 'wraparound = False']  # '-Xcpow=True
if cy.version().version_compare('>=3.1.0')
  cython_args += ['-Xfreethreading_compatible=True']
endif
py.extension_module('m', 'pkg/m.pyx', cython_args: cython_args, override_options: ['cython_language=cpp'])
py.extension_module('other',
  'pkg/other.pyx')
"""


def test_meson(tmp_path):
    found, _ = options(tmp_path, meson_build=MESON)
    assert dict(found.directives) == {
        "boundscheck": False,
        "language_level": "3",
        "wraparound": False,
        "freethreading_compatible": True,
    }
    assert found.source("freethreading_compatible") == "meson.build:5"
    assert found.cplus is True
    assert options(tmp_path, path="pkg/other.pyx")[0].cplus is None


def test_who_wins(tmp_path):
    """-X, then pyproject, then the nearest build script, then those above it."""
    settings = Settings(
        directives=(("boundscheck", True), ("wraparound", True)),
        said_by=(("boundscheck", "-X"), ("wraparound", "pyproject.toml [tool.nogil-audit]")),
    )
    found, _ = options(
        tmp_path,
        settings=settings,
        setup_py="cythonize('x', compiler_directives=dict(boundscheck=False, wraparound=False, nonecheck=True))",
        meson_build="args = ['-Xnonecheck=False', '-Xcdivision=True']",
        pkg__meson_build="args = ['-Xcdivision=False']",
    )
    assert dict(found.said_by) == {
        "boundscheck": "-X",
        "wraparound": "pyproject.toml [tool.nogil-audit]",
        "nonecheck": "setup.py:1",
        "cdivision": "pkg/meson.build:1",
    }
    assert dict(found.directives) == {"boundscheck": True, "wraparound": True, "nonecheck": True, "cdivision": False}


def test_scripts_above_the_project_do_not_count(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "pyproject.toml").touch()
    (tmp_path / "setup.py").write_text("cythonize('x', compiler_directives={'boundscheck': False})")
    assert Build(Settings()).options("project/m.pyx").directives == ()


def test_nothing_is_run(tmp_path):
    options(
        tmp_path, setup_py="open('ran', 'w')\ncythonize('x', compiler_directives={'boundscheck': open('ran', 'w')})"
    )
    assert not (tmp_path / "ran").exists()
