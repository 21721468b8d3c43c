"""The Responses API through the official openai client, against `glint serve` on the demo model."""

import base64
import json

import openai
import pydantic
import pytest
from serving import eval_items, serve

HELLO = "What is 4 + 1?"


class Anything(pydantic.BaseModel):
    """What the model would not say by itself."""

    verdict: bool
    amount: int


def thinking(on):
    return {"chat_template_kwargs": {"enable_thinking": on}}


@pytest.fixture(scope="module")
def served():
    with serve() as running:
        yield running


@pytest.fixture(scope="module")
def client(served):
    return served.client()


def ask(client, said=HELLO, **more):
    return client.responses.create(model="demo", input=said, **more)


def flat(tools):
    return [{"type": "function", **tool["function"]} for tool in tools]


def as_input(messages):
    """Messages of the chat endpoint as input items."""
    items = []
    last_call = None
    for message in messages:
        if message["role"] == "tool":
            items.append({"type": "function_call_output", "call_id": message.get("tool_call_id", last_call), "output": message["content"]})
            continue
        if message.get("reasoning_content"):
            part = {"type": "reasoning_text", "text": message["reasoning_content"]}
            items.append({"type": "reasoning", "id": "rs_0", "summary": [], "content": [part]})
        if message.get("content"):
            items.append({"role": message["role"], "content": message["content"]})
        for call in message.get("tool_calls") or []:
            arguments = call["function"]["arguments"]
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            last_call = call.get("id", f"call_{len(items)}")
            items.append({"type": "function_call", "call_id": last_call, "name": call["function"]["name"], "arguments": text})
    return items


def check_stream(events):
    """The order that every stream keeps; the response of its last event."""
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert [e.type for e in events[:2]] == ["response.created", "response.in_progress"]
    is_open, done, parts = None, [], {}
    for event in events[2:-1]:
        if event.type == "response.in_progress":
            continue
        assert event.output_index == len(done)
        if event.type == "response.output_item.added":
            assert is_open is None and event.item.status == "in_progress"
            is_open, parts = event.item.id, {}
        elif event.type == "response.output_item.done":
            assert event.item.id == is_open
            is_open = None
            done.append(event.item)
        else:
            assert is_open is not None and getattr(event, "item_id", is_open) == is_open
            kind, _, step = event.type.removeprefix("response.").rpartition(".")
            if step == "delta":
                parts[kind] = parts.get(kind, "") + event.delta
            elif step == "done" and kind != "content_part":
                whole = event.arguments if kind == "function_call_arguments" else event.text
                assert whole == parts.get(kind, "")
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    assert [i.to_dict() for i in last.response.output] == [i.to_dict() for i in done]
    return last.response


def test_answers_are_right_and_thoughts_apart(client):
    for item in eval_items("add_small")[:3] + eval_items("reverse")[:2]:
        answer = ask(client, item["messages"], extra_body=thinking(item["enable_thinking"]))
        assert answer.output_text == item["expected"]
        assert answer.status == "completed" and answer.error is None
        assert [i.type for i in answer.output] == ["reasoning"] * item["enable_thinking"] + ["message"]
        usage = answer.usage
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens
        assert (usage.output_tokens_details.reasoning_tokens > 0) == item["enable_thinking"]
        assert isinstance(usage.input_tokens_details.cached_tokens, int)


@pytest.mark.parametrize("think", [True, False])
def test_stream_and_whole_answer_agree(client, think):
    whole = ask(client, extra_body=thinking(think))
    streamed = check_stream(list(ask(client, extra_body=thinking(think), stream=True)))
    assert streamed.output_text == whole.output_text
    assert [i.type for i in streamed.output] == [i.type for i in whole.output]
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert streamed.usage.input_tokens == whole.usage.input_tokens
    for name in ("status", "model", "temperature", "top_p", "tools", "text", "truncation", "metadata"):
        assert getattr(streamed, name) == getattr(whole, name)


def test_the_stream_helper_follows(client):
    with client.responses.stream(model="demo", input=HELLO, extra_body=thinking(True)) as stream:
        shown = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert shown == final.output_text == ask(client, extra_body=thinking(True)).output_text


def test_instructions_and_roles_reach_the_prompt(client):
    chat = client.chat.completions.create(
        model="demo",
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": HELLO}],
        max_tokens=30,
    )
    for answer in (
        ask(client, instructions="Be brief.", max_output_tokens=30),
        ask(client, [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": HELLO}], max_output_tokens=30),
    ):
        assert answer.usage.input_tokens == chat.usage.prompt_tokens
        assert answer.usage.output_tokens == chat.usage.completion_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_are_typed(client, stream):
    items = eval_items("tool_call")
    for item in items[:4]:
        more = {"tools": flat(item["tools"]), "extra_body": thinking(item["enable_thinking"])}
        answer = ask(client, item["messages"], stream=stream, **more)
        if stream:
            answer = check_stream(list(answer))
        (call,) = [i for i in answer.output if i.type == "function_call"]
        assert answer.status == "completed" and call.status == "completed"
        assert call.call_id.startswith("call_") and call.id.startswith("fc_")
        assert call.name == item["expected"]["name"]
        assert json.loads(call.arguments) == item["expected"]["arguments"]


def test_a_tool_in_both_shapes_is_one_tool(client):
    item = eval_items("tool_call")[0]
    more = {"extra_body": thinking(item["enable_thinking"])}
    ours = [ask(client, item["messages"], tools=tools, **more) for tools in (flat(item["tools"]), item["tools"])]
    chat = client.chat.completions.create(model="demo", messages=item["messages"], tools=item["tools"], **more)
    (theirs,) = chat.choices[0].message.tool_calls
    for answer in ours:
        call = answer.output[-1]
        assert (call.name, call.arguments) == (theirs.function.name, theirs.function.arguments)
        assert answer.usage.input_tokens == chat.usage.prompt_tokens


def test_tools_make_the_round(client):
    """The call, its result, and the answer to that, with the first answer's items sent back as they came."""
    tool = eval_items("tool_call")[0]
    tools = flat(tool["tools"])
    more = {"tools": tools, "extra_body": thinking(tool["enable_thinking"]), "include": ["reasoning.encrypted_content"]}
    first = ask(client, tool["messages"], **more)
    call = first.output[-1]
    assert call.type == "function_call"
    history = [*tool["messages"], *[i.to_dict() for i in first.output]]
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "42"})
    second = ask(client, history, **more)
    assert second.status == "completed" and second.output_text
    # What came before is found in the cache: it was rendered as the model had written it.
    whole_pages = (first.usage.input_tokens + first.usage.output_tokens) // 64 * 64
    assert second.usage.input_tokens_details.cached_tokens >= whole_pages - 64


def test_tool_results_come_back(client):
    for item in eval_items("tool_answer")[:3]:
        answer = ask(client, as_input(item["messages"]), tools=flat(item["tools"]), extra_body=thinking(item["enable_thinking"]))
        assert answer.output_text == item["expected"]


def test_sealed_thoughts_are_thoughts(client):
    answer = ask(client, include=["reasoning.encrypted_content"], store=False, extra_body=thinking(True))
    thought = answer.output[0]
    assert thought.content[0].text
    assert thought.content[0].text.encode() in base64.b64decode(thought.encrypted_content)
    open_item = thought.to_dict()
    sealed_item = {k: v for k, v in open_item.items() if k != "content"}
    foreign_item = {**sealed_item, "encrypted_content": "gAAAAABsomebody"}

    def prompt(item):
        # The demo's template keeps thoughts of the turn at work: the one that a tool's result belongs to.
        call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": "call_1", "output": "5"}
        history = [{"role": "user", "content": HELLO}, item, call, result]
        kwargs = {"clear_thinking": False, "enable_thinking": True}
        return ask(client, history, max_output_tokens=1, extra_body={"chat_template_kwargs": kwargs}).usage.input_tokens

    assert prompt(sealed_item) == prompt(open_item) > prompt(foreign_item)


def test_lengths_cut(client):
    answer = ask(client, max_output_tokens=2, extra_body=thinking(True))
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage.output_tokens == 2
    events = list(ask(client, max_output_tokens=2, extra_body=thinking(True), stream=True))
    assert check_stream(events).status == "incomplete"


def test_log_probs_are_those_of_the_text(client):
    answer = ask(client, top_logprobs=2, include=["message.output_text.logprobs"], extra_body=thinking(True))
    part = answer.output[-1].content[0]
    assert b"".join(bytes(e.bytes) for e in part.logprobs).decode() == part.text
    assert all(e.logprob <= 0 and len(e.top_logprobs) == 2 for e in part.logprobs)
    assert ask(client, extra_body=thinking(True)).output[-1].content[0].logprobs == []


def test_a_request_is_repeated_in_its_response(client):
    answer = ask(client, metadata={"a": "b"}, temperature=0.25, top_p=0.5, max_output_tokens=3, instructions="Be brief.", user="u")
    assert answer.metadata == {"a": "b"} and answer.user == "u"
    assert (answer.temperature, answer.top_p, answer.max_output_tokens) == (0.25, 0.5, 3)
    assert answer.instructions == "Be brief." and answer.model == "demo"


def test_schemas_hold_on_both_endpoints(client):
    """A format that only one of them kept to would be a promise broken in silence."""
    schema = {**Anything.model_json_schema(), "additionalProperties": False}
    for think in (False, True):
        text = {"format": {"type": "json_schema", "name": "anything", "schema": schema, "strict": True}}
        answer = ask(client, text=text, max_output_tokens=400, extra_body=thinking(think))
        chat = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": HELLO}],
            max_tokens=400,
            response_format={"type": "json_schema", "json_schema": {"name": "anything", "schema": schema, "strict": True}},
            extra_body=thinking(think),
        )
        for written in (answer.output_text, chat.choices[0].message.content):
            Anything.model_validate_json(written, strict=True)
        assert answer.output_text == chat.choices[0].message.content


def test_answers_are_parsed(client):
    answer = client.responses.parse(
        model="demo", input=HELLO, text_format=Anything, max_output_tokens=400, extra_body=thinking(False)
    )
    assert isinstance(answer.output_parsed, Anything)


def test_errors_name_what_is_wrong(client):
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="gpt-9", input=HELLO)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        ask(client, "word " * 9000, stream=True)
    assert long.value.code == "context_length_exceeded" and long.value.param == "input"
    assert "maximum context length is 8192 tokens" in str(long.value)
    for field, value in {"previous_response_id": "resp_1", "background": True, "temperature": -1, "tool_choice": "required"}.items():
        with pytest.raises(openai.BadRequestError) as wrong:
            ask(client, **{field: value})
        assert wrong.value.param == field
    with pytest.raises(openai.BadRequestError) as image:
        ask(client, [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,", "detail": "auto"}]}])
    assert image.value.code == "unsupported_value" and image.value.param == "input[0].content[0]"


def test_nothing_is_stored(client):
    answer = ask(client, max_output_tokens=1, store=True)
    assert answer.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(answer.id)


def test_prompts_can_be_counted_and_rendered(served, client):
    answer = ask(client, instructions="Be brief.", max_output_tokens=1)
    body = {"model": "demo", "input": HELLO, "instructions": "Be brief."}
    counted = client.post("/responses/input_tokens", body=body, cast_to=object)
    assert counted == {"object": "response.input_tokens", "input_tokens": answer.usage.input_tokens}
    rendered = client.post("/responses/render", body=body, cast_to=object)
    assert len(rendered["token_ids"]) == answer.usage.input_tokens
    bare = openai.OpenAI(base_url=served.url, api_key="unused")
    assert bare.responses.create(model="demo", input=HELLO, max_output_tokens=1).status == "incomplete"


def test_a_drain_ends_streams_with_an_event():
    with serve("--drain-timeout", "0") as running:
        client = running.client()
        stream = ask(client, stream=True, max_output_tokens=6000, extra_body={"ignore_eos": True, **thinking(False)})
        events = [next(iter(stream))]
        running.process.terminate()
        events += list(stream)
        assert events[-1].type == "response.failed"
        assert events[-1].response.error.code == "draining"
        assert [e.sequence_number for e in events] == list(range(len(events)))
