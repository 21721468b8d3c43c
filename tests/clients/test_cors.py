"""Which web pages may call the server."""

import http.client
import json

import pytest
import serving

ORIGIN = "https://chat.example.org"
BODY = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4})


def call(served, method, path, origin, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    connection.request(method, path, body, {"Origin": origin, **headers})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


@pytest.fixture(scope="module")
def served():
    with serving.serve("--cors-origins", ORIGIN) as server:
        yield server


def test_a_named_origin_may_ask_and_read(served):
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}
    answer = call(served, "OPTIONS", "/v1/chat/completions", ORIGIN, **asked)
    assert answer.status == 204
    assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert answer.headers["Access-Control-Allow-Methods"] == "GET, POST, OPTIONS"
    assert answer.headers["Access-Control-Allow-Headers"] == "authorization, content-type"
    assert answer.headers["Access-Control-Max-Age"] == "600"
    for body, status in ((BODY, 200), (BODY[:-1] + ', "stream": true}', 200), ("{", 400)):
        answer = call(served, "POST", "/v1/chat/completions", ORIGIN, body)
        assert answer.status == status
        assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert answer.headers["Access-Control-Expose-Headers"] == "x-request-id"
        assert answer.headers["Vary"] == "Origin"
        assert answer.headers["Access-Control-Allow-Credentials"] is None


def test_other_origins_may_not(served):
    for origin in ("https://evil.example", "null", ORIGIN + ".evil.example"):
        asked = {"Access-Control-Request-Method": "POST"}
        for answer in (
            call(served, "OPTIONS", "/v1/chat/completions", origin, **asked),
            call(served, "GET", "/health", origin),
            call(served, "POST", "/v1/chat/completions", origin, BODY),
        ):
            assert not [name for name in answer.headers if name.lower().startswith("access-control-")]
        assert answer.status == 403


def test_nobody_may_unless_asked():
    with serving.serve() as server:
        answer = call(server, "OPTIONS", "/v1/models", ORIGIN, **{"Access-Control-Request-Method": "GET"})
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")]
        assert call(server, "POST", "/v1/chat/completions", ORIGIN, BODY).status == 403
