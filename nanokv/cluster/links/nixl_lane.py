"""What the link over NIXL knows of a peer, and what a thread needs to read from one."""

import ctypes

import numpy as np

from nanokv.cluster.links.nixl_library import Agent
from nanokv.device.fabric.records import NIXL
from nanokv.device.segment.layout import WORD
from nanokv.device.segment.record import words_of

_NS = 1_000_000_000
_NO_REQUEST = 0
_PEER, _TIMEOUT, _REQUEST = (NIXL.offsets[name] // WORD for name in ("peer", "timeout", "request"))


class NixlLane:
    """What one thread needs at a time to read: a NIXL record, and its lists of descriptors."""

    def __init__(self, agent: Agent, functions: dict[str, int], lock: int) -> None:
        self.record = np.zeros(1, NIXL.dtype)
        self.address = int(self.record.ctypes.data)
        row = self.record[0]
        for field, function in functions.items():
            row[field] = function
        row["agent"], row["options"] = agent.handle.value, agent.options.value
        row["here"], row["there"] = agent.descriptors(None).value, agent.descriptors(None).value
        row["lock"] = lock
        self._words = words_of(self.record)

    def aim(self, peer: "Peer", timeout: float) -> int:
        """Let it read from a peer, each transfer in `timeout` seconds. Returns the address of the record."""
        self._words[_PEER], self._words[_TIMEOUT] = peer.address, int(timeout * _NS)
        return self.address

    def take_request(self) -> int:
        """The transfer that has not ended, which is no longer the lane's then; or 0."""
        request: int = self._words[_REQUEST]
        self._words[_REQUEST] = _NO_REQUEST
        return request


class Peer:
    """Another process.

    Once NIXL forgets it, a transfer from it that is under way looks like one that has failed, and yet may write. So it
    is remembered as long as there is one.
    """

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.moving = 0  #: transfers under way, of which callers do not know the end
        self.is_leaving = False
        self._text = ctypes.create_string_buffer(name)
        self.address = ctypes.addressof(self._text)
