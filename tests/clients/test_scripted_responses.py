"""The Responses API with whatever a model may say: custom and namespaced tools, cut calls, failures, signs of life. Through
the real openai client."""

import time

import pytest
from scripted import WEATHER, call, line, serve_script

PATCH = '*** Begin Patch\n+ "a\\b" 你\n*** End Patch'
LINES = [
    line("Done.", "</think>Well done."),
    line("PATCH", "I edit.</think>" + call("apply_patch", input=PATCH)),
    line("FILES", "</think>" + call("mcp__files__read", path="a.txt")),
    line("TWO", "Two.</think>Both." + call("weather", city="Paris") + call("weather", city="Rome", days=2)),
    line("NAN", "</think>ab cd ef gh", nan_at=3),
    line("STALL", "</think>slow", stall_s=2.5),
]
TOOLS = [
    {"type": "custom", "name": "apply_patch", "description": "Edits files."},
    {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [
        {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}]},
    {"type": "function", **WEATHER["function"]},
    {"type": "web_search"},
]


@pytest.fixture(scope="module")
def client():
    with serve_script(LINES, "--sse-ping", "0.5") as served, served.client() as opened:
        yield opened


def ask(client, given, stream=False, **more):
    return client.responses.create(model="demo", input=given, stream=stream, max_output_tokens=400, extra_body={"tools": TOOLS}, **more)


def last(stream):
    events = list(stream)
    assert [e.sequence_number for e in events] == list(range(len(events)))
    return events, events[-1].response


@pytest.mark.parametrize("stream", [False, True])
def test_custom_tools_take_a_text(client, stream):
    answer = ask(client, "PATCH", stream)
    if stream:
        events, answer = last(answer)
        assert "".join(e.delta for e in events if e.type == "response.custom_tool_call_input.delta") == PATCH
        (done,) = [e for e in events if e.type == "response.custom_tool_call_input.done"]
        assert done.input == PATCH
    made = answer.output[-1]
    assert (made.type, made.name, made.input, made.status) == ("custom_tool_call", "apply_patch", PATCH, "completed")
    items = [{"role": "user", "content": "PATCH"}, *[i.to_dict() for i in answer.output]]
    items.append({"type": "custom_tool_call_output", "call_id": made.call_id, "output": "Done."})
    assert ask(client, items).output_text == "Well done."


@pytest.mark.parametrize("stream", [False, True])
def test_namespaces_come_back(client, stream):
    answer = ask(client, "FILES", stream)
    made = (last(answer)[1] if stream else answer).output[-1]
    assert (made.type, made.name, made.namespace) == ("function_call", "read", "mcp__files")
    assert made.arguments == '{"path": "a.txt"}'
    items = [{"role": "user", "content": "FILES"}, made.to_dict(), {"type": "function_call_output", "call_id": made.call_id, "output": "Done."}]
    assert ask(client, items).output_text == "Well done."


def test_two_calls_are_two_items(client):
    whole = ask(client, "TWO")
    assert [i.type for i in whole.output] == ["reasoning", "message", "function_call", "function_call"]
    assert [i.arguments for i in whole.output[2:]] == ['{"city": "Paris"}', '{"city": "Rome", "days": 2}']
    assert len({i.call_id for i in whole.output[2:]}) == 2
    only = ask(client, "TWO", parallel_tool_calls=False)
    assert [i.type for i in only.output] == ["reasoning", "message", "function_call"]


@pytest.mark.parametrize("what", ["PATCH", "TWO"])
def test_a_call_cut_short_is_never_done(client, what):
    """At every length, streamed and whole agree, and what an agent would run is complete."""
    whole = ask(client, what)
    for limit in range(1, whole.usage.output_tokens):
        more = {"extra_body": {"tools": TOOLS}, "max_output_tokens": limit}
        events, streamed = last(client.responses.create(model="demo", input=what, stream=True, **more))
        again = client.responses.create(model="demo", input=what, **more)
        assert events[-1].type == "response.incomplete" and again.status == "incomplete"
        shown = [[(i.type, i.status, getattr(i, "input", getattr(i, "arguments", None))) for i in r.output] for r in (streamed, again)]
        assert shown[0] == shown[1]
        done = [e.item for e in events if e.type == "response.output_item.done" and "call" in e.item.type]
        assert all(item.status == "completed" for item in done)
        assert "<" not in streamed.output_text


def test_a_failure_ends_the_stream_with_its_event(client):
    events, response = last(ask(client, "NAN", True))
    assert events[-1].type == "response.failed"
    assert response.status == "failed" and response.error.code == "server_error"
    assert response.usage.input_tokens > 0
    assert ask(client, "Done.").output_text == "Well done."


def test_signs_of_life_are_events(client):
    began = time.monotonic()
    stream = ask(client, "STALL", True)
    assert next(iter(stream)).type == "response.created"
    assert time.monotonic() - began < 2
    events = list(stream)
    assert sum(e.type == "response.in_progress" for e in events) >= 3
    assert [e.sequence_number for e in events] == list(range(1, len(events) + 1))
    assert events[-1].response.output_text == "slow"
