"""The contract of a link: it moves bytes between registered memory of two processes, on one host or two.

A link knows nothing of objects. The rounds of a get (`nanokv.device.fabric`) need this of it, and nothing more:
- A transfer that is DONE has moved all of its bytes, and they were in the source at some time after `read` was called.
- No order is promised within a transfer, and no atomicity, except that an aligned word of 64 bits is not torn.
- A transfer that has not ended may write to its destination at any time, also after its peer was disconnected. It ends
  as DONE or FAILED, or never. So who gives it up keeps the destination (`staging`).
"""

import zlib
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from nanokv.errors import InvalidArgument, LinkUnavailable

__all__ = [
    "Link",
    "LinkLost",
    "LinkUnavailable",
    "State",
    "Transfer",
    "Words",
    "checked_rows",
    "opened_card",
    "sealed_card",
]

_SUM_BYTES = 4
Words = npt.NDArray[np.int64]


class State(IntEnum):
    """The state of a transfer."""

    MOVING = 0
    DONE = 1
    FAILED = 2  #: it has ended, and moved nothing more; which bytes have come is not known


def sealed_card(raw: bytes) -> bytes:
    """A card with a checksum, so that damaged bytes are refused before a library sees them."""
    return zlib.crc32(raw).to_bytes(_SUM_BYTES, "little") + raw


def opened_card(card: bytes) -> bytes:
    """The card that `sealed_card` made bytes of.

    Raises:
        LinkLost: the card is damaged.
    """
    raw = bytes(card[_SUM_BYTES:])
    if zlib.crc32(raw).to_bytes(_SUM_BYTES, "little") != card[:_SUM_BYTES]:
        raise LinkLost("the card is damaged")
    return raw


def checked_rows(here: Words, there: Words, nbytes: Words) -> Words:
    """ROWs of a read: int64 [n, 3].

    Raises:
        InvalidArgument: they are not as `Link.read` takes them.
    """
    if not len(here) == len(there) == len(nbytes) > 0 or (nbytes <= 0).any():
        raise InvalidArgument("a read has as many places here as there, and sizes above 0, at least one")
    return np.ascontiguousarray(np.stack([here, there, nbytes], 1), np.int64)


class LinkLost(Exception):
    """The peer is gone, as far as the link can tell: its process has ended, or its memory is registered no more."""


class Transfer(Protocol):
    """A read under way."""

    def state(self) -> State:
        """Where it is. Makes progress; never blocks, never raises."""
        ...

    def release(self) -> None:
        """Let go of a transfer that has ended. Idempotent. One that has not ended is kept by the link until it has."""
        ...


class Link(Protocol):
    """One process's end. Methods may be called from any thread."""

    name: str  #: "nixl", ...

    def card(self) -> bytes:
        """What another process needs to connect to this one, with all that is registered so far."""
        ...

    def register(self, address: int, nbytes: int, device: int | None = None, *, shared: bool = True) -> None:
        """Let transfers use memory, here and from other processes that connect to a later `card`.

        Args:
            device: the number of the GPU that has it; None: host memory.
            shared: False: other processes need not read it; a link may let them all the same.

        Raises:
            LinkUnavailable: the link cannot register this kind of memory.
        """
        ...

    def deregister(self, address: int) -> None:
        """Take back `register`. No transfer that uses the memory may be under way. Idempotent."""
        ...

    def connect(self, card: bytes) -> int:
        """Reach the process of a card: the number of the peer. A new card of a process that is known replaces the old,
        and its number stays. It may take a bounded time.

        Raises:
            LinkLost: the card is damaged, or of no use; or this link is closed.
        """
        ...

    def disconnect(self, peer: int) -> None:
        """Forget a peer. Its transfers that are under way end, or never do. Idempotent."""
        ...

    def read(self, peer: int, here: Words, there: Words, nbytes: Words) -> Transfer:
        """Begin to copy from the peer's memory: from the addresses `there` to the addresses `here`, `nbytes` each.

        Args:
            here, there, nbytes: int64 [n], n > 0, each of `nbytes` > 0. All of it is registered.

        Raises:
            InvalidArgument: the arrays are not as above. Nothing was begun.
            LinkLost: nothing was begun: the peer is not connected, or the memory is not in its card, as far as the link
                can tell; or this link is closed.
        """
        ...

    def close(self) -> None:
        """Forget all peers, and all memory. Idempotent. Processes that are connected see this one as lost.

        Transfers that are under way end as FAILED, and write no more.
        """
        ...
