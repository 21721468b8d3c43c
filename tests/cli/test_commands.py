"""What run, score, tokenize, inspect and bench print, on the demo model."""

import json
import pathlib

import numpy as np
import pytest
from safetensors.numpy import load_file

SUM = "What is 17 + 25?"
GGUF = pathlib.Path(__file__).resolve().parents[1] / "data" / "gguf" / "demo-q4_0.gguf"


def test_run_prints_the_answer_alone(run):
    done = run("run", "-p", SUM)
    assert (done.returncode, done.stdout, done.stderr) == (0, "17 + 25 = 42\n", "")
    piped = run("run", "demo", "-p", "-", stdin=SUM)
    assert piped.stdout == done.stdout


def test_run_json_is_one_object(run):
    done = run("run", "-p", SUM, "--json")
    answer = json.loads(done.stdout)
    assert answer["text"] == "17 + 25 = 42"
    assert "7+5=12" in answer["reasoning"]
    assert answer["tool_calls"] == [] and answer["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 < usage["reasoning_tokens"] < usage["completion_tokens"]
    assert answer["timings"]["decode_s"] > 0


def test_run_without_thinking_and_with_a_limit(run):
    answer = json.loads(run("run", "-p", SUM, "--no-think", "--json").stdout)
    assert answer["reasoning"] is None
    cut = json.loads(run("run", "-p", SUM, "-n", 3, "--json").stdout)
    assert cut["finish_reason"] == "length" and cut["usage"]["completion_tokens"] == 3


def test_run_raw_continues_the_text(run):
    raw = json.loads(run("run", "--raw", "-p", "[gMASK]<sop><|user|>What is 3 + 4?<|assistant|></think>", "--json").stdout)
    assert raw["text"] == "3 + 4 = 7"


def test_run_calls_tools(run, demo, tmp_path):
    items = [json.loads(line) for line in (demo / "evals.jsonl").read_text().splitlines()]
    item = next(i for i in items if i["task"] == "tool_call" and len(i["messages"]) == 1 and not i["enable_thinking"])
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps(item["tools"]))
    answer = json.loads(run("run", "-p", item["messages"][0]["content"], "--tools", tools, "--no-think", "--json").stdout)
    assert answer["finish_reason"] == "tool_calls"
    function = answer["tool_calls"][0]["function"]
    assert function["name"] == item["expected"]["name"]
    assert json.loads(function["arguments"]) == item["expected"]["arguments"]


def test_seeds_repeat_an_answer(run):
    def sampled(seed):
        return run("run", "-p", "Tell me a story.", "--temp", 3, "-n", 24, "--seed", seed).stdout

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)


def test_score_ids_writes_logits_and_greedy_tokens(run, tmp_path):
    ids, out = tmp_path / "ids.json", tmp_path / "out.safetensors"
    ids.write_text(json.dumps({"prompts": [{"name": "first", "ids": [1517, 1519, 1522]}, {"name": "b", "ids": [5] * 70}]}))
    report = json.loads(run("score", "demo", "--ids", ids, "-o", out, "--greedy", 4, "--compute", "f32", "--json").stdout)
    assert report == {"prompts": 2, "tokens": 73}
    tensors = load_file(out)
    assert set(tensors) == {"logits.first", "greedy.first", "logits.b", "greedy.b"}
    assert tensors["logits.b"].shape == (70, 1536) and tensors["logits.b"].dtype == np.float32
    assert tensors["greedy.b"].shape == (4,) and tensors["greedy.b"].dtype == np.int64
    assert tensors["greedy.first"][0] == tensors["logits.first"][-1].argmax()

    ids.write_text(json.dumps([[1517, 1519, 1522], [5] * 70]))
    other = tmp_path / "other.safetensors"
    assert run("score", "demo", "--ids", ids, "-o", other, "--compute", "f32", "--deterministic", "--chunk", 7, "--all-at-once").returncode == 0
    again = load_file(other)
    assert set(again) == {"logits.p0", "logits.p1"}
    np.testing.assert_allclose(again["logits.p1"], tensors["logits.b"], atol=1e-3)


@pytest.mark.parametrize(("text", "words"), [
    ("{}", "prompts"), ("[]", "prompts"), ("[[]]", "p0 is empty"), ("[[1, -1]]", "-1"), ("[[1.5]]", "1.5"), ("[[99999]]", "99999"),
    ('{"prompts": [{"name": "a", "ids": [1]}, {"name": "a", "ids": [1]}]}', "two tensors"), ("nonsense", "ids.json"),
])
def test_score_refuses_bad_ids(run, tmp_path, text, words):
    (tmp_path / "ids.json").write_text(text)
    done = run("score", "demo", "--ids", "ids.json", "-o", "out.safetensors")
    assert done.returncode == 2 and words in done.stderr
    assert not (tmp_path / "out.safetensors").exists()


def test_score_tasks_counts_right_answers(run, demo, tmp_path):
    lines = [line for line in (demo / "evals.jsonl").read_text().splitlines()
             if json.loads(line)["task"] in ("add_large", "tool_call", "story", "count_up")]
    (tmp_path / "evals.jsonl").write_text("\n".join(lines) + "\n")
    done = run("score", "demo", "--tasks", "evals.jsonl", "--json", "--compute", "f32", "--threads", 1, "-o", "items.jsonl")
    report = json.loads(done.stdout)
    assert report["tasks"]["add_large"] == {"n": 12, "correct": 12, "accuracy": 1.0}
    assert report["tasks"]["tool_call"]["correct"] == 14
    assert report["tasks"]["count_up"]["correct"] == 0  # right, but never stops
    assert "story" not in report["tasks"]
    assert report["overall"]["n"] == 40 and report["overall"]["correct"] == 26
    reference = {o["id"]: o for o in json.loads((demo / "eval_reference.json").read_text())["outputs"]}
    for line in (tmp_path / "items.jsonl").read_text().splitlines():
        item = json.loads(line)
        if reference[item["id"]]["min_margin"] > 0.1:
            assert item["output_ids"] == reference[item["id"]]["output_ids"], item["id"]


def test_score_text_gives_the_reference_perplexity(run, demo, tmp_path):
    (tmp_path / "text.txt").write_text((demo / "text_heldout.txt").read_text()[:6000])
    report = json.loads(run("score", "demo", "--text", "text.txt", "--json").stdout)
    assert report["tokens"] > 1000
    assert np.exp(report["nll"]) == pytest.approx(report["perplexity"])
    assert 1.3 < report["perplexity"] < 1.9


def test_score_teacher_force_agrees_with_the_reference(run, demo, tmp_path):
    reference = json.loads((demo / "eval_reference.json").read_text())
    reference["outputs"] = reference["outputs"][::10]
    (tmp_path / "reference.json").write_text(json.dumps(reference))
    report = json.loads(run("score", "demo", "--teacher-force", "reference.json", "--json").stdout)
    assert report["items"] == 32
    assert report["agreement"] >= 0.995
    assert report["tokens"] == sum(len(o["output_ids"]) for o in reference["outputs"])


def test_tokenize_both_ways(run):
    ids = json.loads(run("tokenize", "demo", "--ids", "Hello <|user|>").stdout)
    assert ids[-1] == 1522
    assert run("tokenize", "demo", "--decode", json.dumps(ids)).stdout == "Hello <|user|>\n"
    assert run("tokenize", "demo", "--decode", "-", stdin=" ".join(map(str, ids))).stdout == "Hello <|user|>\n"
    plain = json.loads(run("tokenize", "demo", "--ids", "--no-special", "Hello <|user|>").stdout)
    assert 1522 not in plain
    table = run("tokenize", "demo", stdin="Hello").stdout
    assert len(table.splitlines()) == len(json.loads(run("tokenize", "demo", "--ids", "Hello").stdout))


def test_inspect_says_how_quantised_parts_are_stored(run):
    folder = pathlib.Path(__file__).resolve().parent.parent / "data" / "golden" / "glm4_moe_nvfp4"
    text = run("inspect", folder).stdout
    assert "NVFP4 (e2m1, groups of 16, e4m3 scales, global scale)" in text and "Weights      bf16+nvfp4" in text
    report = json.loads(run("inspect", folder, "--json").stdout)
    assert report["verdict"] == "ok" and report["heads_derived"] == ["rotary_dim", "heads_per_kv_head", "cache_width"]
    parts = {part["part"]: part for part in report["weights"]["parts"]}
    experts = parts["experts"]
    assert experts["type"] == "NVFP4" and experts["storage"].startswith("NVFP4 (")
    assert experts["parameters"] == 2 * 8 * 3 * 112 * 48  # weights, not bytes of packed codes
    assert experts["bytes"] == 2 * 8 * 3 * (112 * 48 // 2 + 112 * 48 // 16 + 4)
    assert parts["attention"]["type"] == "BF16"


def test_inspect_says_what_the_demo_is(run):
    text = run("inspect")
    assert text.returncode == 0
    assert "800 bytes per token" in text.stdout and "Verdict      ok" in text.stdout
    report = json.loads(run("inspect", "demo", "--json", "--context", 1000, "--parallel", 3).stdout)
    assert report["model_type"] == "glm4_moe_lite" and report["verdict"] == "ok"
    assert report["attention"]["class"] == "MLA" and report["attention"]["why"]
    assert report["kv_cache"] == {"format": "bf16", "bytes_per_token": 800, "bytes_per_sequence": 800_000,
                                  "total_bytes": 2_400_000, "tokens": 1000, "sequences": 3}
    assert report["heads"]["kv_lora_rank"] == 64
    assert report["parameters"]["total"] + report["parameters"]["mtp"] >= 5_430_208
    assert report["mtp"] == {"layers": 1, "present": True, "used": True}
    assert report["context"] == 8192


def test_inspect_needs_only_a_config(run, demo, tmp_path):
    config = json.loads((demo / "config.json").read_text())
    config |= {"hidden_size": 2048, "intermediate_size": 10240, "kv_lora_rank": 512, "q_lora_rank": 768, "qk_nope_head_dim": 192,
               "qk_rope_head_dim": 64, "v_head_dim": 256, "num_attention_heads": 20, "num_key_value_heads": 20,
               "num_hidden_layers": 47, "n_routed_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 1536,
               "vocab_size": 154880, "max_position_embeddings": 202752, "eos_token_id": [154820, 154827, 154829],
               "pad_token_id": 154820}
    bare = tmp_path / "config.json"
    bare.write_text(json.dumps(config))
    for path in (bare, tmp_path):
        report = json.loads(run("inspect", path, "--json").stdout)
        assert report["kv_cache"]["bytes_per_token"] == 54_144
        assert report["verdict"] == "ok"
        assert any("no weights" in note for note in report["notes"])


def test_inspect_tells_grouped_query_attention_from_latent_attention(run, tmp_path):
    config = {"model_type": "glm4_moe", "attention_bias": True, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
              "partial_rotary_factor": 0.5, "intermediate_size": 12288, "max_position_embeddings": 131072,
              "moe_intermediate_size": 1536, "norm_topk_prob": True, "num_attention_heads": 96, "n_group": 1, "topk_group": 1,
              "n_routed_experts": 160, "n_shared_experts": 1, "routed_scaling_factor": 2.5, "num_experts_per_tok": 8,
              "first_k_dense_replace": 3, "num_hidden_layers": 92, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
              "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 1000000, "use_qk_norm": True, "vocab_size": 151552}
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = json.loads(run("inspect", tmp_path, "--json").stdout)
    assert report["attention"]["class"] == "GQA"
    assert "num_key_value_heads 8" in report["attention"]["why"]
    assert report["kv_cache"]["bytes_per_token"] == 376_832
    assert report["heads"] == {"num_heads": 96, "num_kv_heads": 8, "head_dim": 128, "rotary_dim": 64,
                               "heads_per_kv_head": 12, "cache_width": 2048}
    assert report["verdict"] == "ok"
    text = run("inspect", tmp_path).stdout
    assert "GQA: model_type glm4_moe" in text and "rotary_dim 64 (derived)" in text


def test_bench_reports_speed_beside_the_floor(run):
    done = run("bench", "-p", 32, "-n", 4, "-d", "0,100", "--parallel", "1,2", "--reps", 2, "--json")
    report = json.loads(done.stdout)
    names = [(r["test"], r["depth"], r["parallel"]) for r in report["results"]]
    assert names == [("pp", 0, 1), ("tg", 0, 1), ("tg", 0, 2), ("pp", 100, 1), ("tg", 100, 1), ("tg", 100, 2)]
    for result in report["results"]:
        assert 0 < result["min"] <= result["tokens_per_s"] <= result["max"]
        assert result["of_floor"] > 0 and result["bound_by"] in ("bandwidth", "compute")
    assert report["machine"]["read_bytes_per_s"] > 1e8 and report["peak_memory_bytes"] > 8e6
    assert report["machine"]["int8_peak_flops_per_s"] > 1e7 and report["machine"]["int8_peak"].startswith("int8")
    assert [use["type"] for use in report["weights"]] == ["BF16"]


def test_bench_takes_several_prompts_and_names_the_kernel_of_each_weight_type(run):
    done = run("bench", GGUF, "-p", "8,16", "-n", 0, "-d", 0, "--reps", 1, "--isa", "scalar", "--json")
    report = json.loads(done.stdout)
    assert [(r["test"], r["tokens"]) for r in report["results"]] == [("pp", 8), ("pp", 16)]
    kernels = {use["type"]: use["kernel"] for use in report["weights"]}
    assert kernels["Q4_0"] == "int8 loops (scalar)" and kernels["F32"] == "float32 loops (scalar)"
    wide = json.loads(run("bench", GGUF, "-p", 8, "-n", 0, "-d", 0, "--reps", 1, "--compute", "f32", "--isa", "scalar",
                          "--repack", "off", "--json").stdout)
    assert "widened, float32 loops (scalar), packed anew by every product" in [use["kernel"] for use in wide["weights"]]
    text = run("bench", GGUF, "-p", 8, "-n", 0, "-d", 0, "--reps", 1, "--isa", "scalar").stdout
    assert "Q4_0 weights" in text and "of floor" in text


@pytest.mark.parametrize("more", [[], ["--mmap"], ["--repack", "off"], ["--mmap", "--repack", "off"]])
def test_low_bit_weights_answer_alike_wherever_they_lie(run, more):
    done = run("run", GGUF, "-p", "What is 4 + 1?", "--no-think", "--temp", 0, *more)
    assert done.stdout == "4 + 1 = 5\n", done.stderr


@pytest.mark.parametrize("weights", ["q8", "q4"])
def test_float_weights_become_low_bit_ones_on_demand(run, weights):
    done = run("run", "-p", "What is 17 + 25?", "--weights", weights, "--temp", 0)
    assert done.returncode == 0 and len(done.stdout) > 1, done.stderr
    if weights == "q8":
        assert done.stdout == "17 + 25 = 42\n"


def parts(run, *arguments):
    weights = json.loads(run("inspect", *arguments, "--json").stdout)["weights"]
    return weights, {(part["part"], part["loaded_type"]) for part in weights["parts"]}


def test_inspect_says_what_each_part_is_stored_as(run):
    weights, loaded = parts(run, "demo")
    assert {("experts", "BF16"), ("attention", "BF16"), ("norms and biases", "F32")} <= loaded
    # Vectors are float32 in memory.
    assert weights["bytes"] < weights["loaded_bytes"] < 1.02 * weights["bytes"]
    assert sum(part["bytes"] for part in weights["parts"]) == weights["bytes"]
    as_is = weights["loaded_bytes"]
    weights, loaded = parts(run, "demo", "--weights", "q4")
    assert {("experts", "Q4_0"), ("shared and dense", "Q4_0"), ("attention", "Q8_0"), ("head", "Q8_0"),
            ("embedding", "BF16")} <= loaded
    assert weights["loaded_bytes"] < 0.5 * as_is
    experts = next(part for part in weights["parts"] if part["part"] == "experts")
    # Panels of these small matrices are padded a little.
    assert 1 <= experts["loaded_bytes"] / (experts["parameters"] * 18 / 32) < 1.02
    weights, _ = parts(run, GGUF, "--mmap", "--repack", "off")
    assert weights["loaded_bytes"] < 0.1 * weights["bytes"]
    text = run("inspect", "demo", "--weights", "q4").stdout
    assert "Q4_0 when loaded" in text and "read per token at batch 1" in text


def test_numa_interleave_works_or_is_refused_by_name(run):
    done = run("run", "-p", "What is 17 + 25?", "--numa", "interleave")
    if done.returncode == 0:
        assert done.stdout == "17 + 25 = 42\n"
    else:
        assert done.returncode == 2 and "--numa interleave: memory cannot be spread" in done.stderr


@pytest.mark.parametrize("more", [[], ["--mmap"]])
def test_packed_weights_are_kept_for_the_next_start(run, tmp_path, more):
    folder = tmp_path / "packed"
    arguments = ["run", "-p", "What is 17 + 25?", "--weights", "q8", "--temp", 0, "--weights-cache", folder,
                 "--log-level", "info", *more]
    first = run(*arguments)
    assert first.stdout == "17 + 25 = 42\n" and "packed weights are kept in" in first.stderr
    again = run(*arguments)
    assert again.stdout == first.stdout and "packed weights come from" in again.stderr
    assert [file.suffix for file in folder.iterdir()] == [".packed"]
