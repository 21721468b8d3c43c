"""Regenerate the golden cases:  python make_golden.py [case ...]     (without arguments those that are kept)

Each case is a directory of tests/data/golden with a tiny random checkpoint in Hugging Face form, `expected.safetensors`
with what transformers computes from it (float32, eager, CPU), and `case.json`.  See the README.md there.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

import golden_model
import golden_mtp as mtp
import golden_quant as quant
import golden_ref as ref
import golden_specs as spec

CASES = Path(__file__).resolve().parents[1] / "tests" / "data" / "golden"
MIN_SELECTION_MARGIN, MIN_GREEDY_LEAD = 1e-4, 0.02
TRIES, MAX_CONTINUED = 200, 30
PROMPT_VOCAB = 296  # ids above are special
SHORT = dict(prompts=(7, 33, 90), bisect=1)  # for variants


# ---------------------------------------------------------------- the cases


def quantised(case, quant_spec, extra):
    case.quant = dict(quant_spec, files={f"{k}.json": v for k, v in extra.items() if k == "hf_quant_config"})
    case.config["quantization_config"] = extra["quantization_config"]
    return case


def fp8_block(case, ignore):
    return quantised(case, dict(format="fp8_block", ignore=ignore + ["*embed_tokens"]), quant.fp8_block_config(ignore))


def nvfp4(case, ignore, kv_scales=()):
    return quantised(case, dict(format="nvfp4", ignore=ignore + ["*embed_tokens"], kv_scales=kv_scales), quant.nvfp4_config(ignore, bool(kv_scales)))


def int4(case, group, ignore, symmetric=True):
    return quantised(case, dict(format="int4", group=group, symmetric=symmetric, ignore=ignore + ["*embed_tokens"]), quant.compressed_config(ignore, "int4", group, symmetric))


def fp8_channel(case, ignore):
    return quantised(case, dict(format="fp8_channel", ignore=ignore + ["*embed_tokens"]), quant.compressed_config(ignore, "fp8_channel"))


def all_cases():
    s = spec
    # 1. GLM-4.7-Flash
    yield s.lite("glm4_moe_lite")
    yield s.lite("glm4_moe_lite_groups", s.lite_config(n_group=4, topk_group=2, norm_topk_prob=False, routed_scaling_factor=1.3, num_hidden_layers=3, n_routed_experts=8), shards=3, **SHORT,
                 notes=["n_group 4 / topk_group 2, norm_topk_prob false, sharded with an index; not a released setting"])
    # 2. GLM-4.5 / 4.6 / 4.7
    yield s.glm4_moe("glm4_moe")
    yield s.glm4_moe("glm4_moe_noqknorm", s.moe_config(use_qk_norm=False, first_k_dense_replace=1, routed_scaling_factor=1.0, num_hidden_layers=3, n_routed_experts=8), **SHORT,
                     notes=["the GLM-4.5-Air setting: no qk norm, one dense layer, routed_scaling_factor 1"])
    yield s.glm4_moe("glm4_moe_mtp_sidecar", s.moe_config(num_hidden_layers=3), mtp_copies=False, shards=2, mtp_file=True, **SHORT,
                     notes=["the MTP tensors are in mtp.safetensors, which model.safetensors.index.json does not mention",
                            "as in GLM-4.6 and 4.7 the MTP layer has no embed_tokens and no shared_head.head: it uses the model's"])
    # 3. GLM-5.3-Flash
    yield s.glm5_next("glm5_next")
    yield s.glm5_next("glm5_next_shared", s.next_config("KDDKD", indexer_types=["full", "full", "shared", "full", "full"], mlp_layer_types=["dense"] + ["sparse"] * 4, first_k_dense_replace=1,
                      index_topk=24, index_kpool=8, n_routed_experts=8, swiglu_limit=10.0, hc_sinkhorn_iters=3), prompts=SHORT["prompts"], bisect=0,
                      notes=["layer 2 reuses layer 1's selection (and stores no indexer); pools of 8; 3 Sinkhorn rounds; not a released setting"])
    # 4. relatives
    yield s.dsa("glm_moe_dsa", s.dsa_config("glm_moe_dsa", "GlmMoeDsaForCausalLM", rope_parameters=dict(rope_theta=1000000, rope_type="default")))
    yield s.dsa("glm_moe_dsa_shared", s.dsa_config("glm_moe_dsa", "GlmMoeDsaForCausalLM", rope_parameters=dict(rope_theta=1000000, rope_type="default"),
                indexer_types=["full", "shared", "full", "shared"], n_routed_experts=8), **SHORT, notes=["indexer_types full/shared; shared layers have no indexer tensors"])
    yield s.v3("deepseek_v3", s.v3_config())
    yield s.v2("deepseek_v2_lite", s.v2_config(), **SHORT, notes=["no q_lora, greedy softmax routing, weights not normalised"])
    yield s.v2("deepseek_v2", s.v2_config(q_lora_rank=40, topk_method="group_limited_greedy", n_group=4, topk_group=2, routed_scaling_factor=16.0), **SHORT,
               notes=["q_lora, group_limited_greedy (a group's score is its best expert)"])
    yield s.dsa("deepseek_v32", s.dsa_config("deepseek_v32", "DeepseekV32ForCausalLM", n_group=4, topk_group=2, rms_norm_eps=1e-6, rope_theta=10000, rope_scaling=s.YARN), prompts=(1, 7, 33, 90))
    yield s.v3("kimi_k2", s.v3_config(model_type="kimi_k2", n_group=1, topk_group=1, routed_scaling_factor=2.827, num_nextn_predict_layers=0, num_hidden_layers=3, rope_theta=50000.0,
               rope_scaling=dict(s.YARN, factor=8.0, beta_fast=1.0, beta_slow=1.0)), config_class="DeepseekV3Config", **SHORT,
               notes=["model_type kimi_k2 is remote code; the reference is transformers' DeepseekV3 with the same config"])
    yield s.kimi_linear("kimi_linear")
    yield s.deepseek_v4("deepseek_v4", notes=["compress ratio 8 stands for the released 128 (compress_rate_hca)"])
    # 5. quantised
    big = dict(hidden_size=160, intermediate_size=272, moe_intermediate_size=136, num_hidden_layers=2, n_routed_experts=5, num_experts_per_tok=2,
               num_attention_heads=3, num_key_value_heads=3, q_lora_rank=96, kv_lora_rank=136, qk_nope_head_dim=48, qk_rope_head_dim=16, v_head_dim=64)
    gate = "re:.*mlp.gate$"
    yield fp8_block(s.lite("glm4_moe_lite_fp8", s.lite_config(**big), **SHORT), ["lm_head", "*.mlp.gate", "*.eh_proj", "*.shared_head.head"])
    moe_dims = dict(hidden_size=112, intermediate_size=160, moe_intermediate_size=48, n_routed_experts=8, num_experts_per_tok=3)
    kv = [f"model.layers.{i}.self_attn.{x}_proj.{x}_scale" for i in range(4) for x in "kv"]
    yield nvfp4(s.glm4_moe("glm4_moe_nvfp4", s.moe_config(**moe_dims), mtp_copies=False, shards=2, mtp_file=True, **SHORT, notes=["as the GLM-4.7 NVFP4 release: attention and MTP in BF16, MTP in an unindexed mtp.safetensors, FP8 KV scales present"]),
                ["lm_head", *[f"model.layers.{i}.self_attn*" for i in range(4)], "*.mlp.gate", "model.layers.4*"], kv)
    lite_dims = dict(hidden_size=96, intermediate_size=160, moe_intermediate_size=64, num_hidden_layers=3, n_routed_experts=6, num_experts_per_tok=3,
                     num_attention_heads=4, num_key_value_heads=4, q_lora_rank=64, kv_lora_rank=64)
    yield nvfp4(s.lite("glm4_moe_lite_nvfp4", s.lite_config(**lite_dims), **SHORT), ["lm_head", "*.mlp.gate", "model.layers.3*"])
    yield int4(s.lite("glm4_moe_lite_int4_g32", s.lite_config(**lite_dims), **SHORT), 32, ["lm_head", gate, "re:model[.]layers[.]3[.].*"])
    wide = dict(hidden_size=256, intermediate_size=256, moe_intermediate_size=128, num_attention_heads=8, num_key_value_heads=2, n_routed_experts=5, num_experts_per_tok=2,
                num_hidden_layers=2, first_k_dense_replace=1, num_nextn_predict_layers=0)
    yield int4(s.glm4_moe("glm4_moe_int4_g128", s.moe_config(**wide), **SHORT), 128, ["lm_head", gate])
    yield int4(s.glm4_moe("glm4_moe_int4_g128_asym", s.moe_config(**wide), **SHORT), 128, ["lm_head", gate], symmetric=False)
    yield fp8_channel(s.glm4_moe("glm4_moe_fp8_channel", s.moe_config(**moe_dims), mtp_copies=False, **SHORT), ["lm_head", gate, "re:.*(eh_proj|shared_head.head)$"])
    yield int4(s.v3("kimi_k2_int4", s.v3_config(model_type="kimi_k2", n_group=1, topk_group=1, routed_scaling_factor=2.827, num_nextn_predict_layers=0, num_hidden_layers=3, hidden_size=96, moe_intermediate_size=64,
               rope_theta=50000.0, rope_scaling=dict(s.YARN, factor=8.0, beta_fast=1.0, beta_slow=1.0)), config_class="DeepseekV3Config", **SHORT, notes=["as Kimi-K2-Thinking: only routed experts are int4, g32"]),
               32, ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", gate])
    text = s.next_config("KKD" + "K" + "D", hidden_size=136, intermediate_size=176, moe_intermediate_size=72, n_routed_experts=4, num_experts_per_tok=2, q_lora_rank=136, kv_lora_rank=72)
    kda_layers = [i for i, x in enumerate(text["text_config"]["layer_types"]) if x == "linear_attention"]
    yield fp8_block(s.glm5_next("glm5_next_fp8", text, prompts=SHORT["prompts"], bisect=0), ["lm_head", *[f"model.language_model.layers.{i}.self_attn" for i in kda_layers], "*.kv_b_proj", "*.indexer", "*.mlp.gate", "*.eh_proj", "model.visual"])


# ---------------------------------------------------------------- writing


def checkpoint_tensors(case):
    tensors = {}
    for t in case.tensors:
        assert t.name not in tensors, t.name
        tensors[t.name] = tensors[t.copy_of].clone() if t.copy_of else spec.fill(case.name, t)
    return quant.quantise(tensors, case.quant) if case.quant else tensors


def text_config(config):
    return config.get("text_config", config)


def write_checkpoint(case, directory):
    tensors = checkpoint_tensors(case)
    (directory / "config.json").write_text(json.dumps(case.config, indent=2) + "\n")
    for name, content in (case.quant or {}).get("files", {}).items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")
    if case.mtp_file:
        layer = f"model.layers.{case.config['num_hidden_layers']}."
        side = {k: v for k, v in tensors.items() if k.startswith(layer)}
        tensors = {k: v for k, v in tensors.items() if k not in side}
        save_file(side, directory / "mtp.safetensors", {"format": "pt"})
    if case.shards == 1 and not case.mtp_file:
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        return
    names, index = list(tensors), {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": {}}
    per_shard = -(-len(names) // case.shards)
    for i in range(case.shards):
        file = f"model-{i + 1:05d}-of-{case.shards:05d}.safetensors"
        chunk = names[i * per_shard : (i + 1) * per_shard]
        save_file({n: tensors[n] for n in chunk}, directory / file, {"format": "pt"})
        index["weight_map"].update(dict.fromkeys(chunk, file))
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


# ---------------------------------------------------------------- references


def prompt_ids(case, index, attempt):
    g = spec.generator(case.name, f"prompt{index}.{attempt}")
    return torch.randint(0, PROMPT_VOCAB, (case.prompts[index],), generator=g).tolist()


@torch.no_grad()
def prompt_reference(model, case, index, plain):
    """The first prompt for which no discrete choice (expert, pool, greedy token), in the prompt or in the
    continuation, hangs on a rounding error - or else the best of those tried."""
    best, continued = None, 0
    for attempt in range(TRIES):
        ids = prompt_ids(case, index, attempt)
        if ref.scan(model, ids)[0] < MIN_SELECTION_MARGIN and attempt + 1 < TRIES:
            continue
        continuation = ref.greedy(model, ids)
        margin, winners, lead = ref.scan(model, ids, continuation)
        if winners != continuation:  # the cached, token by token run and the full one must agree
            print(f"{case.name} prompt{index}.{attempt}: cached and full runs differ (margin {margin:.1e}, lead {lead:.1e})", flush=True)
            continue
        score = min(margin / MIN_SELECTION_MARGIN, lead / MIN_GREEDY_LEAD)
        if best is None or score > best[0]:
            facts = dict(length=len(ids), min_selection_margin=margin if margin < 1e9 else None, min_greedy_lead=lead)
            best = (score, ids, continuation, facts)
        continued += 1
        if score >= 1 or continued == MAX_CONTINUED:
            break
    _, ids, continuation, facts = best
    tensors = ref.run_prompt(model, ids, continuation, index == case.bisect)
    facts["logits_std"] = tensors["logits"].std().item()
    facts["float32_noise"] = (tensors["logits"] - golden_model.logits_float64(ids, plain, case.config)).abs().max().item()
    return tensors, facts


@torch.no_grad()
def vision_reference(model, case):
    v, grids = case.config["vision_config"], [(1, 4, 6), (1, 8, 4)]
    g = spec.generator(case.name, "image")
    patches = sum(t * h * w for t, h, w in grids)
    pixels = torch.randn(patches, v["in_channels"] * v["temporal_patch_size"] * v["patch_size"] ** 2, generator=g)
    text = torch.randint(0, PROMPT_VOCAB, (12,), generator=g).tolist()
    ids = text[:5]
    for t, h, w in grids:
        ids += [case.config["image_start_token_id"]] + [case.config["image_token_id"]] * (t * h * w // 4) + [case.config["image_end_token_id"]]
    ids += text[5:]
    grid = torch.tensor(grids)
    features = torch.cat(list(model.model.get_image_features(pixels, grid).pooler_output))
    logits = ref.forward(model, ids, pixel_values=pixels, image_grid_thw=grid)
    return {"pixel_values": pixels, "grid_thw": grid.to(torch.int32), "ids": torch.tensor(ids, dtype=torch.int32), "features": features.contiguous(), "logits": logits.contiguous()}


def metadata(case):
    c = text_config(case.config)
    prefix = "model.language_model" if case.vision else "model"
    return {
        "case": case.name,
        "model_type": case.config["model_type"],
        "auto_class": case.auto_class,
        "config_class": case.config_class,
        "ignored_tensors": rf"^{prefix}\.layers\.{c['num_hidden_layers']}\.".replace("model.language", r"model\.language"),
        "quantisation": case.quant and {k: v for k, v in case.quant.items() if k not in ("files", "kv_scales")},
        "reference": "transformers float32 eager forward of the " + ("dequantised weights (weight-only: activations and KV cache are not quantised)" if case.quant else "stored weights"),
        "bisect_prompt": case.bisect,
        "float32_noise": "per prompt: largest difference of the logits from golden_model in float64",
        "mtp": bool(c.get("num_nextn_predict_layers")),
        "notes": case.notes,
    }


def make(case):
    directory = CASES / case.name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    write_checkpoint(case, directory)
    meta = metadata(case)
    model = ref.load(directory, meta)
    plain = quant.dequantise(ref.read_tensors(directory))
    expected, meta["prompts"] = {}, []
    for i in range(len(case.prompts)):
        tensors, facts = prompt_reference(model, case, i, plain)
        expected.update({f"prompt{i}.{k}": v for k, v in tensors.items()})
        meta["prompts"].append(facts)
    if meta["mtp"]:
        expected.update(mtp.of_checkpoint(plain, case.config, expected, case.bisect))
    if case.vision:
        expected.update({f"vision.{k}": v for k, v in vision_reference(model, case).items()})
    save_file(expected, directory / "expected.safetensors", {"case": case.name})
    (directory / "case.json").write_text(json.dumps(meta, indent=2) + "\n")
    for file in directory.iterdir():
        file.chmod(0o644)
    return directory, meta


def main(wanted):
    wanted = wanted or [p.parent.name for p in CASES.glob("*/case.json")]
    for case in all_cases():
        if case.name not in wanted:
            continue
        start = time.time()
        directory, meta = make(case)
        size = sum(f.stat().st_size for f in directory.iterdir()) / 2**20
        print(f"{case.name:26s} {size:5.2f} MiB {time.time() - start:5.1f} s")
        for p in meta["prompts"]:
            print("    ", {k: (round(v, 6) if isinstance(v, float) else v) for k, v in p.items()}, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
