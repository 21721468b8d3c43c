"""The demo model through the program, against what transformers answered: greedy outputs, agreement, accuracy."""

import json
import math
import os
import pathlib
import subprocess

import numpy
import pytest
from safetensors.numpy import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
GLINT = os.environ.get("GLINT_BIN", str(ROOT / "build" / "glint"))
DEMO = ROOT / "models" / "demo"
TASKS = DEMO / "evals.jsonl"
NEAR_TIE = 1e-3  # of the reference's own logits, on the way to an answer


@pytest.fixture(scope="module")
def reference():
    return json.loads((DEMO / "eval_reference.json").read_text())


def score(*options):
    result = subprocess.run([GLINT, "score", "demo", "--json", *map(str, options)], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_f32_greedy_outputs_equal_transformers_item_by_item(reference, tmp_path):
    score("--tasks", TASKS, "--compute", "f32", "-o", tmp_path / "items.jsonl")
    mine = {item["id"]: item["output_ids"] for item in map(json.loads, (tmp_path / "items.jsonl").read_text().splitlines())}
    checked = [item for item in reference["outputs"] if item["min_margin"] > NEAR_TIE]
    assert len(checked) > 0.95 * len(reference["outputs"])
    assert [item["id"] for item in checked if mine[item["id"]] != item["output_ids"]] == []


def test_bf16_picks_the_reference_token_nearly_always():
    assert score("--teacher-force", DEMO / "eval_reference.json")["agreement"] >= 0.995


def test_bf16_accuracy_is_within_one_item_per_task(reference):
    mine = score("--tasks", TASKS)["tasks"]
    assert mine.keys() == reference["accuracy"].keys()
    for name, task in reference["accuracy"].items():
        assert mine[name]["n"] == task["n"]
        assert abs(mine[name]["correct"] - task["correct"]) <= 1, name


def test_perplexity_of_the_held_out_text_equals_the_reference(reference):
    mine = score("--text", DEMO / "text_heldout.txt", "--compute", "f32")
    assert mine["perplexity"] == pytest.approx(math.exp(reference["perplexity"]["mean_nll"]), rel=1e-4)


def log_softmax(x):
    x = x.astype(numpy.float64) - x.max(axis=-1, keepdims=True)
    return x - numpy.log(numpy.exp(x).sum(axis=-1, keepdims=True))


def test_bf16_diverges_little_from_f32(reference, tmp_path):
    prompts = [item["prompt_ids"] + item["output_ids"] for item in reference["outputs"][::8]]
    (tmp_path / "ids.json").write_text(json.dumps(prompts))
    logits = {}
    for compute in ("f32", "bf16"):
        score("--ids", tmp_path / "ids.json", "-o", tmp_path / compute, "--compute", compute)
        logits[compute] = load_file(tmp_path / compute)
    divergence = []
    for name, exact in logits["f32"].items():
        exact, rounded = log_softmax(exact), log_softmax(logits["bf16"][name])
        divergence += (numpy.exp(exact) * (exact - rounded)).sum(axis=-1).tolist()
    assert len(divergence) > 1000
    assert numpy.mean(divergence) < 1e-3
