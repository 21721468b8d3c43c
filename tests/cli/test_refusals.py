"""Broken checkpoints: refused with exit code 3, in words that name the file and what to do, before anything is loaded."""

import json
import pathlib
import shutil
import struct
import subprocess
import time

import pytest

FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
         "special_tokens_map.json", "model.safetensors"]


@pytest.fixture
def model(demo, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in FILES:
        shutil.copy(demo / name, folder / name)
    return folder


def read_safetensors(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + length]), data[8 + length:]


def write_safetensors(path, header, body):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def edit_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            del config[key]
        else:
            config[key] = value
    path.write_text(json.dumps(config))


def truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1_000_000])


def only_a_pickle(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")


def missing_shard(folder):
    header, _ = read_safetensors(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    names = [name for name in header if name != "__metadata__"]
    shards = {name: "model-00001-of-00002.safetensors" for name in names}
    shards[names[-1]] = "model-00002-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))


def wrong_shape(folder):
    header, body = read_safetensors(folder / "model.safetensors")
    header["model.layers.2.self_attn.o_proj.weight"]["shape"].reverse()
    entry = header["model.layers.2.self_attn.q_a_proj.weight"]
    entry["shape"] = [entry["shape"][0] // 2, entry["shape"][1] * 2]
    write_safetensors(folder / "model.safetensors", header, body)


def missing_tensor(folder):
    header, body = read_safetensors(folder / "model.safetensors")
    header["model.layers.1.mlp.experts.3.renamed.weight"] = header.pop("model.layers.1.mlp.experts.3.up_proj.weight")
    write_safetensors(folder / "model.safetensors", header, body)


def huge_header(folder):
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 60) + path.read_bytes()[8:])


def html_instead_of_weights(folder):
    (folder / "model.safetensors").write_text("<!DOCTYPE html><html>Please log in</html>")


def git_lfs_pointer(folder):
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12457256\n")


CASES = {
    "truncated": (truncate, ["model.safetensors"]),
    "pickle": (only_a_pickle, ["pytorch_model.bin", "safetensors"]),
    "missing shard": (missing_shard, ["model-00002-of-00002.safetensors", "incomplete download"]),
    "wrong shape": (wrong_shape, ["model.layers.2.self_attn.q_a_proj.weight"]),
    "missing tensor": (missing_tensor, ["model.layers.1.mlp.experts.3.up_proj.weight"]),
    "huge header": (huge_header, ["model.safetensors"]),
    "html": (html_instead_of_weights, ["model.safetensors"]),
    "git lfs": (git_lfs_pointer, ["model.safetensors", "git lfs"]),
    "no config": (lambda f: (f / "config.json").unlink(), ["config.json"]),
    "broken config": (lambda f: (f / "config.json").write_text("{"), ["config.json"]),
    "unknown model": (lambda f: edit_config(f, model_type="gpt_neo"), ["gpt_neo", "glm4_moe_lite"]),
    "unknown activation": (lambda f: edit_config(f, hidden_act="gelu"), ["hidden_act", "gelu"]),
    "unknown rope": (lambda f: edit_config(f, rope_scaling={"type": "wobbly", "factor": 2.0}), ["rope_scaling"]),
    "missing key": (lambda f: edit_config(f, kv_lora_rank=None), ["kv_lora_rank"]),
    "absurd key": (lambda f: edit_config(f, num_hidden_layers=-5), ["num_hidden_layers"]),
    "contradicting key": (lambda f: edit_config(f, hidden_size=512), ["hidden_size", "model.embed_tokens.weight"][1:]),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), ["tokenizer.json"]),
    "broken tokenizer": (lambda f: (f / "tokenizer.json").write_text("[]"), ["tokenizer.json"]),
    "bad template": (lambda f: (f / "chat_template.jinja").write_text("{% for x in %}"), ["chat_template.jinja", "line 1"]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("command", [["run", "-p", "Hello"], ["serve", "--port", "0"]], ids=["run", "serve"])
def test_broken_models_are_refused_by_name_within_a_second(run, model, command, name):
    break_it, words = CASES[name]
    break_it(model)
    start = time.monotonic()
    done = run(command[0], model, *command[1:])
    took = time.monotonic() - start
    assert done.returncode == 3, done.stderr
    assert done.stdout == "" and "listening" not in done.stderr
    for word in words:
        assert word.lower() in done.stderr.lower(), done.stderr
    assert took < 1.0 or took < 10 * baseline(run), f"took {took:.2f} s"


def baseline(run):
    """What starting the program costs on this machine just now."""
    start = time.monotonic()
    run("--version")
    return time.monotonic() - start


def test_the_copy_itself_works(run, model):
    assert run("run", model, "-p", "What is 17 + 25?").stdout == "17 + 25 = 42\n"


def test_without_a_chat_template_only_raw_text_works(run, model, tmp_path):
    (model / "chat_template.jinja").unlink()
    for command in (["chat"], ["run", "-p", "x"]):
        done = run(command[0], model, *command[1:])
        assert done.returncode == 3 and "--chat-template" in done.stderr, done.stderr
    assert run("run", model, "--raw", "-p", "Once", "-n", 2).returncode == 0
    (tmp_path / "mine.jinja").write_text("[gMASK]<sop><|user|>{{ messages[0].content }}<|assistant|></think>")
    done = run("run", model, "-p", "What is 3 + 4?", "--chat-template", "mine.jinja")
    assert done.stdout == "3 + 4 = 7\n", done.stderr


def test_output_that_cannot_be_written_is_a_failure(glint, environment):
    with open("/dev/full", "w") as full:
        done = subprocess.run([glint, "tokenize", "demo", "--ids", "Hello"], stdout=full, stderr=subprocess.PIPE, env=environment)
    assert done.returncode == 1 and b"could not be written" in done.stderr


def test_a_folder_that_is_not_there(run):
    done = run("run", "no/such/folder", "-p", "x")
    assert done.returncode == 3 and "no/such/folder" in done.stderr


@pytest.mark.parametrize("name", ["truncated", "unknown model", "missing tensor", "missing shard"])
def test_inspect_gives_the_verdict_and_3(run, model, name):
    CASES[name][0](model)
    done = run("inspect", model, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 3 and report["verdict"] == "refused"
    assert CASES[name][1][0] in report["reason"]
    assert run("inspect", model).returncode == 3


def test_a_memory_limit_refuses_with_the_largest_context(run):
    done = run("run", "-p", "x", "--memory", "85MiB", "--ctx", "8192")
    assert done.returncode == 3
    assert "--ctx" in done.stderr and "--memory" in done.stderr
    assert run("run", "-p", "What is 17 + 25?", "--memory", "85MiB").stdout == "17 + 25 = 42\n"
    assert "the largest that fits is --ctx " in done.stderr
    largest = done.stderr.split("the largest that fits is --ctx ")[1].split()[0]
    assert run("run", "-p", "x", "--memory", "1MiB").returncode == 3
    fits = run("run", "-p", "What is 17 + 25?", "--memory", "85MiB", "--ctx", str(int(largest) - 256))
    assert fits.stdout == "17 + 25 = 42\n", fits.stderr


def test_a_body_that_memory_has_no_room_for_is_refused(run):
    done = run("serve", "--memory", "200MiB", "--max-body-mib", "64", "--port", "0")
    assert done.returncode == 3 and "requests 5.00 GiB" in done.stderr


def test_a_context_that_memory_cuts_is_told_and_auto_takes_what_fits(run):
    cut = run("run", "-p", "What is 17 + 25?", "--memory", "85MiB", "--stream-experts", "off")
    assert cut.stdout == "17 + 25 = 42\n"
    assert "instead of 8192: more does not fit --memory (85.00 MiB)" in cut.stderr
    auto = run("run", "-p", "What is 17 + 25?", "--ctx", "auto", "--log-level", "info")
    assert auto.stdout == "17 + 25 = 42\n"
    assert "context 8192: the most that the model was made for" in auto.stderr
    assert "'some' is no number of tokens" in run("run", "-p", "x", "--ctx", "some").stderr


def test_the_demo_works_from_anywhere(run, home, tmp_path):
    run("run", "-p", "Hello")
    unpacked = list((home / ".cache" / "glint").glob("demo-*"))
    assert len(unpacked) == 1 and sorted(p.name for p in unpacked[0].iterdir()) == sorted(FILES)
    (unpacked[0] / "model.safetensors").write_bytes(b"damaged")
    assert run("run", "-p", "What is 17 + 25?").stdout == "17 + 25 = 42\n"


@pytest.mark.parametrize("broken", ["unset", "file", "read-only"])
def test_the_demo_works_without_a_usable_home(run, tmp_path, broken):
    env = {"HOME": "", "TMPDIR": str(tmp_path / "scratch")}
    (tmp_path / "scratch").mkdir()
    if broken == "file":
        (tmp_path / "file").write_text("")
        env["HOME"] = str(tmp_path / "file")
    if broken == "read-only":
        env["HOME"] = "/proc"
    done = run("run", "-p", "What is 17 + 25?", env=env)
    assert (done.returncode, done.stdout) == (0, "17 + 25 = 42\n"), done.stderr
    assert not list(pathlib.Path(env["TMPDIR"]).iterdir())
