"""`glint inspect` on configs of released models, on checkpoints that are wrong, on hundreds of files; its JSON by its schema."""

import json
import pathlib
import resource
import struct

import jsonschema
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "tests" / "data" / "configs").glob("*.json"))
SCHEMA = json.loads((ROOT / "docs" / "inspect.schema.json").read_text())
RUN_HERE = {"glm-4.5", "glm-4.5-air", "glm-4.7-flash", "glm-4.7-nvfp4", "glm-5.3-flash"}


def config(name):
    return ROOT / "tests" / "data" / "configs" / f"{name}.json"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_family_is_answered_from_its_config_alone(run, path):
    done = run("inspect", path, "--json", "--context", 1000, "--parallel", 2)
    report = json.loads(done.stdout)
    jsonschema.validate(report, SCHEMA)
    assert (done.returncode == 0) == (path.stem in RUN_HERE)
    assert report["verdict"] == ("ok" if path.stem in RUN_HERE else "refused")
    assert report["engines"][0]["verdict"] == ("yes" if path.stem in RUN_HERE else "no")
    assert [engine["engine"] for engine in report["engines"]][1:] == [
        "vllm", "sglang", "tensorrt-llm", "llama.cpp", "ik_llama.cpp", "transformers"]
    assert report["kv_cache"]["total_bytes"] == 2000 * report["kv_cache"]["bytes_per_token"] > 0
    assert report["kv_cache"]["bytes_per_token"] == report["facts"]["cache_bytes_bf16"]
    text = run("inspect", path).stdout
    for title in ("What it is", "What it costs", "Will it run here", "Other engines"):
        assert f"\n{title}" in "\n" + text
    assert report["attention"]["class"] in text


def test_checkpoints_answer_by_the_schema_too(run):
    for model in ("demo", ROOT / "tests/data/golden/glm5_next", ROOT / "tests/data/gguf/demo-q4_0.gguf"):
        report = json.loads(run("inspect", model, "--json").stdout)
        jsonschema.validate(report, SCHEMA)
        assert report["verdict"] == "ok" and report["plan"]["total_bytes"] > 0


def test_what_does_not_fit_here_is_said_beside_the_verdict(run):
    asked = ["--memory", "60MiB", "--parallel", 16]
    done = run("inspect", "demo", *asked)
    assert done.returncode == 0 and "Verdict      ok, but not here as asked: not enough memory" in done.stdout
    report = json.loads(run("inspect", "demo", *asked, "--json").stdout)
    jsonschema.validate(report, SCHEMA)
    assert "--memory gives 60.00 MiB" in report["shortage"] and "plan" not in report
    assert report["engines"][0]["verdict"] == "conditional"


def test_the_cache_in_other_formats(run, tmp_path):
    def cache(model, *more):
        return json.loads(run("inspect", config(model), "--json", *more).stdout)["kv_cache"]

    assert cache("glm-4.7-flash", "--kv-cache", "fp8")["bytes_per_token"] == 47 * 594
    fp4 = cache("glm-4.7-flash", "--kv-cache", "fp4")
    assert fp4["format"] == "fp4" and fp4["bytes_per_token"] == 47 * 324
    assert cache("glm-5.3-flash", "--kv-cache", "fp8")["bytes_per_token"] == 11 * (528 + 64)  # keys of pools stay bf16
    assert cache("deepseek-v3", "--kv-cache", "fp8")["bytes_per_token"] == 61 * 594
    assert "fp4: 15,228 bytes per token" in run("inspect", config("glm-4.7-flash")).stdout
    assert cache("glm-4.5", "--kv-cache", "fp4")["bytes_per_token"] == 92 * 1152
    odd = tmp_path / "config.json"
    for model, layers in (("glm-4.7-flash", 47), ("deepseek-v3", 61)):  # the last group of a row is not whole
        odd.write_text(json.dumps(json.loads(config(model).read_text()) | {"kv_lora_rank": 500}))
        report = json.loads(run("inspect", odd, "--kv-cache", "fp8", "--json").stdout)
        assert report["kv_cache"]["bytes_per_token"] == report["facts"]["cache_bytes_fp8"] == layers * (564 + 18)


def test_one_engine_is_told_with_sources_and_a_gpu_settles_it(run):
    text = run("inspect", config("deepseek-v4-flash"), "--engine", "vllm", "--gpu", "sm120").stdout
    assert "vLLM         not supported" in text and "SGLang" not in text
    assert "[[gotcha-sm120-sparse-mla-block-size]]" in text and "2026-10-03]" in text
    assert "vLLM         supported" in run("inspect", config("deepseek-v4-flash"), "--engine", "vllm", "--gpu", "B200").stdout
    wrong = run("inspect", config("glm-5"), "--engine", "vlm")
    assert wrong.returncode == 2 and "tensorrt-llm" in wrong.stderr
    wrong = run("inspect", config("glm-5"), "--gpu", "fast")
    assert wrong.returncode == 2 and "compute capability" in wrong.stderr


def test_the_difference_of_two_models(run):
    done = run("inspect", config("glm-4.7-flash"), "--diff", config("glm-5"))
    assert done.returncode == 0
    assert "cache_bytes_bf16          54,144 -> 109,824  (x 2.03)" in done.stdout
    assert "glint        supported -> not supported" in done.stdout
    diff = json.loads(run("inspect", "--diff", config("glm-4.7-flash"), config("glm-5"), "--json").stdout)
    facts = {fact["name"]: fact for fact in diff["facts"]}
    assert facts["layers"] == {"name": "layers", "a": 47, "b": 78, "ratio": 78 / 47}
    assert facts["index_topk"] == {"name": "index_topk", "a": None, "b": 2048}
    assert {"engine": "glint", "a": "yes", "b": "no"} in diff["engines"]
    assert diff["traps"] == {"only_a": [], "only_b": ["indexer-above-topk"]}
    same = run("inspect", config("glm-5"), "--diff", config("glm-5")).stdout
    assert "nothing that is known here differs" in same
    assert run("inspect", config("glm-5"), "--diff", "no/such/model").returncode == 3
    for arguments, said in [(["--diff"], "two models"), ([config("glm-5")], "add --diff")]:
        wrong = run("inspect", config("glm-5"), *arguments)
        assert wrong.returncode == 2 and said in wrong.stderr


def test_traps_of_files(run):
    report = json.loads(run("inspect", ROOT / "tests/data/golden/glm4_moe_mtp_sidecar", "--json").stdout)
    assert "mtp-unlisted" in [trap["id"] for trap in report["traps"]]
    report = json.loads(run("inspect", ROOT / "tests/data/gguf/variant-no_gating_func.gguf", "--json").stdout)
    assert "gguf-no-gating" in [trap["id"] for trap in report["traps"]]


def test_what_cannot_be_read_is_said(run, tmp_path):
    bad = tmp_path / "config.json"
    for text, word in [("{}", "model_type"), ('{"model_type": "new", "num_hidden_layers": 1e300}', "num_hidden_layers"),
                       ("[" * 200, "config.json"), ('{"model_type": "new"}', "num_hidden_layers")]:
        bad.write_text(text)
        done = run("inspect", bad)
        assert done.returncode == 3 and word in done.stdout, text
        report = json.loads(run("inspect", bad, "--json").stdout)
        jsonschema.validate(report, SCHEMA)
    done = run("inspect", bad, "--diff", config("glm-5"))
    assert done.returncode == 3 and "num_hidden_layers" in done.stderr


def write_headers(folder, tensors, shards):
    """Safetensors with the tensors' headers and no data: holes of sparse files."""
    width, weight_map = -(-len(tensors) // shards), {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        header, at = {}, 0
        for tensor, shape in tensors[shard * width:(shard + 1) * width]:
            size = 2
            for n in shape:
                size *= n
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
            at += size
            weight_map[tensor] = name
        head = json.dumps(header).encode()
        with open(folder / name, "wb") as file:
            file.write(struct.pack("<Q", len(head)) + head)
            file.truncate(8 + len(head) + at)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def flash_tensors(c, draft=True):
    d, heads = c["hidden_size"], c["num_attention_heads"]
    nope, rope, value, rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    tensors = [("model.embed_tokens.weight", [c["vocab_size"], d]), ("lm_head.weight", [c["vocab_size"], d]), ("model.norm.weight", [d])]
    for layer in range(c["num_hidden_layers"] + (1 if draft else 0)):
        p = f"model.layers.{layer}."
        tensors += [(p + "input_layernorm.weight", [d]), (p + "post_attention_layernorm.weight", [d]),
                    (p + "self_attn.q_a_proj.weight", [c["q_lora_rank"], d]), (p + "self_attn.q_a_layernorm.weight", [c["q_lora_rank"]]),
                    (p + "self_attn.q_b_proj.weight", [heads * (nope + rope), c["q_lora_rank"]]),
                    (p + "self_attn.kv_a_proj_with_mqa.weight", [rank + rope, d]), (p + "self_attn.kv_a_layernorm.weight", [rank]),
                    (p + "self_attn.kv_b_proj.weight", [heads * (nope + value), rank]), (p + "self_attn.o_proj.weight", [d, heads * value])]
        if layer < c["first_k_dense_replace"]:
            groups = [("mlp.", c["intermediate_size"])]
        else:
            tensors += [(p + "mlp.gate.weight", [c["n_routed_experts"], d]), (p + "mlp.gate.e_score_correction_bias", [c["n_routed_experts"]])]
            groups = [("mlp.shared_experts.", c["moe_intermediate_size"])]
            groups += [(f"mlp.experts.{e}.", c["moe_intermediate_size"]) for e in range(c["n_routed_experts"])]
        for group, f in groups:
            tensors += [(p + group + "gate_proj.weight", [f, d]), (p + group + "up_proj.weight", [f, d]), (p + group + "down_proj.weight", [d, f])]
    if draft:
        p = f"model.layers.{c['num_hidden_layers']}."
        tensors += [(p + "enorm.weight", [d]), (p + "hnorm.weight", [d]), (p + "eh_proj.weight", [d, 2 * d]), (p + "shared_head.norm.weight", [d]),
                    (p + "embed_tokens.weight", [c["vocab_size"], d]), (p + "shared_head.head.weight", [c["vocab_size"], d])]
    return tensors


def processor_seconds():
    """Of the programs that were run, which is what other work beside them changes least."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_headers_of_a_hundred_files_take_less_than_a_second(run, tmp_path):
    shape = json.loads(config("glm-4.7-flash").read_text())
    (tmp_path / "config.json").write_text(json.dumps(shape))
    write_headers(tmp_path, flash_tensors(shape), 100)
    start = processor_seconds()
    done = run("inspect", tmp_path, "--json", "--memory", "128GiB")
    took = processor_seconds() - start
    report = json.loads(done.stdout)
    assert report["verdict"] == "ok", report.get("reason")
    # The total that the released checkpoint's headers report: 31.22 billion.
    assert round((report["parameters"]["total"] + report["parameters"]["mtp"]) / 1e7) == 3122
    assert report["weights"]["bytes"] > 59_000_000_000 and report["mtp"]["present"]
    assert took < 1, took


def test_a_config_takes_less_than_fifty_milliseconds(run):
    took = []
    for _ in range(5):
        start = processor_seconds()
        run("inspect", config("kimi-k3"))
        took.append(processor_seconds() - start)
    assert min(took) < 0.05, took


def test_tensors_of_the_draft_layer_are_checked_as_loading_would(run, tmp_path):
    shape = json.loads(config("glm-4.7-flash").read_text()) | {
        "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 160, "intermediate_size": 64, "moe_intermediate_size": 32,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 32,
        "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "eos_token_id": 1, "pad_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    tensors = flash_tensors(shape)
    write_headers(tmp_path, tensors, 1)
    assert json.loads(run("inspect", tmp_path, "--json").stdout)["verdict"] == "ok"
    wrong = [(name, [8, 8] if name == "model.layers.2.eh_proj.weight" else dims) for name, dims in tensors
             if name != "model.layers.2.mlp.experts.3.up_proj.weight"]
    write_headers(tmp_path, wrong, 1)
    done = run("inspect", tmp_path)
    assert done.returncode == 3
    assert "model.layers.2.eh_proj.weight" in done.stdout and "model.layers.2.mlp.experts.3.up_proj.weight" in done.stdout
