#!/usr/bin/env python3
"""A test device: the chat page's files and a pretended model, which says what the tests of the page need to see.

    python3 tests/page/mock_server.py [PORT]

The last message picks what is said: it starts with the name of one of the ANSWERS below, else it is echoed. The real server
is tested with the page as well; this one makes what a small model does not do on demand: calls, errors, long answers,
hostile text, a slow prompt.
"""

import http.server
import json
import pathlib
import re
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "src" / "server" / "page"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


def content_security_policy():
    """The policy that the program sends, from its source."""
    text = (ROOT / "src" / "server" / "page.h").read_text()
    literal = re.search(r"kPageContentSecurityPolicy =\s*((?:\"[^\"]*\"\s*)+);", text).group(1)
    return "".join(re.findall(r'"([^"]*)"', literal))


MARKDOWN = """# Merging two lists

Take the *smaller* head each time. That is **O(n + m)**, and it keeps `equal` items in order. See
[the manual](https://example.org/merge?a=1&b=2) or https://example.org/x_y_z.

```python
def merge(left, right):
    \"\"\"Both must be sorted.\"\"\"
    out, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:  # ties: left first
            out.append(left[i])
            i += 1
        else:
            out.append(right[j])
            j += 1
    return out + left[i:] + right[j:]


print(merge([1, 4, 9], [2, 3, 10]))
```

What it costs:

| input | steps | memory |
|:------|------:|:------:|
| 1,000 + 1,000 | 2,000 | 16 kB |
| 10^6 + 10^6 | 2,000,000 | 16 MB |

1. Check that both lists are sorted
   - with `all(a <= b for a, b in pairs)`
   - or trust the caller
2. Merge them
3. Done

- [x] tested
- [ ] documented

> Two sorted lists are already half the work.

The recurrence is $T(n) = 2T(n/2) + O(n)$, which costs $5 more than $4.

---

That is all.
"""

HOSTILE = """<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1"> [click](javascript:window.hacked=1)
[data](data:text/html,<script>window.hacked=1</script>) ![picture](https://elsewhere.example/pixel.png)
<iframe src="https://elsewhere.example/"></iframe> <style>body{display:none}</style>

```html
</code></pre><script>window.hacked = 1</script>
```

| <b>a</b> | <img src=x onerror=window.hacked=1> |
|---|---|
| <svg onload="window.hacked=1"> | &lt;script&gt; |

**bold <script>window.hacked = 1</script>**
"""

TOOL_ARGUMENTS = '{"city": "Paris", "days": 3, "units": {"temperature": "celsius", "wind": "km/h"}, "id": 9007199254740993}'


class Mock:
    """What the tests may change while the server runs."""

    def __init__(self):
        self.status = "ok"
        self.key = None
        self.models = ["mock-9b"]
        self.requests = []  # the bodies of chat requests
        self.gone = threading.Event()  # a client left in the middle
        self.delay = 0.0  # seconds between chunks
        self.release = threading.Event()  # ends what waits


def words(text):
    return re.findall(r"\S+\s*|\s+", text)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    @property
    def mock(self):
        return self.server.mock

    def reply(self, status, body, content_type="application/json", headers=()):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def fail(self, status, message, code=None):
        self.reply(status, {"error": {"message": message, "type": "error", "code": code, "param": None}})

    def may_enter(self):
        if self.mock.key is None or self.headers.get("Authorization") == f"Bearer {self.mock.key}":
            return True
        self.fail(401, "A valid API key is needed.", "invalid_api_key")
        return False

    def do_GET(self):
        path = self.path.split("?", 1)[0]
        if path == "/health":
            return self.reply(200 if self.mock.status == "ok" else 503, {"status": self.mock.status})
        if path == "/v1/models":
            models = [{"id": name, "object": "model", "max_model_len": 32768} for name in self.mock.models]
            return self.may_enter() and self.reply(200, {"object": "list", "data": models})
        file = PAGE / ("index.html" if path == "/" else path.removeprefix("/page/"))
        if file.parent != PAGE or not file.is_file():
            return self.fail(404, f"There is no {path} here.")
        policy = [("Content-Security-Policy", content_security_policy()), ("Cache-Control", "no-store")]
        self.reply(200, file.read_bytes(), TYPES[file.suffix], policy)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.may_enter():
            return
        self.mock.requests.append(body)
        last = body["messages"][-1]
        name = str(last["content"]).split(" ", 1)[0]
        answer = ANSWERS.get(name, say_echo) if last["role"] != "tool" else say_after_tool
        try:
            answer(Answer(self, body))
        except (BrokenPipeError, ConnectionResetError):
            self.mock.gone.set()
        self.close_connection = True


class Answer:
    """One answer on its way: writes chunks as the real server does."""

    def __init__(self, handler, body):
        self.handler = handler
        self.mock = handler.mock
        self.body = body
        self.model = body.get("model", "mock-9b")
        self.tokens = 0
        self.thought = 0
        self.begun = time.monotonic()
        self.open = False

    def event(self, data):
        if not self.open:
            self.open = True
            self.handler.send_response(200)
            self.handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.handler.send_header("Connection", "close")
            self.handler.end_headers()
        self.handler.wfile.write(f"data: {data}\n\n".encode())
        self.handler.wfile.flush()

    def usage(self):
        return {
            "prompt_tokens": 1234,
            "completion_tokens": self.tokens,
            "total_tokens": 1234 + self.tokens,
            "prompt_tokens_details": {"cached_tokens": 1000},
            "completion_tokens_details": {"reasoning_tokens": self.thought},
        }

    def chunk(self, delta=None, finish=None, **more):
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
        self.event(json.dumps({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": self.model, "choices": choices, "usage": self.usage(), **more}))
        time.sleep(self.mock.delay)

    def think(self, text):
        for word in words(text):
            self.tokens += 1
            self.thought += 1
            self.chunk({"reasoning_content": word, "reasoning": word})

    def say(self, text):
        for word in words(text):
            self.tokens += 1
            self.chunk({"content": word})

    def call(self, index, name, arguments):
        self.chunk({"tool_calls": [{"index": index, "id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": ""}}]})
        for at in range(0, len(arguments), 7):
            self.tokens += 1
            self.chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments[at : at + 7]}}]})

    def end(self, reason="stop"):
        self.chunk({}, reason)
        seconds = max(time.monotonic() - self.begun, 0.001)
        timings = {"cache_n": 1000, "prompt_n": 234, "prompt_ms": 1830.0, "predicted_n": self.tokens, "predicted_per_second": self.tokens / seconds}
        self.chunk(timings=timings)
        self.event("[DONE]")


def say_echo(answer):
    answer.say(f"You said: {answer.body['messages'][-1]['content']}")
    answer.end()


def say_markdown(answer):
    answer.think("The user wants two sorted lists merged. Two indices, take the smaller head. I should mention the cost, and that ties keep their order.")
    answer.say(MARKDOWN)
    answer.end()


def say_hostile(answer):
    answer.think("<script>window.hacked = 1</script><img src=x onerror=window.hacked=1>")
    answer.say(HOSTILE)
    answer.end()


def say_calls(answer):
    answer.think("I need the weather and the time.")
    answer.call(0, "get_weather", TOOL_ARGUMENTS)
    answer.call(1, "get_time", "{}")
    answer.end("tool_calls")


def say_after_tool(answer):
    results = [message["content"] for message in answer.body["messages"] if message["role"] == "tool"]
    answer.say(f"The tools say: {', '.join(results)}.")
    answer.end()


def say_endless(answer):
    while True:
        answer.say("and so on, " * 3 + "\n\n")
        time.sleep(0.1)


def say_thinking(answer):
    answer.think("First, what is asked? " * 30)
    answer.mock.release.wait(20)
    answer.say("Thought enough.")
    answer.end()


def say_code(answer):
    lines = "".join(f"    total += weights[{index}] * inputs[{index}]  # term {index}\n" for index in range(600))
    answer.say(f"Here it is:\n\n```python\ndef dot(weights, inputs):\n    total = 0\n{lines}    return total\n```\n\nThat was long.")
    answer.end()


def say_slowly(answer):
    for processed in range(0, 8001, 1000):
        answer.chunk(prompt_progress={"total": 8000, "cache": 1000, "processed": processed, "time_ms": processed})
        if processed == 3000:
            answer.mock.release.wait(20)
    answer.say("Read it.")
    answer.end()


def fail_in_the_middle(answer):
    answer.say("This begins well but ")
    answer.event(json.dumps({"error": {"message": "The engine met a number that is not finite.", "type": "server_error", "code": "internal_error", "param": None}}))
    answer.event("[DONE]")


def cut_off(answer):
    answer.say("This begins well but ")


def fail_context(answer):
    answer.handler.fail(400, "This model's maximum context length is 32768 tokens, and the prompt has 40000.", "context_length_exceeded")


def fail_busy_once(answer):
    if sum(1 for body in answer.mock.requests if body["messages"][-1]["content"] == answer.body["messages"][-1]["content"]) == 1:
        return answer.handler.fail(429, "256 requests are waiting already.", "queue_full")
    say_echo(answer)


def say_up_to_length(answer):
    answer.say("Cut short")
    answer.end("length")


ANSWERS = {
    "markdown": say_markdown,
    "hostile": say_hostile,
    "calls": say_calls,
    "endless": say_endless,
    "thinking": say_thinking,
    "code": say_code,
    "slow": say_slowly,
    "broken": fail_in_the_middle,
    "cut": cut_off,
    "context": fail_context,
    "busy": fail_busy_once,
    "length": say_up_to_length,
}


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.mock = Mock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception):
        self.mock.release.set()
        self.shutdown()
        self.server_close()


if __name__ == "__main__":
    with Server(int(sys.argv[1]) if len(sys.argv) > 1 else 8081) as server:
        server.mock.delay = 0.02
        print(f"{server.url} -- Ctrl-C ends it", flush=True)
        threading.Event().wait()
