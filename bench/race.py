#!/usr/bin/env python3
"""Races engines that are already built over one GGUF file, and prints one table in Markdown.

    bench/race.py --model FILE.gguf --glint build/glint --llama-bench PATH --ik-bench PATH

Engines: glint (`glint bench`), llama.cpp (`llama-bench`, `llama-batched-bench`) and ik_llama.cpp (programs of the same
names). Any set of them may be given. Every figure of every engine is a process of its own, with the same file and the same
number of threads, and the engines take turns: A B, B A, A B, ... A slow minute of the machine then meets all of them. The
table has medians. Beside them stand the speed at which this machine read memory in those minutes and what glint's speed is
of its floor, both from `glint bench`.

Figures: pp N is prefill of N tokens; tg N @ d D decodes N tokens behind D; tg N x P decodes with P sequences at once, each
behind --parallel-depth tokens (the sum of their speeds). An engine that fails, or lacks an option, gets n/a and a line below
the table that says why.
"""

import argparse
import dataclasses
import json
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys


@dataclasses.dataclass(frozen=True)
class Figure:
    kind: str  # "pp" or "tg"
    tokens: int
    depth: int = 0
    parallel: int = 1

    def __str__(self):
        depth = f" @ d{self.depth}" if self.depth else ""
        return f"{self.kind}{self.tokens}{depth}" + (f" x {self.parallel}" if self.parallel > 1 else "")


class Failed(Exception):
    """Why there is no figure, in a few words."""


class Lost(Failed):
    """The program ended well, but its figure is not in what it printed."""


# ---- engines: the command of a figure, and the tokens per second in what it prints


class Glint:
    name = "glint"

    def __init__(self, program, extra):
        self.program, self.extra = program, extra
        self.bandwidths = []  # bytes per second, one per run
        self.of_floor = {}  # figure -> shares

    def command(self, model, threads, figure):
        tokens = ["-p", figure.tokens, "-n", 0] if figure.kind == "pp" else ["-p", 0, "-n", figure.tokens]
        return [self.program, "bench", model, "-t", threads, *tokens, "-d", figure.depth, "--parallel", figure.parallel,
                "--reps", 1, "--json", *self.extra]

    def speed(self, figure, stdout, _stderr):
        report = json.loads(stdout)
        (result,) = report["results"]
        self.bandwidths.append(report["machine"]["read_bytes_per_s"])
        self.of_floor.setdefault(figure, []).append(result["of_floor"])
        return result["tokens_per_s"]


class Llama:
    """llama.cpp's programs."""

    name = "llama.cpp"
    bench_flags = []
    batched_flags = []

    def __init__(self, program, batched, extra, batched_extra):
        self.program, self.extra, self.batched_extra = program, extra, batched_extra
        self.batched = batched or str(pathlib.Path(program).with_name("llama-batched-bench"))

    def depth_flags(self, figure):
        return ["-p", 0, "-n", figure.tokens, "-d", figure.depth]

    def command(self, model, threads, figure):
        if figure.parallel > 1:
            room = figure.parallel * (figure.depth + figure.tokens + 1)
            return [self.batched, "-m", model, "-t", threads, "-c", room, "-npp", figure.depth, "-ntg", figure.tokens,
                    "-npl", figure.parallel, *self.batched_flags, *self.batched_extra]
        if figure.kind == "pp":
            tokens = ["-p", figure.tokens, "-n", 0]
        elif figure.depth == 0:
            tokens = ["-p", 0, "-n", figure.tokens]
        else:
            tokens = self.depth_flags(figure)
        return [self.program, "-m", model, "-t", threads, *tokens, "-r", 1, "-o", "json", *self.bench_flags, *self.extra]

    def speed(self, figure, stdout, stderr):
        if figure.parallel > 1:
            return batched_speed(figure, stdout + "\n" + stderr)
        want = (figure.tokens, 0) if figure.kind == "pp" else (0, figure.tokens)
        for row in json.loads(stdout):
            # A depth is either a field of its own, or the prompt that a decoding test starts behind.
            depth = row.get("n_depth", row["n_prompt"] if row["n_gen"] else 0)
            prompt = row["n_prompt"] if "n_depth" in row or not row["n_gen"] else 0
            if (prompt, row["n_gen"], depth) == (*want, figure.depth):
                return row["avg_ts"]
        raise Failed("it did not measure what was asked")


class IkLlama(Llama):
    """ik_llama.cpp, with what its users turn on for these models."""

    name = "ik_llama.cpp"
    bench_flags = ["-mla", 3, "-fa", 1, "-fmoe", 1, "-rtr", 1]
    batched_flags = ["-mla", 3, "-rtr"]  # -fa and -fmoe are on by themselves

    def depth_flags(self, figure):
        return ["-p", 0, "-n", 0, "-gp", f"{figure.depth},{figure.tokens}"]


def batched_speed(figure, text):
    """S_TG of the row of `figure` in the table that llama-batched-bench prints."""
    header = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "S_TG t/s" in cells:
            header = cells
        elif header and len(cells) == len(header) and cells[0].isdigit():
            row = dict(zip(header, cells))
            if (int(row["TG"]), int(row["B"])) == (figure.tokens, figure.parallel):
                return float(row["S_TG t/s"])
    raise Lost("its table has no such row")


# ---- the race

ATTEMPTS = 3  # llama-batched-bench prints from a thread of its own, and sometimes ends before its last line is out


def complaint(process):
    """The line of a failed process that most likely says what went wrong."""
    lines = [line.strip() for line in (process.stderr + "\n" + process.stdout).splitlines() if line.strip()]
    telling = [line for line in lines if any(word in line.lower() for word in ("error", "assert", "invalid", "fail"))]
    return f"exit {process.returncode}: " + (telling or lines or ["no word"])[0][:160]


def measure(engine, figure, model, threads, timeout):
    for attempt in range(ATTEMPTS):
        try:
            return measure_once(engine, figure, model, threads, timeout)
        except Lost:
            if attempt + 1 == ATTEMPTS:
                raise


def measure_once(engine, figure, model, threads, timeout):
    command = [str(word) for word in engine.command(model, threads, figure)]
    try:
        process = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout, check=False)
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise Failed(f"took longer than {timeout} s") from error
    if process.returncode != 0:
        raise Failed(complaint(process))
    try:
        return engine.speed(figure, process.stdout, process.stderr)
    except (ValueError, KeyError, TypeError) as error:
        raise Failed(f"its output cannot be read ({error})") from error


def race(engines, figures, model, threads, reps, timeout, report=lambda text: None):
    """{(engine name, figure): [tokens per second, ...]} and {(engine name, figure): why there are none}."""
    speeds, failures = {}, {}
    for rep in range(reps):
        for figure in figures:
            for engine in engines if rep % 2 == 0 else engines[::-1]:
                key = (engine.name, figure)
                if key in failures:
                    continue
                try:
                    speed = measure(engine, figure, model, threads, timeout)
                    speeds.setdefault(key, []).append(speed)
                    report(f"{rep + 1}/{reps} {figure} {engine.name}: {speed:.2f}")
                except Failed as failure:
                    failures[key] = str(failure)
                    speeds.pop(key, None)
                    report(f"{rep + 1}/{reps} {figure} {engine.name}: n/a, {failure}")
    return speeds, failures


def table(engines, figures, speeds, failures):
    """Lines of Markdown: medians, ratios of the first engine to each other one, and what failed."""
    first, others = engines[0], engines[1:]
    floors = isinstance(first, Glint)
    head = ["tok/s"] + [engine.name for engine in engines] + [f"{first.name} / {other.name}" for other in others]
    head += ["of floor"] if floors else []
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for figure in figures:
        medians = [statistics.median(speeds[engine.name, figure]) if (engine.name, figure) in speeds else None
                   for engine in engines]
        row = [str(figure)] + ["n/a" if speed is None else f"{speed:.2f}" for speed in medians]
        row += [f"{medians[0] / other:.2f}" if medians[0] and other else "n/a" for other in medians[1:]]
        if floors:
            shares = first.of_floor.get(figure)
            row.append(f"{100 * statistics.median(shares):.0f} %" if shares and medians[0] else "n/a")
        lines.append(row)
    text = ["| " + " | ".join(row) + " |" for row in lines]
    if failures:
        text.append("")
        text += [f"n/a: {name}, {figure}: {why}" for (name, figure), why in failures.items()]
    return text


def whole_numbers(text):
    numbers = [int(word) for word in text.split(",") if word]
    if not all(number >= 0 for number in numbers):
        raise argparse.ArgumentTypeError("negative")
    return numbers


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a GGUF file that all the engines read")
    parser.add_argument("--glint", metavar="PATH", help="glint")
    parser.add_argument("--llama-bench", metavar="PATH", help="llama.cpp's llama-bench")
    parser.add_argument("--ik-bench", metavar="PATH", help="ik_llama.cpp's llama-bench")
    parser.add_argument("--llama-batched", metavar="PATH", help="llama-batched-bench (default: beside --llama-bench)")
    parser.add_argument("--ik-batched", metavar="PATH", help="the same of ik_llama.cpp")
    parser.add_argument("--glint-args", type=shlex.split, default=[], metavar="ARGS", help='more options: --glint-args="--weights q8"')
    parser.add_argument("--llama-args", type=shlex.split, default=[], metavar="ARGS")
    parser.add_argument("--llama-batched-args", type=shlex.split, default=[], metavar="ARGS")
    parser.add_argument("--ik-args", type=shlex.split, default=[], metavar="ARGS")
    parser.add_argument("--ik-batched-args", type=shlex.split, default=[], metavar="ARGS")
    parser.add_argument("--thp", action="store_true", help="transparent huge pages for ik_llama.cpp (-thp 1)")
    parser.add_argument("-t", "--threads", type=int, required=True)
    parser.add_argument("--reps", type=int, default=5, help="the median of so many runs counts (default 5)")
    parser.add_argument("-p", "--pp", type=whole_numbers, default=[512, 2048], metavar="N,...", help="default 512,2048")
    parser.add_argument("-n", "--tokens", type=int, default=64, help="tokens of a decoding run (default 64)")
    parser.add_argument("-d", "--depths", type=whole_numbers, default=[0, 4096], metavar="N,...", help="default 0,4096")
    parser.add_argument("--parallel", type=whole_numbers, default=[8], metavar="N,...", help="default 8; 0: none")
    parser.add_argument("--parallel-depth", type=int, default=128, help="tokens behind which they decode (default 128)")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds of one run (default 1800)")
    parser.add_argument("--save", metavar="FILE", help="also write every single speed, as JSON")
    return parser.parse_args()


def chosen_engines(arguments):
    a = arguments
    engines = [Glint(a.glint, a.glint_args)] if a.glint else []
    if a.llama_bench:
        engines.append(Llama(a.llama_bench, a.llama_batched, a.llama_args, a.llama_batched_args))
    if a.ik_bench:
        pages, batched_pages = (["-thp", 1], ["-thp"]) if a.thp else ([], [])
        engines.append(IkLlama(a.ik_bench, a.ik_batched, pages + a.ik_args, batched_pages + a.ik_batched_args))
    return engines


def chosen_figures(arguments):
    figures = [Figure("pp", tokens) for tokens in arguments.pp if tokens > 0]
    if arguments.tokens > 0:
        figures += [Figure("tg", arguments.tokens, depth) for depth in arguments.depths]
        figures += [Figure("tg", arguments.tokens, arguments.parallel_depth, count)
                    for count in arguments.parallel if count > 1]
    return figures


def processor():
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown processor"


def main():
    arguments = parse_arguments()
    engines, figures = chosen_engines(arguments), chosen_figures(arguments)
    if not engines or not figures:
        sys.exit("race.py: name at least one engine and one figure; see --help")
    speeds, failures = race(engines, figures, arguments.model, arguments.threads, arguments.reps, arguments.timeout,
                            lambda text: print(text, file=sys.stderr, flush=True))
    print(f"{pathlib.Path(arguments.model).name}, {arguments.threads} threads, {processor()}, medians of {arguments.reps}\n")
    print("\n".join(table(engines, figures, speeds, failures)))
    if isinstance(engines[0], Glint) and engines[0].bandwidths:
        rates = [rate / 1e9 for rate in engines[0].bandwidths]
        print(f"\nread bandwidth meanwhile: {statistics.median(rates):.1f} GB/s ({min(rates):.1f} to {max(rates):.1f})")
    if arguments.save:
        rows = [{"engine": name, "figure": str(figure), "tokens_per_s": values} for (name, figure), values in speeds.items()]
        pathlib.Path(arguments.save).write_text(json.dumps(rows, indent=2) + "\n")
    sys.exit(0 if speeds else 1)


if __name__ == "__main__":
    main()
