"""Structured output is a promise: whatever the model wants to say, what arrives fits. Judged by jsonschema, with the demo
model sampling freely and with scripts that say something else."""

import json
import re
import time

import jsonschema
import openai
import pydantic
import pytest
from scripted import CLOCK, WEATHER, call, fold, line, serve_script, whole, without_ids

PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                                           "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
          "required": ["name", "age"], "additionalProperties": False}
STUBBORN = [line("STUBBORN", "My thought.</think>I will not write JSON, whatever you say.", end="none"),
            line("CALLS-OTHER", "Thinking.</think>" + call("get_time"), end="none"),
            line("PROSE", "</think>Just prose.", end="none")]


def schema_format(schema, strict=True):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}


@pytest.fixture(scope="module")
def client():
    with serve_script(STUBBORN, "--parallel", "4", "--ctx", "1024") as served, served.client() as opened:
        yield opened


def ask(client, what, stream=False, thinking=None, **more):
    extra = dict(more.pop("extra_body", {}))
    if thinking is not None:
        extra["chat_template_kwargs"] = {"enable_thinking": thinking}
    return client.chat.completions.create(model="demo", messages=[{"role": "user", "content": what}], stream=stream, max_tokens=300,
                                          extra_body={"thinking_token_budget": 24, **extra}, **more)


def finished(choices):
    """Those that were not cut by the limit of tokens."""
    return [c for c in choices if c["finish"] != "length"]


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("what", ["Write something about a person.", "STUBBORN"])
def test_answers_fit_the_schema(client, thinking, stream, what):
    good = 0
    for seed in range(4):
        answer = ask(client, what, stream, thinking, response_format=schema_format(PERSON), seed=seed, temperature=1.5, n=2)
        choices = fold(answer) if stream else whole(answer)
        assert len(choices) == 2
        for choice in finished(choices):
            jsonschema.validate(json.loads(choice["content"]), PERSON)
            good += 1
        assert thinking or not any(c["reasoning"] for c in choices)
    assert good >= 4


@pytest.mark.parametrize("thinking", [True, False])
def test_json_object_is_an_object(client, thinking):
    for seed in range(4):
        answer = ask(client, "STUBBORN", False, thinking, response_format={"type": "json_object"}, seed=seed)
        for choice in finished(whole(answer)):
            assert isinstance(json.loads(choice["content"]), dict)


@pytest.mark.parametrize("outputs, pattern", [
    ({"regex": "[0-9]{3}-[a-f]{2}"}, "[0-9]{3}-[a-f]{2}"), ({"choice": ["red", "green"]}, "red|green"),
    ({"grammar": 'root ::= "yes" | "no" digit+\ndigit ::= [0-9]'}, "yes|no[0-9]+"), ({"grammar": 'start: "a" /b{2,4}/'}, "ab{2,4}")])
def test_guided_words(client, outputs, pattern):
    for thinking in (True, False):
        answer = ask(client, "STUBBORN", False, thinking, extra_body={"structured_outputs": outputs}, temperature=2)
        for choice in finished(whole(answer)):
            assert re.fullmatch(pattern, choice["content"]), choice


def test_any_json_value_comes_to_an_end(client):
    answer = ask(client, "STUBBORN", False, False, response_format=schema_format({}), temperature=0)
    assert finished(whole(answer)), "an empty schema led to an endless answer"
    json.loads(answer.choices[0].message.content)


def test_stop_strings_work_beside_a_schema(client):
    answer = ask(client, "STUBBORN", False, False, response_format=schema_format(PERSON), stop=['"age"'], temperature=0)
    assert '"age"' not in answer.choices[0].message.content


def test_required_and_named_calls(client):
    for thinking in (True, False):
        for what in ("STUBBORN", "PROSE", "CALLS-OTHER"):
            answer = ask(client, what, False, thinking, tools=[WEATHER, CLOCK], tool_choice="required")
            for choice in finished(whole(answer)):
                assert choice["calls"] and choice["finish"] == "tool_calls"
            named = ask(client, what, False, thinking, tools=[WEATHER, CLOCK],
                        tool_choice={"type": "function", "function": {"name": "weather"}})
            for choice in finished(whole(named)):
                assert [c["name"] for c in choice["calls"]] == ["weather"]
                jsonschema.validate(json.loads(choice["calls"][0]["arguments"]), WEATHER["function"]["parameters"])
                assert not choice["content"]


def test_strict_tools_are_held_to_their_schema(client):
    strict = json.loads(json.dumps(WEATHER))
    strict["function"]["strict"] = True
    answer = ask(client, "CALLS-OTHER", False, True, tools=[strict], tool_choice="auto")
    for choice in finished(whole(answer)):
        for one in choice["calls"]:
            assert one["name"] == "weather"
            jsonschema.validate(json.loads(one["arguments"]), WEATHER["function"]["parameters"])


def test_parse_helper(client):
    class Person(pydantic.BaseModel):
        name: str
        age: int

    answer = client.chat.completions.parse(model="demo", messages=[{"role": "user", "content": "A person."}], response_format=Person,
                                           max_tokens=300, seed=1, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert isinstance(answer.choices[0].message.parsed, Person)


HOSTILE = [
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "["}}},
    {"$ref": "#/$defs/nowhere"},
    {"type": "foo"},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
]


@pytest.mark.parametrize("schema", HOSTILE)
def test_a_schema_that_cannot_be_held_is_a_400_within_a_second_or_so(client, schema):
    began = time.monotonic()
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, "STUBBORN", False, False, response_format=schema_format(schema))
    assert time.monotonic() - began < 3, "generous for a loaded machine"
    assert refused.value.param.startswith("response_format")
    assert refused.value.code == "invalid_schema"


def test_a_pattern_that_explodes_is_refused_or_held(client):
    pattern = "((((a{1,1000}){1,1000}){1,1000}){1,1000})"
    began = time.monotonic()
    try:
        answer = ask(client, "STUBBORN", False, False, response_format=schema_format({"type": "string", "pattern": f"^{pattern}$"}))
        assert re.match('"a+', answer.choices[0].message.content)
    except openai.BadRequestError as refused:
        assert refused.code == "invalid_schema"
        assert time.monotonic() - began < 3


@pytest.mark.parametrize("grammar", ["root ::= " + "(" * 60000 + '"a"' + ")" * 60000,
                                     "\n".join(f"r{i} ::= r{i + 1}" for i in range(5000)) + '\nr5000 ::= "a"\nroot ::= r0',
                                     "start: missing_rule", "root ::= undefined"])
def test_a_grammar_that_cannot_be_held_is_a_400(client, grammar):
    with pytest.raises(openai.BadRequestError):
        ask(client, "STUBBORN", False, False, extra_body={"structured_outputs": {"grammar": grammar}})
    assert ask(client, "PROSE").choices
