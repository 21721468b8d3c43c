"""The prefix cache through a server: turns of a chat with tools, a restart after kill -9, and /v1/cache."""

import json
import signal

import httpx
import pytest
from scripted import WEATHER, call, line, serve_script
from serving import serve

THOUGHTS_END = 4
ANSWER_END = 2  # tokens: the last one, which is not computed, and the one that ends the answer

DOCUMENT = "The library opens at nine and closes at six, but on Sundays it stays closed all day long. " * 12


def post(server, action):
    return httpx.post(f"{server.url}/v1/cache/{action}", timeout=60)


def ask(server, text, salt=None):
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 24}
    if salt is not None:
        body["cache_salt"] = salt
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
    message, usage = answer["choices"][0]["message"], answer["usage"]
    return (message["content"], message.get("reasoning_content")), usage["prompt_tokens_details"]["cached_tokens"]


def metric(server, name):
    for line in httpx.get(server.url + "/metrics").text.splitlines():
        if line.startswith(name + " "):
            return float(line.split()[1])
    raise KeyError(name)


def test_a_restart_after_kill_9_answers_the_same_from_disk(tmp_path):
    flags = ("--prefix-cache-dir", str(tmp_path), "--prefix-cache", "16MiB")
    with serve(*flags) as server:
        cold, found = ask(server, DOCUMENT)
        assert found == 0
        saved = post(server, "save").json()
        assert saved["action"] == "save" and saved["pages"] >= 3 and saved["left_out"] == 0
        assert post(server, "save").json()["pages_present"] == saved["pages"]
        ask(server, "Something else that is in memory alone. " * 30)
        server.stop(signal.SIGKILL)
    (tmp_path / "1234.page.part").write_bytes(b"half a page")
    with serve(*flags) as server:
        hot, found = ask(server, DOCUMENT)
        assert hot == cold and found >= 64 * 3
        assert ask(server, DOCUMENT, salt="another tenant")[1] == 0
        assert metric(server, "glint_prefix_cache_disk_read_total") >= 3
        assert metric(server, "glint_prefix_cache_disk_damaged_total") == 0
        assert 0 < metric(server, "glint_prefix_cache_bytes") <= metric(server, "glint_prefix_cache_limit_bytes") <= 16 << 20
        assert server.stop() == 0
    # What a program holds when it ends is there the next time; and what is damaged is computed.
    with serve(*flags) as server:
        assert ask(server, DOCUMENT, salt="another tenant")[1] >= 64 * 3
    for file in tmp_path.glob("*.page"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    with serve(*flags) as server:
        again, found = ask(server, DOCUMENT)
        assert again == cold and found == 0
        assert metric(server, "glint_prefix_cache_disk_damaged_total") >= 1


def test_save_restore_and_clear(tmp_path):
    flags = ("--prefix-cache-dir", str(tmp_path), "--api-key", "k")
    with serve(*flags) as server:
        assert post(server, "save").status_code == 401
        def act(action):
            answer = httpx.post(f"{server.url}/v1/cache/{action}", headers={"authorization": "Bearer k"}, timeout=60)
            assert answer.status_code == 200
            return answer.json()
        client = server.client(api_key="k")
        client.chat.completions.create(model="demo", messages=[{"role": "user", "content": DOCUMENT}], max_tokens=2)
        pages = act("save")["pages"]
        assert pages >= 3
        assert act("restore")["pages_present"] == pages
        cleared = act("clear")
        assert cleared["pages"] == pages and cleared["disk_entries"] == pages and cleared["disk_bytes"] > cleared["bytes"]
        assert not list(tmp_path.glob("*.page"))
        assert httpx.get(f"{server.url}/v1/cache/save", headers={"authorization": "Bearer k"}).status_code == 405
    with serve() as server:
        refused = post(server, "save")
        assert refused.status_code == 409 and "--prefix-cache-dir" in refused.json()["error"]["message"]
        assert post(server, "clear").status_code == 200
    with serve("--prefix-cache", "off") as server:
        refused = post(server, "clear")
        assert refused.status_code == 409 and "--prefix-cache" in refused.json()["error"]["message"]


THOUGHTS = "The user wants the weather, so I look it up.\n\n1. Which city? 2. Which days?\tThen I say it.  " * 6
SPOKEN = {  # what the model says before a call, and between thoughts and call: templates and models differ in such spaces
    "as the template": THOUGHTS.rstrip() + "</think>",
    "newline": THOUGHTS.rstrip() + "\n</think>\n",
    "words": THOUGHTS + "</think>\n\nLet me look that up.\n",
}


@pytest.mark.parametrize("style", sorted(SPOKEN))
def test_turns_with_tools_go_on_where_the_last_one_ended(style):
    """Each turn repeats all before it: thoughts, calls and results. What was computed for them is not computed again."""
    cities = ["Paris", "Oslo", "Lima"]
    lines = [line(f"result-{n}", SPOKEN[style] + call("weather", city=cities[n + 1])) for n in (1, 0)]
    lines.append(line("weather there", SPOKEN[style] + call("weather", city=cities[0])))
    with serve_script(lines) as server:
        messages = [{"role": "system", "content": DOCUMENT[:400]}, {"role": "user", "content": "What is the weather there?"}]
        known = 0
        for turn in range(3):
            answer = httpx.post(f"{server.url}/v1/chat/completions", timeout=60, json={
                "messages": messages, "tools": [WEATHER], "temperature": 0, "max_tokens": 600}).json()
            usage, message = answer["usage"], answer["choices"][0]["message"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": cities[turn]}
            assert cached >= known // 64 * 64 if turn > 0 else cached == 0, (turn, cached, known)
            # All of this prompt and the thoughts, but for spaces at their end, which the template strips; where it writes
            # what the model said, all of the answer but for its end.
            known = usage["prompt_tokens"] + (usage["completion_tokens"] - ANSWER_END if style == "as the template" else
                                              usage["completion_tokens_details"]["reasoning_tokens"] - THOUGHTS_END)
            messages.append({key: message[key] for key in ("role", "content", "tool_calls", "reasoning_content") if message.get(key) is not None})
            messages.append({"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": f"result-{turn}: sunny, 21 degrees."})
