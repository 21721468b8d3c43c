"""/metrics as Prometheus itself reads it, and the dashboard's queries against it."""

import json
import re
import urllib.error
import urllib.request

import serving
from prometheus_client.parser import text_string_to_metric_families


def scrape(url):
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return {family.name: family for family in text_string_to_metric_families(answer.read().decode())}


def total(families, name, **labels):
    return sum(
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and all(sample.labels[key] == value for key, value in labels.items())
    )


def test_counts_are_what_a_client_saw():
    with serving.serve("--metrics-compat", "vllm,llamacpp") as served:
        client = served.client()
        before = scrape(served.url)
        answers = [
            client.chat.completions.create(
                model="demo",
                messages=[{"role": "user", "content": f"What is {n} + 25?"}],
                max_tokens=20,
                extra_body={"no_such_field": 1},
            )
            for n in range(3)
        ]
        with urllib.request.urlopen(f"{served.url}/health", timeout=30) as health:
            assert health.status == 200
        try:
            urllib.request.urlopen(f"{served.url}/nothing/here", timeout=30)
        except urllib.error.HTTPError as error:
            assert error.code == 404
        after = scrape(served.url)

        def gained(name, **labels):
            return total(after, name, **labels) - total(before, name, **labels)

        prompt = sum(answer.usage.prompt_tokens for answer in answers)
        completion = sum(answer.usage.completion_tokens for answer in answers)
        assert gained("vllm:prompt_tokens_total") == gained("llamacpp:prompt_tokens_total") == prompt
        assert gained("vllm:generation_tokens_total") == gained("llamacpp:tokens_predicted_total") == completion
        assert gained("vllm:request_success_total") == 3
        assert gained("vllm:time_to_first_token_seconds_count") == 3
        assert gained("vllm:e2e_request_latency_seconds_count") == 3
        assert gained("vllm:request_generation_tokens_sum") == completion
        assert gained("glint_http_requests_total", path="/v1/chat/completions", code="200") == 3
        assert gained("glint_http_requests_total", path="other", code="404") == 1
        assert gained("glint_http_unknown_fields_total", field="no_such_field") == 3
        assert total(after, "vllm:num_requests_running") == total(after, "vllm:num_requests_waiting") == 0
        for family in after.values():
            assert family.documentation
            assert family.type in ("counter", "gauge", "histogram")


def test_the_dashboard_finds_its_metrics():
    dashboard = json.loads((serving.ROOT / "docs" / "grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    wanted = {name for query in queries for name in re.findall(r"\b(?:vllm:|llamacpp:|glint_|process_)\w+", query)}
    with serving.serve() as served:
        served.client().models.list()
        served_names = {sample.name for family in scrape(served.url).values() for sample in family.samples}
    # Memory by kind appears when a part of the server tells of it.
    assert wanted - served_names <= {"glint_mem_bytes"}
    assert len(queries) >= 12
