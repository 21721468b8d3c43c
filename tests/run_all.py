#!/usr/bin/env python3
"""Builds and runs every test, and ends in one line, "N passed, N failed".

    python3 tests/run_all.py [--jobs N] [--only STAGE ...] [--thorough]

Stages, in order: format (where clang-format-19 is installed), dev (warnings are errors; unit tests, layers, the Rust
crate), clients (the built program under pytest, in a virtual environment), asan (address and undefined behaviour), tsan
(what has threads). The tests of kernels, models and program run each instruction set that the machine has. A stage that
cannot be built counts as one failure. Logs stay in build/test/.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "test"
# What reads that which strangers send, and what it stands on. Kernels and models, which take as long to build again as all
# of these, join with --thorough.
ASAN_TESTS = ["base", "cache", "chat", "checkpoint", "engine", "server", "text"]
TSAN_TESTS = ["base", "engine", "server"]
THOROUGH = "--thorough" in sys.argv
STAGES_TO_RUN = []
PYTEST_FOLDERS = ["tests"]


class Tally:
    """What passed and what failed so far, with the names of the failures."""

    def __init__(self):
        self.passed = 0
        self.failures = []

    def add(self, passed, failures):
        self.passed += passed
        self.failures += failures


def run(command, log, **more):
    """Runs COMMAND with its output in the file LOG; its exit status."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as out:
        return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, **more).returncode


def show_tail(log, lines=40):
    text = log.read_text(errors="replace").splitlines()
    print("\n".join(f"    {line}" for line in text[-lines:]))
    print(f"    (all of it: {log.relative_to(ROOT)})")


def build(stage, preset, jobs, targets=()):
    """Configures and builds; whether it worked."""
    log = OUT / f"{stage}-build.log"
    aim = [f"--target={name}" for name in targets]
    good = run(["cmake", "--preset", preset], log) == 0
    good = good and run(["cmake", "--build", f"build/{preset}", "-j", str(jobs), *aim], log) == 0
    if not good:
        show_tail(log)
    return good


def gtest_counts(folder):
    """{program: (passed, names of failures)} from the XML files that the gtest programs left."""
    counts = {}
    for file in folder.glob("*.xml"):
        try:
            cases = xml.parse(file).getroot().iter("testcase")
        except xml.ParseError:
            continue  # the program died while writing; ctest reports it
        ran = [c for c in cases if c.get("status") == "run" and c.get("result") != "skipped"]
        bad = [f"{c.get('classname')}.{c.get('name')}" for c in ran if c.find("failure") is not None]
        counts[file.stem] = (len(ran) - len(bad), bad)
    return counts


def cargo_counts(text):
    """(passed, failed) summed over the result lines of `cargo test`, or None where there are none."""
    results = re.findall(r"test result: \w+\. (\d+) passed; (\d+) failed", text)
    return (sum(int(p) for p, _ in results), sum(int(f) for _, f in results)) if results else None


def ctest(tally, stage, preset, jobs, names=None, environment=None, excluded=()):
    """Runs ctest in build/PRESET and counts: a gtest program by its cases, the Rust crate by its tests, others as one."""
    out = OUT / stage
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    chosen = ["-R", "^(" + "|".join(names) + ")$"] if names else []
    chosen += ["-E", "^(" + "|".join(excluded) + ")$"] if excluded else []
    settings = dict(os.environ, GTEST_OUTPUT=f"xml:{out}/", **(environment or {}))
    log, report = OUT / f"{stage}-ctest.log", out / "ctest.junit"
    command = ["ctest", "--test-dir", f"build/{preset}", "-j", str(jobs), "--timeout", "900", "--no-tests=error",
               "--output-on-failure", "--output-junit", str(report), *chosen]
    status = run(command, log, env=settings)
    if not report.exists():
        show_tail(log)
        tally.add(0, [f"{stage}: ctest did not run"])
        return
    counts = gtest_counts(out)
    passed, failures = 0, []
    for case in xml.parse(report).getroot().iter("testcase"):
        name, good = case.get("name"), case.get("status") == "run"
        program_passed, bad = counts.get(name, counts.get(f"{name}_test", (None, [])))
        crate = cargo_counts(case.findtext("system-out") or "")
        if program_passed is not None:
            passed += program_passed
        elif crate is not None:
            passed += crate[0]
            bad = [f"Rust test {i + 1}" for i in range(crate[1])]
        elif good:
            passed += 1
        if not good and not bad:
            bad = ["ended badly outside its cases"]
        failures += [f"{stage}: {name}: {b}" for b in bad]
    if status != 0 and not failures:
        failures.append(f"{stage}: ctest ended with status {status}")
    if failures:
        show_tail(log, 80)
    tally.add(passed, failures)


def test_folders():
    """Folders of tests/ with a gtest program."""
    return sorted({f.parent.name for f in (ROOT / "tests").glob("*/*_test.cc")})


def stage_format(tally, jobs):
    if not shutil.which("clang-format-19"):
        print("    clang-format-19 is not installed: not checked")
        return
    files = [f for top in ("src", "tests", "bench") for f in (ROOT / top).rglob("*") if f.suffix in (".h", ".cc")]
    log = OUT / "format.log"
    good = run(["clang-format-19", "--dry-run", "-Werror", *map(str, sorted(files))], log) == 0
    if not good:
        show_tail(log, 20)
        print("    `make format` puts it right")
    tally.add(int(good), [] if good else ["format: some files are not formatted"])


def stage_dev(tally, jobs):
    """Without what the asan stage of this run builds and runs again: half an hour is all there is."""
    elsewhere = sanitized() if "asan" in STAGES_TO_RUN else []
    targets = [name for name in programs() if name not in map(target_of, elsewhere)]
    if build("dev", "dev", jobs, ["glint", *targets]):
        ctest(tally, "dev", "dev", jobs, excluded=elsewhere)
    else:
        tally.add(0, ["dev: does not build"])


def environment_python():
    """The interpreter of build/venv with tests/requirements.txt installed, or None."""
    venv, wanted, log = ROOT / "build/venv", ROOT / "tests/requirements.txt", OUT / "venv.log"
    python, stamp = venv / "bin/python", venv / "requirements.txt"
    if python.exists() and stamp.exists() and stamp.read_bytes() == wanted.read_bytes():
        return python
    system = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
    good = run([system, "-m", "venv", "--clear", str(venv)], log) == 0
    good = good and run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--retries", "5", "-r", str(wanted)], log) == 0
    if not good:
        show_tail(log)
        return None
    shutil.copyfile(wanted, stamp)
    return python


def stage_clients(tally, jobs):
    if not (ROOT / "build/dev/glint").exists():
        tally.add(0, ["clients: the dev build has no glint"])
        return
    python = environment_python()
    if python is None:
        tally.add(0, ["clients: no virtual environment"])
        return
    report, log = OUT / "pytest.xml", OUT / "pytest.log"
    report.unlink(missing_ok=True)
    settings = dict(os.environ, GLINT_BIN=str(ROOT / "build/dev/glint"), PYTHONDONTWRITEBYTECODE="1")
    status = run([str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", *PYTEST_FOLDERS], log, env=settings)
    if not report.exists():
        show_tail(log)
        tally.add(0, ["clients: pytest did not run"])
        return
    cases = list(xml.parse(report).getroot().iter("testcase"))
    skipped = [c for c in cases if c.find("skipped") is not None]
    bad = [f"clients: {c.get('classname')}.{c.get('name')}" for c in cases if c.find("failure") is not None or c.find("error") is not None]
    if status not in (0, 1) and not bad:
        bad = [f"clients: pytest ended with status {status}"]
    if bad:
        show_tail(log, 80)
    tally.add(len(cases) - len(skipped) - len(bad), bad)


def fuzz_programs(folders):
    return [f.stem for n in folders for f in sorted((ROOT / "tests" / n).glob("*_fuzz.cc"))]


def target_of(name):
    """The target of the ctest test NAME."""
    return name if name.endswith("_fuzz") else f"{name}_test"


def programs():
    return [target_of(n) for n in test_folders() + fuzz_programs(test_folders())]


def sanitized():
    """What the asan stage runs, by its names in ctest."""
    folders = test_folders() if THOROUGH else [n for n in test_folders() if n in ASAN_TESTS]
    return folders + fuzz_programs(folders)


def stage_asan(tally, jobs):
    # Not detect_stack_use_after_return: its stand-in for the stack is not aligned as GCC's 64-byte vectors need it.
    names = sanitized()
    if build("asan", "asan", jobs, map(target_of, names)):
        ctest(tally, "asan", "asan", jobs, names, environment={
            "ASAN_OPTIONS": "detect_stack_use_after_return=0:strict_string_checks=1:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1"})
    else:
        tally.add(0, ["asan: does not build"])


def stage_tsan(tally, jobs):
    present = [n for n in TSAN_TESTS if list((ROOT / "tests" / n).glob("*_test.cc"))]
    if build("tsan", "tsan", jobs, [f"{n}_test" for n in present]):
        ctest(tally, "tsan", "tsan", jobs, present, {
            "TSAN_OPTIONS": f"halt_on_error=1:second_deadlock_stack=1:suppressions={ROOT}/tests/tsan_suppressions.txt"})
    else:
        tally.add(0, ["tsan: does not build"])


STAGES = {"format": stage_format, "dev": stage_dev, "clients": stage_clients, "asan": stage_asan, "tsan": stage_tsan}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--thorough", action="store_true", help="kernels and models under AddressSanitizer too")
    arguments = parser.parse_args()
    STAGES_TO_RUN.extend(arguments.only)
    tally, begun = Tally(), time.monotonic()
    for name in arguments.only:
        before, bad_before, start = tally.passed, len(tally.failures), time.monotonic()
        print(f"==> {name}", flush=True)
        STAGES[name](tally, arguments.jobs)
        print(f"    {tally.passed - before} ok, {len(tally.failures) - bad_before} not ok, {time.monotonic() - start:.0f} s", flush=True)
    for failure in tally.failures:
        print(f"FAILED {failure}")
    print(f"==> all of it took {(time.monotonic() - begun) / 60:.1f} minutes")
    print(f"{tally.passed} passed, {len(tally.failures)} failed")
    return 1 if tally.failures or not tally.passed else 0


if __name__ == "__main__":
    sys.exit(main())
