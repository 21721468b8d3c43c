#!/usr/bin/env python3
"""Thousands of mixed requests against `glint serve` with a limit of memory, and whether it kept its promises.

    python3 tests/soak/soak.py [MODEL] [--requests 2000] [--memory 256MiB] [--clients 12] [--bin build/glint] [-- SERVE OPTIONS]

Streams, whole answers, clients that leave in the middle, tools, JSON schemas, log-probs, long and short prompts with common
beginnings, other APIs and bad requests come from several threads. At the end:

- what was resident stayed below --memory at every moment (VmHWM, which the kernel keeps);
- every page of the cache is free or keeps a prefix, none is leased, and they add up; no recurrent state is in use;
- every greedy answer equals that of a fresh server which gets the same requests one by one without a prefix cache;
- nothing leaks: in the last quarter no more is resident than in the first three at their peak, and MARGIN.

Ends with 0 when all of that holds, and prints what was measured as JSON.
"""

import argparse
import http.client
import json
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MARGIN = 8 << 20
WORDS = "the cat counts apples and pears while a small dog looks at the green river near an old bridge of stone".split()
CITY_TOOL = {"type": "function", "function": {
    "name": "weather", "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}},
          "required": ["n", "ok"], "additionalProperties": False}


class Server:
    """A running `glint serve`."""

    def __init__(self, binary, model, options, log_path):
        command = [str(binary), "serve", str(model), "--port", "0", "--served-model-name", "soak", "--deterministic", *options]
        self.log_path = pathlib.Path(log_path)
        with open(log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.port = int(self._wait(lambda: re.search(r"listening on http://127\.0\.0\.1:(\d+)", self.log())).group(1))
        self._wait(self._healthy)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def _wait(self, done):
        end = time.monotonic() + 300
        while time.monotonic() < end:
            if result := done():
                return result
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        self.process.kill()
        sys.exit(f"glint serve did not start:\n{self.log()}")

    def _healthy(self):
        try:
            return self.call("GET", "/health")[0] == 200
        except OSError:
            return False

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def metric(self, name, labels=""):
        text = self.call("GET", "/metrics")[1].decode()
        found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*{labels}[^}}]*\}})? ([\d.e+]+)$", text, re.M)
        return sum(float(value) for value in found) if found else None

    def memory(self, field):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{field}:\s+(\d+) kB", status).group(1)) * 1024

    def stop(self):
        self.process.terminate()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return None


def sentence(dice, words):
    return " ".join(dice.choice(WORDS) for _ in range(words))


def messages(dice, longest):
    """A conversation; many begin alike."""
    out = []
    if dice.random() < 0.5:
        out.append({"role": "system", "content": sentence(random.Random(dice.randrange(4)), longest // 4)})
    words = dice.choice([3, 8, 20, longest // 2])
    out.append({"role": "user", "content": f"What is {dice.randrange(90)} + {dice.randrange(90)}? " + sentence(dice, words)})
    if dice.random() < 0.3:
        out += [{"role": "assistant", "content": sentence(dice, 6)}, {"role": "user", "content": sentence(dice, 5)}]
    return out


class Request:
    """One of the mix: what is sent, whether its answer is compared, and when its client leaves."""

    def __init__(self, number, seed, longest):
        dice = random.Random(seed * 1_000_003 + number)
        self.path, self.compared, self.leaves_after, self.status = "/v1/chat/completions", True, None, {200}
        body = {"model": "soak", "messages": messages(dice, longest), "max_tokens": dice.choice([1, 4, 12, 24]), "temperature": 0}
        self.kind = dice.choices(
            ["whole", "stream", "leave", "tools", "schema", "logprobs", "completion", "anthropic", "sampled", "tokenize", "bad"],
            [20, 18, 16, 6, 6, 8, 8, 5, 4, 4, 5])[0]
        getattr(self, "_" + self.kind)(dice, body)
        self.body = body if isinstance(body, (bytes, str)) else json.dumps(body).encode()
        if self.kind == "bad":
            self.body = self.bad
        self.stream = isinstance(body, dict) and body.get("stream", False)

    def _whole(self, dice, body):
        pass

    def _stream(self, dice, body):
        body["stream"] = True

    def _leave(self, dice, body):
        body["stream"] = dice.random() < 0.7
        body["max_tokens"] = 48
        self.compared, self.leaves_after = False, dice.choice([0, 0, 1, 400, 1500])

    def _tools(self, dice, body):
        body.update(tools=[CITY_TOOL], tool_choice=dice.choice(["auto", "required"]), max_tokens=40)

    def _schema(self, dice, body):
        body.update(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, max_tokens=30)

    def _logprobs(self, dice, body):
        body.update(logprobs=True, top_logprobs=dice.choice([0, 5, 20]), n=dice.choice([1, 1, 3]))

    def _completion(self, dice, body):
        self.path = "/v1/completions"
        body["prompt"] = sentence(dice, dice.choice([2, 30]))
        del body["messages"]
        if dice.random() < 0.3:
            body.update(echo=True, logprobs=2)

    def _anthropic(self, dice, body):
        self.path = "/v1/messages"
        body["messages"] = [m for m in body["messages"] if m["role"] != "system"]

    def _sampled(self, dice, body):
        body.update(temperature=1.0, top_p=0.9, stream=dice.random() < 0.5, n=2)
        self.compared = False

    def _tokenize(self, dice, body):
        self.path = "/tokenize"
        body.clear()
        body["content"] = sentence(dice, 40)

    def _bad(self, dice, body):
        self.compared, self.status = False, {400, 404, 413, 422}
        self.bad = dice.choice([
            b"{", b"[]", json.dumps({**body, "model": "another"}).encode(), json.dumps({**body, "temperature": "hot"}).encode(),
            json.dumps({**body, "messages": [{"role": "user", "content": "long " * 40000}]}).encode(),
            json.dumps({**body, "tools": "none"}).encode(), b'{"messages":[' + b"[" * 5000])

    def answer_of(self, text):
        """What is compared of an answer: all but names and times."""
        if self.path == "/tokenize":
            return json.loads(text)
        if self.stream:
            said, reasons = {}, {}
            for line in text.decode().splitlines():
                if not line.startswith("data: {"):
                    continue
                for choice in json.loads(line[6:]).get("choices", []):
                    delta = choice.get("delta", {})
                    said[choice["index"]] = said.get(choice["index"], "") + "".join(
                        delta.get(field) or "" for field in ("reasoning_content", "content"))
                    reasons[choice["index"]] = choice.get("finish_reason") or reasons.get(choice["index"])
            return [said, reasons]
        answer = json.loads(text)
        if self.path == "/v1/messages":
            for block in answer["content"]:
                block.pop("signature", None)  # under a key of the process
            return [answer["content"], answer["stop_reason"]]
        for choice in answer["choices"]:
            for call in choice.get("message", {}).get("tool_calls") or []:
                call.pop("id")
        return answer["choices"]


def send(server, request, tally):
    """Sends it until it is taken; the bytes of the answer, or None for a client that left."""
    refused = 0
    while True:
        if request.leaves_after is not None:
            return leave(server, request)
        status, text = server.call("POST", request.path, request.body)
        if status in (429, 503) and refused < 400:
            refused += 1
            tally["told to wait"] = tally.get("told to wait", 0) + 1
            time.sleep(0.05)
            continue
        if status not in request.status:
            raise AssertionError(f"{request.kind}: {status} {text[:300]!r} for {request.body[:200]!r}")
        return text


def leave(server, request):
    head = (f"POST {request.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(request.body)}\r\n\r\n").encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=300) as connection:
        connection.sendall(head + request.body)
        left = request.leaves_after
        while left > 0:
            data = connection.recv(min(left, 400))
            if not data:
                break
            left -= len(data)
    return None


class Watch(threading.Thread):
    """Samples what is resident."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.samples, self.ended = server, [], threading.Event()

    def run(self):
        while not self.ended.wait(0.02):
            self.samples.append(self.server.memory("VmRSS"))

    def stop(self):
        self.ended.set()
        self.join()


def crowd(server, requests, clients):
    """Answers by number, from several threads; what went wrong."""
    answers, errors, tally = {}, [], {}
    numbers, lock = iter(range(len(requests))), threading.Lock()

    def client():
        while True:
            with lock:
                number = next(numbers, None)
            if number is None or errors:
                return
            try:
                text = send(server, requests[number], tally)
                if text is not None and requests[number].compared:
                    answers[number] = requests[number].answer_of(text)
            except Exception as error:  # noqa: BLE001: whatever it is, the soak failed
                errors.append(f"request {number} ({requests[number].kind}): {error!r}")

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers, errors, tally


def pages(server):
    """Pages by what they are for, once nothing runs any more."""
    end = time.monotonic() + 30
    while True:
        counts = {state: server.metric("glint_cache_pages", f'state="{state}"') for state in ("free", "cached", "leased")}
        if counts["leased"] == 0 or time.monotonic() > end:
            return counts
        time.sleep(0.05)


def parse_bytes(text):
    number, unit = re.fullmatch(r"([\d.]+)\s*([KMG]?)i?B?", text).groups()
    return int(float(number) * 1024 ** " KMG".index(unit or " "))


def soak(binary, model, memory, count, clients=12, seed=1, longest=120, options=(), cold_options=()):
    """Runs it; a report, whose "failures" are empty when all held."""
    requests = [Request(number, seed, longest) for number in range(count)]
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(binary, model, ["--memory", memory, *options], folder + "/log")
        watch = Watch(server)
        watch.start()
        began = time.monotonic()
        answers, errors, tally = crowd(server, requests, clients)
        seconds = time.monotonic() - began
        watch.stop()
        failures += errors
        limit, peak = parse_bytes(memory), server.memory("VmHWM")
        if peak > limit:
            failures.append(f"{peak} bytes were resident at once, and the limit is {limit}")
        counts = pages(server)
        total = server.metric("glint_cache_pages")
        planned = server.metric("glint_cache_pages_max")
        if counts["leased"] != 0 or total != planned:
            failures.append(f"pages do not add up: {counts}, {planned} in all")
        if server.metric("glint_recurrent_states"):
            failures.append("recurrent states are in use though nothing runs")
        samples = watch.samples
        last = samples[len(samples) * 3 // 4:]
        first = samples[:len(samples) * 3 // 4]
        if last and max(last) > max(first) + MARGIN:
            failures.append(f"a leak: {max(first)} bytes at the most, then {max(last)}")
        hits = server.metric("vllm:prefix_cache_hits_total")
        ended = server.log().count("the newest request is ended")
        if server.stop() != 0:
            failures.append("the server did not end well:\n" + server.log()[-2000:])
        cold = Server(binary, model, [*cold_options, "--prefix-cache", "off"], folder + "/cold")
        different = 0
        for number, answer in sorted(answers.items()):
            alone = requests[number].answer_of(send(cold, requests[number], {}))
            if alone != answer:
                different += 1
                failures.append(f"request {number} ({requests[number].kind}): {answer} in company, {alone} alone")
        cold.stop()
    kinds = {}
    for request in requests:
        kinds[request.kind] = kinds.get(request.kind, 0) + 1
    return {"requests": count, "kinds": kinds, "seconds": round(seconds, 1), "limit": limit, "peak_resident": peak,
            "pages": counts, "cached_prompt_tokens": hits, "compared": len(answers), "different": different,
            "ended_for_memory": ended, **tally, "first_three_quarters": max(first, default=0),
            "last_quarter": max(last, default=0), "failures": failures[:20]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--bin", default=ROOT / "build" / "glint")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=int, default=120, help="words of a prompt")
    arguments = sys.argv[1:]
    more = arguments[arguments.index("--") + 1:] if "--" in arguments else []
    given = parser.parse_args(arguments[:len(arguments) - len(more) - ("--" in arguments)])
    report = soak(given.bin, given.model, given.memory, given.requests, given.clients, given.seed, given.longest, more, more)
    print(json.dumps(report, indent=2))
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
