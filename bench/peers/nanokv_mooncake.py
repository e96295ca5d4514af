"""NanoKV under Mooncake Store's interface: the calls of `mooncake`, by the drop-in (`nanokv.integrations.mooncake`).

As a module it is the other process, whose segment has the objects.
"""

import os
import sys

from nanokv.bench.peers.base import Guarantees, System
from nanokv.bench.peers.mooncake import MooncakeTCP
from nanokv.bench.peers.server import Ours, sleep_while_wanted, write_note

_MIB = 1 << 20


class NanoKVAsMooncake(MooncakeTCP):
    """`put_from` and `get_into` of registered buffers; another process, which is not asked, has the memory."""

    name = "NanoKV as Mooncake Store"
    module = "nanokv"
    packages = ("nanokv", "torch", "numba")
    everywhere = False
    guarantees = Guarantees(
        keys="yes, hashed in the call, and kept with the object",
        allocation="by the client, in pages of 4 KiB",
        process="the memory is another process's, which is not asked",
        copies="1 and 1",
        checksum="none",
        promise="every client of the store can get the object, which has one copy; torn reads are noticed and repeated",
    )

    @classmethod
    def why_not(cls) -> str | None:
        return System.why_not.__func__(cls)  # type: ignore[attr-defined,no-any-return]  # not that of the real one

    def start(self) -> None:
        from nanokv.integrations.mooncake import MooncakeDistributedStore

        self._master = f"bench-{os.getpid()}:1"
        room = 2 * self.ring.nbytes + 64 * _MIB
        Ours("nanokv.bench.peers.nanokv_mooncake", self.folder(), self.stack, [self._master, room]).note()
        self._store = MooncakeDistributedStore()
        self._checked("setup", self._connect())
        self.stack.callback(self._store.close)

    def _connect(self) -> int:
        return _set_up(self._store, self._master, 0, max(64 * _MIB, 4 * self.ring.size))


def _set_up(store: object, master: str, segment: int, local: int) -> int:
    return int(store.setup("localhost", "P2PHANDSHAKE", segment, local, "tcp", "", master))  # type: ignore[attr-defined]


def main(note: str, master: str, room: int) -> None:
    """Give the store a segment, and keep it while it is wanted."""
    from nanokv.integrations.mooncake import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    write_note(note, _set_up(store, master, room, 0))
    sleep_while_wanted()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
