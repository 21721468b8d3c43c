#!/usr/bin/env python3
"""Writes tests/data/template_cases.json: chat templates, variables, and what transformers renders.

Usage: make_template_cases.py [OUT]. Needs the package transformers, no torch.
"""

import json
import pathlib
import sys

import jinja2
from transformers.utils import chat_template_utils

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Templates of our own, each after a habit of templates in the wild.
TEMPLATES = {
    "chatml": """{% for message in messages %}
{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant
' }}
{% endif %}
""",
    "blocks_and_whitespace": """
  {# a comment #}
    {%- if messages -%}
  first line
      {% for m in messages %}
    [{{ m.role }}]  
      {%- if not loop.last %}, {% endif %}
      {% endfor %}
   {%+ if true %} kept {% endif +%}
last
  {%- endif %}

{{ "end" -}}

   tail
""",
    "macros": """{%- macro head(role, mark='<') -%}{{ mark }}{{ role|upper }}{{ '>' }}{%- endmacro -%}
{%- macro nested(m) -%}{{ head(m.role) }}{{ body(m.content) }}{%- endmacro -%}
{%- macro body(text) -%}({{ text|trim }}:{{ messages|length }}){%- endmacro -%}
{%- for m in messages %}{{ nested(m) }}{{ head('x', mark='[') }}{% endfor -%}
{{ head(role='y') }}""",
    "namespace_and_loops": """{%- set ns = namespace(found=false, count=0, seen=[], text='') -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}{%- continue -%}{%- endif -%}
{%- set ns.count = ns.count + 1 -%}
{%- set ns.seen = ns.seen + [m.role] -%}
{%- if m.role == 'assistant' -%}{%- set ns.found = true -%}{%- break -%}{%- endif -%}
{%- set ns.text = ns.text ~ loop.index0 ~ ':' ~ loop.index ~ ';' -%}
{%- else -%}none{%- endfor -%}
{{ ns.found }}|{{ ns.count }}|{{ ns.seen|join(',') }}|{{ ns.text }}
{% for m in messages[::-1] %}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }} {% endfor %}
{% for i in range(10, 0, -3) %}{{ i }} {% endfor %}{{ range(3)|list }}""",
    "last_user": """{%- set ns = namespace(multi_step_tool=true, last=messages|length - 1) -%}
{%- for message in messages[::-1] -%}
{%- set index = (messages|length - 1) - loop.index0 -%}
{%- if ns.multi_step_tool and message.role == 'user' and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) -%}
{%- set ns.multi_step_tool = false -%}{%- set ns.last = index -%}
{%- endif -%}
{%- endfor -%}
last={{ ns.last }}
{%- for message in messages %}
{% if message.content is string %}{% set content = message.content %}{% else %}{% set content = '' %}{% endif %}
{% if message.role == 'assistant' %}
{% set reasoning = '' %}
{% if message.reasoning_content is string %}
{% set reasoning = message.reasoning_content %}
{% elif '</think>' in content %}
{% set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{% set content = content.split('</think>')[-1].lstrip('\\n') %}
{% endif %}
<think>{{ reasoning.strip() }}</think>{{ content }}
{% else %}
{{ message.role }}: {{ content }}
{% endif %}
{%- endfor %}""",
    "tojson_flags": """{% for v in values %}
{{ v | tojson }}
{{ v | tojson(ensure_ascii=True) }}
{{ v | tojson(ensure_ascii=False) }}
{{ v | tojson(indent=2) }}
{{ v | tojson(indent=4, sort_keys=true) }}
{{ v | tojson(separators=(',', ':')) }}
{{ v | tojson(sort_keys=True, separators=[', ', '=']) }}
{{ v | tojson(true, 1) }}
{% endfor %}""",
    "python_text": """{% for v in values %}{{ v }}|{{ v|string }}|{{ [v] }}|{{ {'k': v} }}|{{ (v, v) }}|{{ (v,) }}
{% endfor %}{{ none }} {{ true }} {{ false }} {{ 1.0 }} {{ 1e20 }} {{ 5 // 2 }} {{ 7 / 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ 2 ** 10 }}""",
    "methods": """{% for s in texts %}
[{{ s.strip() }}][{{ s.lstrip() }}][{{ s.rstrip() }}][{{ s.strip('ab ') }}]
{{ s.split() }} {{ s.split(' ') }} {{ s.split(',', 1) }} {{ s.rsplit(',', 1) }} {{ s.split(None, 1) }} {{ s.rsplit() }}
{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.capitalize() }} {{ s|capitalize }} {{ s|upper }} {{ s|lower }}
{{ s.startswith('a') }} {{ s.endswith(('b', ' ')) }} {{ s.find('b') }} {{ s.rfind('b') }} {{ s.count('a') }}
{{ s.replace('a', 'A') }} {{ s.replace('a', 'A', 1) }} {{ s|replace('b', '') }} {{ s.splitlines() }} {{ s.splitlines(true) }}
{{ s.isdigit() }} {{ s.isalpha() }} {{ s.isspace() }} {{ s.isupper() }} {{ s.islower() }} {{ s.partition(',') }} {{ s.rpartition(',') }}
{{ s.removeprefix('a') }} {{ s.removesuffix('b') }} {{ s|trim }} {{ s|length }} {{ s[0:2] }} {{ s[-1:] }} {{ s[::-1] }} {{ 'a' in s }}
{{ s|list }} {{ s ~ 1 ~ 'x' }} {{ ', '.join(['p', 'q']) }} {{ s * 2 }} {{ s|first }}
{% endfor %}""",
    "mappings": """{% for m in maps %}
{% for key, value in m.items() %}{{ key }}={{ value }};{% endfor %}
{% for key in m %}{{ key }},{% endfor %} {% for k in m.keys() %}{{ k }}.{% endfor %} {% for v in m.values() %}{{ v }}.{% endfor %}
{% for k, v in m|items %}{{ k }}:{{ v }} {% endfor %}{{ m.get('a') }} {{ m.get('zz') }} {{ m.get('zz', 'd') }} {{ m['a'] }} {{ m.a }} {{ 'a' in m }} {{ m|length }}
{% for k, v in m|dictsort %}{{ k }} {% endfor %}
{% endfor %}""",
    "defined": """{{ x is defined }} {{ x is undefined }} {{ x is not defined }} [{{ x }}] {{ x|default('d') }} {{ none|default('d') }} {{ ''|default('d', true) }}
{{ n is none }} {{ n is defined }} {{ n }} {{ messages[0].missing is defined }} {{ messages[0].missing or 'alt' }} {{ messages[0]['missing'] }}
{% if tools %}tools{% else %}no tools{% endif %} {% if tools is defined and tools %}T{% endif %} {{ enable_thinking is defined and not enable_thinking }}
{% if x is not defined %}{% set x = 'now' %}{% endif %}{{ x }}{{ 'yes' if y is defined else 'no' }}{{ 'only' if y }}""",
    "tests_and_types": """{% for v in values %}{{ v is string }} {{ v is mapping }} {{ v is iterable }} {{ v is sequence }} {{ v is number }} {{ v is boolean }} {{ v is integer }} {{ v is float }} {{ v is none }} {{ v is true }} {{ v is false }}
{% endfor %}{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby(3) }} {{ 'a' is in ['a'] }} {{ 1 is eq(1) }} {{ 'A' is upper }} {{ 'a' is lower }}""",
    "slices_and_filters": """{{ items[1:] }} {{ items[:-1] }} {{ items[-2:] }} {{ items[::2] }} {{ items[0] }} {{ items[-1] }} {{ items|first }} {{ items|last }}
{{ items|length }} {{ items|join('-') }} {{ items|reverse|list }} {{ items|sort }} {{ items|unique|list }} {{ items|map('string')|join('+') }}
{{ messages|map(attribute='role')|list }} {{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ messages|rejectattr('role', 'equalto', 'user')|map(attribute='role')|join(' ') }}
{{ items|select('gt', 2)|list }} {{ items|sum }} {{ items|min }} {{ items|max }} {{ '%s is %d'|format('x', 3) }} {{ 'a,b'|replace(',', ';') }} {{ '3'|int + 1 }} {{ '3.5'|float }} {{ 3.7|round }} {{ -3|abs }}
{{ items + [9] }} {{ 2 in items }} {{ items == [3, 1, 2, 2, 5] }} {{ (items|length) > 3 and true }} {{ not items }} {{ items and 'full' }} {{ [] or 'empty' }} {{ 'long text here'|indent(4) }}
{{ 'line1\nline2'|indent(2) }} {{ 'line1\nline2'|indent(2, true) }} {{ 'a' < 'b' }} {{ 1 < 2 < 3 }} {{ 'ab'.0 }} {{ items.0 }}""",
    "generation": """{% for m in messages %}
{% if m.role == 'assistant' %}
A:{% generation %}{% set inner = 'in' %}{{ m.content }}<end>
  {%- endgeneration %}

{{ inner is defined }}
{% else %}
U:{{ m.content }}
{% endif %}
{% endfor %}""",
    "call_filter_set_blocks": """{% macro wrap(tag) %}<{{ tag }}>{{ caller() }}</{{ tag }}>{% endmacro %}
{% call wrap('b') %}bold {{ messages|length }}{% endcall %}

{% set block %}
  captured {{ messages[0].role }}
{% endset %}[{{ block }}]{% filter upper %}shout {{ messages[0].role }}{% endfilter %}
{% with a = 1, b = 'two' %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}
{% raw %}{{ not rendered }} {% if %}{% endraw %}""",
    "tools_system": """{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- if tools %}
{{- "# Tools\\n\\n<tools>" }}
{%- for tool in tools %}
{{- "\\n" }}{{- tool | tojson }}
{%- endfor %}
{{- "\\n</tools>" }}
{%- endif %}
{%- for message in loop_messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) and strict %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- if message.tool_calls %}
{%- for tool_call in message.tool_calls %}
{%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
{{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}{{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}
{%- elif message.content is string %}
{{- message.role ~ ':' ~ message.content }}
{%- elif message.content is iterable %}
{%- for part in message.content %}{%- if part.type == 'text' %}{{- part.text }}{%- elif part['type'] in ['image', 'image_url'] %}{{- '<image>' }}{%- endif %}{%- endfor %}
{%- endif %}
{%- if (loop.last or (messages[loop.index0 + 1].role != "tool")) %}{{- '.' }}{%- endif %}
{%- endfor %}""",
    "raise": """{% if messages|length > 1 %}{{ raise_exception('Only one message, got ' ~ messages|length ~ '. 你好') }}{% endif %}ok""",
    "undefined_attribute": """{{ nothing.at.all }}""",
    "dunder": """{{ ''.__class__.__mro__ }}""",
    "dunder_globals": """{{ raise_exception.__globals__['os'] }}""",
    "dunder_shown": """[{{ ''.__class__ }}][{{ messages.__class__ }}]""",
    "type_error": """{{ 'a' + 1 }}""",
    "unknown_method": """{{ 'a'.frobnicate() }}""",
    "immutable": """{{ messages.append(1) }}""",
    "strftime": """{{ strftime_now('100%% %%Y') }}""",
}

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "天气 & <b> \"quoted\" it's\n",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "Stadt (größte)"},
            "days": {"type": "integer", "minimum": 1, "default": 3},
            "precise": {"type": ["boolean", "null"]}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "now", "parameters": {}}},
]

CONVERSATIONS = {
    "one": [{"role": "user", "content": "Hello"}],
    "two_turns": [
        {"role": "system", "content": "Be brief.\n"},
        {"role": "user", "content": "  Hi  "},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello there "},
        {"role": "user", "content": "你好 👩‍👩‍👧 \u00a0é"},
    ],
    "reasoning": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "reasoning_content": " think one ", "content": "b"},
        {"role": "user", "content": "<tool_response>x</tool_response>"},
        {"role": "assistant", "reasoning_content": "think two", "content": ""},
    ],
    "tools": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "reasoning_content": "call", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": {
                "city": "Zürich <&'>", "days": 2, "nested": {"z": [1, 2.5, None, True], "a": {"é": "\u2028"}},
                "big": 9007199254740993, "small": 1e-7, "whole": 3.0}}},
            {"id": "c2", "type": "function", "function": {"name": "now", "arguments": {}}}]},
        {"role": "tool", "content": "20 °C"},
        {"role": "tool", "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "on"}]},
        {"role": "assistant", "content": "It is 20 °C at noon."},
        {"role": "user", "content": "Thanks"},
    ],
    "parts": [
        {"role": "user", "content": [{"type": "text", "text": "see "}, {"type": "image_url", "image_url": {"url": "x"}},
                                     {"type": "text", "text": "this"}]},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "ok"},
    ],
}

VALUES = [
    None, True, False, 0, -1, 9007199254740993, 18446744073709551615, 1.0, 0.1, 1e-7, 1.5e-5, 0.0001, 1e16, 1e22, 123456.789, -0.0,
    "", "plain", "天气 & <b>'\"</b>", "tab\tnl\ncr\r\\ / \b\f\u0001\u001f\u007f\u0080\u2028", "👩‍👩‍👧 \U0001d400", "it's \"both\"",
    [], {}, [1, [2, []], {"a": {}}], {"b": 1, "a": [True, None, "é"], "c": {"z": 1.5, "y": {}}},
    {"é": "ü", "": 0, "with \"quotes\"": "\\"},
]
TEXTS = ["", "a", "ab", " a,b , c ", "\n\tabba \r\n", "ÀÉ straße a,b", "a\u001fb\u00a0", "one\ntwo\r\nthree\rfour\u2028five\n", "日本語 テキスト",
         "don't STOP me", "123", "aXbXa"]
MAPS = [{"b": 1, "a": "x", "c": None}, {"a": [1, 2], "é": {"k": True}}]


def cases(demo: str):
    for name, messages in CONVERSATIONS.items():
        for tools in (None, TOOLS):
            for extra in ({}, {"enable_thinking": False}, {"enable_thinking": True}):
                for prompt in (True, False):
                    variables = {"messages": messages, "add_generation_prompt": prompt, **extra}
                    if tools:
                        variables["tools"] = tools
                    yield "demo", f"{name}{'_tools' if tools else ''}_{'_'.join(map(str, extra.values()))}_{prompt}", variables
    for template in TEMPLATES:
        if template in ("tojson_flags", "python_text", "tests_and_types"):
            for index, value in enumerate(VALUES):
                yield template, f"value_{index}", {"values": [value]}
            continue
        if template == "methods":
            for index, text in enumerate(TEXTS):
                yield template, f"text_{index}", {"texts": [text]}
            continue
        if template == "mappings":
            yield template, "maps", {"maps": MAPS}
            continue
        for name, messages in CONVERSATIONS.items():
            for strict in ({}, {"strict": True, "n": None, "tools": TOOLS, "add_generation_prompt": True}):
                yield template, f"{name}_{'strict' if strict else 'plain'}", {"messages": messages, "items": [3, 1, 2, 2, 5], **strict}


def main() -> None:
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests" / "data" / "template_cases.json"
    demo = (ROOT / "models" / "demo" / "chat_template.jinja").read_text(encoding="utf-8")
    sources = {"demo": demo, **TEMPLATES}
    rows = []
    for template, name, variables in cases(demo):
        row = {"template": template, "name": name, "variables": variables}
        try:
            row["expected"] = chat_template_utils._compile_jinja_template(sources[template]).render(**variables)
        except (jinja2.exceptions.TemplateError, TypeError) as error:
            row["error"] = str(error)
        rows.append(row)
    del sources["demo"]  # read from the model itself
    with open(out, "w", encoding="utf-8") as file:
        file.write('{"templates": %s, "cases": [\n' % json.dumps(sources, indent=1))
        file.write(",\n".join(json.dumps(row) for row in rows))
        file.write("\n]}\n")
    print(len(rows), "cases,", sum("error" in row for row in rows), "of them errors")


if __name__ == "__main__":
    main()
