"""A golden case of the glm4_moe family as a GGUF file:  python make_glm4moe_gguf.py [CASE OUT.gguf]

Without arguments it rewrites tests/data/gguf/glm4_moe.gguf from the case `glm4_moe`.  Tensor names come from the `gguf`
package's own table of the architecture `glm4moe`, and as in llama.cpp's converter q and k are not reordered, experts are
stacked, matrices keep BF16, and norms, biases and the router are F32.  There is no tokenizer: the case has none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

ROOT = Path(__file__).resolve().parents[1]
ARCH = gguf.MODEL_ARCH.GLM4_MOE


def read_safetensors(path):
    """{name: float32 array} of one file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, info in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + at for at in info["data_offsets"])
        raw = np.frombuffer(data[begin:end], "<u2" if info["dtype"] == "BF16" else "<f4")
        values = (raw.astype(np.uint32) << 16).view(np.float32) if info["dtype"] == "BF16" else raw
        tensors[name] = values.reshape(info["shape"])
    return tensors


def stack_experts(tensors, count):
    """The experts of each layer as one tensor [experts, rows, columns], under the name the package maps."""
    stacked = {}
    for name, values in tensors.items():
        before, found, after = name.partition(".mlp.experts.")
        if not found:
            stacked[name] = values
        elif after.startswith("0."):
            projection = after.removeprefix("0.")
            stacked[f"{before}.mlp.experts.{projection}"] = np.stack(
                [tensors[f"{before}.mlp.experts.{e}.{projection}"] for e in range(count)])
    return stacked


def add_hyperparameters(writer, config):
    writer.add_block_count(config["num_hidden_layers"] + config["num_nextn_predict_layers"])
    writer.add_nextn_predict_layers(config["num_nextn_predict_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(int(config["head_dim"] * config["partial_rotary_factor"]))
    writer.add_rope_freq_base(float(config["rope_theta"]))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_eos_token_id(config["eos_token_id"][0])
    writer.add_pad_token_id(config["pad_token_id"])


def add_tensors(writer, tensors, config):
    blocks = config["num_hidden_layers"] + config["num_nextn_predict_layers"]
    names = gguf.get_tensor_name_map(ARCH, blocks)
    for name, values in stack_experts(tensors, config["n_routed_experts"]).items():
        # The table has the correction bias under the spelling with a dot only.
        target = names.get_name(name.replace("e_score_correction_bias", "e_score_correction.bias"),
                                try_suffixes=(".weight", ".bias"))
        if target is None:
            raise SystemExit(f"{name}: the gguf package has no name for it")
        small = values.ndim == 1 or "ffn_gate_inp" in target
        kind = Type.F32 if small else Type.BF16
        writer.add_tensor(target, gguf.quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)


def convert(case, out):
    config = json.loads((case / "config.json").read_text())
    tensors = {}
    for path in sorted(case.glob("model*.safetensors")):
        tensors |= read_safetensors(path)
    writer = gguf.GGUFWriter(str(out), gguf.MODEL_ARCH_NAMES[ARCH])
    writer.add_type("model")
    writer.add_name(case.name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_hyperparameters(writer, config)
    add_tensors(writer, tensors, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    paths = [Path(a) for a in sys.argv[1:]] or [ROOT / "tests/data/golden/glm4_moe", ROOT / "tests/data/gguf/glm4_moe.gguf"]
    convert(*paths)
