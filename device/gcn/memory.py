"""The memory of this process, as a wave sees it: accesses by several lanes at once, and atomics by one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.emulation.errors import Misaligned
from nanokv.device.emulation.host_memory import FIRST, ProcessMemory, Range, mapped

Addresses = npt.NDArray[np.uint64]
Dwords = npt.NDArray[np.uint32]  #: [dwords per lane, lanes]; an access of 8 or 16 bits has one
UINT: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class HostMemory(ProcessMemory):
    """Real addresses, checked before they are used.

    Args:
        ranges: (first, end) of what kernels may access, besides their arguments; None: all memory that is mapped and
            writable.
    """

    def __init__(self, ranges: Sequence[tuple[int, int]] | None = None) -> None:
        super().__init__()
        self._given = None if ranges is None else [Range(*each) for each in ranges]
        self._own: list[Range] = []

    def begin(self, *own: tuple[int, int]) -> None:
        """A launch begins, with its own ranges of addresses; what was mapped before may be gone."""
        self._own = [Range(*each) for each in own]
        self.forget()

    def ranges(self) -> Sequence[Range]:
        return mapped() if self._given is None else [*self._given, *self._own]

    def described(self, address: int) -> str:
        where = super().described(address)
        return where if self._given is None else f"{where}, or not in the ranges that were given"

    def check(self, addresses: Addresses, width: int) -> None:
        """All bytes are mapped, and lanes are aligned as far as the hardware wants it.

        Raises:
            MemoryFault: an address is not.
        """
        aligned = min(width, 4)
        if int(np.bitwise_or.reduce(addresses)) & aligned - 1:
            wrong = next(address for address in addresses.tolist() if address % aligned)
            raise Misaligned(f"{width} bytes at {wrong:#x}, which is not a multiple of {aligned}")
        if int(addresses.min()) < self.last.first or int(addresses.max()) + width > self.last.end:
            self.find(addresses.tolist(), width)

    def read(self, addresses: Addresses, width: int) -> Dwords:
        """`width` bytes per lane; words of 64 bits are read at once where they are aligned."""
        unit = self._unit(addresses, width)
        view, index = self.words[unit], (addresses - np.uint64(FIRST)) // np.uint64(unit)
        if width == unit < 8:
            return view[index].astype(np.uint32)[None]
        places = index[:, None] + np.arange(width // unit, dtype=np.uint64)
        return view[places].view(np.uint32).T

    def write(self, addresses: Addresses, width: int, values: Dwords) -> None:
        """`width` bytes per lane, the lanes in their order."""
        unit = self._unit(addresses, width)
        view, index = self.words[unit], (addresses - np.uint64(FIRST)) // np.uint64(unit)
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

    def atomic(self, address: int, size: int, operation: str, operands: Sequence[int]) -> int:
        """One read-modify-write (`emulation.host_memory.modified`); returns what was there."""
        if address % size:
            raise Misaligned(f"an atomic of {size} bytes at {address:#x}, which is not a multiple of {size}")
        return self.modify(operation, address, size, operands)
