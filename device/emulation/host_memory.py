"""The memory of this process as that of a kernel: words at real addresses, and bounds.

Atomics are atomic against threads of the host too, where the machine has libatomic.
"""

import ctypes
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.device.emulation.errors import MemoryFault, Unsupported

FIRST = 8  #: where arrays over all memory begin: NumPy takes none at address 0
_SEQ_CST = 5  #: of C's memory_order
_FETCH = {"add": "fetch_add", "or": "fetch_or", "and": "fetch_and", "xor": "fetch_xor", "exch": "exchange"}


class _AllMemory:
    """What NumPy takes for all memory from an address on, as words."""

    def __init__(self, size: int) -> None:
        shape = ((1 << 47) // size - 1,)
        self.__array_interface__ = {"data": (FIRST, False), "shape": shape, "typestr": f"<u{size}", "version": 3}


class Range(NamedTuple):
    """Addresses [first, end) that a kernel may access."""

    first: int
    end: int
    name: str = "memory"
    real: int = 0  #: what is added to an address of the kernel for one of this process


NOWHERE = Range(0, 0)


def mapped() -> list[Range]:
    """What is mapped and writable in this process, neighbours joined."""
    found: list[Range] = []
    for line in Path("/proc/self/maps").read_text(encoding="ascii").splitlines():
        span, rights = line.split()[:2]
        if rights.startswith("rw"):
            first, end = (int(each, 16) for each in span.split("-"))
            if found and found[-1].end == first:
                first = found.pop().first
            found.append(Range(first, end))
    return found


class ProcessMemory:
    """All memory of this process that is mapped and writable.

    Attributes:
        words: bytes of a word -> all memory from FIRST on, as such words.
        last: a range that was found; most accesses lie in the one of the access before.
    """

    def __init__(self) -> None:
        self.words: dict[int, npt.NDArray[Any]] = {size: np.asarray(_AllMemory(size)) for size in (1, 2, 4, 8)}
        self._atomics = _libatomic()
        self.forget()

    def ranges(self) -> Sequence[Range]:
        """What may be accessed; asked again when an access lies in no range that is known."""
        return mapped()

    def forget(self) -> None:
        """What was known may be gone."""
        self.last = NOWHERE
        self._known: list[Range] = []
        self._starts: list[int] = []

    def find(self, addresses: list[int], size: int) -> list[Range]:
        """The range of each address.

        Raises:
            MemoryFault: `size` bytes at one of them may not be accessed.
        """
        for again in (False, True):
            if again:
                self._known = sorted(self.ranges())
                self._starts = [each.first for each in self._known]
            places = [bisect_right(self._starts, address) - 1 for address in addresses]
            pairs = zip(addresses, places, strict=True)
            bad = [address for address, at in pairs if at < 0 or address + size > self._known[at].end]
            if not bad:
                found = [self._known[at] for at in places]
                self.last = found[-1]
                return found
        raise MemoryFault(f"{size} bytes at {self.described(bad[0])}")

    def described(self, address: int) -> str:
        """An address that may not be accessed, in words."""
        return f"{address:#x}, which is not mapped"

    def modify(self, operation: str, address: int, size: int, operands: Sequence[int]) -> int:
        """One read-modify-write of integers at a real address (see `modified`); returns what was there."""
        function = self._atomics.get((operation.partition(".")[0], size))
        if function is not None:
            return function(address, *operands)
        return self.replace(address, size, lambda old: modified(operation, old, operands, size))

    def replace(self, address: int, size: int, new: Callable[[int], int]) -> int:
        """Exchange a word; no other thread comes in between only because no other one writes there."""
        words, place = self.words[size], (address - FIRST) // size
        old = int(words[place])
        words[place] = new(old)
        return old


def modified(operation: str, old: int, operands: Sequence[int], size: int) -> int:
    """What a read-modify-write of integers leaves in memory.

    Args:
        operation: with its kind, signed or not: "add.u64", "min.s32"; "cas" has the operands (expected, new).

    Raises:
        Unsupported: the operation is not known.
    """
    what, _, kind = operation.partition(".")
    new, span = operands[-1], 1 << 8 * size
    half = span // 2 if kind.startswith("s") else 0
    least, most = sorted([old, new], key=lambda word: (word + half) % span)
    made = {
        "add": (old + new) % span,
        "sub": (old - new) % span,
        "cas": new if old == operands[0] else old,
        "exch": new,
        "and": old & new,
        "or": old | new,
        "xor": old ^ new,
        "min": least,
        "max": most,
        "inc": 0 if old >= new else old + 1,
        "dec": new if old == 0 or old > new else old - 1,
    }
    if what not in made:
        raise Unsupported(f"the atomic {operation}")
    return made[what]


def _libatomic() -> dict[tuple[str, int], Callable[..., int]]:
    """(operation, bytes) -> function of (address, *operands); empty without the library."""
    try:
        library = ctypes.CDLL("libatomic.so.1")
    except OSError:
        return {}
    found: dict[tuple[str, int], Callable[..., int]] = {}
    for size, word in ((4, ctypes.c_uint32), (8, ctypes.c_uint64)):
        for name, symbol in _FETCH.items():
            found[name, size] = _fetch(getattr(library, f"__atomic_{symbol}_{size}"), word)
        found["cas", size] = _compare_and_swap(getattr(library, f"__atomic_compare_exchange_{size}"), word)
    return found


def _fetch(function: Any, word: Any) -> Callable[..., int]:
    function.argtypes, function.restype = (ctypes.c_void_p, word, ctypes.c_int), word
    return lambda address, operand: int(function(address, operand, _SEQ_CST))


def _compare_and_swap(function: Any, word: Any) -> Callable[..., int]:
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, word, ctypes.c_int, ctypes.c_int)
    function.restype = ctypes.c_bool

    def swapped(address: int, expected: int, new: int) -> int:
        seen = word(expected)
        function(address, ctypes.byref(seen), new, _SEQ_CST, _SEQ_CST)
        return int(seen.value)

    return swapped
