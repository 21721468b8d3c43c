"""The commands on a GGUF file: the same ids, prompts and ends as on the folder it was made from."""

import json
import pathlib
import shutil

import pytest

DATA = pathlib.Path(__file__).resolve().parents[1] / "data" / "gguf"
MODEL = DATA / "demo-q4_0.gguf"
SUM = "What is 4 + 1?"
STRINGS = ["Hello <|user|>", "'RE 1234567 <think>x</think>", "def f(x):\n    return x ** 2\n", "你好, Zoë 👩‍👩‍👧"]


def ids(run, model, *more):
    return json.loads(run("tokenize", model, "--ids", *more).stdout)


@pytest.mark.parametrize("text", STRINGS)
def test_tokenize_gives_the_folders_ids(run, text):
    assert ids(run, MODEL, text) == ids(run, "demo", text)
    assert ids(run, MODEL, "--no-special", text) == ids(run, "demo", "--no-special", text)
    back = run("tokenize", MODEL, "--decode", json.dumps(ids(run, MODEL, text)))
    assert (back.stdout, back.stderr) == (text + "\n", "")


def test_run_renders_the_files_template_and_stops_at_its_end_of_turn(run):
    prompt = json.loads((DATA / "prompts.json").read_text())["chat"]["ids"]
    done = run("run", MODEL, "-p", SUM, "--no-think", "--temp", 0, "--json")
    answer = json.loads(done.stdout)
    assert answer["text"] == "4 + 1 = 5" and answer["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens"] == len(prompt)


def test_chat_answers_through_a_pipe(run):
    done = run("chat", MODEL, "--no-think", "--temp", 0, stdin=SUM + "\n")
    assert done.returncode == 0 and "4 + 1 = 5" in done.stdout


def test_a_folder_that_holds_one_gguf_file_is_a_model(run, tmp_path):
    shutil.copy(MODEL, tmp_path / "any-name.gguf")
    assert ids(run, tmp_path, "Hello <|user|>") == ids(run, "demo", "Hello <|user|>")


@pytest.mark.parametrize("key", ["tokenizer.ggml.token_type", "tokenizer.ggml.merges", "tokenizer.ggml.tokens"])
def test_a_file_without_its_vocabulary_is_refused_by_key(run, tmp_path, key):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(MODEL.read_bytes().replace(key.encode(), key[:-1].encode() + b"0", 1))
    for command in (["tokenize", broken, "x"], ["run", broken, "-p", "x"], ["serve", broken, "--port", 0]):
        done = run(*command)
        assert done.returncode == 3 and f"broken.gguf: {key} is missing" in done.stderr


def test_a_pre_tokenizer_that_is_not_known_is_refused_by_name(run, tmp_path):
    broken = tmp_path / "broken.gguf"
    old, new = (b"tokenizer.ggml.pre\x08\0\0\0\4\0\0\0\0\0\0\0" + name for name in (b"glm4", b"gpt9"))
    assert old in MODEL.read_bytes()
    broken.write_bytes(MODEL.read_bytes().replace(old, new))
    done = run("tokenize", broken, "x")
    assert done.returncode == 3
    assert 'tokenizer.ggml.pre is "gpt9"' in done.stderr and "glm4, chatglm-bpe" in done.stderr
