"""The soak in short: a model with everything in memory, a hybrid with recurrent states, and streamed experts."""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import threading

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


def test_a_flood_of_long_requests_stays_within_the_limit():
    """Bodies and prompts as long as are taken and longer, of shapes that cost most, many at once."""
    with tempfile.TemporaryDirectory() as folder:
        server = soak.Server(GLINT, "demo", ["--memory", "130MiB", "--max-queue", "1000", "--max-logprobs", "-1"], folder + "/log")
        most = int(server.metric("glint_mem_bytes", 'kind="requests"'))
        long = {"model": "soak", "max_tokens": 1}
        bodies = [
            {**long, "messages": [{"role": "user", "content": "hello world, it is " * (most // 320 // 20)}]},
            {**long, "messages": [{"role": "user", "content": "hello world, it is " * (most // 100 // 20)}]},
            {**long, "messages": [{"role": "user", "content": "x"}] * (most // 80 // 40)},
            {**long, "messages": [{"role": "user", "content": "x"}], "extra": [1] * (most // 80 // 4)},
            {**long, "messages": [{"role": "user", "content": "x"}], "extra": [{"a": {}}] * (most // 80 // 12)},
            {**long, "messages": [{"role": "user", "content": "x" * (most // 40)}]},
            {**long, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 400, "n": 8, "logprobs": True, "top_logprobs": 20},
        ]
        encoded = [json.dumps(body).encode() for body in bodies]
        statuses = []

        def client(number):
            for turn in range(6):
                statuses.append(server.call("POST", "/v1/chat/completions", encoded[(number + turn) % len(encoded)])[0])

        threads = [threading.Thread(target=client, args=(number,)) for number in range(14)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.memory("VmHWM") < 130 << 20
        assert set(statuses) <= {200, 400, 413, 429, 503} and {200, 400, 413} <= set(statuses), statuses
        # A few answers of which one alone would take all the memory.
        listing = {**long, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1000, "min_tokens": 1000,
                   "ignore_eos": True, "n": 8, "logprobs": True, "top_logprobs": 1500}
        status, text = server.call("POST", "/v1/chat/completions", json.dumps(listing).encode())
        assert status == 503 and json.loads(text)["error"]["code"] == "memory_limit"
        assert server.call("POST", "/v1/chat/completions", json.dumps(
            {**long, "messages": [{"role": "user", "content": "Hello"}]}).encode())[0] == 200, "it serves on"
        assert server.memory("VmHWM") < 130 << 20
        assert soak.pages(server)["leased"] == 0
        assert server.stop() == 0


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
