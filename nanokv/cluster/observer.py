"""A look at a cluster from outside, for the command line: its members' cards, and what they answer."""

import json
import secrets
import time
from types import TracebackType
from typing import Any, NamedTuple, Self

from nanokv.cluster import place
from nanokv.cluster.card import Card, CardRefused
from nanokv.cluster.kinds import Kind
from nanokv.cluster.membership import open_membership
from nanokv.cluster.messages.replies import Refused, Unanswered
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.options import given_secret
from nanokv.cluster.wire.ways import Ways
from nanokv.errors import LinkUnavailable

_FIRST_LOOK = 1.0  #: seconds to wait for members of a registry that has shown none yet


class Member(NamedTuple):
    """A member as the registry shows it."""

    name: str
    card: Card | None
    why: str  #: why there is no card


class Observer:
    """Reads the registry of a cluster, and asks its members. It joins nothing, and makes nothing.

    Args:
        url: as of `NanoKVCluster`. The secret is that of NANOKV_CLUSTER_SECRET, or of the registry.
        timeout: seconds that the registry, and each member, has to answer.

    Raises:
        InvalidArgument, ClusterUnavailable: as `open_membership`; or there is no cluster.
    """

    def __init__(self, url: str, timeout: float = 3.0) -> None:
        given = given_secret()
        self._membership = open_membership(url, timeout=timeout, looks=True)
        self._timeout = timeout
        try:
            self._secret = given or self._membership.secret()
            self._ways = Ways(self._secret, Sender(f"observer-{secrets.token_hex(4)}", time.time_ns()), place.here())
        except BaseException:
            self._membership.close()
            raise

    def members(self) -> list[Member]:
        """All members, by name. One that died lately may be among them."""
        end = time.monotonic() + _FIRST_LOOK
        while not (found := self._membership.members()) and time.monotonic() < end:
            time.sleep(0.01)
        return [self._member(name, sealed) for name, sealed in sorted(found.items())]

    def _member(self, name: str, sealed: bytes) -> Member:
        try:
            return Member(name, Card.opened(sealed, self._secret), "")
        except CardRefused as error:
            return Member(name, None, str(error))

    def ask(self, card: Card, kind: Kind, body: bytes = b"") -> dict[str, Any] | str:
        """What a member answers, or why it does not."""
        try:
            found: dict[str, Any] = json.loads(self._ways.ask(card, kind, body, self._timeout))
            return found
        except Unanswered:
            return "no answer"
        except LinkUnavailable as error:  # it is sealed, and this host has no library for that
            return str(error)
        except Refused as error:
            return str(error)

    def close(self) -> None:
        """End connections and threads. Idempotent."""
        self._ways.close()
        self._membership.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
