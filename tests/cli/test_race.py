"""bench/race.py on engines that are scripts: they print what the real ones printed once, and note how they were called."""

import json
import pathlib
import subprocess
import sys

import pytest

RACE = pathlib.Path(__file__).resolve().parents[2] / "bench" / "race.py"

# Cut from what the programs print: the rest of each object is not read.
GLINT = {"isa": "amx", "machine": {"read_bytes_per_s": 2.0e10},
         "results": [{"test": "tg", "tokens": 4, "depth": 0, "parallel": 1, "tokens_per_s": 30.0, "of_floor": 0.8}]}
LLAMA = [{"model_type": "deepseek2 ?B Q4_0", "n_prompt": 64, "n_gen": 0, "n_depth": 0, "avg_ts": 200.0},
         {"model_type": "deepseek2 ?B Q4_0", "n_prompt": 0, "n_gen": 4, "n_depth": 0, "avg_ts": 20.0},
         {"model_type": "deepseek2 ?B Q4_0", "n_prompt": 0, "n_gen": 4, "n_depth": 32, "avg_ts": 15.0}]
IK = [{"n_prompt": 64, "n_gen": 0, "avg_ts": 100.0, "test": "pp64"},
      {"n_prompt": 0, "n_gen": 4, "avg_ts": 10.0, "test": "tg4"},
      {"n_prompt": 32, "n_gen": 4, "avg_ts": 5.0, "test": "tg4@pp32"}]
BATCHED = """
main: n_kv_max = 512, n_batch = 2048, n_ubatch = 512, is_pp_shared = 0, n_threads = 2, n_threads_batch = 2

|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|    16 |      4 |    2 |     40 |    0.003 |  5280.53 |    0.002 |    60.25 |    0.005 |  4571.43 |

llama_print_timings:        load time =   17762.94 ms
"""
LINES = ["-t", "2", "--reps", "2", "-p", "64", "-n", "4", "-d", "0,32", "--parallel", "2", "--parallel-depth", "16"]


@pytest.fixture
def engines(tmp_path):
    """make(name, text, code): a program that prints `text` and appends its name and arguments to calls.txt."""

    def make(name, text, code=0, stderr=""):
        (tmp_path / f"{name}.out").write_text(text)
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {name} \"$@\" >> {tmp_path}/calls.txt\ncat {tmp_path / name}.out\n"
                        f"echo '{stderr}' >&2\nexit {code}\n")
        path.chmod(0o755)
        return path

    for folder in ("lc", "ik"):
        (tmp_path / folder).mkdir()
        make(f"{folder}/llama-batched-bench", BATCHED)
    make("glint", json.dumps(GLINT))
    make("lc/llama-bench", json.dumps(LLAMA))
    make("ik/llama-bench", json.dumps(IK))
    return make


def race(folder, *more):
    done = subprocess.run([sys.executable, RACE, "--model", "model.gguf", "--glint", folder / "glint", "--llama-bench",
                           folder / "lc/llama-bench", "--ik-bench", folder / "ik/llama-bench", *LINES, *more],
                          capture_output=True, text=True, check=False)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines() if line.startswith("|")]
    return done, {row[0]: row[1:] for row in rows}


def test_the_table_has_medians_ratios_and_the_share_of_the_floor(engines, tmp_path):
    done, rows = race(tmp_path)
    assert done.returncode == 0, done.stderr
    assert rows["tok/s"] == ["glint", "llama.cpp", "ik_llama.cpp", "glint / llama.cpp", "glint / ik_llama.cpp", "of floor"]
    assert rows["pp64"] == ["30.00", "200.00", "100.00", "0.15", "0.30", "80 %"]
    assert rows["tg4"] == ["30.00", "20.00", "10.00", "1.50", "3.00", "80 %"]
    assert rows["tg4 @ d32"] == ["30.00", "15.00", "5.00", "2.00", "6.00", "80 %"]
    assert rows["tg4 @ d16 x 2"] == ["30.00", "60.25", "60.25", "0.50", "0.50", "80 %"]
    assert "read bandwidth meanwhile: 20.0 GB/s" in done.stdout and "n/a" not in done.stdout


def test_engines_take_turns_and_get_the_same_figures(engines, tmp_path):
    race(tmp_path, "--thp", "--llama-args", "--repack 0")
    calls = (tmp_path / "calls.txt").read_text().splitlines()
    assert len(calls) == 2 * 4 * 3
    assert [call.split()[0] for call in calls[:3]] == ["glint", "lc/llama-bench", "ik/llama-bench"]
    assert [call.split()[0] for call in calls[12:15]] == ["ik/llama-bench", "lc/llama-bench", "glint"]
    assert calls[0] == "glint bench model.gguf -t 2 -p 64 -n 0 -d 0 --parallel 1 --reps 1 --json"
    assert calls[1] == "lc/llama-bench -m model.gguf -t 2 -p 64 -n 0 -r 1 -o json --repack 0"
    assert calls[2] == "ik/llama-bench -m model.gguf -t 2 -p 64 -n 0 -r 1 -o json -mla 3 -fa 1 -fmoe 1 -rtr 1 -thp 1"
    assert calls[7].split()[5:11] == ["-p", "0", "-n", "4", "-d", "32"]
    assert calls[8].split()[5:11] == ["-p", "0", "-n", "0", "-gp", "32,4"]
    assert calls[11].endswith("-c 42 -npp 16 -ntg 4 -npl 2 -mla 3 -rtr -thp")


def test_an_engine_that_fails_gets_a_reason_and_is_not_asked_again(engines, tmp_path):
    engines("lc/llama-bench", "", code=1, stderr="ggml.c:12: GGML_ASSERT(x) failed")
    engines("ik/llama-batched-bench", "no table")
    done, rows = race(tmp_path)
    assert done.returncode == 0
    assert rows["pp64"] == ["30.00", "n/a", "100.00", "n/a", "0.30", "80 %"]
    assert "n/a: llama.cpp, pp64: exit 1: ggml.c:12: GGML_ASSERT(x) failed" in done.stdout
    assert "n/a: ik_llama.cpp, tg4 @ d16 x 2: its table has no such row" in done.stdout
    calls = (tmp_path / "calls.txt").read_text().splitlines()
    assert sum(call.startswith("lc/llama-bench") for call in calls) == 3
    # A row that is missing may have been lost on its way out.
    assert sum(call.startswith("ik/llama-batched-bench") for call in calls) == 3


def test_every_speed_can_be_kept(engines, tmp_path):
    race(tmp_path, "--save", tmp_path / "all.json")
    rows = json.loads((tmp_path / "all.json").read_text())
    assert {"engine": "llama.cpp", "figure": "tg4 @ d32", "tokens_per_s": [15.0, 15.0]} in rows


def test_a_program_that_is_not_there_is_no_figure(engines, tmp_path):
    (tmp_path / "glint").unlink()
    done, rows = race(tmp_path)
    assert rows["tg4"][:1] == ["n/a"] and "glint: No such file or directory" in done.stdout
