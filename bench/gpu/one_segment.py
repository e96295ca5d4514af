"""One segment on a device, and the machine of its only rank."""

from typing import Self

import numpy as np
import torch

from nanokv.bench.gpu.timer import synchronize
from nanokv.device.machines.launch import LaunchMachine
from nanokv.device.segment.geometry import PAYLOAD_ALIGN, Geometry
from nanokv.device.segment.layout import WORD
from nanokv.device.segment.views import SegmentView
from nanokv.fsck import check_segments


class Unsound(Exception):
    """The measured operations failed or returned wrong bytes: the figure would be of something else."""


class OneSegment:
    """A world of one rank without a poller: `empty_ring` takes the host's place between two launches.

    Args:
        device: has the segment's memory; a CPU needs Triton's interpreter.
        heap_bytes, page_bytes, slots, ring: see `Geometry.plan`. Nothing is evicted.
    """

    def __init__(
        self, device: torch.device, heap_bytes: int, page_bytes: int, *, slots: int, ring: int | None = None
    ) -> None:
        self.device = device
        self.geometry = Geometry.plan(heap_bytes, page_bytes, 1, max_objects=slots, ring_slots=ring, shards=None)
        raw = torch.zeros(self.geometry.segment_bytes + PAYLOAD_ALIGN, dtype=torch.uint8, device=device)
        self.raw = raw[-raw.data_ptr() % PAYLOAD_ALIGN :][: self.geometry.segment_bytes]
        block = self.geometry.control_block(0, 9, "device", may_evict=False, water=(85, 95))
        self.raw[: block.nbytes] = torch.from_numpy(block.view(np.uint8)).to(device)
        table = self.geometry.world_table(0, 1, [self.raw.data_ptr()])
        self.machine = LaunchMachine(self.geometry, table, [self.raw], device)
        self.world = self.machine.table_address

    @classmethod
    def with_room(cls, device: torch.device, objects: int, nbytes: int, page_bytes: int) -> Self:
        """A segment with slots, and extents of a power of two of pages, for so many objects."""
        pages = -(-nbytes // page_bytes)
        extent = page_bytes << (pages - 1).bit_length()
        return cls(device, objects * extent, page_bytes, slots=objects)

    def empty_ring(self) -> None:
        """Take every hint out of the ring, on the current stream. Only while no operation is in flight."""
        base = self.geometry.offsets["ann_base"]
        self.raw[base : base + self.geometry.ann_capacity * WORD].zero_()

    def check(self) -> None:
        """Check the segment, at rest: no announcement was missed, nothing was refused, lost, corrupt or leaked.

        Raises:
            Unsound: the message names the error.
        """
        synchronize(self.device)
        control = self.machine.control(0)[0]
        self.machine.set_control(0, "ann_tail", int(control["ann_head"]))
        synchronize(self.device)  # the machine has a stream of its own
        self.empty_ring()
        wrong = {name: int(control[name]) for name in ("missed", "refused", "lost", "corrupt") if control[name]}
        if wrong:
            raise Unsound(f"counted {wrong}")
        head = self.raw[: self.geometry.offsets["heap_base"]].cpu().numpy()
        view = np.zeros(self.geometry.segment_bytes, np.uint8)  # fsck looks at no payload: its pages stay untouched
        view[: len(head)] = head
        report = check_segments([SegmentView(view, self.geometry)], mode="device")
        if not report.clean:
            raise Unsound(f"{[str(finding) for finding in report.findings[:5]]}")
