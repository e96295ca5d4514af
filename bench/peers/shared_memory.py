"""Shared memory of another process, and a flag beside each place that says which object is there.

What a program would do without any library: a put copies and then sets the flag, a get looks at the flag and copies.
"""

import sys

import numpy as np
import torch

from nanokv.bench.peers.base import Guarantees, System, SystemFailed
from nanokv.bench.peers.mapped import mapped, memory_file, places
from nanokv.bench.peers.server import Ours, sleep_while_wanted, write_note

_FLAG_BYTES = 64  #: a cache line each


class SharedMemory(System):
    """Places of one size in memory that another process has made and touched."""

    name = "shared memory and a flag"
    packages = ("torch",)
    guarantees = Guarantees(
        keys="none, the place is known",
        allocation="none",
        process="the memory is another process's, which sleeps",
        copies="1 and 1",
        checksum="none",
        promise="whoever looks at the flag finds the bytes; a reader may see them change",
    )

    def start(self) -> None:
        flags_bytes = self.ring.slots * _FLAG_BYTES
        total = self.ring.nbytes + flags_bytes
        file = memory_file(total, self.stack)
        Ours(__name__, self.folder(), self.stack, [file, total], files=[file]).note()
        whole = mapped(file, total)
        self._places = places(whole[flags_bytes:], self.ring.size)
        self._flags = whole[:flags_bytes].numpy().view(np.int64)[:: _FLAG_BYTES // 8]

    def key(self, i: int) -> int:
        return i

    def put(self, key: int, tensor: torch.Tensor) -> None:
        place = key % self.ring.slots
        self._flags[place] = -1
        self._places[place].copy_(tensor)
        self._flags[place] = key

    def get_into(self, key: int, tensor: torch.Tensor) -> None:
        place = key % self.ring.slots
        if self._flags[place] != key:
            raise SystemFailed(f"the place of object {key} has object {self._flags[place]}")
        tensor.copy_(self._places[place])


def main(note: str, file: str, total: str) -> None:
    """The other process: touch the memory first, so that it is there."""
    memory = mapped(int(file), int(total))
    memory.fill_(0)
    write_note(note, None)
    sleep_while_wanted()


if __name__ == "__main__":
    main(*sys.argv[1:])
