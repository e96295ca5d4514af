"""A proxy in front of two vLLM servers: each request goes to the prefill server first, then to the decode server.

    nanokv vllm-flags MODEL          # prints the three command lines, this one too
    python examples/vllm_pd.py --port 8000 --prefill 8100 --decode 8200
    python examples/vllm_pd.py --port 8000 --prefill host-a:8100 --decode host-b:8200    # engines of a cluster

The prefill server generates one token, which is thrown away: it leaves the KV of the prompt's blocks in the memory of
the decode server, or in a cluster in its own, where the decode server finds it; under the hashes of the blocks. So the
proxy carries nothing from the one to the other, and if prefill fails, decode computes the prompt itself.
"""

import argparse
import http.client
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATIENCE = 600.0  #: seconds for one answer
Server = tuple[str, int]  #: host and port
HIDDEN = {"transfer-encoding", "content-length", "connection", "date", "server"}  #: headers of one connection


def server_at(text: str) -> Server:
    """A server, from `HOST:PORT` or the port of one on this host."""
    host, _, port = text.rpartition(":")
    return host.strip("[]") or "127.0.0.1", int(port)


def ask(server: Server, method: str, path: str, body: bytes | None) -> http.client.HTTPResponse:
    """The answer of a server."""
    connection = http.client.HTTPConnection(*server, timeout=PATIENCE)
    connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
    return connection.getresponse()


def of_prefill(request: dict[str, Any]) -> dict[str, Any]:
    """The request as the prefill server gets it: its prompt, and one token."""
    left = {name: value for name, value in request.items() if name != "stream_options"}
    tokens = {name: 1 for name in ("max_tokens", "max_completion_tokens", "min_tokens") if name in request}
    return left | {"max_tokens": 1, "stream": False} | tokens


class Proxy(BaseHTTPRequestHandler):
    """One request of a client."""

    protocol_version = "HTTP/1.1"
    prefill: Server
    decode: Server

    def do_GET(self) -> None:
        """/v1/models, /health and the like: those of the decode server."""
        self._decode("GET", None)

    def do_POST(self) -> None:
        """A completion: prefill, then decode."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path in ("/v1/completions", "/v1/chat/completions"):
            self._prefill(body)
        self._decode("POST", body)

    def _decode(self, method: str, body: bytes | None) -> None:
        try:
            answer = ask(self.decode, method, self.path, body)
        except OSError as error:
            self.send_error(http.HTTPStatus.BAD_GATEWAY, f"the decode server does not answer: {error}")
        else:
            self._relay(answer)

    def _prefill(self, body: bytes) -> None:
        try:
            request = of_prefill(json.loads(body))
            answer = ask(self.prefill, "POST", self.path, json.dumps(request).encode())
            answer.read()
            if answer.status != http.HTTPStatus.OK:
                self.log_message("the prefill server answers %d", answer.status)
        except (
            OSError,
            ValueError,
            AttributeError,
        ) as error:  # no server; no JSON; no object: decode says what is wrong
            self.log_message("no prefill: %s", error)

    def _relay(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HIDDEN:
                self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while part := answer.read1(1 << 16):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="A proxy in front of a prefill and a decode server.")
    parser.add_argument("--port", type=int, default=8000)
    where = "[HOST:]PORT of the {} server"
    parser.add_argument("--prefill", type=server_at, default="8100", help=where.format("prefill"))
    parser.add_argument("--decode", type=server_at, default="8200", help=where.format("decode"))
    given = parser.parse_args()
    Proxy.prefill, Proxy.decode = given.prefill, given.decode
    prefill, decode = (f"{host}:{port}" for host, port in (given.prefill, given.decode))
    print(f"http://127.0.0.1:{given.port} -> prefill {prefill}, decode {decode}", flush=True)
    with ThreadingHTTPServer(("127.0.0.1", given.port), Proxy) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
