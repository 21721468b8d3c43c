"""The official openai client against `glint serve` on the demo model."""

import concurrent.futures
import json
import signal
import time

import openai
import pytest
from serving import eval_items, serve

HELLO = [{"role": "user", "content": "What is 4 + 1?"}]
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def thinking(on):
    return {"chat_template_kwargs": {"enable_thinking": on}}


@pytest.fixture(scope="module")
def served():
    with serve() as running:
        yield running


@pytest.fixture(scope="module")
def client(served):
    return served.client()


def ask(client, messages=HELLO, **more):
    return client.chat.completions.create(model="demo", messages=messages, **more)


def gather(stream):
    """(content, reasoning, finish_reason, usage, tool calls) of a stream, checking its shape on the way."""
    content, reasoning, finish, usage, calls, ids = "", "", None, None, [], set()
    for count, chunk in enumerate(stream):
        ids.add(chunk.id)
        if chunk.usage:
            usage = chunk.usage
        for choice in chunk.choices:
            if count == 0:
                assert choice.delta.role == "assistant" and choice.delta.content == ""
            elif choice.delta.content is not None:
                assert choice.delta.content != ""
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or []:
                if call.id:
                    assert call.index == len(calls) and call.type == "function"
                    calls.append([call.id, call.function.name, ""])
                calls[call.index][2] += call.function.arguments or ""
            if choice.finish_reason:
                assert finish is None
                finish = choice.finish_reason
    assert len(ids) == 1
    return content, reasoning, finish, usage, calls


def test_models_are_listed(client):
    assert [m.id for m in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").max_model_len == 8192


def test_answers_are_right_and_thoughts_apart(client):
    items = eval_items("add_small")[:4] + eval_items("reverse")[:2]
    for item in items:
        answer = ask(client, item["messages"], extra_body=thinking(item["enable_thinking"]))
        message = answer.choices[0].message
        assert message.content == item["expected"]
        assert answer.choices[0].finish_reason == "stop"
        assert bool(getattr(message, "reasoning_content", None)) == item["enable_thinking"]
        assert getattr(message, "reasoning", None) == getattr(message, "reasoning_content", None)
        assert "<" not in message.content


@pytest.mark.parametrize("think", [True, False])
def test_stream_and_whole_answer_agree(client, think):
    whole = ask(client, extra_body=thinking(think))
    stream = ask(client, extra_body=thinking(think), stream=True, stream_options={"include_usage": True})
    content, reasoning, finish, usage, _ = gather(stream)
    assert content == whole.choices[0].message.content
    assert reasoning == (getattr(whole.choices[0].message, "reasoning_content", None) or "")
    assert finish == whole.choices[0].finish_reason
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert (usage.completion_tokens_details.reasoning_tokens > 0) == think


def test_usage_is_absent_unless_asked_for(client):
    assert all(chunk.usage is None for chunk in ask(client, stream=True))


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_are_typed(client, stream):
    items = eval_items("tool_call")
    assert len(items) >= 10
    for item in items[:6]:
        more = {"tools": item["tools"], "extra_body": thinking(item["enable_thinking"])}
        if stream:
            content, _, finish, _, calls = gather(ask(client, item["messages"], stream=True, **more))
            (call_id, name, arguments), = calls
            assert content == ""
        else:
            choice = ask(client, item["messages"], **more).choices[0]
            finish, (call,) = choice.finish_reason, choice.message.tool_calls
            call_id, name, arguments = call.id, call.function.name, call.function.arguments
            assert choice.message.content is None
        assert finish == "tool_calls"
        assert call_id.startswith("call_")
        assert name == item["expected"]["name"]
        assert json.loads(arguments) == item["expected"]["arguments"]


def test_tool_results_come_back(client):
    items = eval_items("tool_answer")
    assert items
    for item in items[:4]:
        answer = ask(client, item["messages"], tools=item["tools"], extra_body=thinking(item["enable_thinking"]))
        assert answer.choices[0].message.content == item["expected"]


def test_arguments_as_text_and_as_object_are_one_prompt(client):
    def history(arguments):
        call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        return [
            {"role": "user", "content": "Weather in Paris?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "sunny"},
        ]

    answers = [ask(client, history(a), tools=[WEATHER], max_tokens=20) for a in ('{"city":"Paris"}', {"city": "Paris"})]
    assert answers[0].usage.prompt_tokens == answers[1].usage.prompt_tokens
    assert answers[0].choices[0].message == answers[1].choices[0].message


def test_tools_may_be_forbidden_or_empty(client):
    item = eval_items("tool_call")[0]
    answer = ask(client, item["messages"], tools=item["tools"], tool_choice="none", max_tokens=60)
    assert not answer.choices[0].message.tool_calls
    assert "<tool_call>" not in (answer.choices[0].message.content or "")
    assert ask(client, tools=[]).choices[0].finish_reason == "stop"


def test_stop_strings_end_answers(client):
    whole = ask(client, extra_body=thinking(False)).choices[0].message.content
    assert whole == "4 + 1 = 5"
    for stream in (False, True):
        answer = ask(client, stop=["= 5"], extra_body=thinking(False), stream=stream)
        if stream:
            content, _, finish, _, _ = gather(answer)
        else:
            content, finish = answer.choices[0].message.content, answer.choices[0].finish_reason
            assert answer.choices[0].stop_reason == "= 5"
        assert (content, finish) == ("4 + 1 ", "stop")


def test_max_tokens_cut(client):
    answer = ask(client, max_completion_tokens=2)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 2
    assert answer.choices[0].message.content == ""  # cut while thinking


def test_choices_and_seeds(client):
    greedy = ask(client, n=2)
    assert [c.index for c in greedy.choices] == [0, 1]
    assert greedy.choices[0].message == greedy.choices[1].message
    hot = {"temperature": 3.0, "max_tokens": 24, "extra_body": thinking(False)}
    pair = ask(client, n=2, seed=7, **hot)
    singles = [ask(client, seed=seed, **hot) for seed in (7, 8)]
    assert [c.message.content for c in pair.choices] == [s.choices[0].message.content for s in singles]
    assert pair.choices[0].message.content != pair.choices[1].message.content
    assert pair.usage.prompt_tokens == singles[0].usage.prompt_tokens
    assert pair.usage.completion_tokens == sum(s.usage.completion_tokens for s in singles)


def test_logprobs_cover_every_token(client):
    answer = ask(client, logprobs=True, top_logprobs=3, extra_body=thinking(False))
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    shown = b"".join(bytes(e.bytes) for e in entries[:-1]).decode()  # the last one is the end token
    assert shown == answer.choices[0].message.content
    for entry in entries:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # greedy
    streamed = [
        entry
        for chunk in ask(client, logprobs=True, top_logprobs=3, extra_body=thinking(False), stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for entry in choice.logprobs.content
    ]
    assert [e.token for e in streamed] == [e.token for e in entries]
    assert [e.logprob for e in streamed] == pytest.approx([e.logprob for e in entries], abs=1e-3)


def test_markers_typed_by_a_user_stay_text(client):
    messages = [{"role": "user", "content": "Copy this: <|user|></think><|system|>"}]
    plain = ask(client, messages, max_tokens=5)
    bare = ask(client, [{"role": "user", "content": "Copy this: "}], max_tokens=5)
    assert plain.usage.prompt_tokens > bare.usage.prompt_tokens + 6  # three tokens would be three more


def test_errors_name_what_is_wrong(client):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", messages=HELLO)
    assert missing.value.code == "model_not_found" and missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as long:
        ask(client, [{"role": "user", "content": "word " * 9000}])
    assert long.value.code == "context_length_exceeded"
    assert "maximum context length is 8192 tokens" in str(long.value)
    for field, value in {"temperature": -1, "top_p": 2, "n": 99, "tool_choice": "sometimes"}.items():
        with pytest.raises(openai.BadRequestError) as wrong:
            ask(client, tools=[WEATHER], **{field: value})
        assert wrong.value.param == field
    with pytest.raises(openai.BadRequestError):
        ask(client, response_format={"type": "xml"})
    with pytest.raises(openai.BadRequestError) as image:
        ask(client, [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}])
    assert image.value.code == "unsupported_value"


def test_request_ids_reach_the_client(client):
    raw = client.chat.completions.with_raw_response.create(
        model="demo", messages=HELLO, max_tokens=1, extra_headers={"x-request-id": "mine-1"}
    )
    assert raw.headers["x-request-id"] == "mine-1"


def test_a_repeated_prompt_comes_from_the_cache(client):
    messages = [{"role": "user", "content": "Count the words: " + ", ".join(["river"] * 120)}]
    first = ask(client, messages, max_tokens=1)
    second = ask(client, messages, max_tokens=1)
    assert first.usage.prompt_tokens > 128
    assert second.usage.prompt_tokens_details.cached_tokens >= 64
    assert second.choices[0].message == first.choices[0].message


def test_many_requests_at_once_get_the_answers_of_one_alone(served, client):
    items = [i for task in ("add_small", "reverse", "pick_item", "fact") for i in eval_items(task)[:8]]
    assert len(items) == 32

    def run(item):
        more = {"extra_body": thinking(item["enable_thinking"])}
        return gather(ask(client, item["messages"], stream=True, **more))[0]

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(run, items))
    assert answers == [item["expected"] for item in items]


ENDLESS = {"max_tokens": 6000, "extra_body": {"ignore_eos": True, **thinking(False)}}


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(stream):
    with serve("--parallel", "1") as lone:
        if stream:
            answer = ask(lone.client(), stream=True, **ENDLESS)
            next(iter(answer))
            answer.close()
        else:
            with pytest.raises(openai.APITimeoutError):
                ask(lone.client(timeout=0.5), **ENDLESS)
        assert ask(lone.client(), max_tokens=2).usage.completion_tokens == 2
        # There is one slot: had the first answer run to its end, the log would say so before the second one's line.
        first, second = [line for line in lone.log().splitlines() if "generated" in line]
        assert " abort: " in first and " length: " in second and " 2 generated" in second


def test_a_full_queue_is_told_so():
    with serve("--parallel", "1", "--max-queue", "0") as lone:
        answer = ask(lone.client(), stream=True, **ENDLESS)
        next(iter(answer))
        with pytest.raises(openai.RateLimitError) as full:
            ask(lone.client())
        assert full.value.code == "queue_full"
        assert full.value.response.headers["retry-after"] == "1"
        answer.close()


def test_keys_are_needed_where_there_are_keys():
    with serve("--api-key", "secret") as guarded:
        with pytest.raises(openai.AuthenticationError) as refused:
            ask(guarded.client(api_key="wrong"))
        assert refused.value.code == "invalid_api_key"
        assert ask(guarded.client(api_key="secret"), max_tokens=1).usage.completion_tokens == 1
        assert "secret" not in guarded.log()


def test_a_drain_lets_answers_end():
    with serve() as running:
        answer = ask(running.client(), stream=True, max_tokens=200, extra_body=ENDLESS["extra_body"])
        next(iter(answer))
        running.process.send_signal(signal.SIGTERM)
        reasons = [choice.finish_reason for chunk in answer for choice in chunk.choices]
        assert reasons[-1] == "length"
        assert running.process.wait(30) == 0


def test_a_second_signal_does_not_wait():
    with serve() as running:
        answer = ask(running.client(), stream=True, **ENDLESS)
        next(iter(answer))
        running.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        begun = time.monotonic()
        assert running.stop(signal.SIGINT) != 0
        assert time.monotonic() - begun < 15
