"""The wire format: requests and replies are arrays of int64 of one fixed size. Nothing else is sent.

A request names its operation; fields that the operation does not use are 0. A reply repeats the number of its request.
"""

from enum import IntEnum
from typing import Any, NamedTuple

import torch

from nanokv.device.machines.records import Descriptor, Place
from nanokv.device.protocol.status import Status

NOBODY = -1  #: as the owner in a request: no segment is preferred
NO_PLACE = Place(0, 0, 0)
NO_DESCRIPTOR: Descriptor = (0,) * 8


class Op(IntEnum):
    """The operations of the master."""

    OPEN_FOR_WRITE = 1
    COMMIT = 2
    ABORT = 3
    GET_LOCATION = 4
    EXISTS = 5
    REMOVE = 6
    REMOVE_SLOT = 7
    EVICT = 8
    EVICT_SLOT = 9


class Request(NamedTuple):
    """A client's request."""

    op: int
    number: int = 0  #: of this request, on this connection
    rank: int = 0  #: the producer
    incarnation: int = 0
    key_hash: int = 0
    key_check: int = 0
    place: Place = NO_PLACE  #: of the object; OPEN_FOR_WRITE: `nbytes`, and as `owner` the preferred segment or NOBODY
    plan: int = 0  #: OPEN_FOR_WRITE: 1 if the bytes come from a kernel, which no activity word counts
    limit: int = 0  #: EVICT: pages that may stay in use
    descriptor: Descriptor = NO_DESCRIPTOR


class Reply(NamedTuple):
    """The master's reply."""

    number: int
    status: int
    place: Place = NO_PLACE
    gone: int = 0  #: EVICT, OPEN_FOR_WRITE: objects that were evicted
    descriptor: Descriptor = NO_DESCRIPTOR


def _words(kind: type[Request | Reply]) -> int:
    return len(kind._fields) + len(Place._fields) - 1 + len(NO_DESCRIPTOR) - 1


WORDS = _words(Request)  #: of a message; a reply has fewer, and the rest is padding


@torch.inference_mode(False)
def new_message() -> torch.Tensor:
    """An empty message: int64 [WORDS]."""
    return torch.zeros(WORDS, dtype=torch.int64, device="cpu")


def pack(message: Request | Reply, into: torch.Tensor) -> None:
    """Write a message into a tensor of `new_message`."""
    flat = [word for field in message for word in (field if isinstance(field, tuple) else (field,))]
    into.numpy()[: len(flat)] = flat


def unpack_request(words: torch.Tensor) -> Request | None:
    """Read a request; None if the words are not one."""
    flat = words.tolist()
    if not 1 <= flat[0] <= max(Op):
        return None
    return Request._make(_unflattened(flat, Request))


def unpack_reply(words: torch.Tensor) -> Reply | None:
    """Read a reply; None if the words are not one."""
    flat = words.tolist()[: _words(Reply)]
    if not 0 <= flat[1] <= max(Status):
        return None
    return Reply._make(_unflattened(flat, Reply))


def _unflattened(flat: list[int], kind: type[Request | Reply]) -> list[Any]:
    """The fields of a message, from its words."""
    at = kind._fields.index("place")
    end = at + len(Place._fields)
    return [*flat[:at], Place(*flat[at:end]), *flat[end : -len(NO_DESCRIPTOR)], tuple(flat[-len(NO_DESCRIPTOR) :])]
