"""Answers by rote: a server whose model says what a test wants, behind the real forward pass (glint serve --script)."""

import contextlib
import json
import os
import tempfile

from serving import serve

WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather of a place.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"}},
    "required": ["city"]}}}
CLOCK = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}


def call(name, **arguments):
    """A tool call in the compact markup of GLM-4.7 and later."""
    parts = "".join(f"<arg_key>{k}</arg_key><arg_value>{v}</arg_value>" for k, v in arguments.items())
    return f"<tool_call>{name}{parts}</tool_call>"


def line(when, say, end="eos", **more):
    return {"when": when, "say": say, "end": end, **more}


@contextlib.contextmanager
def serve_script(lines, *options):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "script.jsonl")
        with open(path, "w") as out:
            out.writelines(json.dumps(one) + "\n" for one in lines)
        with serve("--script", path, *options) as served:
            yield served


def fold(chunks):
    """The chunks of a chat stream as one whole message per choice: what a client is left with."""
    choices = {}
    for chunk in chunks:
        for choice in chunk.choices:
            whole = choices.setdefault(choice.index, {"content": "", "reasoning": "", "calls": [], "finish": None})
            delta = choice.delta
            whole["content"] += delta.content or ""
            whole["reasoning"] += getattr(delta, "reasoning_content", None) or ""
            for piece in delta.tool_calls or []:
                if piece.id:
                    assert piece.index == len(whole["calls"]), "calls come one after another"
                    whole["calls"].append({"id": piece.id, "name": piece.function.name, "arguments": ""})
                assert piece.index == len(whole["calls"]) - 1
                whole["calls"][piece.index]["arguments"] += piece.function.arguments or ""
            if choice.finish_reason:
                assert whole["finish"] is None
                assert not delta.tool_calls, "arguments never come with the finish reason"
                whole["finish"] = choice.finish_reason
    return [choices[i] for i in sorted(choices)]


def whole(completion):
    """The same of an answer that was not streamed."""
    return [{"content": c.message.content or "", "reasoning": getattr(c.message, "reasoning_content", None) or "",
             "calls": [{"id": t.id, "name": t.function.name, "arguments": t.function.arguments} for t in c.message.tool_calls or []],
             "finish": c.finish_reason} for c in completion.choices]


def without_ids(choices):
    return [{**c, "calls": [{k: v for k, v in t.items() if k != "id"} for t in c["calls"]]} for c in choices]
