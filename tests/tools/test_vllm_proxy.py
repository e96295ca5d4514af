"""The proxy of examples/vllm_pd.py between clients and two servers of the standard library, which note what they get.

With servers of vLLM it is run by tests/engines/vllm/test_vllm_servers.py.
"""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from examples import vllm_pd
from tests.support.faults import Limits

SECONDS = 20.0  #: for anything here
COMPLETIONS = "/v1/completions"
PROMPT = {"prompt": "a b", "max_tokens": 9, "stream": True, "stream_options": {"include_usage": True}}


class Got(NamedTuple):
    """A request as a server got it."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


class Fake(ThreadingHTTPServer):
    """A server that answers as `status`, `parts` and `headers` say, with the parts as chunks, each after `step`."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FakeHandler)
        self.status, self.headers, self.parts = 200, [("Content-Type", "application/json")], [b'{"ok":', b" 1}"]
        self.length: int | None = None  # of a body that has one, in place of chunks
        self.closes_early = False
        self.got: list[Got] = []
        self.ended = threading.Event()  #: the client of a request has hung up before its answer was whole
        self.step = threading.Semaphore(10_000)  #: taken before each part

    def __enter__(self) -> "Fake":
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.step.release(10_000)
        self.shutdown()
        self.server_close()


class FakeHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Fake

    def _serve(self) -> None:
        fake, length = self.server, int(self.headers.get("Content-Length", 0))
        fake.got.append(Got(self.requestline, self.headers.items(), self.rfile.read(length)))
        while not fake.step.acquire(timeout=0.02):
            if vllm_pd.has_hung_up(self.connection.fileno()):
                fake.ended.set()
                self.close_connection = True
                return
        self.send_response(fake.status)
        for name, value in fake.headers:
            self.send_header(name, value)
        if fake.length is None:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(fake.length))
        self.end_headers()
        if self.command == "HEAD":
            return
        for part in fake.parts:
            self.wfile.write(part if fake.length is not None else b"%x\r\n%b\r\n" % (len(part), part))
            while not fake.step.acquire(timeout=0.02):
                if vllm_pd.has_hung_up(self.connection.fileno()):
                    fake.ended.set()
                    self.close_connection = True
                    return
        if fake.length is None and not fake.closes_early:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection |= fake.closes_early

    do_GET = do_HEAD = do_OPTIONS = do_POST = do_DELETE = _serve

    def log_message(self, *_: Any) -> None:
        pass


class Place(NamedTuple):
    """A proxy and its servers."""

    proxy: vllm_pd.ProxyServer
    prefill: Fake
    decode: Fake

    @contextmanager
    def connection(self) -> Iterator[http.client.HTTPConnection]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.proxy.server_port, timeout=SECONDS)) as made:
            yield made

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """The answer to a request on a connection of its own."""
        with self.connection() as connection:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer, answer.read()

    @contextmanager
    def raw(self, sent: bytes) -> Iterator[socket.socket]:
        """A connection over which these bytes were sent."""
        with socket.create_connection(("127.0.0.1", self.proxy.server_port), SECONDS) as made:
            made.sendall(sent)
            yield made

    def told(self, sent: bytes) -> bytes:
        """All that comes back until the proxy closes the connection."""
        with self.raw(sent) as client:
            parts = []
            while part := client.recv(1 << 16):
                parts.append(part)
            return b"".join(parts)

    def wait(self, what: str, count: int = 1) -> None:
        """Until the proxy has counted that."""
        deadline = time.monotonic() + SECONDS
        while self.proxy.counts[what] < count:
            assert time.monotonic() < deadline, (what, dict(self.proxy.counts))
            time.sleep(0.005)


@contextmanager
def proxy_to(prefill: vllm_pd.Server, decode: vllm_pd.Server) -> Iterator[vllm_pd.ProxyServer]:
    with vllm_pd.ProxyServer(0, prefill, decode) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.01,))
        thread.start()
        yield proxy
        proxy.shutdown()
        thread.join(SECONDS)


@pytest.fixture
def place() -> Iterator[Place]:
    with ExitStack() as stack:
        prefill, decode = stack.enter_context(Fake()), stack.enter_context(Fake())
        servers = [("127.0.0.1", fake.server_port) for fake in (prefill, decode)]
        yield Place(stack.enter_context(proxy_to(*servers)), prefill, decode)


def test_a_completion_is_computed_by_both_with_the_client_s_headers(place: Place) -> None:
    headers = {
        **{"Authorization": "Bearer secret", "X-Request-Id": "id-7", "traceparent": "00-ab-cd-01"},
        **{"Connection": "keep-alive, X-Hop", "X-Hop": "of this connection", "Content-Type": "application/json"},
    }
    answer, body = place.ask("POST", COMPLETIONS, json.dumps(PROMPT), headers)
    assert (answer.status, body) == (200, b'{"ok": 1}')
    (first,), (second,) = place.prefill.got, place.decode.got
    assert json.loads(first.body) == {"prompt": "a b", "max_tokens": 1, "stream": False}
    assert json.loads(second.body) == PROMPT
    for got in (first, second):
        for name in ("Authorization", "X-Request-Id", "traceparent", "Content-Type"):
            assert got.header(name) == [headers[name]]
        assert got.header("X-Hop") == [] and got.header("Connection") == ["close"]
        assert got.header("Content-Length") == [str(len(got.body))] and len(got.header("Host")) == 1
    assert place.proxy.counts == {"requests": 1, "prefilled": 1}


def test_headers_of_an_answer_pass_but_for_those_of_its_connection(place: Place) -> None:
    place.decode.headers += [("X-Request-Id", "of the server"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]
    place.decode.headers += [("Keep-Alive", "timeout=5"), ("Connection", "X-Hop"), ("X-Hop", "1")]
    answer, _ = place.ask("GET", "/v1/models")
    told = answer.getheaders()
    assert ("X-Request-Id", "of the server") in told and [v for k, v in told if k == "Set-Cookie"] == ["a=1", "b=2"]
    assert not {"keep-alive", "x-hop", "connection"} & {name.lower() for name, _ in told}
    assert [name for name, _ in told].count("Date") == 1 and place.prefill.got == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
def test_other_requests_go_to_the_decode_server(place: Place, method: str) -> None:
    place.decode.length, place.decode.parts = 5, [b"12345"]
    answer, body = place.ask(method, "/health?deep=1")
    assert place.decode.got[0].line == f"{method} /health?deep=1 HTTP/1.1" and place.prefill.got == []
    assert answer.getheader("Content-Length") == "5" and body == (b"" if method == "HEAD" else b"12345")


def test_a_connection_serves_one_request_after_another(place: Place) -> None:
    with place.connection() as connection:
        for number in range(3):
            connection.request("POST", COMPLETIONS, json.dumps(PROMPT | {"number": number}))
            assert connection.getresponse().read() == b'{"ok": 1}'
            connection.request("HEAD", "/health")
            assert connection.getresponse().read() == b""
        sock = connection.sock
        assert sock is not None and len(place.decode.got) == 6
    both = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert place.told(both).count(b"200 OK") == 2  # sent at once


def test_a_body_in_chunks(place: Place) -> None:
    given = json.dumps(PROMPT).encode()
    answer, _ = place.ask("POST", COMPLETIONS, iter([given[:10], given[10:11], given[11:]]))
    assert answer.status == 200 and json.loads(place.prefill.got[0].body)["max_tokens"] == 1
    assert place.decode.got[0].body == given and place.decode.got[0].header("Transfer-Encoding") == []
    extended = b"3;name=value\r\nabc\r\n0\r\nX-Trailer: 1\r\n\r\n"
    head = b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    assert b"200 OK" in place.told(head + extended) and place.decode.got[1].body == b"abc"


POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (POST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", b"400"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n", b"400"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n-2\r\nab\r\n0\r\n\r\n", b"400"),
        (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc", b"400"),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", b"501"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n", b"413"),
        (POST + b"Content-Length: 99999999999999\r\n\r\n", b"413"),
        (POST + b"Content-Length: -1\r\n\r\n", b"400"),
        (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", b"400"),
        (POST + b"Content-Length: one\r\n\r\n", b"400"),
        (b"GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (b"BREW /coffee HTTP/1.1\r\nHost: x\r\n\r\n", b"501"),
    ],
)
def test_a_request_that_cannot_be_read_is_refused_and_the_connection_closed(
    place: Place, sent: bytes, status: bytes
) -> None:
    assert place.told(sent).split(b" ", 2)[1] == status
    assert place.prefill.got == place.decode.got == []


def test_a_request_that_ends_early_is_not_sent_on(place: Place) -> None:
    with place.raw(POST + b"Content-Length: 10\r\n\r\nabc") as client:
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1 << 16).split(b" ", 2)[1] == b"400"
    assert place.prefill.got == place.decode.got == []


def test_a_body_that_is_no_object_goes_to_the_decode_server_alone(place: Place) -> None:
    place.decode.status = 400
    for body in ("no JSON", "[1]", '"text"', "[" * 100_000, ""):
        assert place.ask("POST", COMPLETIONS, body)[0].status == 400
    assert place.prefill.got == [] and len(place.decode.got) == 5


def test_an_answer_is_passed_on_as_it_comes(place: Place) -> None:
    place.decode.headers = [("Content-Type", "text/event-stream")]
    place.decode.parts = [b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n"]
    place.decode.step = threading.Semaphore(1)  # the head and the first part
    with place.connection() as connection:
        connection.request("POST", COMPLETIONS, json.dumps(PROMPT))
        answer = connection.getresponse()
        assert answer.getheader("Content-Type") == "text/event-stream"
        for part in place.decode.parts:
            assert answer.read1(1000) == part  # while the server waits
            place.decode.step.release()
        assert answer.read() == b""


def test_an_answer_to_an_old_client_ends_with_the_connection(place: Place) -> None:
    told = place.told(b"GET /v1/models HTTP/1.0\r\n\r\n")
    head, _, body = told.partition(b"\r\n\r\n")
    assert body == b'{"ok": 1}' and b"Transfer-Encoding" not in head and b"Connection: close" in head


@pytest.mark.parametrize("length", [None, 50])
def test_an_answer_that_is_cut_off_is_cut_off_for_the_client_too(place: Place, length: int | None) -> None:
    place.decode.closes_early, place.decode.length = True, length
    with place.connection() as connection:
        connection.request("POST", COMPLETIONS, json.dumps(PROMPT))
        answer = connection.getresponse()
        with pytest.raises(http.client.IncompleteRead):
            answer.read()
    place.wait("cut_off")


@pytest.mark.parametrize("status", [400, 401, 404, 429])
def test_what_the_prefill_server_refuses_is_refused(place: Place, status: int) -> None:
    place.prefill.status, place.prefill.parts = status, [b'{"error": "words"}']
    place.prefill.headers = [("Retry-After", "3")]
    answer, body = place.ask("POST", COMPLETIONS, json.dumps(PROMPT))
    assert (answer.status, body, answer.getheader("Retry-After")) == (status, b'{"error": "words"}', "3")
    assert place.decode.got == [] and place.proxy.counts["prefill_refused"] == 1


def test_a_refusal_that_is_cut_off_is_followed_by_nothing(place: Place) -> None:
    place.prefill.status, place.prefill.closes_early, place.prefill.parts = 400, True, [b"wor"]
    body = json.dumps(PROMPT).encode()
    told = place.told(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert told.count(b"HTTP/1.1") == 1 and told.endswith(b"3\r\nwor\r\n") and place.decode.got == []
    assert place.proxy.counts["cut_off"] == 1 and place.proxy.counts["prefill_failed"] == 0


def test_a_prefill_server_that_fails_leaves_the_prompt_to_decode(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.prefill.status = 500
    for _ in range(3):
        assert place.ask("POST", COMPLETIONS, json.dumps(PROMPT))[0].status == 200
    place.prefill.server_close()
    place.prefill.shutdown()
    assert place.ask("POST", COMPLETIONS, json.dumps(PROMPT))[1] == b'{"ok": 1}'
    assert place.proxy.counts["prefill_failed"] == 4 and len(place.decode.got) == 4
    (record,) = caplog.records  # once a minute
    assert "the prefill server answers 500; the decode server computes the prompt" in record.message


def test_a_decode_server_that_is_not_there(place: Place) -> None:
    place.decode.shutdown()
    place.decode.server_close()
    answer, body = place.ask("GET", "/health")
    assert answer.status == 502 and b"the decode server does not answer" in body
    answer, body = place.ask("GET", "/proxy/counts")
    assert json.loads(body) == {"requests": 1, "decode_failed": 1}


def test_a_decode_server_that_says_nothing(place: Place, limits: Limits) -> None:
    limits(vllm_pd, PATIENCE=0.1)
    place.decode.step = threading.Semaphore(0)
    assert place.ask("GET", "/health")[0].status == 504


@pytest.mark.parametrize("where", ["prefill", "decode"])
def test_a_client_that_hangs_up_ends_its_request(place: Place, where: str) -> None:
    server: Fake = getattr(place, where)
    server.step = threading.Semaphore(0)
    body = json.dumps(PROMPT).encode()
    with place.raw(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body):
        deadline = time.monotonic() + SECONDS
        while not server.got and time.monotonic() < deadline:
            time.sleep(0.005)
    assert server.ended.wait(SECONDS)
    place.wait("client_gone")
    assert len(place.decode.got) == (where == "decode"), "a request whose client had gone was begun"
    assert place.proxy.counts["prefill_failed"] == place.proxy.counts["cut_off"] == 0


def test_a_client_that_hangs_up_while_it_reads_ends_its_request(place: Place) -> None:
    place.decode.step = threading.Semaphore(2)
    place.decode.parts = [b"data: 1\n\n"] * 5
    with place.connection() as connection:
        connection.request("POST", COMPLETIONS, json.dumps(PROMPT))
        assert connection.getresponse().read1(1000)
    assert place.decode.ended.wait(SECONDS)  # although the server has sent nothing since
    place.wait("client_gone")


def test_many_clients_come_at_once(place: Place) -> None:
    """With an accept queue of five most of them would wait for a second SYN, a second later or more."""
    assert place.proxy.request_queue_size >= 1024
    with ExitStack() as stack:
        started = time.monotonic()
        clients = [
            stack.enter_context(place.raw(b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
            for _ in range(128)
        ]
        assert all(b"200 OK" in client.recv(1 << 16) for client in clients)
        assert time.monotonic() - started < SECONDS
    assert len(place.decode.got) == 128


def test_the_prefill_server_is_asked_for_one_token() -> None:
    asked = vllm_pd.of_prefill({"messages": [], "max_completion_tokens": 9, "min_tokens": 3, "stream": True, "n": 1})
    tokens = {"max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 1}
    assert asked == {"messages": [], "stream": False, "n": 1} | tokens


def test_an_answer_whose_length_is_no_number_is_none(place: Place) -> None:
    place.decode.headers, place.decode.length = [], 5
    place.decode.parts = [b"12345"]
    place.decode.headers = [("Content-Length", "five")]
    assert place.ask("GET", "/health")[0].status == 502


def test_addresses() -> None:
    assert vllm_pd.server_at("8100") == ("127.0.0.1", 8100)
    assert vllm_pd.server_at("host:8100") == ("host", 8100) and vllm_pd.server_at("[::1]:1") == ("::1", 1)


def test_a_request_outlives_the_look_for_hang_ups() -> None:
    hang_ups = vllm_pd.HangUps()
    client, far = socket.socketpair()
    with closing(client), closing(far), hang_ups.end(client, far):
        hang_ups.close()
        for thread in threading.enumerate():
            if thread.name == "hang-ups":
                thread.join(SECONDS)
                assert not thread.is_alive()
        with hang_ups.end(far, client):  # and so does one that begins late
            pass
