"""The demo model in the quantised forms that other tools publish, for the table in docs/numerics.md.

    python3 reference/quantised_demo.py OUT       # OUT/fp8-channel, OUT/nvfp4, OUT/mxfp4, OUT/int4-asym, OUT/awq, OUT/gptq

Plain rounding to the nearest value: what the formats cost, not what calibration wins back. Needs numpy.
"""

import json
import pathlib
import sys

import numpy as np

DEMO = pathlib.Path(__file__).resolve().parents[1] / "models" / "demo"
PROJECTIONS = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj", "gate_proj", "up_proj", "down_proj")
KEPT = ["lm_head", "re:.*embed_tokens$", "re:.*mlp\\.gate$", "re:.*kv_b_proj$", "re:.*eh_proj$", "re:.*shared_head\\.head$"]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E4M3 = np.array([m * 2.0**-9 if e == 0 else (8 + m) * 2.0 ** (e - 10) for e in range(16) for m in range(8)][:127])
NAMES = {"BF16": np.uint16, "F32": np.float32}


def read(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, end = (8 + size + at for at in entry["data_offsets"])
        yield name, entry["dtype"], np.frombuffer(data[begin:end], NAMES[entry["dtype"]]).reshape(entry["shape"])


def write(path, tensors):
    header, at = {}, 0
    for name, (dtype, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _, values in tensors.values():
            out.write(np.ascontiguousarray(values).tobytes())


def bf16(values):
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def of_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def nearest(table, values):
    """The index of the table's nearest entry to each magnitude, ties to the even index, and the sign in the bit above."""
    middles = (table[1:] + table[:-1]) / 2
    magnitude = np.abs(values)
    low, high = np.searchsorted(middles, magnitude, "left"), np.searchsorted(middles, magnitude, "right")
    return np.where(low % 2 == 0, low, high), values < 0


def e4m3(values):
    code, negative = nearest(E4M3, values)
    return (code | negative.astype(np.uint8) << 7).astype(np.uint8)


def words(codes):
    """[N, K] of 4 bits -> int32 [N, K / 8], first element in the low bits."""
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    return (codes.astype(np.uint32).reshape(codes.shape[0], -1, 8) << shifts).sum(-1, dtype=np.uint32).view(np.int32)


def grouped(w, size):
    return w.reshape(w.shape[0], -1, size)


def fp8_channel(w):
    scale = bf16(np.abs(w).max(1, keepdims=True) / 448)
    return {"weight": ("F8_E4M3", e4m3(w / of_bf16(scale))), "weight_scale": ("BF16", scale)}


def fp4(w, scale):
    code, negative = nearest(E2M1, grouped(w, w.shape[1] // scale.shape[1]) / scale[..., None])
    code = (code | negative << 3).astype(np.uint8).reshape(w.shape)
    return code[:, 0::2] | code[:, 1::2] << 4


def nvfp4(w):
    whole = np.float32(np.abs(w).max() / (6 * 448))
    scale = e4m3(np.maximum(np.abs(grouped(w, 16)).max(2) / 6 / whole, 2.0**-9))
    return {"weight": ("U8", fp4(w, E4M3[scale] * whole)), "weight_scale": ("F8_E4M3", scale),
            "weight_scale_2": ("F32", np.array(whole, np.float32)), "input_scale": ("F32", np.array(0.01, np.float32))}


def mxfp4(w):
    exponent = np.floor(np.log2(np.maximum(np.abs(grouped(w, 32)).max(2), 1e-30))) - 2
    return {"weight_packed": ("U8", fp4(w, np.exp2(exponent))), "weight_scale": ("U8", (exponent + 127).astype(np.uint8))}


def affine(w, size):
    """Codes 0 to 15, scales and zero points of groups."""
    g = grouped(w, size)
    low, high = np.minimum(g.min(2), 0), np.maximum(g.max(2), 0)
    scale = np.maximum((high - low) / 15, 1e-8).astype(np.float16).astype(np.float32)
    zero = np.clip(np.rint(-low / scale), 0, 15)
    code = np.clip(np.rint(g / scale[..., None] + zero[..., None]), 0, 15)
    return code.reshape(w.shape).astype(np.uint32), scale, zero.astype(np.uint32)


def int4_asym(w):
    code, scale, zero = affine(w, 32)
    rows, cols = w.shape
    return {"weight_packed": ("I32", words(code)), "weight_scale": ("F16", scale.astype(np.float16)),
            "weight_zero_point": ("I32", words(zero.T).T), "weight_shape": ("I64", np.array([rows, cols], np.int64))}


def awq(w):
    order = np.array([0, 2, 4, 6, 1, 3, 5, 7])
    pack = lambda c: words(c.reshape(c.shape[0], -1, 8)[..., order].reshape(c.shape))  # noqa: E731
    code, scale, zero = affine(w, 32)
    return {"qweight": ("I32", pack(code.T)), "qzeros": ("I32", pack(zero.T)), "scales": ("F16", scale.T.astype(np.float16))}


def gptq(w):
    code, scale, zero = affine(w, 32)
    zero = np.maximum(zero, 1) - 1  # stored less one
    index = (np.arange(w.shape[1]) // 32).astype(np.int32)
    return {"qweight": ("I32", words(code).T), "qzeros": ("I32", words(zero.T)), "scales": ("F16", scale.T.astype(np.float16)), "g_idx": ("I32", index)}


def described(format, weights, activations=None):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None, "format": format}
    return {"quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed", "config_groups": {"group_0": group}, "ignore": KEPT}


FORMS = {
    "fp8-channel": (fp8_channel, described("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
                                           {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True})),
    "nvfp4": (nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4", "producer": {"name": "modelopt", "version": "0.39.0"}, "ignore": ["lm_head", "*embed_tokens", "*.mlp.gate", "*kv_b_proj", "*eh_proj", "*shared_head.head"],
                      "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False},
                                                    "input_activations": {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False}}}}),
    "mxfp4": (mxfp4, described("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True, "dynamic": False})),
    "int4-asym": (int4_asym, described("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False, "dynamic": False})),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm",
                  "modules_to_not_convert": ["lm_head", "embed_tokens", "mlp.gate", "kv_b_proj", "eh_proj", "shared_head"]}),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False, "checkpoint_format": "gptq",
                    "modules_to_not_convert": ["lm_head", "embed_tokens", "mlp.gate", "kv_b_proj", "eh_proj", "shared_head"]}),
}


def main():
    out = pathlib.Path(sys.argv[1])
    plain = list(read(DEMO / "model.safetensors"))
    for name, (quantise, config) in FORMS.items():
        folder = out / name
        folder.mkdir(parents=True)
        tensors = {}
        for tensor, dtype, values in plain:
            stem = tensor.removesuffix(".weight")
            if dtype == "BF16" and values.ndim == 2 and stem.endswith(PROJECTIONS) and not stem.endswith("eh_proj"):
                tensors |= {f"{stem}.{leaf}": part for leaf, part in quantise(of_bf16(values)).items()}
            else:
                tensors[tensor] = (dtype, values)
        write(folder / "model.safetensors", tensors)
        whole = json.loads((DEMO / "config.json").read_text()) | {"quantization_config": config}
        (folder / "config.json").write_text(json.dumps(whole, indent=2))
        for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "generation_config.json"):
            (folder / file).write_bytes((DEMO / file).read_bytes())


if __name__ == "__main__":
    main()
