"""A proxy in front of two vLLM servers: each request goes to the prefill server first, then to the decode server.

    nanokv vllm-flags MODEL          # prints the three command lines, this one too
    python examples/vllm_pd.py --port 8000 --prefill 8100 --decode 8200
    python examples/vllm_pd.py --port 8000 --prefill host-a:8100 --decode host-b:8200    # engines of a cluster

The prefill server generates one token, which is thrown away: it leaves the KV of the prompt's blocks in the memory of
the decode server, or in a cluster in its own, where the decode server finds it; under the hashes of the blocks. So the
proxy carries nothing from the one to the other. If the prefill server refuses a request (4xx), the client gets that
answer. If it fails (5xx) or does not answer, the decode server computes the prompt itself: this is logged, and counted
at /proxy/counts.

Headers pass both ways, but for those of one connection; answers are passed on as they come; a client that hangs up ends
its requests to the servers. It is an example: a thread for each connection, two servers, no balancing, no retries, and
it listens on this host only.
"""

import argparse
import http.client
import json
import logging
import re
import select
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from nanokv.seldom import Seldom

CONNECT_SECONDS = 5.0
PREFILL_SECONDS = 300.0  #: without a byte of the prefill server; then the decode server computes the prompt
PATIENCE = 600.0  #: seconds without a byte of the decode server
IDLE_SECONDS = 120.0  #: without a byte of a client, or until it takes one
MOST_BYTES = 256 << 20  #: of the body of a request
MOST_TRAILERS = 100
COMPLETIONS = ("/v1/completions", "/v1/chat/completions")
COUNTS = "/proxy/counts"
#: headers of one connection, not of a message, or made anew for each
HIDDEN = frozenset(
    (
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("content-length", "expect", "host"),
    )
)
Server = tuple[str, int]  #: host and port
Headers = list[tuple[str, str]]

logger = logging.getLogger("vllm_pd")


class ClientGone(Exception):
    """The client has hung up, or takes nothing."""


class BadRequest(Exception):
    """A request that cannot be read: a status and why."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


def server_at(text: str) -> Server:
    """A server, from `HOST:PORT` or the port of one on this host."""
    host, _, port = text.rpartition(":")
    return host.strip("[]") or "127.0.0.1", int(port)


def passed_on(headers: Headers) -> Headers:
    """The headers of a message without those of its connection, which `Connection` may name too."""
    named = {name.strip().lower() for key, value in headers if key.lower() == "connection" for name in value.split(",")}
    kept = [(name, value) for name, value in headers if name.lower() not in HIDDEN | named]
    return [(name, " ".join(value.split("\r\n"))) for name, value in kept]  # of a header that has several lines


def of_prefill(request: dict[str, Any]) -> dict[str, Any]:
    """The request as the prefill server gets it: its prompt, and one token."""
    left = {name: value for name, value in request.items() if name != "stream_options"}
    tokens = {name: 1 for name in ("max_tokens", "max_completion_tokens", "min_tokens") if name in request}
    return left | {"max_tokens": 1, "stream": False} | tokens


def has_hung_up(client: int) -> bool:
    """Whether the other side of a socket, of which this is the descriptor, sends no more."""
    poll = select.poll()
    poll.register(client, select.POLLRDHUP)
    return bool(poll.poll(0))


class HangUps:
    """Ends requests to servers whose clients have hung up: one thread looks at the sockets of all clients."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._lock = threading.Lock()
        self._under_way: dict[int, tuple[socket.socket, threading.Event]] = {}  # by the descriptor of the client
        self._closed = threading.Event()
        threading.Thread(target=self._look, name="hang-ups", daemon=True).start()

    def close(self) -> None:
        """Look no more. Requests that are under way go on, and who hangs up now is not seen."""
        self._closed.set()

    @contextmanager
    def end(self, client: socket.socket, upstream: socket.socket) -> Iterator[None]:
        """Shut `upstream` down, in a `with` block, as soon as `client` has hung up, or sends no more.

        Raises:
            ClientGone: in place of the error that comes of that.
        """
        number, gone = client.fileno(), threading.Event()
        with self._lock:
            self._under_way[number] = upstream, gone
            if not self._epoll.closed:  # the proxy ends, and requests that are under way go on
                self._epoll.register(number, select.EPOLLRDHUP | select.EPOLLONESHOT)
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            if gone.is_set():
                raise ClientGone from error
            raise
        finally:
            with self._lock:
                del self._under_way[number]
                if not self._epoll.closed:
                    self._epoll.unregister(number)

    def _look(self) -> None:
        while not self._closed.is_set():
            for number, _ in self._epoll.poll(timeout=1.0):
                with self._lock, suppress(KeyError, OSError):  # it has ended, or is no longer connected
                    if not has_hung_up(number):  # another client, that has got the number meanwhile
                        continue
                    upstream, gone = self._under_way[number]
                    gone.set()
                    upstream.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._epoll.close()


class ProxyServer(ThreadingHTTPServer):
    """The proxy. `counts`: what has happened, by name."""

    request_queue_size = 1024  # connections that come at once, as those of a benchmark do
    daemon_threads = True

    def __init__(self, port: int, prefill: Server, decode: Server) -> None:
        super().__init__(("127.0.0.1", port), Proxy)
        self.prefill, self.decode = prefill, decode
        self.hang_ups, self.seldom = HangUps(), Seldom(logger)
        self._lock, self.counts = threading.Lock(), Counter[str]()

    def count(self, what: str, line: str = "") -> None:
        """Count what has happened; and log it, once a minute."""
        with self._lock:
            self.counts[what] += 1
        if line:
            self.seldom.warn(what, line)

    def server_close(self) -> None:
        """Listen no more."""
        super().server_close()
        self.hang_ups.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up between two requests is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Proxy(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    disable_nagle_algorithm = True
    server: ProxyServer

    def _serve(self) -> None:
        """One request."""
        self._begun = False  #: an answer was begun
        try:
            body = self._body()
            if re.fullmatch(r"[!-~]+", self.path) is None:
                raise BadRequest(HTTPStatus.BAD_REQUEST, "the path has characters that must be escaped")
        except BadRequest as error:
            self.send_error(error.status, str(error))  # and closes: where the next request begins is not known
            return
        try:
            if self.path == COUNTS:
                self._tell_counts()
                return
            self.server.count("requests")
            if self.command == "POST" and self.path.partition("?")[0] in COMPLETIONS and self._prefill(body):
                return
            self._decode(body)
        except ClientGone:
            self.server.count("client_gone")
            self.close_connection = True

    do_GET = do_HEAD = do_OPTIONS = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        """The servers log requests."""

    # --- what the client sends ---
    def _body(self) -> bytes:
        """The whole body.

        Raises:
            BadRequest: it has no length that can be told, is too long, or ends early.
        """
        coding = self.headers.get_all("Transfer-Encoding")
        lengths = set(self.headers.get_all("Content-Length", ()))
        if coding is not None:
            if lengths:
                raise BadRequest(HTTPStatus.BAD_REQUEST, "a body has a length or chunks, not both")
            if [each.strip().lower() for each in coding] != ["chunked"]:
                raise BadRequest(HTTPStatus.NOT_IMPLEMENTED, "only the transfer coding `chunked` is read")
            return self._chunks()
        if not lengths:
            return b""
        (length, *more) = lengths
        if more or re.fullmatch(r"[0-9]{1,18}", length.strip()) is None:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "Content-Length must be one number")
        return self._exactly(int(length))

    def _exactly(self, nbytes: int, before: int = 0) -> bytes:
        if before + nbytes > MOST_BYTES:
            raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has {MOST_BYTES} bytes at the most")
        body = self.rfile.read(nbytes)
        if len(body) < nbytes:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "the body ends early")
        return body

    def _chunks(self) -> bytes:
        parts, total = [], 0
        while True:
            line = self.rfile.readline(1 << 10)
            size = re.fullmatch(rb"([0-9a-fA-F]{1,8})[ \t]*(;.*)?\r?\n", line)
            if size is None:
                raise BadRequest(HTTPStatus.BAD_REQUEST, "a chunk begins with its length, in hexadecimal digits")
            nbytes = int(size[1], 16)
            if not nbytes:
                break
            parts.append(self._exactly(nbytes, total))
            total += nbytes
            if self.rfile.readline(3) not in (b"\r\n", b"\n"):
                raise BadRequest(HTTPStatus.BAD_REQUEST, "a chunk is longer than it says")
        for _ in range(MOST_TRAILERS):  # which nobody reads
            if self.rfile.readline(1 << 16) in (b"\r\n", b"\n"):
                break
        else:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "the body does not end with an empty line")
        return b"".join(parts)

    # --- the servers ---
    @contextmanager
    def _ask(self, server: Server, body: bytes, seconds: float) -> Iterator[http.client.HTTPResponse]:
        """The answer of a server to the client's request with this body. Raises OSError, HTTPException."""
        with ExitStack() as stack:
            connection = http.client.HTTPConnection(*server, timeout=CONNECT_SECONDS)
            stack.callback(connection.close)
            connection.connect()
            upstream = connection.sock
            upstream.settimeout(seconds)
            stack.enter_context(self.server.hang_ups.end(self.connection, upstream))
            connection.putrequest(self.command, self.path, skip_accept_encoding=True)
            for name, value in passed_on(self.headers.items()):
                connection.putheader(name, value)
            if body or self.command in ("POST", "PUT", "PATCH"):
                connection.putheader("Content-Length", str(len(body)))
            connection.putheader("Connection", "close")
            connection.endheaders(body or None)
            answer = connection.getresponse()
            stack.callback(answer.close)
            yield answer

    def _prefill(self, body: bytes) -> bool:
        """Have the prompt computed. True: the prefill server refuses the request, and the client has its answer."""
        try:
            request = json.dumps(of_prefill(json.loads(body))).encode()
        except (ValueError, AttributeError, RecursionError):  # no JSON, or no object: the decode server says so
            return False
        try:
            with self._ask(self.server.prefill, request, PREFILL_SECONDS) as answer:
                if HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                    self.server.count("prefill_refused")
                    self._relay(answer)
                    return True
                answer.read()
                if answer.status == HTTPStatus.OK:
                    self.server.count("prefilled")
                    return False
                why = f"answers {answer.status}"
        except (OSError, http.client.HTTPException) as error:
            if self._is_cut_off(error):
                return True
            why = f"does not answer: {error!r}"
        self.server.count("prefill_failed", f"the prefill server {why}; the decode server computes the prompt")
        return False

    def _decode(self, body: bytes) -> None:
        try:
            with self._ask(self.server.decode, body, PATIENCE) as answer:
                self._relay(answer)
        except (OSError, http.client.HTTPException) as error:
            if self._is_cut_off(error):
                return
            self.server.count("decode_failed", f"the decode server does not answer: {error!r}")
            status = HTTPStatus.GATEWAY_TIMEOUT if isinstance(error, TimeoutError) else HTTPStatus.BAD_GATEWAY
            self.send_error(status, "the decode server does not answer")

    def _is_cut_off(self, error: Exception) -> bool:
        """Whether an answer had begun when this happened. Then the connection ends, and the client sees it."""
        if self._begun:
            self.close_connection = True
            self.server.count("cut_off", f"an answer was cut off: {error!r}")
        return self._begun

    def _relay(self, answer: http.client.HTTPResponse) -> None:
        """Pass an answer on, part by part as it comes. Raises OSError, HTTPException: it is cut off."""
        length = None if answer.chunked else answer.getheader("Content-Length")
        if length is not None and not length.isdecimal():
            raise http.client.HTTPException(f"Content-Length: {length}")
        self._begun = True
        self.send_response_only(answer.status, answer.reason)
        for name, value in passed_on(answer.getheaders()):
            self.send_header(name, value)
        empty = self.command == "HEAD" or answer.status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
        old = self.request_version in ("HTTP/0.9", "HTTP/1.0")  # whose answers end with the connection
        chunked = length is None and not empty and not old
        if length is not None:
            self.send_header("Content-Length", length)
        elif chunked:
            self.send_header("Transfer-Encoding", "chunked")
        if old or self.close_connection:
            self.send_header("Connection", "close")
        self._send_headers()
        left = 0 if empty or length is None else int(length)
        while not empty and (part := answer.read1(1 << 16)):
            left -= len(part)
            self._send(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
        if chunked:
            self._send(b"0\r\n\r\n")
        elif left > 0:
            raise http.client.IncompleteRead(b"", left)

    def _tell_counts(self) -> None:
        told = json.dumps(self.server.counts).encode()
        self.send_response_only(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(told)))
        self._send_headers()
        if self.command != "HEAD":
            self._send(told)

    def _send_headers(self) -> None:
        with _to_client():
            self.end_headers()

    def _send(self, part: bytes) -> None:
        with _to_client():
            self.wfile.write(part)


@contextmanager
def _to_client() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ClientGone from error


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="A proxy in front of a prefill and a decode server.")
    parser.add_argument("--port", type=int, default=8000)
    where = "[HOST:]PORT of the {} server"
    parser.add_argument("--prefill", type=server_at, default="8100", help=where.format("prefill"))
    parser.add_argument("--decode", type=server_at, default="8200", help=where.format("decode"))
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with ProxyServer(given.port, given.prefill, given.decode) as server:
        prefill, decode = (f"{host}:{port}" for host, port in (given.prefill, given.decode))
        print(f"http://127.0.0.1:{server.server_port} -> prefill {prefill}, decode {decode}", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
