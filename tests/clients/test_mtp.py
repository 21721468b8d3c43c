"""Guessing ahead with the draft layer (--mtp), on the demo model: the same answers, sooner; and what is said about it."""

import json
import re
import shutil
import struct
import subprocess
import urllib.request

import pytest

import serving

GLINT = serving.GLINT
DEMO = serving.DEMO
TASKS = DEMO / "evals.jsonl"


def run(*arguments, code=0):
    result = subprocess.run([GLINT, *map(str, arguments)], capture_output=True, text=True, timeout=600)
    assert result.returncode == code, result.stderr
    return result


def outputs(path):
    return {item["id"]: item["output_ids"] for item in map(json.loads, path.read_text().splitlines())}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "items.jsonl"
    report = json.loads(run("score", "demo", "--tasks", TASKS, "--json", "--deterministic", "-o", path).stdout)
    assert "drafts" not in report
    return outputs(path)


@pytest.mark.parametrize("mtp", ["1", "3", "auto"])
def test_all_answers_are_the_same_and_guesses_as_good_as_the_references(plain, tmp_path, mtp):
    report = json.loads(run("score", "demo", "--tasks", TASKS, "--json", "--deterministic", "-o", tmp_path / "items.jsonl",
                            "--mtp", mtp).stdout)
    assert outputs(tmp_path / "items.jsonl") == plain
    if mtp == "1":
        reference = json.loads((DEMO / "eval_reference.json").read_text())["mtp"]
        assert report["drafts"]["drafted"] > 2500
        assert report["drafts"]["rate"] == pytest.approx(reference["acceptance"], abs=0.02)


def test_run_tells_of_guesses():
    plain = json.loads(run("run", "-p", "Count from 1 to 20.", "--json", "--temp", 0, "--mtp", "off").stdout)
    assert "drafted_tokens" not in plain["usage"]
    for drafts in ["1", "2", "8"]:
        told = json.loads(run("run", "-p", "Count from 1 to 20.", "--json", "--temp", 0, "--mtp", drafts).stdout)
        assert told["text"] == plain["text"] and told["reasoning"] == plain["reasoning"]
        assert 0 < told["usage"]["accepted_tokens"] <= told["usage"]["drafted_tokens"]


def test_sampled_answers_are_the_same():
    arguments = ["run", "-p", "Tell me a story.", "--temp", 1.2, "--top-p", 0.98, "--seed", 7, "-n", 120]
    assert run(*arguments, "--mtp", 3).stdout == run(*arguments, "--mtp", "off").stdout


def get(served, path):
    with urllib.request.urlopen(f"{served.url}{path}", timeout=30) as answer:
        return answer.read().decode()


def test_the_server_reports_guesses():
    with serving.serve("--mtp", "2", "--slots") as served:
        answer = served.client().chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Count from 1 to 15."}], temperature=0)
        details = answer.usage.completion_tokens_details
        accepted, rejected = details.accepted_prediction_tokens, details.rejected_prediction_tokens
        assert accepted > 0 and rejected >= 0
        assert answer.timings["draft_n"] == accepted + rejected and answer.timings["draft_n_accepted"] == accepted
        mtp = json.loads(get(served, "/props"))["mtp"]
        assert mtp["mode"] == "fixed" and mtp["drafts"] == 2 and mtp["paused"] is False
        assert json.loads(get(served, "/slots"))[0]["speculative"] is True
        metrics = get(served, "/metrics")
        for name, value in [("vllm:spec_decode_num_accepted_tokens_total", accepted),
                            ("vllm:spec_decode_num_draft_tokens_total", accepted + rejected),
                            ("llamacpp:spec_decode_num_accepted_tokens_total", accepted)]:
            assert float(re.search(rf"^{name}(?:{{.*}})? (\S+)$", metrics, re.M)[1]) == value, name
        assert 'spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="demo",position="1"}' in metrics
        assert re.search(r'^glint_spec_decode_drafts{mode="fixed"} 2$', metrics, re.M)


def test_without_guesses_nothing_is_said_of_them():
    with serving.serve("--mtp", "off") as served:
        answer = served.client().chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Hello"}], temperature=0)
        assert answer.usage.completion_tokens_details.accepted_prediction_tokens is None
        assert "draft_n" not in answer.timings
        assert json.loads(get(served, "/props"))["mtp"]["mode"] == "off"
        assert "spec_decode" not in get(served, "/metrics")


@pytest.fixture
def without_layer(tmp_path):
    """The demo model as a fine-tune that declares its draft layer and lacks it."""
    folder = tmp_path / "tuned"
    shutil.copytree(DEMO, folder)
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + length]), data[8 + length:]
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    kept, out = {}, b""
    for name, entry in sorted(header.items(), key=lambda item: item[1].get("data_offsets", [0])[0]):
        if name == "__metadata__" or name.startswith(f"model.layers.{layers}."):
            continue
        begin, end = entry["data_offsets"]
        kept[name] = {**entry, "data_offsets": [len(out), len(out) + end - begin]}
        out += body[begin:end]
    text = json.dumps(kept).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + out)
    return folder


def test_a_model_that_lacks_its_draft_layer_runs_without_and_says_why(without_layer):
    done = run("run", without_layer, "-p", "What is 17 + 25?", "--temp", 0)
    assert done.stdout == run("run", "-p", "What is 17 + 25?", "--temp", 0).stdout
    assert done.stderr.count("\n") == 1 and "num_nextn_predict_layers" in done.stderr and "MTP is off" in done.stderr
    assert run("run", without_layer, "-p", "What is 17 + 25?", "--temp", 0, "--mtp", "off").stderr == ""


@pytest.mark.parametrize("mtp", ["1", "on"])
def test_a_model_that_lacks_its_draft_layer_is_refused_when_it_is_asked_for(without_layer, mtp):
    done = run("run", without_layer, "-p", "x", "--mtp", mtp, code=3)
    assert "num_nextn_predict_layers" in done.stderr and "--mtp off" in done.stderr


def test_bench_compares_numbers_of_guesses():
    report = json.loads(run("bench", "demo", "-p", 0, "-n", 24, "-d", 0, "--parallel", 1, "--reps", 1, "--mtp", "0,1,3",
                            "--json").stdout)
    assert [test["drafts"] for test in report["mtp"]] == [0, 1, 3]
    assert report["mtp"][0]["drafted"] == 0 and report["mtp"][0]["tokens_per_step"] == 1
    assert report["mtp"][1]["acceptance"] > 0.8 and report["mtp"][1]["tokens_per_step"] > 1.6
    assert all(test["tokens_per_s"] > 0 for test in report["mtp"])
