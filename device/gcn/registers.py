"""The registers of one wave, and how the text names them.

Scalar registers are Python integers of 32 bits; vector registers are rows of 64 lanes. A number names each register, so
that outstanding loads can be compared with what an instruction uses: scalars from 0, vectors from 256, accumulators
from 512. Source: AMD, "CDNA3 Instruction Set Architecture".
"""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nanokv.device.emulation.errors import Unsupported

LANES = 64
LANE = np.arange(LANES, dtype=np.uint32)
MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1
FIRST_VECTOR, FIRST_ACCUMULATOR = 256, 512
REGISTERS = 768
UNWRITTEN = 0xDEADBEEF  #: what a register holds before it is written: not zero, which many programs expect

NAMED = {"flat_scratch": 102, "xnack_mask": 104, "vcc": 106, "m0": 124, "exec": 126}
VCC, M0, EXEC = NAMED["vcc"], NAMED["m0"], NAMED["exec"]

Vector = npt.NDArray[np.uint32]  #: [64], or one value for all lanes
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Registers:
    """A run of neighbouring registers."""

    first: int
    count: int

    @property
    def vector(self) -> bool:
        """Whether each lane has its own value."""
        return self.first >= FIRST_VECTOR

    @property
    def row(self) -> int:
        """The first row of a vector register."""
        return self.first - FIRST_VECTOR

    def numbers(self) -> range:
        """Each register of the run."""
        return range(self.first, self.first + self.count)


def named(text: str) -> Registers | None:
    """The registers that an operand names: v7, s[2:3], a4, vcc, exec_lo; None for something else."""
    match = re.fullmatch(r"([sva])(\d+)|([sva])\[(\d+):(\d+)\]", text)
    if match:
        base = {"s": 0, "v": FIRST_VECTOR, "a": FIRST_ACCUMULATOR}[match[1] or match[3]]
        first, last = (int(match[2]),) * 2 if match[1] else (int(match[4]), int(match[5]))
        if last < first or last >= (NAMED["flat_scratch"] if not base else 256):
            raise Unsupported(f"{text}: there is no such register")
        return Registers(base + first, last - first + 1)
    half = text.removesuffix("_lo").removesuffix("_hi")
    if half not in NAMED:
        return None
    if half != text:
        return Registers(NAMED[half] + text.endswith("_hi"), 1)
    return Registers(NAMED[half], 1 if half == "m0" else 2)


def to_mask(bits: int) -> Mask:
    """The lanes whose bits are set."""
    return np.unpackbits(np.array([bits], "<u8").view(np.uint8), bitorder="little").view(np.bool_)


def to_bits(mask: Mask) -> int:
    """One bit per lane."""
    return int(np.packbits(mask, bitorder="little").view("<u8")[0])


class RegisterFile:
    """The registers of one wave, and what its mask of active lanes, EXEC, says."""

    def __init__(self) -> None:
        self.scalar = [UNWRITTEN] * 128
        self.vector = np.full((REGISTERS - FIRST_VECTOR, LANES), UNWRITTEN, np.uint32)
        self.scc = 0
        self.exec = 0
        self.active: Mask = to_mask(0)  #: the lanes of EXEC
        self.all_active = False
        self.set_exec(MASK64)

    def set_exec(self, bits: int) -> None:
        """Choose the lanes that act."""
        self.scalar[EXEC], self.scalar[EXEC + 1] = bits & MASK32, bits >> 32
        self.exec, self.active, self.all_active = bits, to_mask(bits), bits == MASK64

    def pair(self, first: int) -> int:
        """64 bits of two scalar registers."""
        return self.scalar[first] | self.scalar[first + 1] << 32

    def set_scalar(self, first: int, value: int, count: int) -> None:
        """Write one or two scalar registers; EXEC is one of them for the lanes that act."""
        scalar = self.scalar
        scalar[first] = value & MASK32
        if count == 2:
            scalar[first + 1] = value >> 32 & MASK32
        if first >= EXEC:
            self.set_exec(self.pair(EXEC))

    def wide(self, row: int) -> npt.NDArray[np.uint64]:
        """64 bits of each lane, of two vector registers."""
        return np.ascontiguousarray(self.vector[row : row + 2].T).view(np.uint64)[:, 0]

    def set_vector(self, row: int, value: npt.NDArray[np.uint32]) -> None:
        """Write the active lanes of one register."""
        if self.all_active:
            self.vector[row] = value
        else:
            np.copyto(self.vector[row], value, where=self.active)

    def set_wide(self, row: int, value: npt.NDArray[np.uint64]) -> None:
        """Write 64 bits of the active lanes to two registers."""
        halves = np.broadcast_to(value, LANES).copy().view(np.uint32).reshape(LANES, 2).T
        np.copyto(self.vector[row : row + 2], halves, where=self.active)
