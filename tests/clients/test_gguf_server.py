"""The official openai client against `glint serve` on a GGUF file."""

import json

import pytest
from serving import ROOT, serve

DATA = ROOT / "tests" / "data" / "gguf"
OFF = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture(scope="module")
def client():
    with serve(model=DATA / "demo-q4_0.gguf") as running:
        yield running.client()


def ask(client, content, **more):
    return client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": content}], temperature=0, extra_body=OFF, **more
    )


def test_a_chat_uses_the_files_template_and_ends_at_its_end_of_turn(client):
    answer = ask(client, "What is 4 + 1?")
    assert answer.choices[0].message.content == "4 + 1 = 5" and answer.choices[0].finish_reason == "stop"
    prompts = json.loads((DATA / "prompts.json").read_text())
    assert answer.usage.prompt_tokens == len(prompts["chat"]["ids"])


def test_control_tokens_in_a_message_stay_text(client):
    plain = ask(client, "a", max_tokens=1).usage.prompt_tokens
    assert ask(client, "<|user|>", max_tokens=1).usage.prompt_tokens > plain + 1
