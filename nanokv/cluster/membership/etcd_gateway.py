"""A small client of the JSON gateway of etcd, 3.4 and later: requests with an answer, and the stream of a watch.

Facts of the gateway that this relies on:
- Numbers of 64 bits are strings, bytes are base64, and fields with the value 0 are left out.
- A request that fails has a code of gRPC in its JSON; the status of HTTP differs between versions.
- The answer to a watch, or a keep-alive, is a stream: one JSON a line, each with a `result` or an `error`.
- A token for a user is forgotten after 5 minutes without use, and when etcd restarts: the client asks for a new one.
"""

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from nanokv.cluster.membership.addresses import EtcdAddress
from nanokv.cluster.resolving import address_of

Json = Mapping[str, Any]
Answer = tuple[http.client.HTTPResponse, socket.socket]  #: and the socket from which its body comes

INVALID, NOT_FOUND, DENIED, PRECONDITION, UNAUTHENTICATED = 3, 5, 7, 9, 16  # codes of gRPC
_UNANSWERED = (
    1,
    4,
    8,
    13,
    14,
)  #: codes after which another endpoint may do better: cancelled, too late, unavailable ...
_STALE = "revision in header is old"  #: etcd's words, under INVALID, for a token of before a change of users
_WATCH_HEADERS = {"Grpc-Metadata-hasleader": "true"}  # end a watch of an endpoint that was cut off from the others


class GatewayError(ConnectionError):
    """etcd answered with an error.

    Attributes:
        code: of gRPC; 0 if it is none of them.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class GatewayUnreachable(GatewayError):
    """An endpoint, or all of them, cannot be reached, or gave no proper answer."""


class Gateway:
    """One etcd, by one of its endpoints at a time; the next one if that fails. Any thread may call.

    Args:
        address: endpoints and credentials.
        patience: seconds for each step of an attempt (connect, send, receive) at one endpoint.
    """

    def __init__(self, address: EtcdAddress, patience: float) -> None:
        self._address = address
        self._patience = patience
        self._until = float("inf")
        self._lock = threading.Lock()
        self._at = 0
        self._connection: http.client.HTTPConnection | None = None
        self._token: str | None = None
        self._closed = False

    def call(self, path: str, body: Json) -> dict[str, Any]:
        """Send a request, which must be harmless to repeat, and return its answer, the first one of a stream.

        Raises:
            GatewayError: etcd refuses it.
            GatewayUnreachable: no endpoint answered within twice the patience.
        """
        deadline = time.monotonic() + 2 * self._patience
        with self._lock:
            for attempt in range(len(self._address.endpoints)):
                try:
                    return self._authorised(path, body)
                except GatewayUnreachable:
                    self._drop()
                    self._at += 1
                    if attempt + 1 == len(self._address.endpoints) or time.monotonic() >= min(deadline, self._until):
                        raise
        raise AssertionError("an etcd has endpoints")

    def stream(self, path: str, body: Json, silence: float) -> "Stream":
        """Send a request whose answers keep coming, on a connection of its own.

        Args:
            silence: seconds without an answer after which the stream ends.

        Raises:
            GatewayError: etcd refuses it, or cannot be reached.
        """
        with self._lock:
            if self._token is None:
                self._authenticate()
            token, connection = self._token, self._connect()
        try:
            return Stream(connection, _send(connection, path, body, _headers(token) | _WATCH_HEADERS), silence)
        except BaseException:
            connection.close()
            raise

    def avoid(self) -> None:
        """Open the next stream at the next endpoint."""
        with self._lock:
            self._at += 1

    def forget_token(self) -> None:
        """The next request asks for a new one."""
        with self._lock:
            self._token = None

    def hurry(self, seconds: float) -> None:
        """Let the call under way, and all later ones, end within about `seconds` from now."""
        self._until = time.monotonic() + seconds
        connection = self._connection
        if connection is not None:
            _interrupt(connection.sock)  # a call that hangs there fails; one that does not is sent again

    def close(self) -> None:
        """Close the connection. Later calls raise GatewayUnreachable. Idempotent."""
        with self._lock:
            self._closed = True
            self._drop()

    def _authorised(self, path: str, body: Json) -> dict[str, Any]:
        fresh = self._token is None
        if fresh:
            self._authenticate()
        try:
            return self._request(path, body)
        except GatewayError as error:
            if fresh or self._token is None or not is_stale(error):
                raise
        self._token = None
        self._authenticate()
        return self._request(path, body)

    def _authenticate(self) -> None:
        if self._address.user is not None:
            who = {"name": self._address.user, "password": self._address.password}
            self._token = str(self._request("/v3/auth/authenticate", who)["token"])

    def _request(self, path: str, body: Json) -> dict[str, Any]:
        idle = self._connection is not None
        if self._connection is None:
            self._connection = self._connect()
        try:
            return _answer(_send(self._connection, path, body, _headers(self._token))[0])
        except GatewayUnreachable as error:
            self._drop()
            if not idle or isinstance(error.__cause__, TimeoutError):
                raise
        return self._request(path, body)  # etcd may have closed a connection that was idle

    def _connect(self) -> http.client.HTTPConnection:
        if self._closed:
            raise GatewayUnreachable("this client is closed")
        host, port = self._address.endpoints[self._at % len(self._address.endpoints)]
        patience = min(self._patience, max(self._until - time.monotonic(), 0.05))
        return _Connection(host, port, patience, self._address.tls)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Connection(http.client.HTTPConnection):
    """A connection whose timeout is also that of the host's name."""

    def __init__(self, host: str, port: int, patience: float, tls: ssl.SSLContext | None) -> None:
        super().__init__(host, port, timeout=patience)
        self._patience, self._tls = patience, tls

    def connect(self) -> None:
        """Connect as the base does, with TLS if it is wanted."""
        address = address_of(self.host, time.monotonic() + self._patience)
        made = socket.create_connection((address, self.port), self._patience)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sock = made if self._tls is None else self._tls.wrap_socket(made, server_hostname=self.host)
        except BaseException:
            made.close()
            raise


class Stream:
    """Answers that keep coming. Iterated by one thread; `interrupt` is for others.

    Iterating raises GatewayError: etcd ended it with an error; GatewayUnreachable: it broke; TimeoutError: silence.
    """

    def __init__(self, connection: http.client.HTTPConnection, answer: Answer, silence: float) -> None:
        self._connection = connection
        self._response, self._socket = answer
        self._socket.settimeout(silence)
        _probe(self._socket, silence)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while line := self._line():
            yield _result(_parsed(line))
        raise GatewayUnreachable("etcd ended the stream")

    def interrupt(self) -> None:
        """Make the iteration end."""
        _interrupt(self._socket)

    def close(self) -> None:
        """Close the stream. Called by the thread that iterates."""
        self._response.close()
        self._connection.close()

    def _line(self) -> bytes:
        try:
            return self._response.readline()
        except TimeoutError:
            raise
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise GatewayUnreachable(f"the stream of etcd broke: {error!r}") from error


def is_stale(error: GatewayError) -> bool:
    """Whether a new token may help."""
    return error.code == UNAUTHENTICATED or (error.code == INVALID and _STALE in str(error))


def _headers(token: str | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    return headers if token is None else headers | {"Authorization": token}


def _send(connection: http.client.HTTPConnection, path: str, body: Json, headers: dict[str, str]) -> Answer:
    """Send a request, and wait for the head of its answer."""
    where = f"{connection.host}:{connection.port}"
    try:
        connection.request("POST", path, json.dumps(body).encode(), headers)
        sock = connection.sock
        assert sock is not None
        return connection.getresponse(), sock
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        raise GatewayUnreachable(f"{where} cannot be reached: {error or repr(error)}") from error


def _answer(response: http.client.HTTPResponse) -> dict[str, Any]:
    try:
        text = response.read()
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise GatewayUnreachable(f"the answer of etcd broke off: {error!r}") from error
    if response.status == http.client.NOT_FOUND and not text.startswith(b"{"):
        raise GatewayError("there is no JSON gateway of etcd 3.4 or later (HTTP 404)")
    return _result(_parsed(text.split(b"\n", 1)[0]))


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise GatewayUnreachable(f"this is no answer of etcd: {text[:200]!r}")
    return parsed


def _result(parsed: dict[str, Any]) -> dict[str, Any]:
    """What an answer says, of a stream or not; raises what it says of an error."""
    error = parsed.get("error")
    if error is not None or ("code" in parsed and "message" in parsed):
        told = error if isinstance(error, dict) else parsed
        code = int(told.get("code") or told.get("grpc_code") or 0)
        message = str(told.get("message", error))
        raise GatewayUnreachable(message, code) if code in _UNANSWERED else GatewayError(message, code)
    result = parsed.get("result", parsed)
    return result if isinstance(result, dict) else {}


def _interrupt(sock: socket.socket | None) -> None:
    if sock is not None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(
                sock, socket.SHUT_RDWR
            )  # of an SSLSocket, its own would pull TLS from under a reader


def _probe(sock: socket.socket, silence: float) -> None:
    """Let the kernel find out that a silent peer's host is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    every = max(1, round(silence / 20))
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        sock.setsockopt(socket.IPPROTO_TCP, option, every)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
