"""The official anthropic client against `glint serve` on the demo model."""

import json

import anthropic
import pytest
from serving import eval_items, serve

HELLO = [{"role": "user", "content": "What is 4 + 1?"}]
OFF = {"type": "disabled"}
ON = {"type": "enabled", "budget_tokens": 1024}
EXCHANGE = {
    "name": "exchange",
    "description": "Convert money.",
    "input_schema": {
        "type": "object",
        "properties": {"amount": {"type": "integer"}, "from": {"type": "string"}, "to": {"type": "string"}},
        "required": ["amount", "from", "to"],
    },
}


@pytest.fixture(scope="module")
def served():
    with serve() as running:
        yield running


@pytest.fixture(scope="module")
def client(served):
    return client_of(served)


def client_of(served, **more):
    settings = {"api_key": "unused", "max_retries": 0, "timeout": 120, **more}
    return anthropic.Anthropic(base_url=served.url, **settings)


def ask(client, messages=HELLO, **more):
    return client.messages.create(**{"model": "claude-any", "max_tokens": 300, "messages": messages, **more})


def stream(client, messages=HELLO, **more):
    """(the events, the message that the client made of them)"""
    with client.messages.stream(model="claude-any", max_tokens=300, messages=messages, **more) as events:
        seen = list(events)
        return seen, events.get_final_message()


def thinking(on):
    return {"thinking": ON if on else OFF}


def texts(message):
    return [(b.type, getattr(b, b.type)) for b in message.content if b.type in ("text", "thinking")]


def without_ids(message):
    return [{k: v for k, v in b.model_dump().items() if k != "id"} for b in message.content]


def tools_of(item):
    functions = [tool["function"] for tool in item["tools"]]
    return [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in functions]


def messages_of(item):
    """An eval item's messages in this API's words: (system, messages)."""
    system, out = [], []
    for number, message in enumerate(item["messages"]):
        if message["role"] == "system":
            system.append({"type": "text", "text": message["content"]})
        elif message["role"] == "tool":
            out.append(
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"toolu_{number - 1}", "content": message["content"]}]}
            )
        elif message.get("tool_calls"):
            (call,) = message["tool_calls"]
            function = call["function"]
            block = {"type": "tool_use", "id": f"toolu_{number}", "name": function["name"], "input": function["arguments"]}
            thought = message.get("reasoning_content")
            thoughts = [{"type": "thinking", "thinking": thought, "signature": "of another server"}] if thought else []
            out.append({"role": "assistant", "content": [*thoughts, block]})
        else:
            out.append({"role": message["role"], "content": message["content"]})
    return system, out


def test_answers_are_right_and_thoughts_apart(client):
    items = eval_items("add_small")[:3] + eval_items("reverse")[:2] + eval_items("add_large")[:2]
    for item in items:
        system, messages = messages_of(item)
        answer = ask(client, messages, system=system, **thinking(item["enable_thinking"]))
        assert [kind for kind, _ in texts(answer)] == (["thinking", "text"] if item["enable_thinking"] else ["text"])
        assert answer.content[-1].text == item["expected"]
        assert answer.stop_reason == "end_turn" and answer.stop_sequence is None
        assert answer.type == "message" and answer.role == "assistant" and answer.model == "claude-any"
        if item["enable_thinking"]:
            assert answer.content[0].signature


@pytest.mark.parametrize("think", [True, False])
def test_stream_and_whole_answer_agree(client, think):
    whole = ask(client, **thinking(think))
    events, streamed = stream(client, **thinking(think))
    assert without_ids(streamed) == without_ids(whole)
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert streamed.usage.output_tokens_details == whole.usage.output_tokens_details
    assert (whole.usage.output_tokens_details.thinking_tokens > 0) == think
    for usage in (streamed.usage, whole.usage):
        assert usage.cache_creation_input_tokens == 0
    assert sum_of_input(streamed) == sum_of_input(whole)
    assert events[0].type == "message_start" and events[-1].type == "message_stop"


def sum_of_input(message):
    return message.usage.input_tokens + message.usage.cache_read_input_tokens


def test_the_raw_stream_is_named_events_and_nothing_else(client):
    request = {"model": "m", "max_tokens": 50, "messages": HELLO, "stream": True}
    with client.messages.with_streaming_response.create(**request) as response:
        lines = list(response.iter_lines())
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert names == [event["type"] for event in data]
    assert names[:2] == ["message_start", "ping"] and names[-2:] == ["message_delta", "message_stop"]
    assert set(lines) - {""} == {line for line in lines if line.startswith(("event: ", "data: "))}


@pytest.mark.parametrize("streams", [False, True])
def test_tool_calls_are_typed(client, streams):
    items = eval_items("tool_call")
    assert len(items) >= 10
    for item in items[:5]:
        system, messages = messages_of(item)
        more = {"system": system, "tools": tools_of(item), **thinking(item["enable_thinking"])}
        message = stream(client, messages, **more)[1] if streams else ask(client, messages, **more)
        call = message.content[-1]
        assert message.stop_reason == "tool_use" and call.type == "tool_use"
        assert call.id.startswith("toolu_")
        assert (call.name, call.input) == (item["expected"]["name"], item["expected"]["arguments"])


def test_results_of_tools_are_answered(client):
    items = eval_items("tool_answer")
    assert items
    for item in items[:4]:
        system, messages = messages_of(item)
        answer = ask(client, messages, system=system, tools=tools_of(item), **thinking(item["enable_thinking"]))
        assert answer.content[-1].text == item["expected"]


def test_a_round_trip_with_the_clients_own_blocks(client):
    question = {"role": "user", "content": "How much is 90 dollars in euros?"}
    first = ask(client, [question], tools=[EXCHANGE], **thinking(True))
    assert [b.type for b in first.content] == ["thinking", "tool_use"]
    assert first.content[1].input == {"amount": 90, "from": "dollars", "to": "euros"}
    result = {
        "type": "tool_result",
        "tool_use_id": first.content[1].id,
        "content": [{"type": "text", "text": '{"amount": 323}'}],
    }
    turn = [question, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    answer = ask(client, turn, tools=[EXCHANGE], **thinking(True))
    assert answer.stop_reason == "end_turn" and answer.content[-1].text == "90 dollars is 323 euros."


def test_both_apis_make_the_same_prompt(served, client):
    """The mapping of messages, tools and results, judged by the prompts of both endpoints."""
    openai = served.client()
    for task in ("add_large", "needle", "tool_call", "tool_answer", "tool_chat"):
        for item in eval_items(task)[:2]:
            system, messages = messages_of(item)
            tools = {"tools": tools_of(item)} if item.get("tools") else {}
            for on in (True, False):
                mine = client.post(
                    "/v1/messages/render",
                    body={"model": "m", "max_tokens": 1, "system": system, "messages": messages, **tools, **thinking(on)},
                    cast_to=object,
                )
                theirs = openai.post(
                    "/chat/completions/render",
                    body={**{k: item[k] for k in ("messages", "tools") if k in item}, "chat_template_kwargs": {"enable_thinking": on}},
                    cast_to=object,
                )
                assert mine["token_ids"] == theirs["token_ids"]


def test_system_messages_and_billing_headers(client):
    def tokens(**fields):
        return client.messages.count_tokens(model="m", **fields).input_tokens

    plain = tokens(messages=HELLO, system="Answer briefly.")
    header = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.0; cch=ab12f;"}
    assert tokens(messages=HELLO, system=[header, {"type": "text", "text": "Answer briefly."}]) == plain
    inside = client.post(
        "/v1/messages/count_tokens",
        body={"messages": [*HELLO, {"role": "system", "content": "Answer briefly."}]},
        cast_to=object,
    )
    assert inside["input_tokens"] == plain


def test_counts_agree_with_usage_and_see_tools(client):
    counted = client.messages.count_tokens(model="m", messages=HELLO, thinking=OFF).input_tokens
    assert counted == sum_of_input(ask(client, thinking=OFF))
    with_tools = client.messages.count_tokens(model="m", messages=HELLO, thinking=OFF, tools=[EXCHANGE]).input_tokens
    assert with_tools == sum_of_input(ask(client, thinking=OFF, tools=[EXCHANGE])) > counted


def test_stop_sequences_are_named(client):
    for streams in (False, True):
        more = {"stop_sequences": ["= 5"], "thinking": OFF}
        message = stream(client, **more)[1] if streams else ask(client, **more)
        assert texts(message) == [("text", "4 + 1 ")]
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "= 5")


def test_max_tokens_cut(client):
    message = ask(client, max_tokens=2, thinking={"type": "adaptive"})
    assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 2
    assert [kind for kind, _ in texts(message)] == ["thinking"]


def test_tools_may_be_forbidden_or_run_by_others(client):
    message = ask(client, [{"role": "user", "content": "Convert 289 dollars to yen."}], tools=[EXCHANGE],
                  tool_choice={"type": "none"}, max_tokens=60)
    assert message.stop_reason != "tool_use" and "<tool_call>" not in str(message.content)
    search = {"type": "web_search_20250305", "name": "web_search"}
    assert sum_of_input(ask(client, tools=[search, EXCHANGE])) == sum_of_input(ask(client, tools=[EXCHANGE]))
    with pytest.raises(anthropic.BadRequestError) as forced:
        ask(client, tools=[search], tool_choice={"type": "tool", "name": "web_search"})
    assert forced.value.body["error"]["message"].startswith("tool_choice.name")


def test_a_repeated_prompt_comes_from_the_cache(client):
    messages = [{"role": "user", "content": "Count the words: " + ", ".join(["river"] * 120)}]
    first = ask(client, messages, max_tokens=1)
    second = ask(client, messages, max_tokens=1)
    assert second.usage.cache_read_input_tokens >= 64
    assert sum_of_input(first) == sum_of_input(second)


def test_errors_name_what_is_wrong(client):
    with pytest.raises(anthropic.BadRequestError) as wrong:
        ask(client, extra_body={"temperature": 7})
    assert wrong.value.body["error"] == {"type": "invalid_request_error", "message": "temperature: must be from 0 to 1"}
    assert wrong.value.body["request_id"] == wrong.value.response.headers["x-request-id"]
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 8192 maximum"):
        ask(client, [{"role": "user", "content": "word " * 9000}])
    for source in (
        {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
        {"type": "url", "url": "http://169.254.169.254/a.png"},
    ):
        with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\]"):
            ask(client, [{"role": "user", "content": [{"type": "image", "source": source}]}])


def test_models_are_listed(client):
    assert [m.id for m in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").created_at.year >= 2026
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("other")


def test_keys_are_checked():
    with serve("--api-key", "k1") as served:
        for settings in ({"api_key": "k1"}, {"api_key": None, "auth_token": "k1"}):
            assert client_of(served, **settings).messages.count_tokens(model="m", messages=HELLO).input_tokens > 0
        with pytest.raises(anthropic.AuthenticationError) as refused:
            ask(client_of(served, api_key="k2"))
        assert refused.value.body["error"]["type"] == "authentication_error"
