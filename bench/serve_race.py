#!/usr/bin/env python3
"""Streams at once through two servers on the same weights: aggregate tokens/s, time to first token, gaps between tokens.

    bench/serve_race.py --model FILE.gguf --glint build/glint --llama-server PATH [--streams 8] [--prompt 256] [-n 64]
                        [--threads 2] [--reps 3] [--json]

Each repetition starts each server anew, one after the other, warms it with one short request, and sends all streams in the
same moment: POST /v1/completions with prompts of random tokens (different for each stream and repetition, so that no cache
of prompts helps), ignore_eos and temperature 0. Medians over the repetitions; gaps are over all streams together.
"""

import argparse
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time


def start(command, log, ready_path="/health", seconds=600):
    """Starts a server that logs its port, or has it in the command; (process, port) once it is ready."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    end = time.monotonic() + seconds
    port = int(command[command.index("--port") + 1])
    while time.monotonic() < end:
        if process.poll() is not None:
            sys.exit(f"{command[0]} ended with {process.returncode}; see {log.name}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", ready_path)
            if connection.getresponse().status == 200:
                return process, port
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit(f"{command[0]} was not ready in {seconds} s; see {log.name}")


def stream(port, prompt, tokens, gate, out):
    """One stream; appends {"first", "gaps", "tokens", "end"} with times since the gate opened."""
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                       "cache_prompt": False, "stream_options": {"include_usage": True}})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1200)
    connection.connect()
    gate.wait()
    began = time.monotonic()
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(answer.read().decode())
    first, last, gaps, counted = None, None, [], 0
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if chunk.get("usage"):
            counted = chunk["usage"]["completion_tokens"]
        if chunk.get("choices") and chunk["choices"][0].get("text"):
            now = time.monotonic()
            if first is None:
                first = now - began
            else:
                gaps.append(now - last)
            last = now
    out.append({"first": first or time.monotonic() - began, "gaps": gaps, "tokens": counted, "end": time.monotonic() - began})


def measure(port, streams, prompt_tokens, tokens, seed):
    dice = random.Random(seed)
    prompts = [[dice.randrange(1000, 100000) for _ in range(prompt_tokens)] for _ in range(streams)]
    stream(port, [dice.randrange(1000, 100000) for _ in range(16)], 4, opened(), [])
    gate, out = threading.Event(), []
    threads = [threading.Thread(target=stream, args=(port, p, tokens, gate, out)) for p in prompts]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    gate.set()
    for thread in threads:
        thread.join()
    if len(out) != streams:
        sys.exit("a stream failed")
    gaps = sorted(g for one in out for g in one["gaps"])
    return {"tokens_per_s": sum(o["tokens"] for o in out) / max(o["end"] for o in out),
            "first_p50_s": statistics.median(o["first"] for o in out), "first_max_s": max(o["first"] for o in out),
            "gap_p50_s": gaps[len(gaps) // 2], "gap_p99_s": gaps[int(len(gaps) * 0.99)]}


def opened():
    gate = threading.Event()
    gate.set()
    return gate


def free_port():
    import socket
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def commands(arguments):
    context = arguments.prompt + arguments.n + 64
    glint = [arguments.glint, "serve", arguments.model, "--port", "{port}", "--ctx", str(context), "--parallel", str(arguments.streams),
             "--threads", str(arguments.threads)]
    llama = [arguments.llama_server, "-m", arguments.model, "--port", "{port}", "-c", str(context * arguments.streams),
             "-np", str(arguments.streams), "-t", str(arguments.threads), "-fa", "on", "--no-webui"]
    return {"glint": glint, "llama-server": llama}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--glint", required=True)
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = {}
    for repetition in range(arguments.reps):
        for name, command in commands(arguments).items():
            with tempfile.NamedTemporaryFile(prefix=f"{name}-", suffix=".log", delete=False) as log:
                process, port = start([word.replace("{port}", str(free_port())) for word in command], log)
                try:
                    results.setdefault(name, []).append(measure(port, arguments.streams, arguments.prompt, arguments.n, repetition))
                finally:
                    process.terminate()
                    process.wait(60)
    medians = {name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in results.items()}
    if arguments.json:
        print(json.dumps({"medians": medians, "runs": results}, indent=1))
        return
    print(f"{arguments.streams} streams, prompts of {arguments.prompt} tokens, {arguments.n} tokens each, medians of {arguments.reps}")
    for name, m in medians.items():
        print(f"{name:<14} {m['tokens_per_s']:8.1f} tok/s   first token p50 {m['first_p50_s']:6.2f} s, max {m['first_max_s']:6.2f} s"
              f"   gap p50 {m['gap_p50_s'] * 1e3:6.1f} ms, p99 {m['gap_p99_s'] * 1e3:7.1f} ms")


if __name__ == "__main__":
    main()
