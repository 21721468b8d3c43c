#!/usr/bin/env python3
"""Runs each libFuzzer program of build/fuzz for some seconds, starting from tests/data/fuzz; findings end in build/fuzz/findings.

    python3 tests/run_fuzzers.py [--seconds N] [NAME ...]
"""

import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def fuzz(source, seconds):
    """Whether the target built from SOURCE ran for SECONDS without a finding."""
    name = source.stem.removesuffix("_fuzz")
    corpus, findings = ROOT / "build/fuzz/corpus" / name, ROOT / "build/fuzz/findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(exist_ok=True)
    seeds = ROOT / "tests/data/fuzz" / name
    command = [ROOT / "build/fuzz" / source.stem, f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048",
               "-print_final_stats=1", f"-artifact_prefix={findings}/{name}-", corpus, *([seeds] if seeds.is_dir() else [])]
    print(f"==> {name}", flush=True)
    return subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    sources = [s for s in sorted((ROOT / "tests").glob("*/*_fuzz.cc"))
               if not arguments.names or s.stem.removesuffix("_fuzz") in arguments.names]
    failed = [s.stem for s in sources if not fuzz(s, arguments.seconds)]
    print(f"{len(sources) - len(failed)} targets without a finding" + (f"; findings in {', '.join(failed)}" if failed else ""))
    return 1 if failed or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
