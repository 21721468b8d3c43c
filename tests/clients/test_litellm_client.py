"""LiteLLM under both of its names for servers like this one."""

import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import litellm
import pytest
from scripted import WEATHER, call, line, serve_script

LINES = [line("HELLO", "Hm.</think>Hello there!"), line("WEATHER", "Look.</think>" + call("weather", city="Paris", days=2))]


@pytest.fixture(scope="module", params=["openai", "hosted_vllm"])
def ask(request):
    with serve_script(LINES, "--ctx", "512") as served:
        def send(what, **more):
            return litellm.completion(model=f"{request.param}/demo", api_base=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60,
                                      messages=[{"role": "user", "content": what}], **{"temperature": 0, **more})
        yield send


def test_reasoning_arrives_once(ask):
    message = ask("HELLO").choices[0].message
    assert message.content == "Hello there!" and message.reasoning_content == "Hm."


def test_a_stream_is_rebuilt(ask):
    chunks = list(ask("WEATHER", tools=[WEATHER], stream=True, stream_options={"include_usage": True}))
    rebuilt = litellm.stream_chunk_builder(chunks)
    [asked] = rebuilt.choices[0].message.tool_calls
    assert asked.function.name == "weather"
    assert asked.function.arguments == ask("WEATHER", tools=[WEATHER]).choices[0].message.tool_calls[0].function.arguments
    assert rebuilt.choices[0].finish_reason == "tool_calls"
    assert rebuilt.usage.completion_tokens > 0


def test_a_prompt_that_is_too_long_has_its_own_exception(ask):
    with pytest.raises(litellm.ContextWindowExceededError):
        ask("word " * 3000)


def test_wrong_values_are_bad_requests(ask):
    with pytest.raises(litellm.BadRequestError):
        ask("HELLO", temperature=-1)
