"""torch.distributed with gloo: payloads sent to another process and back, two-sided.

The other process waits for a word of 8 bytes that says what comes; it holds the places. gloo has no one-sided reads on
CPUs, so every operation needs that process to run.
"""

import os
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch

from nanokv.bench.peers.base import Guarantees, Ring, System
from nanokv.bench.peers.mapped import places as split_into
from nanokv.bench.peers.server import Ours, write_note

_MINE, _OTHER = 0, 1
_PUT, _GET, _ASK = range(3)
_PLACES = 1 << 32  #: a word is an operation times this, plus a place
_PATIENCE = timedelta(minutes=30)  #: of a receive: the other process waits while the other systems have their turns
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo"}


def join(rank: int, meeting: str) -> Any:
    """Become a rank of two, which meet by a file; the module torch.distributed."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=_PATIENCE)
    return dist


class Gloo(System):
    """`send` and `recv`, over loopback."""

    name = "gloo"
    packages = ("torch",)
    guarantees = Guarantees(
        keys="none, the place is sent along",
        allocation="none",
        process="the memory is another process's, which receives and answers each time",
        copies="by the kernel's TCP over loopback, into a socket and out of it",
        checksum="none of the payload",
        promise="the other process has the bytes, and has said so",
    )

    def start(self) -> None:
        os.environ.update(ENVIRONMENT)
        folder = self.folder()
        meeting = str(folder / "meeting")
        Ours(__name__, folder, self.stack, [meeting, self.ring.size, self.ring.slots], ENVIRONMENT).note()
        self._dist = join(_MINE, meeting)
        self.stack.callback(self._dist.destroy_process_group)
        self._word = torch.zeros(1, dtype=torch.int64)
        self._answer = torch.zeros(1, dtype=torch.int64)

    def key(self, i: int) -> int:
        return i % self.ring.slots

    def _say(self, operation: int, place: int = 0) -> None:
        self._word[0] = operation * _PLACES + place
        self._dist.send(self._word, _OTHER)

    def put(self, key: int, tensor: torch.Tensor) -> None:
        self._say(_PUT, key)
        self._dist.send(tensor, _OTHER)
        self._dist.recv(self._answer, _OTHER)

    def get_into(self, key: int, tensor: torch.Tensor) -> None:
        self._say(_GET, key)
        self._dist.recv(tensor, _OTHER)

    def round_trip(self) -> None:
        self._say(_ASK)
        self._dist.recv(self._answer, _OTHER)


def serve(dist: Any, ring: Ring) -> None:
    """The other process: do what each word says, until the first process is gone."""
    places = split_into(torch.zeros(ring.nbytes, dtype=torch.uint8), ring.size)
    word = torch.zeros(1, dtype=torch.int64)
    with suppress(RuntimeError):  # the connection is closed
        while True:
            dist.recv(word, _MINE)
            operation, place = divmod(int(word), _PLACES)
            if operation == _GET:
                dist.send(places[place], _MINE)
                continue
            if operation == _PUT:
                dist.recv(places[place], _MINE)
            dist.send(word, _MINE)


def main(note: str, meeting: str, size: str, slots: str) -> None:
    """The other process."""
    write_note(note, None)
    serve(join(_OTHER, meeting), Ring(int(size), int(slots)))


if __name__ == "__main__":
    main(*sys.argv[1:])
