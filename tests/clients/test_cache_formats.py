"""A server whose cache is fp8 or fp4: what it says of it, and that guesses do not change answers."""

import json
import urllib.request

import pytest
import serving


def get(served, path):
    with urllib.request.urlopen(f"{served.url}{path}", timeout=30) as answer:
        return answer.read().decode()


def answers(served):
    return [served.client().chat.completions.create(
                model="demo", messages=[{"role": "user", "content": text}], temperature=0).choices[0].message.content
            for text in ["What is 17 + 25?", "Count from 1 to 30.", "Sort: pear, apple, fig, plum."]]


# Bytes of a row of 64 + 16 values, times the layers and the draft layer.
@pytest.mark.parametrize("name, row_bytes", [("fp8", 83), ("fp4", 45)])
def test_the_format_is_shown_and_guesses_change_nothing(name, row_bytes):
    with serving.serve("--kv-cache", name, "--mtp", "2") as served:
        cache = json.loads(get(served, "/props"))["machine"]["cache"]
        assert cache["format"] == name and cache["bytes_per_token"] % row_bytes == 0
        assert f'cache_dtype="{name}"' in get(served, "/metrics")
        with_guesses = answers(served)
    with serving.serve("--kv-cache", name, "--mtp", "off") as served:
        assert answers(served) == with_guesses
