"""Memory of a caller: the bytes behind a buffer, copies to and from it, and the ranges that a client has registered."""

import bisect
import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from nanokv.integrations.mooncake.codes import ErrorCode

_BYTES_HEAD = bytes.__basicsize__ - 1  #: where CPython keeps the characters of a bytes object


class Part(NamedTuple):
    """Bytes in the memory of this process."""

    address: int
    nbytes: int


def address_of(value: bytes) -> int:
    """Where the characters of a bytes object lie, as long as it lives."""
    return id(value) + _BYTES_HEAD


def part_of(value: Any) -> tuple[Part, Any]:
    """The bytes of an object with a buffer, and what keeps them alive.

    All bytes of the buffer count, also those of items of several bytes; a buffer with gaps is copied.

    Raises:
        TypeError: `value` has no buffer.
    """
    if type(value) is bytes:
        return Part(address_of(value), len(value)), value
    if isinstance(value, str):
        raise TypeError("incompatible function arguments: a str has no buffer")
    view = memoryview(value)
    if not view.nbytes:
        return Part(0, 0), None
    if not view.c_contiguous:
        value = view.tobytes()
        return Part(address_of(value), len(value)), value
    array = np.frombuffer(view, np.uint8)
    return Part(int(array.__array_interface__["data"][0]), view.nbytes), array


def take(address: int, nbytes: int) -> bytes:
    """A copy of memory. Large ones are made without the interpreter's lock."""
    if nbytes <= _HELD:
        return ctypes.string_at(address, nbytes)
    made: bytes = _new_bytes(None, nbytes)
    ctypes.memmove(address_of(made), address, nbytes)
    return made


_HELD = 64 << 10  #: bytes: it takes as long to give the interpreter's lock away and get it back
_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, (ctypes.c_char_p, ctypes.c_ssize_t)


class BufferHandle(np.ndarray[Any, np.dtype[np.int8]]):
    """A copy of a value, with a writable buffer (format "b"), as `get_buffer` gives it. Made by `copied`."""

    @classmethod
    def copied(cls, address: int, nbytes: int) -> "BufferHandle":
        """A copy of memory."""
        made = np.empty(nbytes, np.int8).view(cls)
        ctypes.memmove(made.ptr(), address, nbytes)
        return made

    def ptr(self) -> int:
        """The address of the first byte."""
        return int(self.__array_interface__["data"][0])

    def __repr__(self) -> str:  # numpy's needs a `size` that is no method
        return object.__repr__(self)

    __str__ = __repr__

    def size(self) -> int:  # type: ignore[override]  # a method, as the real one's
        """Bytes of the value."""
        return self.nbytes


# --- copies of values to memory of a caller ---
def scatter(pieces: Sequence[Part]) -> Callable[[int, int], int]:
    """What copies a value to several pieces of memory, one after another: its bytes, or a code.

    The pieces have exactly the bytes of the value, together.
    """
    wanted, are_there = sum(piece.nbytes for piece in pieces), all(piece.address for piece in pieces if piece.nbytes)

    def copy(address: int, nbytes: int) -> int:
        if not are_there or nbytes > wanted:
            return ErrorCode.INVALID_PARAMS
        if nbytes < wanted:
            return ErrorCode.TRANSFER_FAIL
        for piece in pieces:
            ctypes.memmove(piece.address, address, piece.nbytes)
            address += piece.nbytes
        return nbytes

    return copy


def copy_ranges(target: int, room: int, ranges: Sequence[tuple[int, int, int]]) -> Callable[[int, int], list[int]]:
    """What copies ranges of a value to a place with so much room: for each its bytes, or a code.

    A range tells where it begins at the target, where it begins in the value, and its bytes.
    """

    def copy(address: int, nbytes: int) -> list[int]:
        answers = []
        for to, start, size in ranges:
            fits = size and to + size <= room and start + size <= nbytes
            if fits:
                ctypes.memmove(target + to, address + start, size)
            answers.append(size if fits else ErrorCode.INVALID_PARAMS)
        return answers

    return copy


class RegisteredRanges:
    """The ranges of memory that a client has registered. They do not overlap."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  #: held by every call but `len`
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}

    def add(self, address: int, nbytes: int) -> bool:
        """Add a range; False if it is empty, or overlaps one that is there."""
        if not address or not nbytes:
            return False
        with self.lock:
            at = bisect.bisect_right(self._starts, address)
            before = at and self._starts[at - 1] + self._sizes[self._starts[at - 1]] > address
            after = at < len(self._starts) and self._starts[at] < address + nbytes
            if before or after:
                return False
            self._starts.insert(at, address)
            self._sizes[address] = nbytes
            return True

    def drop(self, address: int) -> bool:
        """Take a range away; False if none begins there."""
        with self.lock:
            if self._sizes.pop(address, None) is None:
                return False
            self._starts.remove(address)
            return True

    def room(self, address: int) -> int:
        """Bytes from an address to the end of the range that has it; 0 without one."""
        with self.lock:
            at = bisect.bisect_right(self._starts, address)
            if not at:
                return 0
            start = self._starts[at - 1]
            return max(start + self._sizes[start] - address, 0)

    def __len__(self) -> int:
        return len(self._sizes)
