"""Small values, read in one native call: into memory of the thread, for behind the value lies its key (`stored`)."""

import ctypes
import threading

from nanokv.integrations.mooncake.stored import TAIL
from nanokv.transfer.object_calls import ObjectCalls

SMALL = 64 << 10  #: bytes of a value and what lies behind it


class _Room:
    """Memory of one thread."""

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(SMALL)
        self.address = ctypes.addressof(self._memory)


class SmallReads:
    """Reads that do the usual, and leave all else to `Objects.read`: it answers why there is no value.

    Args:
        calls: of a world.
    """

    def __init__(self, calls: ObjectCalls) -> None:
        self._take_object, self._rooms = calls.take, threading.local()

    def get(self, key: str) -> bytes | None:
        """A copy of a value; None: left."""
        address, nbytes = self._take(key)
        return ctypes.string_at(address, nbytes) if nbytes >= 0 else None

    def get_into(self, key: str, address: int, room: int) -> int:
        """Copy a value to an address: its bytes; below 0: left, and nothing was copied."""
        taken, nbytes = self._take(key)
        if not 0 <= nbytes <= room:
            return -1
        ctypes.memmove(address, taken, nbytes)
        return nbytes

    def _take(self, key: str) -> tuple[int, int]:
        """Copy an object to memory of this thread: where it lies, and the bytes of the value; below 0: none."""
        room = getattr(self._rooms, "room", None)
        if room is None:
            room = self._rooms.room = _Room()
        name = len(key) if key.isascii() else len(key.encode("utf-8", "surrogatepass"))
        return room.address, self._take_object(key, room.address, SMALL) - name - TAIL
