#!/usr/bin/env python3
"""How speed holds up with depth: prefill and decode of one stream with more and more tokens before it.

    bench/depth.py --model DIR --glint build/glint [--depths 0,4096,32768,131072] [-p 512] [-n 32] [--reps 3] [--json]
                   [-- MORE OPTIONS OF glint serve]

One server. Each depth goes on from the one before through the prefix cache, so that 128 k tokens are computed once; then,
`reps` times, a prompt of as many tokens and `-p` fresh ones is sent, and `-n` tokens are decoded. Medians; what the cache
gave is taken off the prompt's tokens. Prompts are random tokens, ignore_eos is set and guesses are off.
"""

import argparse
import contextlib
import http.client
import json
import random
import statistics
import sys
import tempfile

from serve_race import free_port, start


def ask(port, prompt, tokens):
    """(seconds of prefill, tokens decoded per second, tokens of the prompt that the cache had), by the server's own clock:
    tokens without text, of which random weights choose many, are never sent one by one."""
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=7200)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    if "timings" not in answer:
        sys.exit(json.dumps(answer))
    timings, cached = answer["timings"], (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return timings["prompt_ms"] / 1000, timings["predicted_per_second"], cached


def measure(port, depths, fresh, tokens, reps, vocabulary):
    source = random.Random(1)
    common = [source.randrange(vocabulary) for _ in range(max(depths))]
    ask(port, [source.randrange(vocabulary) for _ in range(64)], 4)
    for depth in sorted(depths):
        row = {"depth": depth}
        if depth:
            seconds, _, cached = ask(port, common[:depth] + [source.randrange(vocabulary)], 1)
            row |= {"fill_tokens": depth + 1 - cached, "fill_tokens_per_s": (depth + 1 - cached) / seconds}
        prefill, decode = [], []
        for _ in range(reps):
            prompt = common[:depth] + [source.randrange(vocabulary) for _ in range(fresh)]
            seconds, rate, cached = ask(port, prompt, tokens + 1)
            prefill.append((len(prompt) - cached) / seconds)
            decode.append(rate)
        yield row | {"prefill": statistics.median(prefill), "decode": statistics.median(decode)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--glint", required=True)
    parser.add_argument("--depths", type=lambda text: [int(n) for n in text.split(",")], default=[0, 4096, 32768, 131072])
    parser.add_argument("-p", type=int, default=512, help="fresh tokens of a prompt")
    parser.add_argument("-n", type=int, default=32, help="tokens to decode")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=1000, help="prompts are tokens below this")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("more", nargs="*", help="options of glint serve, after --")
    arguments = parser.parse_args()
    context = max(arguments.depths) + arguments.p + arguments.n + 64
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".log", delete=False))
        process, port = start([arguments.glint, "serve", arguments.model, "--port", str(free_port()), "--ctx", str(context),
                               "--parallel", "1", "--mtp", "off", *arguments.more], log)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        rows = []
        for row in measure(port, arguments.depths, arguments.p, arguments.n, arguments.reps, arguments.vocabulary):
            rows.append(row)
            if not arguments.json:
                fill = f"  (filled {row['fill_tokens']} at {row['fill_tokens_per_s']:.0f} tok/s)" if row["depth"] else ""
                print(f"depth {row['depth']:7}  pp{arguments.p} {row['prefill']:8.1f} tok/s  tg{arguments.n} {row['decode']:7.2f} tok/s{fill}",
                      flush=True)
        if arguments.json:
            print(json.dumps({"model": arguments.model, "rows": rows}))


if __name__ == "__main__":
    main()
