"""Drains a ring whose segment lies in a GPU's memory.

Mostly there is no new hint. To see that, the host copies one word on a stream of its own: it launches no kernel, and
does not wait for the engine's (`HeadWatch`: in native code, without the interpreter's lock). What it sees decides only
when to take hints: the kernel that takes them reads the ring anew. For that two kernels take the hints and copy the
headers that they are about, and one copy brings both to the host, which waits once.
"""

import time
from functools import partial

import numpy as np
import torch

from nanokv.device.kernels.ring import copy_drained_kernel
from nanokv.device.machines.gpu_threads import driver_function
from nanokv.device.machines.lane import STAGING_BYTES, Lane, Launch, calling
from nanokv.device.machines.native_code import gpu_code
from nanokv.device.machines.records import Drained, Words
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.host_records import SECOND, WATCH
from nanokv.device.segment.layout import HEAP_CTL, OBJ_HEADER, WORD

HEADERS_A_CTA = 8  #: headers that one CTA copies, one after the other
LEAST_PAUSE, MOST_PAUSE = 20_000, 1_000_000  #: ns between two looks
ROW = 2 + OBJ_HEADER.size // WORD  #: words per hint: the hint, whether its header is good, and the header


class RingReader:
    """Drains rings for one machine. For one thread at a time, the owner of the ring's tail.

    Args:
        segments: every rank's segment, uint8 [segment_bytes].
        lane: runs the copies and kernels.
    """

    def __init__(self, geometry: Geometry, segments: list[torch.Tensor], lane: Lane) -> None:
        at = HEAP_CTL.offsets["ann_head"]
        self._heads = [segment[at : at + WORD].view(torch.int64) for segment in segments]
        self._capacity = geometry.ann_capacity
        self._lane = lane
        self._watches: dict[int, HeadWatch] = {}
        self._rows = lane.zeros(0)

    def load(self) -> None:
        """Compile, load and allocate what `drain` needs, so that it does not when it is in a hurry."""
        self._lane.load(calling("drain"), Launch(copy_drained_kernel))
        self._rows = self._lane.zeros(min(self._capacity * ROW, STAGING_BYTES // WORD))

    def watch(self, owner: int, seen: int, seconds: float, asked: Words, pause: float) -> bool:
        """See `HeadWatch.wait`, of a rank's ring."""
        if owner not in self._watches:
            copy = driver_function("cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync")
            synchronize = driver_function("cuStreamSynchronize", "hipStreamSynchronize")
            self._stream = torch.cuda.Stream(self._heads[owner].device, priority=-1)  # type: ignore[no-untyped-call]
            self._watches[owner] = HeadWatch(self._heads[owner], copy, synchronize, self._stream.cuda_stream)
        return self._watches[owner].wait(seen, seconds, asked, pause)

    def drain(self, owner: int, tail: int, room: int) -> Drained:
        """Take at most `room` hints from the ticket `tail` on, with their headers: see `Machine.drain`."""
        head = int(self._lane.fetch(self._heads[owner])[0])
        if head == tail:
            return _drained(np.zeros(0, np.int64), 0, 0, head, head)
        asked = min(room, self._capacity)
        asked = min(head - tail, asked) if head > tail else asked  # a corrupt head asks for no more than a ring has
        if len(self._rows) < asked * ROW:
            self._rows = self._lane.zeros(asked * ROW)
        rows = self._rows[: asked * ROW]
        hints, good, records = (rows[start * asked :].data_ptr() for start in range(3))
        ctas = -(-asked // HEADERS_A_CTA)
        answers, words = self._lane.run_and_fetch(
            rows,
            (owner, tail, hints, asked, records, good),
            calling("drain"),
            Launch(copy_drained_kernel, ctas),
        )
        taken, upto, hole = answers[:3]
        return _drained(words, asked, taken, upto, hole)


class HeadWatch:
    """Waits until a ring's head has moved, without the interpreter's lock. For one thread at a time.

    Args:
        head: int64 [1], of the segment.
        copy, synchronize: addresses of the driver's functions; see WATCH.
        stream: the driver's handle of a stream of its own.
    """

    def __init__(self, head: torch.Tensor, copy: int, synchronize: int, stream: int) -> None:
        self._here = torch.zeros(1, dtype=torch.int64, device="cpu", pin_memory=head.device.type == "cuda")
        fields = np.zeros(1, WATCH.dtype)
        self._fields = fields
        self._kept = head
        for name, value in (("copy", copy), ("synchronize", synchronize), ("stream", stream)):
            fields[name] = value
        fields["there"], fields["here"], fields["most_pause"] = head.data_ptr(), self._here.data_ptr(), MOST_PAUSE
        self._code = partial(gpu_code()["watch"], fields.ctypes.data)

    def wait(self, seen: int, seconds: float, asked: Words, pause: float) -> bool:
        """True once the head is not `seen`; False after `seconds`, or once `asked` is not 0.

        Args:
            asked: int64 [1]; any thread may write it.
            pause: seconds before the first look.

        Raises:
            RuntimeError: the driver has failed.
        """
        fields = self._fields
        fields["seen"], fields["asked"] = seen, asked.ctypes.data
        fields["pause"] = min(max(int(pause * SECOND), LEAST_PAUSE), MOST_PAUSE)
        fields["end"] = time.monotonic_ns() + int(seconds * SECOND)
        answer = self._code()
        if answer > 0:
            raise RuntimeError(f"the GPU's driver answered error {answer} to a look at a ring")
        return bool(answer)


def _drained(words: Words, asked: int, taken: int, head: int, hole: int) -> Drained:
    good, records = words[asked : 2 * asked], words[2 * asked :]
    return Drained(words[:taken], head, hole, records.view(OBJ_HEADER.dtype)[:taken], good[:taken] != 0)
