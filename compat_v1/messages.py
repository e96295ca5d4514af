"""The wire format: requests and replies are arrays of int64 of one fixed size. Nothing else is sent.

A request names its operation; fields that the operation does not use are 0. A reply repeats the number of its request.
"""

from enum import IntEnum
from typing import NamedTuple

import torch

from nanokv.device.machines.base import Descriptor
from nanokv.device.protocol.status import Status

NOBODY = -1  #: in `Request.owner`: no segment is preferred


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


class Request(NamedTuple):
    """A client's request."""

    op: int
    number: int = 0  #: of this request, on this connection
    rank: int = 0  #: the producer
    incarnation: int = 0
    key_hash: int = 0
    key_check: int = 0
    owner: int = NOBODY  #: of the object; OPEN_FOR_WRITE: the preferred one, or NOBODY
    slot: int = 0  #: header slot
    epoch: int = 0
    nbytes: int = 0
    plan: int = 0  #: OPEN_FOR_WRITE: 1 if the bytes come from a kernel, which no activity word counts
    limit: int = 0  #: EVICT: pages that may stay in use
    descriptor: Descriptor = (0,) * 8


class Reply(NamedTuple):
    """The master's reply."""

    number: int
    status: int
    owner: int = 0
    slot: int = 0
    epoch: int = 0
    payload: int = 0
    nbytes: int = 0
    gone: int = 0  #: EVICT: objects that went
    descriptor: Descriptor = (0,) * 8


WORDS = len(Request._fields) - 1 + 8  #: of a message; a reply has fewer, and the rest is padding
_REPLY_WORDS = len(Reply._fields) - 1 + 8


def new_message() -> torch.Tensor:
    """An empty message: int64 [WORDS]."""
    return torch.zeros(WORDS, dtype=torch.int64)


def pack(message: Request | Reply, into: torch.Tensor) -> None:
    """Write a message into a tensor of `new_message`."""
    *words, descriptor = message
    flat = [*words, *descriptor]
    into.numpy()[: len(flat)] = flat


def unpack_request(words: torch.Tensor) -> Request | None:
    """Read a request; None if the words are not one."""
    flat = words.tolist()
    if not 1 <= flat[0] <= max(Op):
        return None
    return Request._make([*flat[:-8], tuple(flat[-8:])])


def unpack_reply(words: torch.Tensor) -> Reply | None:
    """Read a reply; None if the words are not one."""
    flat = words.tolist()[:_REPLY_WORDS]
    if not 0 <= flat[1] <= max(Status):
        return None
    return Reply._make([*flat[:-8], tuple(flat[-8:])])
