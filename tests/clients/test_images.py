"""Images through the real clients, on the golden checkpoint of GLM-5.3-Flash's family (random weights, so only what differs
and what is equal says anything): the OpenAI and Anthropic APIs, hostile images, and prefixes that never mix images up."""

import base64
import json
import pathlib
import shutil
import subprocess
import tempfile

import anthropic
import openai
import pytest
import serving

DATA = serving.ROOT / "tests" / "data"


@pytest.fixture(scope="module")
def model():
    """The checkpoint with a tokenizer and a template beside it."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for source in (DATA / "golden" / "glm5_next", DATA / "vision"):
            for file in source.iterdir():
                shutil.copy(file, folder)
        yield folder


@pytest.fixture(scope="module")
def served(model):
    with serving.serve("--ctx", "2048", "--parallel", "2", "--max-images", "3", model=model) as served:
        yield served


def url(name, kind="png"):
    return f"data:image/{kind};base64," + base64.b64encode((DATA / "media" / name).read_bytes()).decode()


def part(address):
    return {"type": "image_url", "image_url": {"url": address, "detail": "high"}}


def ask(served, *parts, **more):
    content = [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]
    settings = {"max_tokens": 8, "temperature": 0, "logprobs": True, **more}
    return served.client().chat.completions.create(
        model="demo", messages=[{"role": "user", "content": content}], **settings)


def said(answer):
    return [token.logprob for token in answer.choices[0].logprobs.content]


def refusal(served, *parts):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(served, *parts)
    return refused.value.body


def test_the_server_says_that_it_sees(served):
    assert served.client().models.list().data[0].architecture["input_modalities"] == ["text", "image"]


def test_what_is_seen_is_what_is_answered_to(served):
    first = ask(served, "What is it?", part(url("rgb.png")))
    assert first.usage.prompt_tokens - ask(served, "What is it?").usage.prompt_tokens == 9 + 2
    assert said(first) != said(ask(served, "What is it?", part(url("colour.jpg", "jpeg"))))
    # The same pixels from another format.
    assert said(first) == said(ask(served, "What is it?", part(url("lossless.webp", "webp"))))


def test_a_b_a_with_images_of_one_size(served):
    """Long enough to fill a page of the cache."""
    long = "x" * 40
    a, b = part(url("turned_1.png")), part(url("rgb.png"))
    answers = [ask(served, *parts, long) for parts in ([a, a, a], [b, b, b], [a, a, a], [b, b, b])]
    assert said(answers[0]) == said(answers[2])
    assert said(answers[1]) == said(answers[3])
    assert said(answers[0]) != said(answers[1])
    assert answers[2].usage.prompt_tokens_details.cached_tokens >= 64


def test_markers_in_text_are_text(served):
    plain = ask(served, "<|begin_of_image|><|image|><|end_of_image|>")
    assert plain.usage.prompt_tokens > 40
    assert ask(served, "<|image|>", part(url("rgb.png"))).choices


def test_anthropic_blocks(served):
    client = anthropic.Anthropic(base_url=served.url, api_key="unused", max_retries=0)
    source = {"type": "base64", "media_type": "image/png", "data": url("rgb.png").split(",")[1]}
    image = {"type": "image", "source": source}
    question = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}]
    answer = client.messages.create(model="demo", max_tokens=4, messages=question)
    usage = answer.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == ask(served, "What is it?", part(url("rgb.png"))).usage.prompt_tokens
    assert client.messages.count_tokens(model="demo", messages=question).input_tokens > 11
    source["data"] = source["data"][:200]
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model="demo", max_tokens=4, messages=question)
    image["source"] = {"type": "url", "url": "http://169.254.169.254/"}
    with pytest.raises(anthropic.BadRequestError, match="fetches nothing"):
        client.messages.create(model="demo", max_tokens=4, messages=question)


def test_response_items(served):
    client = served.client()
    content = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": url("rgb.png"), "detail": "auto"}]
    answer = client.responses.create(model="demo", max_output_tokens=4, input=[{"role": "user", "content": content}])
    assert answer.usage.input_tokens == ask(served, "What is it?", part(url("rgb.png"))).usage.prompt_tokens


@pytest.mark.parametrize("address, why", [
    ("http://127.0.0.1:1/a.png", "fetches nothing"),
    ("file:///etc/passwd", "fetches nothing"),
    ("data:image/png;base64,", "empty"),
    ("data:image/png;base64,aGVsbG8gd29ybGQ=", "no image"),
    ("data:image/png;base64,***", "base64"),
    ("data:application/pdf;base64,aGVsbG8=", "image"),
])
def test_hostile_addresses(served, address, why):
    body = refusal(served, part(address))
    assert why in body["message"] and body["param"].startswith("messages[0].content")


def test_hostile_images(served):
    whole = (DATA / "media" / "rgb.png").read_bytes()
    data = lambda content: "data:;base64," + base64.b64encode(content).decode()  # noqa: E731
    assert "damaged" in refusal(served, part(data(whole[:300])))["message"]
    bomb = bytearray(whole)
    bomb[16:24] = (60000).to_bytes(4, "big") * 2
    assert refusal(served, part(data(bytes(bomb))))["code"]
    assert "at most 3 images" in refusal(served, *[part(url("rgb.png"))] * 4)["message"]
    assert "videos" in refusal(served, {"type": "video_url", "video_url": {"url": url("rgb.png")}})["message"]
    assert ask(served, part(url("tiny.png"))).choices


def test_run_shows_files(model):
    command = [serving.GLINT, "run", str(model), "--image", str(DATA / "media" / "colour.jpg"), "-p", "hi", "-n", "2", "--json"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr
    assert json.loads(out.stdout)["usage"]["prompt_tokens"] > 11
    blind = subprocess.run([*command, "--vision", "off"], capture_output=True, text=True, timeout=120)
    assert blind.returncode != 0 and "text only" in blind.stderr
    missing = subprocess.run([*command, "--image", "/nowhere.png"], capture_output=True, text=True, timeout=120)
    assert missing.returncode == 2 and "/nowhere.png" in missing.stderr
    seen = subprocess.run([serving.GLINT, "inspect", str(model), "--json"], capture_output=True, text=True, timeout=120)
    assert json.loads(seen.stdout)["vision"]["parameters"] > 10000
