"""The connections of one member to all others."""

import threading

from nanokv.cluster.card import Card
from nanokv.cluster.kinds import Kind
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.place import is_near
from nanokv.cluster.wire.client import WireClient
from nanokv.errors import CacheClosed


class Ways:
    """A client for each process of another node, by its incarnation, with the seal of its card. From any thread.

    Args:
        secret: the cluster's. me: this member.
        place: of this process (`place.here`): who is near it is reached by its UNIX socket first.
        spin: as of `WireClient`.
    """

    def __init__(self, secret: bytes, me: Sender, place: str, spin: float = 0.0) -> None:
        self._secret, self._me, self._place, self._spin = secret, me, place, spin
        self._clients: dict[int, WireClient] = {}
        self._lock = threading.Lock()
        self._closed = False

    def to(self, card: Card) -> WireClient:
        """The client of a member."""
        found = self._clients.get(card.incarnation)
        if found is not None:
            return found
        addresses = (card.local, card.wire) if is_near(card, self._place) else (card.wire,)
        with self._lock:
            if self._closed:
                raise CacheClosed("this member has left the cluster")
            made = WireClient(
                self._secret,
                self._me,
                Sender(card.member, card.incarnation),
                tuple(filter(None, addresses)),
                self._spin,
                card.world,
                card.seal,
            )
            return self._clients.setdefault(card.incarnation, made)

    def ask(self, card: Card, kind: Kind, body: bytes, timeout: float) -> bytes:
        """What a member answers to a message. Raises as `WireClient.ask`."""
        return self.to(card).ask(kind, body, timeout)

    def way(self, card: Card) -> str:
        """The address by which a member was reached last; "": by none yet."""
        client = self._clients.get(card.incarnation)
        return "" if client is None else client.way

    def forget(self, incarnation: int) -> None:
        """A process is no member any more."""
        with self._lock:
            client = self._clients.pop(incarnation, None)
        if client is not None:
            client.leave()

    def close(self) -> None:
        """End all connections; who waits for an answer gets CacheClosed. Idempotent."""
        with self._lock:
            self._closed = True
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()
