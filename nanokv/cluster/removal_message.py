"""The answer of a node that was asked to remove objects: a status each."""

import numpy as np

from nanokv.cluster.pull_message import BadMessage
from nanokv.cluster.statuses import is_one_of
from nanokv.device.machines.records import Words
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import WORD

MOST_REMOVED = 4096  #: keys of one message
_STATUSES = tuple(map(int, Status))


def removed(body: bytes, count: int) -> Words:
    """The statuses of `count` keys.

    Raises:
        BadMessage: it is no such answer.
    """
    if len(body) != count * WORD:
        raise BadMessage(f"an answer about {count} removals has {count * WORD} bytes, not {len(body)}")
    found = np.frombuffer(body, np.int64)
    if not is_one_of(found, _STATUSES).all():
        raise BadMessage("an answer about removals has a status that is none")
    return found
