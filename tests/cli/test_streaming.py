"""Experts on disk: the same answers, within the limit, and what is said of it."""

import json

import pytest

SUM = "What is 17 + 25?"


@pytest.mark.parametrize("more", [[], ["--mtp", "2"], ["--weights", "q8"], ["--expert-read-ahead", "off"]])
def test_the_answer_is_that_of_a_model_in_memory(run, tmp_path, more):
    history = tmp_path / "history.json"
    arguments = ["run", "-p", SUM, "--temp", 0, *more]
    streamed = [*arguments, "--stream-experts", "on", "--memory", "260MiB", "--expert-history", history]
    done = run(*streamed, "--log-level", "info")
    assert done.stdout == run(*arguments).stdout and done.returncode == 0, done.stderr
    assert "experts are streamed from disk" in done.stderr
    assert json.loads(history.read_text())["expert_history"] == 1
    history.write_text("no JSON")
    again = run(*streamed, "--log-level", "info")
    assert again.stdout == done.stdout and "the expert history is not used" in again.stderr


def test_what_does_not_fit_is_refused_and_what_cannot_be_streamed_too(run):
    refused = run("run", "-p", SUM, "--stream-experts", "on", "--memory", "20MiB")
    assert refused.returncode == 3 and "even with the experts on disk" in refused.stderr
    both = run("run", "-p", SUM, "--stream-experts", "on", "--mmap")
    assert both.returncode == 3 and "--mmap" in both.stderr


def test_inspect_and_bench_tell_of_it(run):
    options = ["--stream-experts", "on", "--memory", "260MiB", "--expert-history", "off"]
    plan = json.loads(run("inspect", "demo", *options, "--json").stdout)["plan"]
    assert plan["streams"] and plan["total_bytes"] <= plan["limit"] == 260 << 20
    assert 0 < plan["experts_in_memory"] <= plan["experts"] and 0 < plan["assumed_hit_rate"] <= 1
    assert plan["expected_tokens_per_s"] > 0
    text = run("inspect", "demo", *options).stdout
    assert "experts are streamed from disk" in text and "experts chosen alike" in text
    whole = json.loads(run("inspect", "demo", "--memory", "260MiB", "--json").stdout)["plan"]
    assert not whole["streams"]
    bench = json.loads(run("bench", "demo", *options, "-p", 0, "-n", 8, "-d", 0, "--parallel", 1, "--reps", 1, "--json").stdout)
    experts = bench["results"][0]["experts"]
    assert 0 <= experts["hit_rate"] <= 1 and experts["uses"] > 0
    assert bench["peak_memory_bytes"] < 260 << 20
