"""The soak in short: a model with everything in memory, a hybrid with recurrent states, and streamed experts."""

import os
import pathlib
import shutil
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import soak  # noqa: E402: found beside this file

GLINT = os.environ.get("GLINT_BIN", str(ROOT / "build" / "glint"))


def check(report):
    assert not report["failures"], report
    assert report["compared"] > report["requests"] // 3, report
    assert report["peak_resident"] > report["limit"] // 4, "a limit that means something"
    return report


def test_the_demo_model_keeps_its_promises():
    report = check(soak.soak(GLINT, "demo", "150MiB", 100, clients=10))
    assert report["cached_prompt_tokens"] > 0


def test_streamed_experts_keep_theirs():
    check(soak.soak(GLINT, "demo", "150MiB", 30, options=["--stream-experts", "on", "--ctx", "1024", "--expert-history", "off"]))


@pytest.fixture
def hybrid(tmp_path):
    """The golden checkpoint of GLM-5.3-Flash's family with a tokenizer beside it."""
    for source in (ROOT / "tests" / "data" / "golden" / "glm5_next", ROOT / "tests" / "data" / "vision"):
        for file in source.iterdir():
            shutil.copy(file, tmp_path)
    return tmp_path


def test_a_model_with_recurrent_states_keeps_them(hybrid):
    check(soak.soak(GLINT, hybrid, "100MiB", 40, longest=60, options=["--ctx", "1024", "--vision", "off"],
                    cold_options=["--vision", "off"]))
