"""`glint quantize`: what it writes, read back by code that shares nothing with it."""

import json

import numpy as np
import pytest
from safetensors import safe_open

BLOCK = 128


def plain(path):
    """All tensors of a folder as {name: (dtype name, array)}; what numpy does not know as its bits."""
    tensors = {}
    for file in sorted(path.glob("*.safetensors")):
        head = file.read_bytes()
        size = int.from_bytes(head[:8], "little")
        header = json.loads(head[8 : 8 + size])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = (8 + size + at for at in entry["data_offsets"])
            kind = {"BF16": np.uint16, "F32": np.float32, "I32": np.int32, "I64": np.int64, "F8_E4M3": np.uint8}[entry["dtype"]]
            tensors[name] = (entry["dtype"], np.frombuffer(head[begin:end], kind).reshape(entry["shape"]))
    return tensors


def widen(dtype, values):
    return (values.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else values


def e4m3(codes):
    exponent, mantissa = (codes >> 3 & 15).astype(int), (codes & 7).astype(np.float64)
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    return np.where(codes & 0x80, -magnitude, magnitude)


def unpack(words, bits, cols):
    """compressed-tensors' pack-quantized: from the lowest bits of each word upwards, offset by half the range."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    values = (words.view(np.uint32)[..., None] >> shifts) & ((1 << bits) - 1)
    return values.reshape(words.shape[0], -1)[:, :cols].astype(np.float64) - (1 << (bits - 1))


def dequantise(tensors, stem):
    if stem + ".weight_packed" in tensors:
        rows, cols = tensors[stem + ".weight_shape"][1]
        scale = widen(*tensors[stem + ".weight_scale"]).astype(np.float64)
        words = tensors[stem + ".weight_packed"][1]
        codes = unpack(words, words.shape[1] * 32 // cols, cols)
        assert codes.shape == (rows, cols)
        return codes * np.repeat(scale, cols // scale.shape[1], axis=1)
    dtype, codes = tensors[stem + ".weight"]
    assert dtype == "F8_E4M3"
    scale = tensors[stem + ".weight_scale"][1].astype(np.float64)
    grown = np.repeat(np.repeat(scale, BLOCK, 0)[: codes.shape[0]], BLOCK, 1)[:, : codes.shape[1]]
    return e4m3(codes) * grown


# Relative errors of bell-shaped weights: a little above what the format allows.
@pytest.mark.parametrize("kind, worst, strategy", [("w8a16", 0.012, "channel"), ("w4a16-g32", 0.10, "group"), ("w4a16-g128", 0.13, "group"), ("fp8-block", 0.03, "block")])
def test_the_copy_is_what_compressed_tensors_describes(run, demo, tmp_path, kind, worst, strategy):
    out = tmp_path / "out"
    done = run("quantize", "demo", "-o", out, "--type", kind, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    before, after = plain(demo), plain(out)
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    weights = config["config_groups"]["group_0"]["weights"]
    assert (config["quant_method"], weights["strategy"]) == ("compressed-tensors", strategy)
    quantised = 0
    for name, (dtype, values) in before.items():
        if name in after and after[name][0] == dtype:
            assert np.array_equal(values, after[name][1]), name
            continue
        stem = name.removesuffix(".weight")
        assert "_proj" in stem.rpartition(".")[2] and "kv_b" not in stem and "eh_proj" not in stem
        original = widen(dtype, values).astype(np.float64)
        lost = np.linalg.norm(dequantise(after, stem) - original) / np.linalg.norm(original)
        assert 0 < lost < worst, (name, lost)
        quantised += 1
    assert quantised == sum(one["matrices"] for one in report["kinds"]) > 100
    assert report["bytes_after"] == sum(v.nbytes for _, v in after.values()) < report["bytes_before"]
    for file in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (out / file).read_bytes() == (demo / file).read_bytes()
    for stem in report["kept_for_their_shape"]:
        assert stem in config["ignore"] and before[stem + ".weight"][1].shape[1] % BLOCK != 0
    answer = run("run", out, "-p", "What is 17 + 25?")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "17 + 25 = 42\n"


def test_shards_have_an_index_and_load(run, tmp_path):
    out = tmp_path / "out"
    assert run("quantize", "demo", "-o", out, "--type", "q4", "--shard-size", "2MB").returncode == 0
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2 and files == sorted(f.name for f in out.glob("*.safetensors"))
    for file in files:
        with safe_open(out / file, "np") as opened:
            assert set(opened.keys()) == {n for n, f in index["weight_map"].items() if f == file}
    assert index["metadata"]["total_size"] == sum(v.nbytes for _, v in plain(out).values())
    assert run("run", out, "-p", "What is 17 + 25?").stdout == "17 + 25 = 42\n"


def test_wrong_input_is_refused_with_the_remedy(run, demo, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").write_text("x")
    gguf = demo.parents[1] / "tests" / "data" / "gguf" / "demo-q4_0.gguf"
    once = tmp_path / "once"
    assert run("quantize", "demo", "-o", once, "--type", "q8").returncode == 0
    for arguments, code, words in [
        (["demo"], 2, "--type"),
        (["demo", "--type", "q8"], 2, "-o DIR"),
        (["demo", "--type", "q5", "-o", tmp_path / "a"], 2, "w4a16-g32"),
        (["demo", "--type", "q8", "-o", full], 2, "not empty"),
        (["demo", "--type", "q8", "-o", tmp_path / "b", "--shard-size", "0"], 2, "--shard-size"),
        ([gguf, "--type", "q8", "-o", tmp_path / "c"], 3, "GGUF"),
        ([once, "--type", "q8", "-o", tmp_path / "d"], 3, "already"),
        ([tmp_path / "nothing", "--type", "q8", "-o", tmp_path / "e"], 3, "does not exist"),
    ]:
        done = run("quantize", *arguments)
        assert done.returncode == code and words in done.stderr, (arguments, done.stderr)
    assert not (tmp_path / "c").exists()


def test_weights_that_are_not_finite_are_named(run, demo, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in demo.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    data = bytearray((demo / "model.safetensors").read_bytes())
    size = int.from_bytes(data[:8], "little")
    name = "model.layers.2.self_attn.o_proj.weight"
    begin = 8 + size + json.loads(data[8 : 8 + size])[name]["data_offsets"][0]
    data[begin + 40 : begin + 42] = b"\xc0\x7f"
    (broken / "model.safetensors").write_bytes(data)
    done = run("quantize", broken, "-o", tmp_path / "out", "--type", "w8a16")
    assert done.returncode == 3 and name in done.stderr and "finite" in done.stderr
    assert not (tmp_path / "out" / "config.json").exists()
