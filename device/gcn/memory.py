"""The memory of this process, as a kernel sees it: real addresses, checked before they are used.

Atomics are atomic against threads of the host too, where the machine has libatomic.
"""

import ctypes
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.gcn.errors import MemoryFault, Unsupported

Addresses = npt.NDArray[np.uint64]
Dwords = npt.NDArray[np.uint32]  #: [dwords per lane, lanes]; an access of 8 or 16 bits has one
UINT: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
FIRST = 8  #: NumPy takes no array that begins at address 0
SEQ_CST = 5  #: of C's memory_order


class _AllMemory:
    """What NumPy takes for an array over all memory."""

    def __init__(self, size: int) -> None:
        shape = ((1 << 47) // size - 1,)
        self.__array_interface__ = {"data": (FIRST, False), "shape": shape, "typestr": f"<u{size}", "version": 3}


class HostMemory:
    """Accesses by several lanes at once, and atomics by one.

    Args:
        ranges: (first, end) of what kernels may access, besides their arguments; None: all memory that is mapped and
            writable, as /proc/self/maps says when an access lies in none that is known.
    """

    def __init__(self, ranges: Sequence[tuple[int, int]] | None = None) -> None:
        self._views = {size: np.asarray(_AllMemory(size)) for size in UINT}
        self._given = None if ranges is None else list(ranges)
        self._own: tuple[tuple[int, int], ...] = ()
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._last = (0, 0)
        self._atomics = _libatomic()

    def begin(self, *own: tuple[int, int]) -> None:
        """A launch begins, with its own ranges of addresses; what was mapped before may be gone."""
        self._own, self._last = own, (0, 0)
        self._starts, self._ends = [], []

    def check(self, addresses: Addresses, width: int) -> None:
        """All bytes are mapped, and lanes are aligned as far as the hardware wants it.

        Raises:
            MemoryFault: an address is not.
        """
        aligned = min(width, 4)
        if int(np.bitwise_or.reduce(addresses)) & aligned - 1:
            wrong = next(address for address in addresses.tolist() if address % aligned)
            raise MemoryFault(f"{width} bytes at {wrong:#x}, which is not a multiple of {aligned}")
        first, end = self._last
        if int(addresses.min()) < first or int(addresses.max()) + width > end:
            self._find(addresses.tolist(), width)

    def _find(self, addresses: list[int], width: int) -> None:
        missing = 0
        for looked_again in (False, True):
            if looked_again:
                self._look()
            places = [bisect_right(self._starts, address) - 1 for address in addresses]
            outside = [a for a, at in zip(addresses, places, strict=True) if at < 0 or a + width > self._ends[at]]
            if not outside:
                self._last = self._starts[places[0]], self._ends[places[0]]
                return
            missing = outside[0]
        raise MemoryFault(f"{width} bytes at {missing:#x} are not mapped, or not in the ranges that were given")

    def _look(self) -> None:
        ranges = sorted([*self._given, *self._own]) if self._given is not None else _writable()
        self._starts, self._ends = [first for first, _ in ranges], [end for _, end in ranges]

    def read(self, addresses: Addresses, width: int) -> Dwords:
        """`width` bytes per lane; words of 64 bits are read at once where they are aligned."""
        unit = self._unit(addresses, width)
        view, index = self._views[unit], (addresses - np.uint64(FIRST)) // np.uint64(unit)
        if width == unit < 8:
            return view[index].astype(np.uint32)[None]
        places = index[:, None] + np.arange(width // unit, dtype=np.uint64)
        return view[places].view(np.uint32).T

    def write(self, addresses: Addresses, width: int, values: Dwords) -> None:
        """`width` bytes per lane, the lanes in their order."""
        unit = self._unit(addresses, width)
        view, index = self._views[unit], (addresses - np.uint64(FIRST)) // np.uint64(unit)
        if width == unit < 8:
            view[index] = values[0].astype(UINT[unit])
            return
        places = index[:, None] + np.arange(width // unit, dtype=np.uint64)
        view[places] = np.ascontiguousarray(values.T).view(UINT[unit])

    @staticmethod
    def _unit(addresses: Addresses, width: int) -> int:
        if width < 4:
            return width
        return 8 if width % 8 == 0 and not int(np.bitwise_or.reduce(addresses)) & 7 else 4

    def atomic(self, address: int, size: int, operation: str, value: int, expected: int = 0) -> int:
        """One read-modify-write; returns what was there."""
        if address % size:
            raise MemoryFault(f"an atomic of {size} bytes at {address:#x}, which is not a multiple of {size}")
        function = self._atomics.get((operation, size))
        if function is not None:
            return function(address, value, expected)
        index = np.uint64((address - FIRST) // size)
        old = int(self._views[size][index])
        self._views[size][index] = modified(operation, old, value, expected, 8 * size)
        return old


MODIFIED: dict[str, Callable[[int, int], int]] = {
    "add": lambda old, value: old + value,
    "sub": lambda old, value: old - value,
    "swap": lambda old, value: value,
    "and": lambda old, value: old & value,
    "or": lambda old, value: old | value,
    "xor": lambda old, value: old ^ value,
    "umin": min,
    "umax": max,
}


def modified(operation: str, old: int, value: int, expected: int, bits: int) -> int:
    """What an atomic leaves."""
    if operation == "cmpswap":
        return value if old == expected else old
    half = 1 << bits - 1
    if operation in ("smin", "smax"):  # in this order of words negative numbers come first
        return (min if operation == "smin" else max)(old, value, key=lambda word: word ^ half)
    if operation not in MODIFIED:
        raise Unsupported(f"the atomic {operation}")
    return MODIFIED[operation](old, value) & 2 * half - 1


def _writable() -> list[tuple[int, int]]:
    """Memory of this process that can be written, neighbours joined."""
    ranges: list[tuple[int, int]] = []
    for line in Path("/proc/self/maps").read_text("ascii").splitlines():
        span, rights = line.split()[:2]
        if rights.startswith("rw"):
            first, end = (int(each, 16) for each in span.split("-"))
            if ranges and ranges[-1][1] == first:
                first = ranges.pop()[0]
            ranges.append((first, end))
    return ranges


def _libatomic() -> dict[tuple[str, int], Callable[[int, int, int], int]]:
    """(operation, bytes) -> function of (address, value, expected); empty without the library."""
    try:
        library = ctypes.CDLL("libatomic.so.1")
    except OSError:
        return {}
    found: dict[tuple[str, int], Callable[[int, int, int], int]] = {}
    names = {"add": "fetch_add", "or": "fetch_or", "and": "fetch_and", "xor": "fetch_xor", "swap": "exchange"}
    for size, word in ((4, ctypes.c_uint32), (8, ctypes.c_uint64)):
        for name, symbol in names.items():
            found[name, size] = _fetch(library, f"__atomic_{symbol}_{size}", word)
        found["cmpswap", size] = _compare_and_swap(library, f"__atomic_compare_exchange_{size}", word)
    return found


def _fetch(library: Any, symbol: str, word: Any) -> Callable[[int, int, int], int]:
    function = getattr(library, symbol)
    function.argtypes, function.restype = (ctypes.c_void_p, word, ctypes.c_int), word
    return lambda address, value, expected: int(function(address, value, SEQ_CST))


def _compare_and_swap(library: Any, symbol: str, word: Any) -> Callable[[int, int, int], int]:
    function = getattr(library, symbol)
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, word, ctypes.c_int, ctypes.c_int)
    function.restype = ctypes.c_bool

    def swapped(address: int, value: int, expected: int) -> int:
        seen = word(expected)
        function(address, ctypes.byref(seen), value, SEQ_CST, SEQ_CST)
        return int(seen.value)

    return swapped
