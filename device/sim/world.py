"""Segments in simulated memory, and the machine that a host has there: production host code runs on it unchanged."""

from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.base import Words
from nanokv.device.machines.native import NativeMachine
from nanokv.device.machines.native_code import ENTRIES, Compiled
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import ACTIVITY, HEAP_CTL, OBJ_HEADER, WORD
from nanokv.device.segment.views import SegmentView
from nanokv.device.sim.memory import SHARED
from nanokv.device.sim.simulation import Simulation


class SimulatedWorld:
    """The segments of a world, one behind the other from SHARED on.

    Args:
        simulation: in whose memory they lie.
        geometry: of every segment; keep it small.
        may_evict: whether producers evict.
    """

    def __init__(self, simulation: Simulation, geometry: Geometry, *, may_evict: bool = False) -> None:
        self.simulation = simulation
        self.geometry = geometry
        self.bases = [SHARED + rank * geometry.segment_bytes for rank in range(geometry.world_size)]
        self.code = Compiled(**{name: simulation.function(function) for name, (function, _) in ENTRIES.items()})
        self._tables: dict[tuple[int, int], Words] = {}
        self.words = [word for rank in range(geometry.world_size) for word in self._new_segment(rank, may_evict)]

    def _new_segment(self, rank: int, may_evict: bool) -> list[int]:
        raw = np.zeros(self.geometry.segment_bytes, np.uint8)
        view = SegmentView(raw, self.geometry)
        view.ctl[:] = self.geometry.control_block(rank, 1, "device", may_evict=may_evict, water=(85, 95))
        view.activity["incarnation"] = 1
        words: list[int] = raw.view(np.int64).tolist()
        return words

    def table(self, rank: int, incarnation: int = 1) -> int:
        """The address of a rank's private world table: the `world` of protocol functions."""
        table = self._tables.get((rank, incarnation))
        if table is None:
            table = self._tables[rank, incarnation] = self.geometry.world_table(rank, incarnation, self.bases)
            self.simulation.table(table.ctypes.data, table.tolist())
        return int(table.ctypes.data)

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


class SimulatedMachine(NativeMachine):
    """The CPU machine over simulated segments: each word that it looks at is a relaxed load."""

    kind = "simulated"

    def __init__(self, world: SimulatedWorld, rank: int, incarnation: int) -> None:
        self.geometry = world.geometry
        self._bases = world.bases
        self._code = code = world.code
        self.table_address = world.table(rank, incarnation)
        self._load = world.simulation.vocabulary["load64"]
        self._store = world.simulation.vocabulary["store64"]
        self._wake = lambda rank: None
        self._put, self._get, self._find, self._asleep = code.put, code.get, code.find, code.asleep

    def _look(self, owner: int, region: str, skip: int, count: int) -> Words:
        base = self._bases[owner] + self.geometry.offsets[region] + skip * WORD
        return np.array([self._load(base + at * WORD, "relaxed") for at in range(count)], np.int64)

    def headers(self, owner: int, start: int, count: int) -> npt.NDArray[Any]:
        size = OBJ_HEADER.size // WORD
        count = min(count, self.geometry.hdr_count - start)
        return self._look(owner, "hdr_base", start * size, count * size).view(OBJ_HEADER.dtype)

    def control(self, owner: int) -> Any:
        return _Control(self._bases[owner], self._load)

    def activity(self, owner: int) -> npt.NDArray[Any]:
        rows = np.zeros(self.geometry.world_size, ACTIVITY.dtype)
        words = rows.view(np.int64).reshape(len(rows), -1)  # a count that went below 0 must be seen, not refused
        base = self._bases[owner] + self.geometry.offsets["activity_base"]
        for rank in range(len(rows)):
            for offset in ACTIVITY.offsets.values():
                words[rank, offset // WORD] = self._load(base + rank * ACTIVITY.size + offset, "relaxed")
        return rows

    def set_control(self, owner: int, field: str, value: int) -> None:
        assert HEAP_CTL.dtype[field].itemsize == WORD
        self._store(self._bases[owner] + HEAP_CTL.offsets[field], value, "relaxed")

    def _page_links(self, owner: int) -> Words:
        return self._look(owner, "links_base", 0, self.geometry.n_pages)

    def pin_ledger(self, owner: int) -> Words:
        return self._look(owner, "pin_base", 0, self.geometry.pin_slots)


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
