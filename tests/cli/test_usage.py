"""Help, version, wrong options, exit codes."""

import pytest

COMMANDS = ["chat", "run", "serve", "inspect", "bench", "score", "quantize", "tokenize"]


def test_the_overview_lists_every_command(run):
    done = run("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"\n  {command} " in done.stdout
    alone = run()
    assert alone.returncode == 2 and alone.stdout == "" and "Commands:" in alone.stderr


def test_the_version_is_one_line(run):
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("glint ") and done.stdout.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_usage_groups_and_an_example(run, command):
    done = run(command, "--help")
    assert done.returncode == 0 and done.stderr == ""
    assert f"Usage: glint {command} " in done.stdout
    assert "--log-level" in done.stdout
    assert f"\n  glint {command}" in done.stdout.split("Example")[1]
    assert all(len(line) <= 120 for line in done.stdout.splitlines())
    assert run("help", command).stdout == done.stdout


@pytest.mark.parametrize(("arguments", "words"), [
    (["caht"], "did you mean chat?"),
    (["run", "--tmep", "1"], "unknown option '--tmep'; did you mean --temp?"),
    (["run"], "-p TEXT"),
    (["run", "-p", "x", "--temp", "hot"], "--temp"),
    (["run", "-p", "x", "-n", "0"], "at least 1"),
    (["run", "-p", "x", "--isa", "mmx"], "--isa"),
    (["run", "-p", "x", "--ctx", "9000"], "8192"),
    (["run", "-p", "x", "--memory", "lots"], "20GiB"),
    (["run", "-p", "x", "--think", "--no-think"], "contradict"),
    (["run", "-p", "x", "--kv-cache", "int8"], "'int8' is none of bf16|fp8|fp4|auto"),
    (["run", "-p", "x", "--weights", "q5"], "--weights: 'q5' is none of as-is|q8|q4"),
    (["inspect", "--weights", "q5"], "--weights: 'q5' is none of as-is|q8|q4"),
    (["bench", "--repack", "on"], "--repack: 'on' is none of auto|off"),
    (["serve", "--numa", "distribute"], "--numa: 'distribute' is none of none|interleave"),
    (["bench", "-p", "512,x"], "--prompt-tokens: 'x'"),
    (["run", "-p", "x", "--mtp", "9"], "'9' guesses are not between 0 and 8"),
    (["serve", "--mtp", "-1"], "between 0 and 8"),
    (["chat", "--mtp", "many"], "'many' is none of auto|on|off"),
    (["bench", "--mtp", "1,x"], "'x' is no number of guesses between 0 and 8"),
    (["run", "-p", "x", "--compute", "f16"], "bf16|f32"),
    (["run", "-p", "x", "--chat-template", "nowhere.jinja"], "nowhere.jinja"),
    (["run", "demo", "more", "-p", "x"], "unexpected argument 'more'"),
    (["score", "demo"], "one of --ids, --tasks, --text"),
    (["score", "demo", "--ids", "x.json"], "-o FILE"),
    (["score", "demo", "--ids", "x.json", "-o", "y"], "x.json"),
    (["tokenize"], "MODEL"),
    (["tokenize", "demo", "--decode", "99999"], "99999"),
    (["bench", "-p", "0", "-n", "0"], "nothing to measure"),
    (["serve", "--port", "70000"], "65535"),
    (["serve", "--api-key", ""], "--api-key"),
    (["serve", "--chat-template-kwargs", "[1]"], "--chat-template-kwargs"),
])
def test_mistakes_end_with_2_and_say_what_is_wrong(run, arguments, words):
    done = run(*arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert done.stdout == ""


def test_options_come_from_the_environment(run):
    assert run("run", "-p", "x", env={"GLINT_TEMP": "hot"}).returncode == 2
    done = run("run", "-p", "Hello", env={"GLINT_MAX_TOKENS": "1", "GLINT_JSON": "1"})
    assert done.returncode == 0 and '"completion_tokens":1' in done.stdout
