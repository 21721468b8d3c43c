"""`glint score` against transformers: the golden cases through the program, for every instruction set of this machine."""

import json
import os
import pathlib
import subprocess

import numpy
import pytest
from safetensors.numpy import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
GLINT = os.environ.get("GLINT_BIN", str(ROOT / "build" / "glint"))
GOLDEN = ROOT / "tests" / "data" / "golden"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/case.json"))
ISAS = [isa for isa in ("scalar", "avx2", "avx512", "avx512bf16", "amx")
        if subprocess.run([GLINT, "inspect", "demo", "--isa", isa], capture_output=True).returncode == 0]


class Golden:
    def __init__(self, name):
        self.folder = GOLDEN / name
        self.facts = json.loads((self.folder / "case.json").read_text())["prompts"]
        expected = load_file(self.folder / "expected.safetensors")
        self.ids, self.logits, self.greedy = ([expected[f"prompt{i}.{what}"] for i in range(len(self.facts))]
                                              for what in ("ids", "logits", "greedy"))


def score(golden, folder, *options):
    """The tensors of `glint score --ids` over all prompts of a case."""
    prompts = [{"name": f"prompt{i}", "ids": ids.tolist()} for i, ids in enumerate(golden.ids)]
    (folder / "ids.json").write_text(json.dumps({"prompts": prompts}))
    out = folder / "out.safetensors"
    command = [GLINT, "score", str(golden.folder), "--ids", str(folder / "ids.json"), "-o", str(out), *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return load_file(out)


@pytest.fixture(params=CASES)
def golden(request):
    return Golden(request.param)


def test_this_machine_has_a_fast_kernel_table():
    assert "scalar" in ISAS and len(ISAS) > 1


# Every instruction set, and every cut of the prompts on the best of them; tests/models has all pairs.
@pytest.mark.parametrize(("isa", "chunk"), [(isa, "64") for isa in ISAS] + [(ISAS[-1], chunk) for chunk in ("1", "7", "512")])
def test_f32_logits_and_greedy_tokens_equal_transformers(golden, tmp_path, isa, chunk):
    found = score(golden, tmp_path, "--compute", "f32", "--isa", isa, "--chunk", chunk, "--greedy", "32")
    for i, facts in enumerate(golden.facts):
        tolerance = max(1e-3, 10 * facts["float32_noise"])
        assert numpy.abs(found[f"logits.prompt{i}"] - golden.logits[i]).max() <= tolerance
        assert found[f"greedy.prompt{i}"].tolist() == golden.greedy[i].tolist()


@pytest.mark.parametrize("isa", sorted({ISAS[0], ISAS[-1]}))
@pytest.mark.parametrize("compute", ["f32", "bf16"])
def test_deterministic_results_do_not_depend_on_chunks_batch_or_threads(golden, tmp_path, isa, compute):
    same = ("--compute", compute, "--isa", isa, "--deterministic")
    whole = score(golden, tmp_path, *same, "--threads", "1")
    for options in (("--chunk", "1"), ("--chunk", "7"), ("--chunk", "64"), ("--all-at-once",), ("--threads", "3")):
        found = score(golden, tmp_path, *same, *options)
        assert found.keys() == whole.keys()
        for name in whole:
            assert (found[name] == whole[name]).all(), (options, name)
