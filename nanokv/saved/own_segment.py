"""The Source of a rank's own segment: by its machine, on any device."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Place
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.layout import (
    OBJ_DESC,
    READY,
    RING_EPOCH_SHIFT,
    RING_HEADER_SHIFT,
    STATE_MASK,
    STORED,
)
from nanokv.heap.base import Heap
from nanokv.host_poller.index import key_of
from nanokv.saved.source import Ready


class OwnSegment:
    """The Source of a rank."""

    def __init__(self, heap: Heap, machine: Machine, rank: int) -> None:
        self.rank, self.clock = rank, now_ns()
        self._machine = machine
        self._segment = heap.segment(rank)

    def ready(self) -> Ready:
        headers = self._machine.headers(self.rank, 0, self._machine.geometry.hdr_count)
        slots = np.flatnonzero((headers["state"] & STATE_MASK.value) == READY.value)
        epochs = headers["epoch"][slots].astype(np.int64)
        hints = STORED.value | slots << RING_HEADER_SHIFT.value | epochs << RING_EPOCH_SHIFT.value
        records, whole = self._machine.snapshots(self.rank, hints)
        return Ready(slots[whole], records[whole])

    def descriptor(self, slot: int) -> Any:
        at = self._machine.geometry.offsets["desc_base"] + slot * OBJ_DESC.size
        return self._machine.look(self.rank, at, OBJ_DESC.dtype, 1)[0]

    def label(self, slot: int) -> Any:
        return self._machine.labels(self.rank, slot, 1)[0]

    def read(self, offset: int, to: npt.NDArray[np.uint8]) -> None:
        with torch.inference_mode():
            torch.from_numpy(to).copy_(self._segment[offset : offset + len(to)])

    def verdict(self, slot: int, header: Any) -> int:
        payload, nbytes = int(header["payload_base"]), int(header["bytes_total"])
        place = Place(self.rank, slot, int(header["epoch"]), payload, nbytes)
        return self._machine.verify(key_of(header), place, self._segment.data_ptr() + payload)

    def layouts(self) -> npt.NDArray[Any]:
        return self._machine.layouts(self.rank)
