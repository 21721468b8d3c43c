"""Many clients at once, some of which leave in the middle: every answer is the one that the model gives when it has nothing
else to do, nothing leaks, and the counters add up."""

import json
import pathlib
import random
import re
import threading
import urllib.request

import pytest
from serving import eval_items, serve

CLIENTS = 64
REQUESTS = 20
MAX_TOKENS = 24
CANCELLED = 0.2


def prompts():
    items = [i["messages"] for task in ("add_small", "faq", "copy") for i in eval_items(task, correct_only=False)]
    texts = [[{"role": "user", "content": f"Question {n}: what comes after {n} and before {n + 2}?"}] for n in range(24)]
    return (items[:24] + texts)[:40]


def body(messages, stream):
    return json.dumps({"messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0, "stream": stream}).encode()


def ask(url, messages):
    with urllib.request.urlopen(f"{url}/v1/chat/completions", body(messages, False), timeout=120) as answer:
        message = json.load(answer)["choices"][0]["message"]
        return message.get("reasoning_content", "") + "|" + (message["content"] or "")


def leave_early(url, messages, after):
    """Reads a few bytes of a stream and goes away."""
    with urllib.request.urlopen(f"{url}/v1/chat/completions", body(messages, True), timeout=120) as answer:
        answer.read(after)


def resident_bytes(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) * 1024


def metric(url, name):
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(re.escape(name) + r"[{ ]", line))


def test_many_clients_get_what_one_would():
    with serve("--parallel", "16", "--ctx", "512", "--deterministic", "--max-queue", str(CLIENTS)) as served:
        questions = prompts()
        alone = [ask(served.url, messages) for messages in questions]
        for _ in range(2):  # what the first crowd needs is allocated once
            run_clients(served.url, questions[:8], alone, 4)
        before = resident_bytes(served.process)
        asked = metric(served.url, "vllm:request_success_total")
        wrong, answered, left = run_clients(served.url, questions, alone, REQUESTS)
        assert not wrong, wrong[:3]
        assert answered + left == CLIENTS * REQUESTS and left > CLIENTS
        idle = threading.Event()
        for _ in range(300):
            if metric(served.url, "vllm:num_requests_running") + metric(served.url, "vllm:num_requests_waiting") == 0:
                break
            idle.wait(0.1)
        assert metric(served.url, "vllm:num_requests_running") == 0
        counted = metric(served.url, "vllm:request_success_total") - asked
        assert counted == answered + left, "every request is counted once, whatever became of it"
        assert resident_bytes(served.process) < before * 1.05 + (8 << 20)


def run_clients(url, questions, alone, requests):
    lock = threading.Lock()
    wrong, answered, left = [], 0, 0

    def client(seed):
        nonlocal answered, left
        dice = random.Random(seed)
        for _ in range(requests):
            index = dice.randrange(len(questions))
            if dice.random() < CANCELLED:
                leave_early(url, questions[index], dice.choice([1, 200, 900]))
                with lock:
                    left += 1
                continue
            answer = ask(url, questions[index])
            with lock:
                answered += 1
                if answer != alone[index]:
                    wrong.append((index, answer, alone[index]))

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong, answered, left
