"""Load the cases again from disk with transformers and compare:  python check_golden.py [case ...]

For every case: logits of every prompt, the bisect prompt's inner states, the greedy continuation (full recompute),
the draft layer, and vision, all within 1e-4 of expected.safetensors; golden_model's logits against them; and the draft
layer against transformers' MtpModel where there is one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

import golden_model
import golden_mtp as mtp
import golden_quant as quant
import golden_ref as ref

CASES = Path(__file__).resolve().parents[1] / "tests" / "data" / "golden"
TOLERANCE = 1e-4


def difference(a, b):
    assert a.shape == b.shape, (a.shape, b.shape)
    return (a.double() - b.double()).abs().max().item() if a.numel() else 0.0


@torch.no_grad()
def check_prompts(model, meta, expected):
    worst = {}
    for i in range(len(meta["prompts"])):
        get = lambda name: expected[f"prompt{i}.{name}"]  # noqa: E731,B023
        ids, continuation = get("ids").tolist(), get("greedy").tolist()
        again = ref.run_prompt(model, ids, continuation, i == meta["bisect_prompt"])
        stored = {k.split(".", 1)[1] for k in expected if k.startswith(f"prompt{i}.")}
        assert stored == set(again), (stored ^ set(again))
        for name, t in again.items():
            kind = "logits" if name == "logits" else "selected" if "selected" in name else "inner"
            worst[kind] = max(worst.get(kind, 0), difference(t, get(name)))
        full = ref.forward(model, ids + continuation)
        assert full[len(ids) - 1 : -1].argmax(-1).tolist() == continuation, f"prompt{i}: greedy"
    return worst


@torch.no_grad()
def check_own_model(meta, config, tensors, expected):
    """golden_model's float32 logits against transformers'; more than 1e-4 apart only by as much as float32 itself is off."""
    plain = {k: v.float() if v.is_floating_point() else v for k, v in tensors.items()}
    worst = 0.0
    for i, facts in enumerate(meta["prompts"]):
        d = difference(golden_model.logits(expected[f"prompt{i}.ids"].tolist(), plain, config), expected[f"prompt{i}.logits"])
        worst = max(worst, d * min(1.0, TOLERANCE / (3 * facts["float32_noise"])))
    return worst


@torch.no_grad()
def check_against_mtp_model(model, config, expected, bisect):
    """transformers' own draft layer (it exists for glm4_moe and deepseek_v3), where the checkpoint is one it can read."""
    from transformers.modeling_layers import MtpModel

    model._keys_to_ignore_on_load_unexpected = {rf"model\.layers\.{config['num_hidden_layers']}\..*"}
    draft = MtpModel.from_pretrained(model).eval()
    p = f"prompt{bisect}."
    n = expected[p + "norm"].shape[0]
    hidden = draft.forward_layer(0, expected[p + "norm"][None], torch.arange(1, n + 1)[None], None, input_ids=expected["mtp.next_ids"].long()[None])
    return difference(hidden[0], expected["mtp.hidden_out"])


@torch.no_grad()
def check_vision(model, expected):
    get = lambda k: expected["vision." + k]  # noqa: E731
    features = torch.cat(list(model.model.get_image_features(get("pixel_values"), get("grid_thw").long()).pooler_output))
    logits = ref.forward(model, get("ids").tolist(), pixel_values=get("pixel_values"), image_grid_thw=get("grid_thw").long())
    return max(difference(features, get("features")), difference(logits, get("logits")))


def check(directory):
    meta, config = (json.loads((directory / f).read_text()) for f in ("case.json", "config.json"))
    expected = load_file(directory / "expected.safetensors")
    model = ref.load(directory, meta)
    result = check_prompts(model, meta, expected)
    tensors = quant.dequantise(ref.read_tensors(directory))
    result["own model"] = check_own_model(meta, config, tensors, expected)
    if meta["mtp"]:
        again = mtp.of_checkpoint(tensors, config, expected, meta["bisect_prompt"])
        result["mtp"] = max(difference(again[k], expected[k]) for k in again)
        if meta["model_type"] in ("glm4_moe", "deepseek_v3") and not meta["quantisation"] and not (directory / "mtp.safetensors").exists():
            result["MtpModel"] = check_against_mtp_model(model, config, expected, meta["bisect_prompt"])
    if "vision.ids" in expected:
        result["vision"] = check_vision(model, expected)
    return result


def main(wanted):
    failed = []
    for directory in sorted(p.parent for p in CASES.glob("*/case.json")):
        if wanted and directory.name not in wanted:
            continue
        result = check(directory)
        good = all(v <= TOLERANCE for v in result.values())
        failed += [] if good else [directory.name]
        print("ok  " if good else "FAIL", f"{directory.name:26s}", {k: f"{v:.1e}" for k, v in result.items()}, flush=True)
    sys.exit(f"failed: {failed}" if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
