"""What a membership and its registries have in common: the contract of a registry, types, limits, errors.

A registry knows which processes are in a cluster: etcd (`etcd`), or a folder that all of them see (`files`). It keeps,
for each member, a card under a lease, and a secret of the cluster. `membership` is what callers use; it owns the thread
that does the duties of its registry.

A registry that does not answer raises OSError, of which the errors of the gateway of etcd are a kind.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from nanokv.errors import ClusterUnavailable, InvalidArgument

__all__ = [
    "MAX_CARD",
    "SECRET_BYTES",
    "ClusterUnavailable",
    "MemberEntry",
    "Listener",
    "Registry",
    "checked_card",
    "is_name",
    "member_id",
    "number_after",
]

Listener = Callable[[Mapping[str, bytes]], object]  #: is given all members with their cards

NO_SECRET = "no member has joined, or all of them are given it (NANOKV_CLUSTER_SECRET)"
SECRET_BYTES = 32
MAX_CARD = 1 << 20  #: bytes; etcd refuses requests of more than 1.5 MiB, in which a card takes a third more as text
_LAST_NUMBER = (1 << 63) - 1
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


class MemberEntry(NamedTuple):
    """What a registry says of a member."""

    card: bytes
    incarnation: str  #: differs with each time that a process joins


class Registry(Protocol):
    """One kind of registry. `duties` are done by one thread; the other methods may be called from any other.

    Attributes:
        what: names it in messages, without credentials.
        period: seconds between two rounds of `duties`.
        duties: what to do in each round, by the name under which the pulse knows it.
    """

    what: str
    period: float
    duties: Mapping[str, Callable[[], None]]

    def open(self, *, make: bool = True) -> None:
        """Reach it, and learn who is there. May be tried again after an OSError.

        Raises:
            ClusterUnavailable: it refuses this process, and trying again would not help.
            OSError: it does not answer.
        """
        ...

    def start(self) -> None:
        """Begin to follow changes. Once, after `open`."""
        ...

    def claim(self, member: str, card: bytes, pause: Callable[[], None]) -> None:
        """Publish a card under a lease, and tell the view that it is this process' own.

        Waits, by calling `pause`, until it knows whether a former holder is dead.

        Raises:
            ClusterUnavailable: a living process holds the id. Also whatever `pause` raises.
            OSError: the registry does not answer; try again, or `withdraw`.
        """
        ...

    def update(self, card: bytes) -> None:
        """Replace the card. If the registry does not answer (OSError), a duty does it later."""
        ...

    def withdraw(self) -> None:
        """Forget the card, tell the view, and end the lease. After an OSError too: then the lease ends by itself."""
        ...

    def secret(self, *, make: bool = True) -> bytes:
        """The secret of the cluster, made if there is none; kept, and put back if the registry loses it.

        make: False: who only looks makes none.

        Raises:
            ClusterUnavailable: what the registry has cannot be the secret; or it has none, and none is made.
            OSError: it does not answer.
        """
        ...

    def next_number(self, least: int) -> int:
        """A number larger than all that this gave to anybody before, and at least `least`; it is kept for ever.

        Raises:
            ClusterUnavailable: what the registry has cannot be a number.
            OSError: it does not answer.
        """
        ...

    def hurry(self, seconds: float) -> None:
        """Let calls under way, and all later ones, end within about `seconds` from now."""
        ...

    def stop(self) -> None:
        """End threads and connections. Idempotent."""
        ...


def number_after(stored: bytes, least: int, where: str) -> int:
    """The number after the one that a registry has, b"" for none; at least `least`.

    Raises:
        ClusterUnavailable: it has no number.
    """
    if not re.fullmatch(rb"[0-9]{0,19}", stored) or int(stored or b"0") >= _LAST_NUMBER:
        raise ClusterUnavailable(f"{where} is not the number of an incarnation")
    return max(least, int(stored or b"0") + 1)


def is_name(text: str) -> bool:
    """Whether a text can be the id of a member, or the name of a cluster."""
    return _NAME.fullmatch(text) is not None


def member_id(member: object) -> str:
    """A member id: 1 to 64 characters of A-Z a-z 0-9 . _ -

    Raises:
        InvalidArgument: it is none.
    """
    if isinstance(member, str) and is_name(member):
        return member
    raise InvalidArgument(f"a member id is 1 to 64 characters of A-Z a-z 0-9 . _ -, not {member!r}")


def checked_card(card: object) -> bytes:
    """The bytes of a card, of at most MAX_CARD.

    Raises:
        InvalidArgument: it is no bytes, or too long.
    """
    if not isinstance(card, bytes | bytearray | memoryview):
        raise InvalidArgument(f"a card is bytes, not {type(card).__name__}")
    if memoryview(card).nbytes > MAX_CARD:
        raise InvalidArgument(f"a card has at most {MAX_CARD} bytes, not {memoryview(card).nbytes}")
    return bytes(card)
