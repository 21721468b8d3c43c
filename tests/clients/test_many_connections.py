"""Ten thousand connections that are open and idle, or stop in the middle of a header, do not stop a chat."""

import contextlib
import resource
import socket
import urllib.request

import pytest
import serving

COUNT = 10_000
MANY_BYTES = 64 << 20


def resident_bytes(served):
    with open(f"/proc/{served.process.pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))


def open_many(stack, port, first_bytes):
    """COUNT connections from several addresses, so that no address runs out of ports."""
    for index in range(COUNT):
        connection = stack.enter_context(socket.socket())
        connection.bind((f"127.0.0.{2 + index % 4}", 0))
        connection.settimeout(20)
        connection.connect(("127.0.0.1", port))
        if first_bytes:
            # The server may have closed it already, to make room.
            with contextlib.suppress(ConnectionError):
                connection.sendall(first_bytes)


@pytest.fixture(scope="module")
def served():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < COUNT + 200:
        pytest.skip(f"at most {hard} open files are allowed here, and {COUNT + 200} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with serving.serve() as server:
        yield server
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("first_bytes", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHos"], ids=["idle", "half a header"])
def test_a_chat_goes_on_beside_ten_thousand_connections(served, first_bytes):
    def ask():
        answer = served.client().chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "What is 17 + 25?"}], max_tokens=200, temperature=0
        )
        return answer.choices[0].message.content

    alone = ask()
    before = resident_bytes(served)
    with contextlib.ExitStack() as stack:
        open_many(stack, served.port, first_bytes)
        assert ask() == alone
        with urllib.request.urlopen(f"{served.url}/health", timeout=20) as health:
            assert health.status == 200
        assert resident_bytes(served) - before < MANY_BYTES
    assert ask() == alone
    assert resident_bytes(served) - before < MANY_BYTES
