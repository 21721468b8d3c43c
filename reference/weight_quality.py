"""Accuracy, agreement and perplexity of the demo model's checkpoints, as rows of the table in docs/numerics.md.

    python3 reference/weight_quality.py build/glint demo demo-q8_0.gguf demo:q8 ...

A checkpoint is what glint takes as MODEL, or MODEL:WEIGHTS for --weights.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

DEMO = pathlib.Path(__file__).resolve().parents[1] / "models" / "demo"


def score(program, checkpoint, *options):
    model, _, weights = checkpoint.partition(":")
    command = [program, "score", model, "--json", *map(str, options)]
    if weights:
        command += ["--weights", weights]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def answers(program, checkpoint, folder):
    """The checkpoint's own greedy answers in float32, as a reference for --teacher-force."""
    items = folder / "items.jsonl"
    score(program, checkpoint, "--tasks", DEMO / "evals.jsonl", "--compute", "f32", "-o", items)
    made = {item["id"]: item["output_ids"] for item in map(json.loads, items.read_text().splitlines())}
    given = json.loads((DEMO / "eval_reference.json").read_text())["outputs"]
    outputs = [{"prompt_ids": item["prompt_ids"], "output_ids": made[item["id"]]} for item in given]
    path = folder / "reference.json"
    path.write_text(json.dumps({"outputs": outputs}))
    return path


def row(program, checkpoint, folder):
    tasks = score(program, checkpoint, "--tasks", DEMO / "evals.jsonl")["overall"]
    against_f32 = score(program, checkpoint, "--teacher-force", answers(program, checkpoint, folder))
    against_demo = score(program, checkpoint, "--teacher-force", DEMO / "eval_reference.json")
    text = DEMO / "text_heldout.txt"
    fast, exact = (score(program, checkpoint, "--text", text, "--compute", compute) for compute in ("bf16", "f32"))
    return [
        checkpoint,
        f"{tasks['correct']}/{tasks['n']}",
        f"{against_f32['agreement']:.2%}",
        f"{against_demo['agreement']:.2%}",
        f"{fast['perplexity']:.4f}",
        f"{exact['perplexity']:.4f}",
    ]


def main():
    program, *checkpoints = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for checkpoint in checkpoints:
            print("| " + " | ".join(row(program, checkpoint, pathlib.Path(folder))) + " |", flush=True)


if __name__ == "__main__":
    main()
