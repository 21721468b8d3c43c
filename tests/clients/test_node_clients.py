"""The official packages for Node against `glint serve` on the demo model: each file of tests/node under `node --test`."""

import os
import shutil
import subprocess

import pytest
from serving import ROOT, serve

FOLDER = ROOT / "tests" / "node"


@pytest.fixture(scope="module")
def node():
    """The `node` program, with the packages of tests/node beside the tests."""
    program, npm = shutil.which("node"), shutil.which("npm")
    if program is None or npm is None:
        pytest.skip("node and npm are not installed")
    wanted, present = FOLDER / "package-lock.json", FOLDER / "node_modules" / ".package-lock.json"
    if not present.exists() or present.stat().st_mtime < wanted.stat().st_mtime:
        installed = subprocess.run(
            [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=FOLDER, capture_output=True, text=True, timeout=600
        )
        assert installed.returncode == 0, installed.stderr
    return program


@pytest.fixture(scope="module")
def served():
    with serve() as running:
        yield running


def run_tests(node, served, name):
    ran = subprocess.run(
        [node, "--test", name], cwd=FOLDER, env={**os.environ, "GLINT_URL": served.url}, capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_openai_sdk(node, served):
    run_tests(node, served, "openai.test.mjs")


def test_anthropic_sdk(node, served):
    run_tests(node, served, "anthropic.test.mjs")
