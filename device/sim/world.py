"""Segments in simulated memory, and the machine that a host has there: production host code runs on it unchanged."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.base import Machine
from nanokv.device.machines.entries import ENTRIES
from nanokv.device.machines.native import CodeMachine
from nanokv.device.machines.records import Words
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import HEAP_CTL, WORD
from nanokv.device.segment.views import SegmentView
from nanokv.device.segment.world_table import FIELDS, WORLD
from nanokv.device.sim.memory import SHARED
from nanokv.device.sim.simulation import Simulation


class TableAddress(int):
    """The address of a world table, whose attributes are its words: the `world` of device functions in plain Python."""

    def __new__(cls, address: int, words: Sequence[int]) -> "TableAddress":
        made = super().__new__(cls, address)
        fields = {name: words[WORLD.offsets[name] // WORD] for name in FIELDS}
        vars(made).update(fields, table=made)
        return made


class SimulatedWorld:
    """The segments of a world, one behind the other from SHARED on.

    Args:
        simulation: in whose memory they lie.
        geometry: of every segment; keep it small.
        may_evict: whether producers evict.
        checksum: whether ranks give their objects checksums, and read none without.
    """

    def __init__(
        self, simulation: Simulation, geometry: Geometry, *, may_evict: bool = False, checksum: bool = False
    ) -> None:
        self.simulation = simulation
        self.geometry = geometry
        self.checksum = checksum
        self.bases = [SHARED + rank * geometry.segment_bytes for rank in range(geometry.world_size)]
        self.code = {name: simulation.function(entry.function) for name, entry in ENTRIES.items()}
        self._tables: dict[tuple[int, int], tuple[Words, TableAddress]] = {}
        self.words = [word for rank in range(geometry.world_size) for word in self._new_segment(rank, may_evict)]

    def _new_segment(self, rank: int, may_evict: bool) -> list[int]:
        raw = np.zeros(self.geometry.segment_bytes, np.uint8)
        view = SegmentView(raw, self.geometry)
        view.ctl[:] = self.geometry.control_block(rank, 1, "device", may_evict=may_evict, water=(85, 95))
        view.activity["incarnation"] = 1
        words: list[int] = raw.view(np.int64).tolist()
        return words

    def table(self, rank: int, incarnation: int = 1) -> TableAddress:
        """The address of a rank's private world table: the `world` of protocol functions."""
        if (rank, incarnation) not in self._tables:
            table = self.geometry.world_table(rank, incarnation, self.bases, checksum=self.checksum)
            self._tables[rank, incarnation] = table, self.announced(table)
        return self._tables[rank, incarnation][1]

    def announced(self, table: Words) -> TableAddress:
        """The address of any private world table, which the caller keeps as long as the simulation."""
        self.simulation.table(table.ctypes.data, table.tolist())
        return TableAddress(table.ctypes.data, table.tolist())

    def machine(self, rank: int, incarnation: int = 1) -> "SimulatedMachine":
        """A host of a rank."""
        return SimulatedMachine(self, rank, incarnation)

    def restart(self) -> None:
        """Begin a new execution on the words of this world."""
        self.simulation.reset(list(self.words))

    def keep(self) -> None:
        """Let executions begin with the present content of memory."""
        self.words = list(self.simulation.memory.words)

    def views(self) -> list[SegmentView]:
        """Views of a copy of the newest words, in memory of this process."""
        raw = np.array(self.simulation.memory.words, np.int64).view(np.uint8)
        size = self.geometry.segment_bytes
        return [SegmentView(raw[base - SHARED : base - SHARED + size], self.geometry) for base in self.bases]


class SimulatedMachine(CodeMachine):
    """The CPU machine over simulated segments: each word that it looks at is a relaxed load."""

    def __init__(self, world: SimulatedWorld, rank: int, incarnation: int) -> None:
        Machine.__init__(self, world.geometry, world.table(rank, incarnation), lambda rank: None)
        self._bases = world.bases
        self._code = world.code
        self._load = world.simulation.vocabulary["load64"]

    def look(self, owner: int, offset: int, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        words = np.zeros((count, dtype.itemsize // WORD), np.int64)
        kept = range(0, dtype.itemsize, WORD) if dtype.fields is None else (field[1] for field in dtype.fields.values())
        at = sorted({place // WORD for place in kept})  # no load of padding
        for row in range(count):
            for word in at:
                address = self._bases[owner] + offset + row * dtype.itemsize + word * WORD
                words[row, word] = self._load(address, "relaxed")
        return words.reshape(-1).view(dtype)

    def control(self, owner: int) -> Any:
        """The HeapCtl, whose words are loaded when they are asked for: an execution has no steps that nobody needs."""
        return _Control(self._bases[owner], self._load)


class _Control:
    """HeapCtl as a record array of one, whose fields are loaded when they are asked for."""

    def __init__(self, base: int, load: Any) -> None:
        self._base, self._load = base, load

    def __getitem__(self, field: int | str) -> Any:
        if isinstance(field, int):
            return self
        kind = HEAP_CTL.dtype[field]
        if kind.shape:
            at = self._base + HEAP_CTL.offsets[field]
            return np.array([self._load(at + i * WORD, "relaxed") for i in range(kind.shape[0])], np.int64)
        value = self._load(self._base + HEAP_CTL.offsets[field] // WORD * WORD, "relaxed")
        shift = HEAP_CTL.offsets[field] % WORD * 8
        size = kind.itemsize * 8
        return np.uint64((value >> shift) & ((1 << size) - 1))
