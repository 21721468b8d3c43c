#!/usr/bin/env python3
"""Writes a checkpoint with the layer shapes of GLM-4.7-Flash or GLM-5.3-Flash and random weights, to measure speed without
a download.

    python3 bench/make_checkpoint.py OUT [--family glm4_moe_lite|glm5_next] [--layers 4] [--mtp] [--fp8] [--seed 1]
                                         [--set KEY=VALUE ...] [--no-tokenizer]

Needs numpy. Four layers of GLM-4.7-Flash take 5.2 GB of disk; a sparse layer of GLM-5.3-Flash 14.5 GB, half of that with
--fp8, and a ninth with `--set n_routed_experts=32`, which changes nothing for a single token. The memory used is one
tensor's. The weights are finite and of ordinary size, so every kernel does its real work, but the text is babble: the
tokenizer is the demo model's, to have one at all.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import struct
import sys
import zlib

import numpy

DEMO = pathlib.Path(__file__).resolve().parents[1] / "models" / "demo"
TEXT_FILES = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"]
STD = 0.02
SHARD_BYTES = 2 << 30
FP8_BLOCK = 128

GLM4_MOE_LITE = {
    "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "dtype": "bfloat16",
    "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 10240, "kv_lora_rank": 512, "max_position_embeddings": 202752, "moe_intermediate_size": 1536,
    "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 20,
    "num_experts_per_tok": 4, "num_hidden_layers": 4, "num_key_value_heads": 20, "q_lora_rank": 768,
    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "routed_scaling_factor": 1.8,
    "tie_word_embeddings": False, "topk_group": 1, "v_head_dim": 256, "vocab_size": 154880, "first_k_dense_replace": 1,
    "topk_method": "noaux_tc", "num_nextn_predict_layers": 0, "partial_rotary_factor": 1.0, "rope_scaling": None,
    "rope_theta": 1000000, "pad_token_id": 154820, "eos_token_id": [154820, 154827, 154829],
}


GLM5_NEXT_TEXT = {
    "model_type": "glm5_next_text", "dtype": "bfloat16", "vocab_size": 154880, "hidden_size": 4096,
    "intermediate_size": 12288, "moe_intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 64,
    "num_key_value_heads": 64, "n_shared_experts": 1, "n_routed_experts": 288, "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 0, "qk_nope_head_dim": 256, "qk_head_dim": 256,
    "v_head_dim": 256, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 8, "norm_topk_prob": True,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_router_dtype": "float32", "hidden_act": "silu",
    "max_position_embeddings": 1048576, "rms_norm_eps": 1e-05, "first_k_dense_replace": 3, "mla_use_nope": True,
    "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32, "index_kpool": 4, "index_kpool_compress": True,
    "index_kpool_always_select_tail": True, "index_share_for_mtp_iteration": True, "swiglu_limit": 10.0, "mhc": True,
    "hc_mult": 4, "hc_eps": 1e-06, "hc_sinkhorn_iters": 20, "num_nextn_predict_layers": 0, "attention_bias": False,
    "tie_word_embeddings": False, "pad_token_id": 154820, "eos_token_id": [154820, 154827, 154829],
    "linear_attn_config": {"num_heads": 64, "head_dim": 128, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0},
}

# A tensor to write: (name, shape, kind). bf16: "matrix", "kept" (the same, and never FP8), "norm". float32: "bias", "conv",
# "rate" (A_log), "mix" (mHC), "one" (around 1). e4m3 and its float32 scales: "fp8", "scale".
FLOAT32 = ("bias", "conv", "rate", "mix", "one", "scale")


def mlp(prefix, hidden, width):
    return [(f"{prefix}.{name}_proj.weight", shape, "matrix")
            for name, shape in (("gate", (width, hidden)), ("up", (width, hidden)), ("down", (hidden, width)))]


def feed_forward(prefix, c, dense):
    hidden = c["hidden_size"]
    if dense:
        yield from mlp(f"{prefix}.mlp", hidden, c["intermediate_size"])
        return
    yield f"{prefix}.mlp.gate.weight", (c["n_routed_experts"], hidden), "kept"
    yield f"{prefix}.mlp.gate.e_score_correction_bias", (c["n_routed_experts"],), "bias"
    for expert in range(c["n_routed_experts"]):
        yield from mlp(f"{prefix}.mlp.experts.{expert}", hidden, c["moe_intermediate_size"])
    yield from mlp(f"{prefix}.mlp.shared_experts", hidden, c["moe_intermediate_size"] * c["n_shared_experts"])


def latent_attention(attention, c):
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    yield f"{attention}.q_a_proj.weight", (c["q_lora_rank"], hidden), "matrix"
    yield f"{attention}.q_a_layernorm.weight", (c["q_lora_rank"],), "norm"
    yield f"{attention}.q_b_proj.weight", (heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"]), c["q_lora_rank"]), "matrix"
    yield f"{attention}.kv_a_proj_with_mqa.weight", (c["kv_lora_rank"] + c["qk_rope_head_dim"], hidden), "matrix"
    yield f"{attention}.kv_a_layernorm.weight", (c["kv_lora_rank"],), "norm"
    yield f"{attention}.kv_b_proj.weight", (heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"]), "kept"
    yield f"{attention}.o_proj.weight", (hidden, heads * c["v_head_dim"]), "matrix"


def indexer(attention, c):
    width = c["index_head_dim"]
    yield f"{attention}.indexer.wq_b.weight", (c["index_n_heads"] * width, c["q_lora_rank"]), "kept"
    yield f"{attention}.indexer.wk.weight", (width, c["hidden_size"]), "kept"
    yield f"{attention}.indexer.weights_proj.weight", (c["index_n_heads"], c["hidden_size"]), "kept"
    yield f"{attention}.indexer.k_norm.weight", (width,), "norm"
    yield f"{attention}.indexer.k_norm.bias", (width,), "bias"
    yield f"{attention}.indexer.index_kpool_compress_ape", (c["index_kpool"], width), "bias"
    yield f"{attention}.indexer.index_kpool_compress_gate", (width, c["hidden_size"]), "kept"


def linear_attention(attention, c):
    linear, hidden = c["linear_attn_config"], c["hidden_size"]
    heads, width = linear["num_heads"], linear["head_dim"]
    for name in "qkv":
        yield f"{attention}.{name}_proj.weight", (heads * width, hidden), "kept"
        yield f"{attention}.{name}_conv1d.weight", (heads * width, 1, linear["short_conv_kernel_size"]), "conv"
    for name in "fg":
        yield f"{attention}.{name}_a_proj.weight", (width, hidden), "kept"
        yield f"{attention}.{name}_b_proj.weight", (heads * width, width), "kept"
    yield f"{attention}.b_proj.weight", (heads, hidden), "kept"
    yield f"{attention}.A_log", (heads,), "rate"
    yield f"{attention}.dt_bias", (heads * width,), "bias"
    yield f"{attention}.o_norm.weight", (width,), "norm"
    yield f"{attention}.o_proj.weight", (hidden, heads * width), "kept"


def hyper_connections(prefix, c):
    streams = c["hc_mult"]
    for half in ("attn", "ffn"):
        yield f"{prefix}.hc_{half}_fn", (streams * (streams + 2), streams * c["hidden_size"]), "mix"
        yield f"{prefix}.hc_{half}_base", (streams * (streams + 2),), "mix"
        yield f"{prefix}.hc_{half}_scale", (3,), "one"


def layer(prefix, c, dense, kind="latent_attention", mixes=False):
    attention = f"{prefix}.self_attn"
    yield f"{prefix}.input_layernorm.weight", (c["hidden_size"],), "norm"
    yield f"{prefix}.post_attention_layernorm.weight", (c["hidden_size"],), "norm"
    yield from linear_attention(attention, c) if kind == "linear_attention" else latent_attention(attention, c)
    if kind == "deepseek_sparse_attention":
        yield from indexer(attention, c)
    if mixes:
        yield from hyper_connections(prefix, c)
    yield from feed_forward(prefix, c, dense)


def tensors(c, prefix, kinds):
    """Of a text model whose layer i has attention kinds[i]."""
    vocabulary, hidden, layers, mixes = c["vocab_size"], c["hidden_size"], c["num_hidden_layers"], "hc_mult" in c
    yield f"{prefix}embed_tokens.weight", (vocabulary, hidden), "kept"
    for index in range(layers):
        yield from layer(f"{prefix}layers.{index}", c, index < c["first_k_dense_replace"], kinds[index], mixes)
    yield f"{prefix}norm.weight", (hidden,), "norm"
    yield "lm_head.weight", (vocabulary, hidden), "kept"
    for index in range(layers, layers + c["num_nextn_predict_layers"]):
        draft = f"{prefix}layers.{index}"
        yield from layer(draft, c, False, "deepseek_sparse_attention" if mixes else "latent_attention")
        for name in ("enorm", "hnorm", "shared_head.norm"):
            yield f"{draft}.{name}.weight", (hidden,), "norm"
        yield f"{draft}.eh_proj.weight", (hidden, 2 * hidden), "kept"
        if not mixes:
            yield f"{draft}.embed_tokens.weight", (vocabulary, hidden), "kept"
            yield f"{draft}.shared_head.head.weight", (vocabulary, hidden), "kept"


def in_fp8(listed):
    """The same with every "matrix" as e4m3 and a scale for each block of it."""
    for name, shape, kind in listed:
        yield name, shape, "fp8" if kind == "matrix" else kind
        if kind == "matrix":
            yield f"{name}_scale_inv", tuple(-(-n // FP8_BLOCK) for n in shape), "scale"


def count(shape):
    return int(numpy.prod(shape))


def nbytes(kind, shape):
    return count(shape) * (1 if kind == "fp8" else 4 if kind in FLOAT32 else 2)


def dtype(kind):
    return "F8_E4M3" if kind == "fp8" else "F32" if kind in FLOAT32 else "BF16"


def bf16(values):
    """Float32 values as bf16 bits, rounded to nearest even."""
    bits = numpy.asarray(values, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


FP8_UNIT = STD / 64  # the scale of every block: values of ordinary size lie in the middle of what e4m3 holds


def e4m3(values):
    """The nearest e4m3 codes; nothing here comes near the largest, 448."""
    codes = numpy.arange(0x7F)  # but for the sign, and the code that is no number
    exponent, fraction = codes >> 3, codes & 7
    known = numpy.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10))
    magnitude = numpy.abs(values)
    upper = numpy.clip(numpy.searchsorted(known, magnitude), 1, len(known) - 1)
    nearest = upper - (magnitude - known[upper - 1] < known[upper] - magnitude)
    return (nearest | numpy.where(numpy.asarray(values) < 0, 0x80, 0)).astype(numpy.uint8)


def gaussian_tables():
    """{kind: 65,536 numbers as they are stored, equally likely}: a random uint16 picks one, which is far cheaper than
    drawing normals."""
    normal = statistics.NormalDist(0.0, STD)
    values = numpy.array([normal.inv_cdf((i + 0.5) / 65536) for i in range(65536)])
    return {"matrix": bf16(values), "kept": bf16(values), "fp8": e4m3(values / FP8_UNIT)}


def small_tensor(shape, kind, random):
    values = random.standard_normal(count(shape))
    if kind == "norm":
        return bf16(1 + 0.1 * values)
    if kind == "scale":
        return numpy.full(count(shape), FP8_UNIT, numpy.float32)
    base, spread = {"bias": (0, 0.02), "conv": (0, 0.3), "rate": (0, 0.5), "mix": (0, 0.02), "one": (1, 0.1)}[kind]
    return (base + spread * values).astype(numpy.float32)


def write_tensor(out, name, shape, kind, seed, tables):
    random = numpy.random.default_rng([seed, zlib.crc32(name.encode())])
    if kind not in tables:
        out.write(small_tensor(shape, kind, random).tobytes())
        return
    left = count(shape)
    while left:
        some = min(left, 1 << 24)
        out.write(tables[kind][random.integers(0, 65536, some, numpy.uint16)].tobytes())
        left -= some


def write_shard(path, listed, seed, tables):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, kind in listed:
        size = nbytes(kind, shape)
        header[name] = {"dtype": dtype(kind), "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, shape, kind in listed:
            write_tensor(out, name, shape, kind, seed, tables)


def shards(listed):
    """The tensors in order, in lists of at most SHARD_BYTES."""
    current, size = [], 0
    for name, shape, kind in listed:
        if current and size + nbytes(kind, shape) > SHARD_BYTES:
            yield current
            current, size = [], 0
        current.append((name, shape, kind))
        size += nbytes(kind, shape)
    yield current


def assemble(text, family):
    """(config.json, the prefix of its tensors' names, the attention of each layer): every fourth layer of glm5_next attends."""
    layers = text["num_hidden_layers"]
    if family == "glm4_moe_lite":
        return text, "model.", ["latent_attention"] * layers
    kinds = ["deepseek_sparse_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)]
    dense = text["first_k_dense_replace"]
    text |= {"layer_types": kinds, "mlp_layer_types": ["dense" if i < dense else "sparse" for i in range(layers)],
             "indexer_types": ["full"] * layers}
    text["linear_attn_config"] |= {"kda_layers": [i for i, kind in enumerate(kinds) if kind == "linear_attention"],
                                   "full_attn_layers": [i for i, kind in enumerate(kinds) if kind != "linear_attention"]}
    ends = {key: text[key] for key in ("tie_word_embeddings", "eos_token_id", "pad_token_id")}
    config = {"architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next", "text_config": text, **ends}
    return config, "model.language_model.", kinds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--family", choices=("glm4_moe_lite", "glm5_next"), default="glm4_moe_lite")
    parser.add_argument("--layers", type=int, default=4, help="main layers; the released models have 47 and 45")
    parser.add_argument("--mtp", action="store_true", help="add the draft layer, with its own embedding and head if the family has them")
    parser.add_argument("--fp8", action="store_true", help="feed-forward blocks and latent attention as e4m3 with a scale for 128 x 128")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another value in config.json")
    parser.add_argument("--no-tokenizer", action="store_true")
    arguments = parser.parse_args()

    text = dict(GLM5_NEXT_TEXT if arguments.family == "glm5_next" else GLM4_MOE_LITE,
                num_hidden_layers=arguments.layers, num_nextn_predict_layers=int(arguments.mtp))
    for setting in arguments.set:
        key, value = setting.split("=", 1)
        if key not in text:
            sys.exit(f"--set {key}: no such key; there are {', '.join(text)}")
        text[key] = json.loads(value)
    config, prefix, kinds = assemble(text, arguments.family)
    listed = tensors(text, prefix, kinds)
    if arguments.fp8:
        listed = in_fp8(listed)
        config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                         "weight_block_size": [FP8_BLOCK, FP8_BLOCK]}
    parts = list(shards(listed))
    total = sum(nbytes(kind, shape) for part in parts for _, shape, kind in part)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(arguments.out).free < total + (1 << 28):
        sys.exit(f"{arguments.out}: {total / 1e9:.1f} GB are needed, more than is free")
    for old in arguments.out.glob("model*.safetensors"):
        old.unlink()

    tables, weight_map = gaussian_tables(), {}
    for index, part in enumerate(parts, 1):
        file = f"model-{index:05d}-of-{len(parts):05d}.safetensors"
        print(f"{file}: {len(part)} tensors", flush=True)
        write_shard(arguments.out / file, part, arguments.seed, tables)
        weight_map.update({name: file for name, _, _ in part})
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (arguments.out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    if not arguments.no_tokenizer:  # the end tokens must be those of the tokenizer beside them
        demo = json.loads((DEMO / "config.json").read_text())
        ends = {key: demo[key] for key in ("eos_token_id", "pad_token_id")}
        text |= ends
        config |= ends
    (arguments.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {"do_sample": False, "eos_token_id": config["eos_token_id"], "pad_token_id": config["pad_token_id"]}
    (arguments.out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    for name in [] if arguments.no_tokenizer else TEXT_FILES:
        if (DEMO / name).exists():
            shutil.copyfile(DEMO / name, arguments.out / name)
    parameters = sum(count(shape) for part in parts for _, shape, _ in part)
    print(f"{arguments.out}: {parameters / 1e9:.3f} B parameters, {total / 1e9:.2f} GB in {len(parts)} files")


if __name__ == "__main__":
    main()
