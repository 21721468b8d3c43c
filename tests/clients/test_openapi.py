"""docs/openapi.json against the running server: whatever its schemas allow, and much that they do not, no answer is a
server error, and every answer has a status, a type and a shape that the document names."""

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from serving import ROOT, serve

DOCUMENT = json.loads((ROOT / "docs" / "openapi.json").read_text())
# Model output and prompts that the demo's 256 tokens of context can hold.
OPTIONS = ("--ctx", "256", "--parallel", "4", "--default-max-tokens", "8", "--slots")


@pytest.fixture(scope="module")
def served():
    with serve(*OPTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def api_schema(served):
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    schema.config.update(base_url=served.url)
    return schema


schema = schemathesis.pytest.from_fixture("api_schema")


@schema.parametrize()
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_answer_is_one_that_the_document_names(case):
    response = case.call(timeout=60)
    case.validate_response(response, checks=[
        schemathesis.checks.not_a_server_error,
        schemathesis.checks.status_code_conformance,
        schemathesis.checks.content_type_conformance,
        schemathesis.checks.response_schema_conformance,
    ])


def test_every_path_of_the_server_is_in_the_document(served):
    import re
    source = (ROOT / "src" / "server" / "routes.cc").read_text()
    paths = set(re.findall(r'\{"(/[^"]*)"', source)) | {"/v1" + p for p in re.findall(r'add_generate\(table, "([^"]*)"', source)}
    hidden = {"/", "/v1/health", "/ping", "/models", "/slots", "/v1/embeddings", "/v1/rerank", "/v1/score",
              "/v1/audio/transcriptions", "/v1/images/generations"}
    assert paths - hidden <= set(DOCUMENT["paths"])
