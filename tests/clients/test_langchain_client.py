"""LangChain's ChatOpenAI with nothing but a base URL."""

import pydantic
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from scripted import call, line, serve_script


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"Sun in {city}."


LINES = [line("Sun in Paris.", "</think>It is sunny."), line("WEATHER", "Look.</think>" + call("weather", city="Paris")),
         line("HELLO", "Hm.</think>Hello there!")]


@pytest.fixture(scope="module")
def served():
    with serve_script(LINES) as running:
        yield running


def chat(served, **more):
    return ChatOpenAI(model="demo", base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60, temperature=0, **more)


def test_chat_and_usage(served):
    answer = chat(served).invoke([SystemMessage("Be kind."), HumanMessage("HELLO")])
    assert answer.content == "Hello there!"
    assert answer.usage_metadata["total_tokens"] == answer.usage_metadata["input_tokens"] + answer.usage_metadata["output_tokens"]


def test_streams_add_up(served):
    pieces = list(chat(served, stream_usage=True).stream("HELLO"))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert whole.content == "Hello there!"
    assert whole.usage_metadata["output_token_details"]["reasoning"] > 0
    assert "cache_read" in whole.usage_metadata["input_token_details"]


@pytest.mark.parametrize("streamed", [True, False])
def test_a_round_with_a_tool(served, streamed):
    model = chat(served).bind_tools([weather])
    history = [HumanMessage("WEATHER")]
    if streamed:
        pieces = list(model.stream(history))
        asked = pieces[0]
        for piece in pieces[1:]:
            asked += piece
        asked = AIMessage(content=asked.content, tool_calls=asked.tool_calls)
    else:
        asked = model.invoke(history)
    [wanted] = asked.tool_calls
    assert (wanted["name"], wanted["args"]) == ("weather", {"city": "Paris"})
    history += [asked, ToolMessage(weather.invoke(wanted["args"]), tool_call_id=wanted["id"])]
    assert model.invoke(history).content == "It is sunny."


def test_structured_output(served):
    class Verdict(pydantic.BaseModel):
        good: bool
        points: int

    for method in ("json_schema", "function_calling"):
        model = chat(served, max_tokens=400, extra_body={"thinking_token_budget": 16}).with_structured_output(Verdict, method=method)
        assert isinstance(model.invoke("HELLO"), Verdict)


def test_no_tools_at_all(served):
    assert chat(served).bind(tools=[]).invoke("HELLO").content == "Hello there!"
