#!/usr/bin/env python3
"""Writes a checkpoint with GLM-4.7-Flash's layer shapes and random bf16 weights, to measure speed without a download.

    python3 bench/make_checkpoint.py OUT [--layers 4] [--mtp] [--seed 1] [--set KEY=VALUE ...] [--no-tokenizer]

Needs numpy. Four layers take 5.2 GB of disk; the memory used is one tensor's. The weights are finite and of ordinary size,
so every kernel does its real work, but the text is babble: the tokenizer is the demo model's, to have one at all.
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

CONFIG = {
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


# A tensor to write: (name, shape, kind), kind being "matrix" and "norm" (bf16) or "bias" (float32).


def mlp(prefix, hidden, width):
    return [(f"{prefix}.{name}_proj.weight", shape, "matrix")
            for name, shape in (("gate", (width, hidden)), ("up", (width, hidden)), ("down", (hidden, width)))]


def layer(prefix, c, dense):
    hidden, heads, attention = c["hidden_size"], c["num_attention_heads"], f"{prefix}.self_attn"
    yield f"{prefix}.input_layernorm.weight", (hidden,), "norm"
    yield f"{prefix}.post_attention_layernorm.weight", (hidden,), "norm"
    yield f"{attention}.q_a_proj.weight", (c["q_lora_rank"], hidden), "matrix"
    yield f"{attention}.q_a_layernorm.weight", (c["q_lora_rank"],), "norm"
    yield f"{attention}.q_b_proj.weight", (heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"]), c["q_lora_rank"]), "matrix"
    yield f"{attention}.kv_a_proj_with_mqa.weight", (c["kv_lora_rank"] + c["qk_rope_head_dim"], hidden), "matrix"
    yield f"{attention}.kv_a_layernorm.weight", (c["kv_lora_rank"],), "norm"
    yield f"{attention}.kv_b_proj.weight", (heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"]), "matrix"
    yield f"{attention}.o_proj.weight", (hidden, heads * c["v_head_dim"]), "matrix"
    if dense:
        yield from mlp(f"{prefix}.mlp", hidden, c["intermediate_size"])
        return
    yield f"{prefix}.mlp.gate.weight", (c["n_routed_experts"], hidden), "matrix"
    yield f"{prefix}.mlp.gate.e_score_correction_bias", (c["n_routed_experts"],), "bias"
    for expert in range(c["n_routed_experts"]):
        yield from mlp(f"{prefix}.mlp.experts.{expert}", hidden, c["moe_intermediate_size"])
    yield from mlp(f"{prefix}.mlp.shared_experts", hidden, c["moe_intermediate_size"] * c["n_shared_experts"])


def tensors(c):
    vocabulary, hidden, layers = c["vocab_size"], c["hidden_size"], c["num_hidden_layers"]
    yield "model.embed_tokens.weight", (vocabulary, hidden), "matrix"
    for index in range(layers):
        yield from layer(f"model.layers.{index}", c, index < c["first_k_dense_replace"])
    yield "model.norm.weight", (hidden,), "norm"
    yield "lm_head.weight", (vocabulary, hidden), "matrix"
    for index in range(layers, layers + c["num_nextn_predict_layers"]):
        prefix = f"model.layers.{index}"
        yield from layer(prefix, c, False)
        for name in ("enorm", "hnorm", "shared_head.norm"):
            yield f"{prefix}.{name}.weight", (hidden,), "norm"
        yield f"{prefix}.eh_proj.weight", (hidden, 2 * hidden), "matrix"
        yield f"{prefix}.embed_tokens.weight", (vocabulary, hidden), "matrix"
        yield f"{prefix}.shared_head.head.weight", (vocabulary, hidden), "matrix"


def count(shape):
    return int(numpy.prod(shape))


def nbytes(kind, shape):
    return count(shape) * (4 if kind == "bias" else 2)


def bf16(values):
    """Float32 values as bf16 bits, rounded to nearest even."""
    bits = numpy.asarray(values, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def gaussian_table():
    """65,536 bf16 numbers, equally likely: a random uint16 picks one, which is far cheaper than drawing normals."""
    normal = statistics.NormalDist(0.0, STD)
    return bf16([normal.inv_cdf((i + 0.5) / 65536) for i in range(65536)])


def write_tensor(out, name, shape, kind, seed, table):
    random = numpy.random.default_rng([seed, zlib.crc32(name.encode())])
    if kind == "norm":
        out.write(bf16(1 + 0.1 * random.standard_normal(count(shape))).tobytes())
    elif kind == "bias":
        out.write((0.02 * random.standard_normal(count(shape))).astype(numpy.float32).tobytes())
    else:
        left = count(shape)
        while left:
            some = min(left, 1 << 24)
            out.write(table[random.integers(0, 65536, some, numpy.uint16)].tobytes())
            left -= some


def write_shard(path, listed, seed, table):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, kind in listed:
        size = nbytes(kind, shape)
        header[name] = {"dtype": "F32" if kind == "bias" else "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, shape, kind in listed:
            write_tensor(out, name, shape, kind, seed, table)


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=4, help="main layers; the released model has 47")
    parser.add_argument("--mtp", action="store_true", help="add the draft layer with its own embedding and head")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another value in config.json")
    parser.add_argument("--no-tokenizer", action="store_true")
    arguments = parser.parse_args()

    config = dict(CONFIG, num_hidden_layers=arguments.layers, num_nextn_predict_layers=int(arguments.mtp))
    for setting in arguments.set:
        key, value = setting.split("=", 1)
        if key not in config:
            sys.exit(f"--set {key}: no such key; there are {', '.join(config)}")
        config[key] = json.loads(value)
    parts = list(shards(tensors(config)))
    total = sum(nbytes(kind, shape) for part in parts for _, shape, kind in part)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(arguments.out).free < total + (1 << 28):
        sys.exit(f"{arguments.out}: {total / 1e9:.1f} GB are needed, more than is free")
    for old in arguments.out.glob("model*.safetensors"):
        old.unlink()

    table, weight_map = gaussian_table(), {}
    for index, part in enumerate(parts, 1):
        file = f"model-{index:05d}-of-{len(parts):05d}.safetensors"
        print(f"{file}: {len(part)} tensors", flush=True)
        write_shard(arguments.out / file, part, arguments.seed, table)
        weight_map.update({name: file for name, _, _ in part})
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (arguments.out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    if not arguments.no_tokenizer:  # the end tokens must be those of the tokenizer beside them
        demo = json.loads((DEMO / "config.json").read_text())
        config |= {key: demo[key] for key in ("eos_token_id", "pad_token_id")}
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
