"""What no well-behaved client sends: raw sockets against `glint serve`."""

import json
import pathlib
import socket
import time

import pytest
from serving import serve

MIB = 1 << 20


@pytest.fixture(scope="module")
def served():
    with serve("--max-body-mib", "1") as running:
        yield running


def connect(served):
    return socket.create_connection(("127.0.0.1", served.port), timeout=30)


def read_response(connection):
    """(status, body) of one response with a Content-Length."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        assert piece, "closed before a response"
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(next(l.split(b":")[1] for l in head.split(b"\r\n") if l.lower().startswith(b"content-length")))
    while len(body) < length:
        piece = connection.recv(65536)
        assert piece, "closed inside a response"
        body += piece
    return int(head.split()[1]), body


def post(path, body, headers=b""):
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n%s" % (path, len(body), headers, body)


def send_all_it_takes(connection, piece, total):
    sent = 0
    try:
        while sent < total:
            connection.sendall(piece)
            sent += len(piece)
    except OSError:
        pass
    return sent


def memory_of(process):
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def test_floods_are_refused_and_memory_stays_flat(served):
    before = memory_of(served.process)
    floods = [
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Flood: ", b"a" * 65536, b"431"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"X-A: b\r\n" * 8192, b"431"),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1073741824\r\n\r\n", b"a" * 65536, b"413"),
    ]
    for head, piece, status in floods:
        with connect(served) as connection:
            connection.sendall(head)
            assert send_all_it_takes(connection, piece, 100 * MIB) < 60 * MIB
            try:
                assert connection.recv(12).endswith(status)
            except ConnectionResetError:
                pass  # it said so before we were done shouting
    assert memory_of(served.process) - before < 30 * MIB


def test_limits_are_named(served):
    with connect(served) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n")
        status, body = read_response(connection)
        assert status == 413 and "--max-body-mib" in json.loads(body)["error"]["message"]


def test_slow_headers_time_out(served):
    with connect(served) as connection:
        begun = time.monotonic()
        connection.sendall(b"GET /health HT")
        assert read_response(connection)[0] == 408
        assert 5 < time.monotonic() - begun < 20


def test_deep_json_is_refused(served):
    for deep in (b"[" * 10000, b"[" * 10000 + b"]" * 10000, b'{"a":' * 10000 + b"1" + b"}" * 10000):
        with connect(served) as connection:
            connection.sendall(post(b"/v1/chat/completions", b'{"messages":[],"x":' + deep + b"}"))
            status, body = read_response(connection)
            assert status == 400 and json.loads(body)["error"]["code"] == "invalid_json"


def test_broken_bodies_are_refused(served):
    bodies = {
        b"": "invalid_json",
        b"{": "invalid_json",
        b"\xff\xfe": "invalid_json",
        b"[1]": "invalid_type",
        b"{}": "missing_field",
        b'{"messages":[]}': "invalid_value",
        b'{"messages":[{"role":"user","content":"a"}],"temperature":1e999}': "invalid_json",
    }
    with connect(served) as connection:  # one connection: an error does not end it
        for body, code in bodies.items():
            connection.sendall(post(b"/v1/chat/completions", body))
            status, answer = read_response(connection)
            assert (status, json.loads(answer)["error"]["code"]) == (400, code), body


def test_expect_100_continue_is_answered(served):
    body = b'{"messages":[{"role":"user","content":"What is 4 + 1?"}],"max_tokens":1}'
    with connect(served) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        assert connection.recv(64) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert read_response(connection)[0] == 200


def test_pipelined_requests_are_answered_in_order(served):
    body = b'{"messages":[{"role":"user","content":"What is 4 + 1?"}],"max_tokens":2}'
    with connect(served) as connection:
        reader = connection.makefile("rb")
        connection.sendall(post(b"/v1/chat/completions", body) + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for expected in (b"chat.completion", b'{"status":"ok"}'):
            assert reader.readline().startswith(b"HTTP/1.1 200")
            length = 0
            while (line := reader.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length"):
                    length = int(line.split(b":")[1])
            assert expected in reader.read(length)


def test_chunked_bodies_and_any_content_type(served):
    body = b'{"messages":[{"role":"user","content":"What is 4 + 1?"}],"max_tokens":1}'
    with connect(served) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        )
        assert read_response(connection)[0] == 200


def test_a_rebound_name_is_refused(served):
    with connect(served) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert read_response(connection)[0] == 403


def test_it_still_answers_after_all_that(served):
    with connect(served) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_response(connection) == (200, b'{"status":"ok"}')
