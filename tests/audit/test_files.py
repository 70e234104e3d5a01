"""Which files are audited: named ones and what git does not ignore, each once; what is named in vain is an error."""

import os
import subprocess

import pytest

from audit.files import discover, is_pure_mode

PURE = "import cython\n\n@cython.cfunc\ndef f(x: cython.int) -> cython.int:\n    return x\n"


def write(folder, *names, text="x = 1\n"):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(found, folder):
    return [os.path.relpath(path, folder) for path in found.files]


def git(folder, *arguments):
    subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True)


def test_a_folder_is_walked(tmp_path):
    write(tmp_path, "a.pyx", "sub/b.pyx", "sub/b.pxd", "lone.pxd", "part.pxi", "notes.txt", "plain.py")
    write(tmp_path, "pure.py", text=PURE)
    write(tmp_path, ".hidden/h.pyx", "build/g.pyx", "__pycache__/p.pyx", "x.egg-info/e.pyx", "mine/v.pyx")
    write(tmp_path, "mine/pyvenv.cfg")
    found = discover([str(tmp_path)])
    assert names(found, tmp_path) == ["a.pyx", "lone.pxd", "pure.py", "sub/b.pyx"]
    assert found.errors == []


def test_paths_below_the_current_folder_have_no_dots(tmp_path, monkeypatch):
    write(tmp_path, "sub/a.pyx")
    monkeypatch.chdir(tmp_path)
    assert discover(["."]).files == discover(["sub"]).files == ["sub/a.pyx"]
    assert discover(["./sub/a.pyx"]).files == ["./sub/a.pyx"]


def test_what_git_ignores_is_left_out(tmp_path):
    git(tmp_path, "init", "-q")
    write(tmp_path, "kept.pyx", "untracked.pyx", "out/made.pyx", "build/tracked.pyx", "gone.pyx")
    write(tmp_path, ".gitignore", text="out/\nuntracked?.pyx\n")
    write(tmp_path, "untracked2.pyx")
    git(tmp_path, "add", "kept.pyx", "build/tracked.pyx", "gone.pyx")
    (tmp_path / "gone.pyx").unlink()
    assert names(discover([str(tmp_path)]), tmp_path) == ["build/tracked.pyx", "kept.pyx", "untracked.pyx"]
    # A folder that git ignores is walked when it is the one asked for.
    assert names(discover([str(tmp_path / "out")]), tmp_path) == ["out/made.pyx"]


def test_repositories_inside_one(tmp_path):
    git(tmp_path, "init", "-q")
    write(tmp_path, "a.pyx", "vendored/b.pyx", "vendored/skipped.pyx")
    git(tmp_path / "vendored", "init", "-q")
    write(tmp_path, "vendored/.gitignore", text="skipped.pyx\n")
    assert names(discover([str(tmp_path)]), tmp_path) == ["a.pyx", "vendored/b.pyx"]


def test_without_git(tmp_path, monkeypatch):
    write(tmp_path, "a.pyx")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert names(discover([str(tmp_path)]), tmp_path) == ["a.pyx"]


def test_each_file_once(tmp_path):
    write(tmp_path, "a.pyx", "sub/b.pyx")
    (tmp_path / "0link.pyx").symlink_to("a.pyx")
    found = discover([str(tmp_path), str(tmp_path / "a.pyx"), str(tmp_path / "sub"), str(tmp_path / "sub/../a.pyx")])
    assert names(found, tmp_path) == ["a.pyx", "sub/b.pyx"]


def test_circles_of_links(tmp_path):
    write(tmp_path, "pkg/a.pyx")
    (tmp_path / "pkg/again").symlink_to("..", target_is_directory=True)
    (tmp_path / "pkg/self.pyx").symlink_to("self.pyx")
    found = discover([str(tmp_path)])
    assert names(found, tmp_path) == ["pkg/a.pyx", "pkg/self.pyx"]  # reading the second is what fails
    found = discover([str(tmp_path / "pkg/self.pyx")])
    assert (found.files, [error.kind for error in found.errors]) == ([], ["read"])


def test_a_pxd_stands_for_its_implementation(tmp_path):
    write(tmp_path, "a.pyx", "a.pxd", "b.pxd")
    write(tmp_path, "c.py", "c.pxd")
    found = discover([str(tmp_path / name) for name in ("a.pxd", "b.pxd", "c.pxd")])
    assert names(found, tmp_path) == ["a.pyx", "b.pxd", "c.py"]
    assert names(discover([str(tmp_path)]), tmp_path) == ["a.pyx", "b.pxd", "c.py"]


def test_a_pxi_stands_for_what_includes_it(tmp_path):
    write(tmp_path, "part.pxi", "lost.pxi")
    write(tmp_path, "a.pyx", text='include "part.pxi"\n')
    write(tmp_path, "b.pyx", text='# include "lost.pxi"\n')
    found = discover([str(tmp_path / "part.pxi"), str(tmp_path / "lost.pxi")])
    assert names(found, tmp_path) == ["a.pyx"]
    assert [error.path for error in found.errors] == [str(tmp_path / "lost.pxi")]


@pytest.mark.parametrize(
    "text, pure",
    [
        (PURE, True),
        ("import cython as cy\nx: cy.int = 0\n", True),
        ("from cython import cclass\n@cclass\nclass A: pass\n", True),
        ("import cython\ndef f():\n    i = cython.declare(cython.int)\n", True),
        ("from cython.parallel import prange\ndef f():\n    for i in prange(3): pass\n", True),
        ("import cython\nif cython.compiled:\n    print(1)\n", False),
        ("import cython\ncython.inline('1')\n", False),
        ('"""import cython\n\n@cython.cfunc\n"""\n', False),
        ("from Cython.Build import cythonize\ncythonize('x')\n", False),
        ("import cython\n@cython.cfunc\ndef f(:\n", True),  # what does not parse is audited, and says so
    ],
)
def test_pure_python_mode(tmp_path, text, pure):
    path = tmp_path / "m.py"
    path.write_text(text)
    assert is_pure_mode(str(path)) is pure


def test_exclude(tmp_path):
    write(tmp_path, "a.pyx", "tests/b.pyx", "deep/tests/c.pyx", "gen_d.pyx")
    assert names(discover([str(tmp_path)], ["tests/", "gen_*.pyx"]), tmp_path) == ["a.pyx", "deep/tests/c.pyx"]


def test_what_is_named_in_vain(tmp_path):
    write(tmp_path, "text.txt", "empty/readme.txt")
    os.mkfifo(tmp_path / "pipe.pyx")
    named = ["no_such.pyx", "text.txt", "empty", "pipe.pyx"]
    found = discover([str(tmp_path / name) for name in named] + [""])
    assert found.files == []
    assert sorted(os.path.basename(error.path) for error in found.errors) == sorted([*named, ""])
    assert {(error.kind, error.line, error.column) for error in found.errors} == {("read", 1, 1)}
    assert all(error.reason.endswith(".") for error in found.errors)
