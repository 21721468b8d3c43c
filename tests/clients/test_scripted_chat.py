"""What a model may say, and what clients get of it: thoughts, tool calls, stops, cuts, failures. Through the real openai
client, streamed and whole."""

import json
import threading
import time
import urllib.request

import openai
import pytest
from scripted import CLOCK, WEATHER, call, fold, line, serve_script, whole, without_ids

PARIS = call("weather", city="Paris", days=3)
LINES = [
    line("PLAIN", "I think so.</think>Good day 你 👩‍👩‍👧!"),
    line("CALL-TWO", "Two.</think>" + PARIS + call("get_time")),
    line("CALL-TEXT", "One.</think>Let me look." + PARIS),
    line("CALL-IN-THOUGHT", "Hmm" + PARIS),
    line("CALL-EMPTY", "</think>" + call("get_time") + call("weather", city="x")),
    line("CALL-TYPES", "</think>" + call("weather", city="01234", days="7", metric="True")),
    line("UNKNOWN-TOOL", "</think>" + call("nobody", a="1")),
    line("STOPS", "The Question is here.</think>The answer. Question? No."),
    line("FOX", "</think>The quick brown fox jumps"),
    line("NO-CLOSE", "Paris."),
    line("LONG-THOUGHT", "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 4 + "</think>done"),
    line("OBSERVED", "</think>It is<|observation|>never shown"),
    line("LOOKALIKE", "</think>a <|user|x> b"),
    line("NAN", "</think>ab cd ef gh", nan_at=3),
    line("STALL", "</think>slow", stall_s=2.5),
    line("PROBE", "</think>fine"),
]
CASES = ["PLAIN", "CALL-TWO", "CALL-TEXT", "CALL-IN-THOUGHT", "CALL-EMPTY", "CALL-TYPES", "UNKNOWN-TOOL", "STOPS", "NO-CLOSE", "OBSERVED"]


@pytest.fixture(scope="module")
def served():
    with serve_script(LINES, "--sse-ping", "0.5", "--parallel", "4") as running:
        yield running


@pytest.fixture(scope="module")
def client(served):
    with served.client() as opened:
        yield opened


def ask(client, what, stream=False, **more):
    arguments = {"model": "demo", "messages": [{"role": "user", "content": what}], "temperature": 0, "max_tokens": 400, **more}
    return client.chat.completions.create(stream=stream, **arguments)


@pytest.mark.parametrize("what", CASES)
@pytest.mark.parametrize("interval", [1, 3, 1000])
def test_a_stream_says_what_the_whole_answer_says(client, what, interval):
    tools = [WEATHER, CLOCK] if "CALL" in what or "TOOL" in what else None
    more = {"tools": tools} if tools else {}
    more["extra_body"] = {"stream_interval": interval}
    plain = ask(client, what, **more)
    chunks = list(ask(client, what, stream=True, stream_options={"include_usage": True}, **more))
    assert without_ids(fold(chunks)) == without_ids(whole(plain))
    usage, streamed = plain.usage.model_dump(), chunks[-1].usage.model_dump()
    for details in (usage, streamed):
        details.pop("prompt_tokens_details")  # the second request finds more in the cache
        for guesses in ("accepted_prediction_tokens", "rejected_prediction_tokens"):  # --mtp auto makes as many as pay
            details["completion_tokens_details"].pop(guesses)
    assert usage == streamed
    assert all(c.usage is None for c in chunks[:-1])


def test_two_calls_have_indices_ids_and_typed_arguments(client):
    message = ask(client, "CALL-TWO", tools=[WEATHER, CLOCK]).choices[0].message
    first, second = message.tool_calls
    assert (first.function.name, json.loads(first.function.arguments)) == ("weather", {"city": "Paris", "days": 3})
    assert (second.function.name, second.function.arguments) == ("get_time", "{}")
    assert first.id != second.id and first.id.startswith("call_")
    assert message.content is None and message.reasoning_content == message.reasoning == "Two."


def test_arguments_follow_the_schema(client):
    function = ask(client, "CALL-TYPES", tools=[WEATHER]).choices[0].message.tool_calls[0].function
    assert json.loads(function.arguments) == {"city": "01234", "days": 7, "metric": True}


def test_without_tools_markup_is_text(client):
    message = ask(client, "CALL-TEXT").choices[0].message
    assert message.tool_calls is None
    assert "<tool_call>weather" in message.content


def test_tool_choice_none_keeps_calls_out(client):
    message = ask(client, "CALL-TEXT", tools=[WEATHER], tool_choice="none").choices[0].message
    assert message.tool_calls is None and "<tool_call>" not in (message.content or "")


def test_one_call_at_most_without_parallel_calls(client):
    answer = ask(client, "CALL-TWO", tools=[WEATHER, CLOCK], parallel_tool_calls=False)
    assert len(answer.choices[0].message.tool_calls) == 1
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("limit", range(1, 13))
def test_a_call_that_is_cut_leaks_no_markup(client, limit):
    more = {"tools": [WEATHER, CLOCK], "max_tokens": limit}
    plain = ask(client, "CALL-TWO", **more)
    streamed = fold(ask(client, "CALL-TWO", stream=True, **more))
    assert without_ids(streamed) == without_ids(whole(plain))
    assert plain.choices[0].finish_reason == "length"
    assert "<" not in (plain.choices[0].message.content or "")
    assert plain.usage.completion_tokens == limit


def test_stop_strings_wait_for_the_end_of_the_thought(client):
    answer = ask(client, "STOPS", stop=["Question"])
    assert answer.choices[0].message.content == "The answer. "
    assert "Question" in answer.choices[0].message.reasoning_content
    assert answer.choices[0].stop_reason == "Question"


def test_no_part_of_a_stop_string_is_shown(client):
    chunks = ask(client, "FOX", stream=True, stop=["own fox"])
    assert fold(chunks)[0]["content"] == "The quick br"


def test_a_thought_that_never_closed_is_the_answer_too(client):
    message = ask(client, "NO-CLOSE").choices[0].message
    assert message.content == "Paris."
    cut = ask(client, "LONG-THOUGHT", max_tokens=20).choices[0]
    assert cut.finish_reason == "length" and not cut.message.content and cut.message.reasoning_content


def test_a_turn_ends_at_an_observation(client):
    answer = ask(client, "OBSERVED").choices[0]
    assert answer.message.content == "It is" and answer.finish_reason == "stop"


def test_text_that_looks_like_a_token_stays(client):
    assert ask(client, "LOOKALIKE").choices[0].message.content == "a <|user|x> b"


def test_a_thinking_budget_closes_the_thought_with_its_token(client):
    answer = ask(client, "LONG-THOUGHT", extra_body={"thinking_token_budget": 16, "return_token_ids": True})
    assert answer.usage.completion_tokens_details.reasoning_tokens <= 17
    ids = answer.choices[0].token_ids
    body = json.dumps({"content": "</think>"}).encode()
    close = json.load(urllib.request.urlopen(f"{str(client.base_url).removesuffix('/v1/')}/tokenize", body))["tokens"]
    assert len(close) == 1 and ids[16] == close[0]


def test_logits_that_are_not_numbers_end_one_request(client):
    with pytest.raises(openai.InternalServerError) as failure:
        ask(client, "NAN")
    assert failure.value.code == "internal_error"
    seen = []
    with pytest.raises(openai.APIError):
        for chunk in ask(client, "NAN", stream=True):
            seen.append(chunk)
    assert fold(seen)[0]["finish"] is None
    assert ask(client, "PROBE").choices[0].message.content == "fine"


def test_others_go_on_while_a_prompt_stalls_and_the_stream_shows_life(served, client):
    lines = []

    def slow():
        body = json.dumps({"messages": [{"role": "user", "content": "STALL"}], "stream": True}).encode()
        with urllib.request.urlopen(f"{served.url}/v1/chat/completions", body) as answer:
            lines.extend(answer.read().decode().splitlines())

    thread = threading.Thread(target=slow)
    began = time.monotonic()
    thread.start()
    assert ask(client, "PROBE").choices[0].message.content == "fine"
    assert time.monotonic() - began < 2.4, "the other request waited for the stalled one"
    thread.join()
    assert lines.count(": ping") >= 3
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks) == "slow"


def test_choices_of_one_request_are_told_apart(client):
    chunks = list(ask(client, "PLAIN", stream=True, n=3, stream_options={"include_usage": True}))
    choices = fold(chunks)
    assert [c["content"] for c in choices] == ["Good day 你 👩‍👩‍👧!"] * 3
    one = ask(client, "PLAIN").usage
    assert chunks[-1].usage.completion_tokens == 3 * one.completion_tokens
    assert chunks[-1].usage.prompt_tokens == one.prompt_tokens


def test_logprobs_cover_every_token_in_order(client):
    plain = ask(client, "PLAIN", logprobs=True, top_logprobs=2)
    chunks = list(ask(client, "PLAIN", stream=True, logprobs=True, top_logprobs=2))
    streamed = [entry for c in chunks for entry in (c.choices[0].logprobs.content if c.choices[0].logprobs else [])]
    assert [e.token for e in streamed] == [e.token for e in plain.choices[0].logprobs.content]
    assert len(streamed) == plain.usage.completion_tokens
    text = b"".join(bytes(e.bytes) for e in streamed)
    assert text.decode().startswith("I think so.</think>Good day 你 👩‍👩‍👧!")
    assert all(len(e.top_logprobs) == 2 for e in streamed)


@pytest.mark.parametrize("lines, complaint", [
    (["{"], "line 1"), (['{"when": 1, "say": "a"}'], "when"), (['{"when": "a"}'], "say"),
    (['{"when": "a", "say": "b", "end": "later"}'], "end"), (['{"when": "a", "say": "b", "stall_s": -1}'], "stall_s")])
def test_a_wrong_script_is_refused_with_its_line(tmp_path, lines, complaint):
    import subprocess
    from serving import DEMO, GLINT
    path = tmp_path / "script.jsonl"
    path.write_text("\n".join(lines))
    run = subprocess.run([GLINT, "serve", str(DEMO), "--port", "0", "--script", str(path)], capture_output=True, text=True, timeout=60)
    assert run.returncode in (2, 3) and complaint in run.stderr, run.stderr
    run = subprocess.run([GLINT, "serve", str(DEMO), "--host", "0.0.0.0", "--api-key", "k", "--script", str(path)],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 2 and "loopback" in run.stderr
