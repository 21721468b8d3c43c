import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def glint():
    """The program under test."""
    path = pathlib.Path(os.environ.get("GLINT_BIN", ROOT / "build" / "glint"))
    if not path.exists():
        pytest.fail(f"{path} does not exist: build it, or set GLINT_BIN")
    return str(path)


@pytest.fixture(scope="session")
def demo():
    return ROOT / "models" / "demo"


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def environment(home):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GLINT_", "XDG_"))}
    return env | {"HOME": str(home), "TERM": "xterm", "LC_ALL": "C.UTF-8"}


@pytest.fixture
def run(glint, environment, tmp_path):
    """run(arguments...) -> CompletedProcess with text output, in a folder of its own."""

    def call(*arguments, stdin="", env=None, timeout=300):
        return subprocess.run([glint, *map(str, arguments)], input=stdin, env=environment | (env or {}), cwd=tmp_path,
                              capture_output=True, text=True, timeout=timeout)

    return call
