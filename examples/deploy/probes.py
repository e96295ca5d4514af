"""What Kubernetes asks a node, over HTTP: GET /ready, /live and /metrics.

Ready is the lease: this node's own card is in the registry, and the registry answers. Nothing else is asked, because
the others use a node exactly as long as its card is there. Live is the poller: it comes round. A registry that is away
does not make a node dead: to restart it would lose its objects, and bring no registry back.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from examples.deploy.metrics import exposition
from nanokv import NanoKVCluster
from nanokv.cluster.card import member_name
from nanokv.cluster.membership import Membership, open_membership
from nanokv.errors import CacheClosed, WaitTimeout

ROUND = 2.0  #: seconds for the poller to come round; it takes milliseconds
FIRST_LOOK = 10.0  #: seconds for the registry to show this node's card for the first time


class Probes:
    """The answers. Before the node has joined, and while it leaves, it is not ready, and lives.

    Its view of the registry is one of its own: a member takes itself for one, whatever the registry says meanwhile.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._cluster: NanoKVCluster | None = None
        self._registry: Membership | None = None
        self._member, self._card = "", b""
        self._leaving = False

    @contextlib.contextmanager
    def of(self, cluster: NanoKVCluster, url: str) -> Iterator[None]:
        """Answer for a node that has joined."""
        options = cluster.options
        with open_membership(url, ttl=options.ttl, timeout=options.join_timeout) as registry:
            self._member = member_name(cluster.node, cluster.world.rank)
            end = time.monotonic() + FIRST_LOOK
            while (card := registry.members().get(self._member)) is None and time.monotonic() < end:
                time.sleep(0.01)
            self._card = card or b""
            self._registry, self._cluster = registry, cluster
            try:
                yield
            finally:
                self.leave()
                self._registry = self._cluster = None

    def leave(self) -> None:
        """Not ready from now on."""
        self._leaving = True

    def why_not_ready(self) -> str:
        """Empty: ready."""
        cluster, registry = self._cluster, self._registry
        if self._leaving:
            return "leaving"
        if cluster is None or registry is None:
            return "has not joined yet"
        try:
            away = max(registry.away_for(), cluster.registry_away)
        except CacheClosed:
            return "leaving"
        if away:
            return f"the registry has not answered for {away:.1f} s"
        held = registry.members().get(self._member)
        if held is None or held != self._card:
            return "the registry has no card of this node" if held is None else "the registry has another process' card"
        return ""

    def why_dead(self) -> str:
        """Empty: it lives."""
        cluster = self._cluster
        if cluster is None or self._leaving:
            return ""
        try:
            cluster.world.flush(timeout=ROUND)
        except WaitTimeout as error:
            return str(error)
        except CacheClosed:
            return ""
        return ""

    def metrics(self) -> str:
        """The metrics in Prometheus' text format."""
        cluster = self._cluster
        stats: dict[str, Any] = {}
        if cluster is not None:
            with contextlib.suppress(CacheClosed):
                stats = cluster.stats()
        return exposition(self._node, stats, is_ready=not self.why_not_ready())


@contextlib.contextmanager
def serve(probes: Probes, bind: str, port: int) -> Iterator[int]:
    """Answer at a port while the block runs; 0: any that is free. Gives the port.

    Raises:
        OSError: it is in use, or `bind` is no address of this host.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, probes)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: probes come every few seconds."""

    server = ThreadingHTTPServer((bind, port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="nanokv-probes", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(request: BaseHTTPRequestHandler, probes: Probes) -> None:
    """One request."""
    if request.path == "/metrics":
        _reply(request, 200, probes.metrics())
        return
    asked = {"/ready": probes.why_not_ready, "/live": probes.why_dead}.get(request.path)
    if asked is None:
        _reply(request, 404, "GET /ready, /live or /metrics\n")
        return
    why = asked()
    _reply(request, 503 if why else 200, f"{why or 'yes'}\n")


def _reply(request: BaseHTTPRequestHandler, code: int, text: str) -> None:
    raw = text.encode()
    with contextlib.suppress(ConnectionError):  # who asked has gone
        request.send_response(code)
        request.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        request.send_header("Content-Length", str(len(raw)))
        request.end_headers()
        request.wfile.write(raw)
