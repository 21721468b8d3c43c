"""docs/openapi.json against the running server: whatever its schemas allow, and much that they do not, no answer is a
server error, and every answer has a status, a type and a shape that the document names."""

import json
import re

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from serving import ROOT, serve

DOCUMENT = json.loads((ROOT / "docs" / "openapi.json").read_text())
# Model output and prompts that the demo's 256 tokens of context can hold.
OPTIONS = ("--ctx", "256", "--parallel", "4", "--default-max-tokens", "8", "--slots")


@pytest.fixture(scope="module")
def served():
    with serve(*OPTIONS) as running:
        yield running


OPERATIONS = {f"{one.ok().method.upper()} {one.ok().path}": one.ok() for one in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()}


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_answer_is_one_that_the_document_names(served, name):
    @given(case=OPERATIONS[name].as_strategy())
    @settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def check(case):
        response = case.call(base_url=served.url, timeout=60)
        case.validate_response(response, checks=[
            schemathesis.checks.not_a_server_error,
            schemathesis.checks.status_code_conformance,
            schemathesis.checks.content_type_conformance,
            schemathesis.checks.response_schema_conformance,
        ])

    check()


def test_every_path_of_the_server_is_in_the_document(served):
    source = (ROOT / "src" / "server" / "routes.cc").read_text()
    paths = set(re.findall(r'\{"(/[^"]*)"', source)) | {"/v1" + p for p in re.findall(r'add_generate\(table, "([^"]*)"', source)}
    hidden = {"/", "/v1/health", "/ping", "/models", "/slots", "/v1/embeddings", "/v1/rerank", "/v1/score",
              "/v1/audio/transcriptions", "/v1/images/generations", "/v1/models/", "/models/"}
    assert paths - hidden <= set(DOCUMENT["paths"])
