"""The machine that launches kernels: on a GPU, or on the CPU by Triton's interpreter (for tests: it is slow).

Every host call is one launch: of one CTA that calls one protocol function, or, for what moves payload, of as many as it
has tiles. Words that the host only looks at are copied; it writes none but those of HeapCtl
that nobody else writes. Calls about objects go to the caller's current stream, so that they come after the kernels that
the caller launched; calls of the owner's host have a stream of their own, so that they do not wait for those.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
from triton.runtime.interpreter import InterpretedFunction

from nanokv.device.kernels import checksums, host, objects
from nanokv.device.kernels.shares import TILE_BYTES
from nanokv.device.machines.base import Begun, Descriptor, Drained, Found, Request, Words, free_chains
from nanokv.device.machines.batch import Batch
from nanokv.device.machines.lane import Lane, check_compiler
from nanokv.device.machines.launch_ring import RingReader
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import ACTIVITY, HEAP_CTL, OBJ_HEADER, WORD, unpack

MAX_CTAS = 1056  #: eight a multiprocessor of the largest GPUs in use; more only wait for their turn


class LaunchMachine:
    """Runs the protocol on segments in the memory of a GPU (or in host memory, interpreted).

    Args:
        geometry: of every segment.
        table: the private world table of this rank (`Geometry.world_table`), its bases as `device` sees them; copied.
        segments: every rank's segment: uint8, one dimension, reachable from `device`. Kept alive here.
        device: where kernels run.

    Attributes:
        table_address: where the table is for `device`: the `world` of protocol functions in a user's own kernel.

    Raises:
        RuntimeError: kernels cannot run on `device`, or this Triton is known to miscompile them there.
    """

    kind = "launch"

    def __init__(self, geometry: Geometry, table: Words, segments: list[torch.Tensor], device: torch.device) -> None:
        interpreted = isinstance(objects.begin_object_kernel, InterpretedFunction)
        check_compiler(device, torch.version.hip, triton.__version__, interpreted=interpreted)
        self.geometry = geometry
        self._device = device
        self._segments = segments
        self._table = torch.from_numpy(table.copy()).to(device)
        self.table_address = world = self._table.data_ptr()
        self._objects = Lane(world, device, own_stream=False)
        self._owner = Lane(world, device, own_stream=True)
        self._rings = RingReader(geometry, segments, self._owner)
        self._single = Batch(world, 1, device)
        self._lock = threading.Lock()

    def _call(self, kernel: Any, *args: int) -> list[int]:
        return self._objects.run(args, (kernel, 1))

    def _owner_call(self, kernel: Any, *args: int) -> list[int]:
        return self._owner.run(args, (kernel, 1))

    def _by_tiles(self, kernel: Any, args: tuple[int, ...], nbytes: int, before: tuple[int, ...] = ()) -> int:
        ctas = min(max(nbytes // TILE_BYTES.value, 1), MAX_CTAS)
        return self._objects.run(args, (kernel, ctas), before=before)[checksums.FINAL.value]

    def _one(self, what: Callable[[Batch], None], request: Request, now: int) -> int:
        """Put or get one object: the case of one of many."""
        with self._lock:
            self._single.fill([request], now)
            what(self._single)
            return self._single.answers()[0]

    # objects
    def begin(self, owner: int, key: tuple[int, int], nbytes: int, flags: int, what: Descriptor, now: int) -> Begun:
        return Begun(*self._call(objects.begin_object_kernel, owner, *key, nbytes, flags, now, *what)[:5])

    def seal(
        self, owner: int, key: tuple[int, int], slot: int, epoch: int, payload: int, nbytes: int, what: Descriptor
    ) -> None:
        args = (owner, *key, nbytes, 0, 0, *what, slot, epoch, payload)
        self._by_tiles(checksums.seal_payload_kernel, args, nbytes)

    def finish(self, owner: int, slot: int, epoch: int, phase: int) -> int:
        return self._call(objects.finish_object_kernel, owner, slot, epoch, phase)[0]

    def commit(self, owner: int, slot: int, epoch: int) -> int:
        return self._call(objects.commit_object_kernel, owner, slot, epoch)[0]

    def abort(self, owner: int, slot: int, epoch: int) -> int:
        return self._call(objects.abort_object_kernel, owner, slot, epoch)[0]

    def enter(self, owner: int) -> int:
        return self._call(objects.enter_segment_kernel, owner)[0]

    def leave(self, owner: int, phase: int) -> None:
        self._call(objects.leave_segment_kernel, owner, phase)

    def put(self, owner: int, key: tuple[int, int], src: int, nbytes: int, what: Descriptor, now: int) -> int:
        return self._one(Batch.put, Request(key, src, nbytes, owner, what), now)

    def lookup(self, key: tuple[int, int]) -> Found:
        status, owner, slot, epoch, payload, nbytes, *what = self._call(objects.lookup_object_kernel, *key)[:14]
        return Found(status, owner, slot, epoch, payload, nbytes, tuple(what))

    def find(self, key: tuple[int, int]) -> int:
        return self._call(objects.find_key_kernel, *key)[0]

    def read(self, key: tuple[int, int], found: Found, dst: int, now: int) -> int:
        """What has the key now, if that has the same descriptor as what was found."""
        status = self._one(Batch.get, Request(key, dst, found.nbytes, what=found.descriptor), now)
        return status if status in (Status.OK, Status.CORRUPT) else Status.TORN

    def get(self, key: tuple[int, int], dst: int, nbytes: int, now: int) -> int:
        return self._one(Batch.get, Request(key, dst, nbytes), now)

    def verify(self, key: tuple[int, int], found: Found, copy: int) -> int:
        args = (*key, copy, found.nbytes, time.time_ns())
        return self._by_tiles(checksums.verify_payload_kernel, args, found.nbytes, before=found[:6])

    def validate(self, owner: int, slot: int, epoch: int) -> int:
        return self._call(objects.validate_object_kernel, owner, slot, epoch)[0]

    def touch(self, owner: int, slot: int, now: int) -> None:
        self._call(objects.touch_object_kernel, owner, slot, now)

    def remove(self, key: tuple[int, int]) -> int:
        return self._call(objects.remove_object_kernel, *key)[0]

    def remove_slot(self, owner: int, slot: int, epoch: int) -> int:
        return self._call(objects.remove_slot_kernel, owner, slot, epoch)[0]

    def pin(self, owner: int, slot: int, epoch: int) -> tuple[int, int]:
        status, line = self._call(objects.pin_object_kernel, owner, slot, epoch)[:2]
        return status, line

    def unpin(self, owner: int, slot: int, epoch: int, line: int) -> int:
        return self._call(objects.unpin_object_kernel, owner, slot, epoch, line)[0]

    # v1
    def install(
        self,
        owner: int,
        slot: int,
        key: tuple[int, int],
        payload: int,
        nbytes: int,
        flags: int,
        what: Descriptor,
        now: int,
    ) -> int:
        return self._call(host.install_header_kernel, owner, slot, *key, payload, nbytes, flags, now, *what)[0]

    def state(self, owner: int, slot: int) -> int:
        return self._call(host.read_state_kernel, owner, slot)[0]

    def kill(self, owner: int, slot: int, state: int, epoch: int) -> int:
        return self._call(host.kill_slot_kernel, owner, slot, state, epoch)[0]

    def announce(self, owner: int, kind: int, slot: int, epoch: int) -> None:
        self._call(host.announce_slot_kernel, owner, kind, slot, epoch)

    # the owner's host
    def drain(self, owner: int, tail: int, room: int) -> Drained:
        return self._rings.drain(owner, tail, room)

    def snapshots(self, owner: int, hints: Words) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        said = self._upload(hints)
        records, good = self._buffer(len(hints) * OBJ_HEADER.size // WORD), self._buffer(len(hints))
        self._owner_call(
            host.copy_snapshots_kernel, owner, said.data_ptr(), len(hints), records.data_ptr(), good.data_ptr()
        )
        return self._words(records).view(OBJ_HEADER.dtype), self._words(good) != 0

    def headers(self, owner: int, start: int, count: int) -> npt.NDArray[Any]:
        at = self.geometry.offsets["hdr_base"] + start * OBJ_HEADER.size
        return self._look(owner, at, OBJ_HEADER.dtype, min(count, self.geometry.hdr_count - start))

    def control(self, owner: int) -> npt.NDArray[Any]:
        return self._look(owner, 0, HEAP_CTL.dtype, 1)

    def activity(self, owner: int) -> npt.NDArray[Any]:
        return self._look(owner, self.geometry.offsets["activity_base"], ACTIVITY.dtype, self.geometry.world_size)

    def set_control(self, owner: int, field: str, value: int) -> None:
        raw = np.array([value], HEAP_CTL.dtype[field]).view(np.uint8)
        at = HEAP_CTL.offsets[field]
        with self._owner.entered():
            self._segments[owner][at : at + len(raw)].copy_(torch.from_numpy(raw))

    def in_flight(self, owner: int, rank: int, phase: int) -> int:
        return self._owner_call(host.read_in_flight_kernel, owner, rank, phase)[0]

    def give_up(self, owner: int, slot: int, epoch: int, producer: int) -> bool:
        return bool(self._owner_call(host.give_up_slot_kernel, owner, slot, epoch, producer)[0])

    def release(self, owner: int, slot: int, epoch: int) -> bool:
        return bool(self._owner_call(host.release_slot_kernel, owner, slot, epoch)[0])

    def adopt_slot(self, owner: int, slot: int) -> None:
        self._owner_call(host.adopt_slot_kernel, owner, slot)

    def joining(self, owner: int, change: int) -> int:
        return self._owner_call(host.count_joining_kernel, owner, change)[0]

    def detach(self, owner: int, size_class: int) -> Words:
        firsts = self._buffer(self.geometry.shards)
        self._owner_call(host.detach_class_kernel, owner, size_class, firsts.data_ptr())
        return free_chains(self.geometry, self._page_links(owner), self._words(firsts), size_class)

    def detach_rest(self, owner: int) -> Words:
        first = self._owner_call(host.detach_rest_kernel, owner)[0]
        return np.arange(first if first >= 0 else self.geometry.n_pages, self.geometry.n_pages, dtype=np.int64)

    def push_extents(self, owner: int, pages: Words, classes: Words) -> None:
        firsts, kinds = self._upload(pages), self._upload(classes)
        self._owner_call(host.push_extents_kernel, owner, firsts.data_ptr(), kinds.data_ptr(), len(pages))

    def page_marks(self, owner: int) -> Words:
        marks = self._buffer(self.geometry.n_pages)
        self._owner_call(host.walk_pages_kernel, owner, len(marks), marks.data_ptr())
        return self._words(marks)

    def slot_marks(self, owner: int) -> Words:
        marks = self._buffer(self.geometry.hdr_count)
        self._owner_call(host.walk_slots_kernel, owner, len(marks), marks.data_ptr())
        return self._words(marks)

    def page_stamps(self, owner: int) -> Words:
        stamps: Words = unpack("LINK", "stamp", self._page_links(owner)).astype(np.int64)
        return stamps

    def pin_ledger(self, owner: int) -> Words:
        return self._look(owner, self.geometry.offsets["pin_base"], np.dtype(np.int64), self.geometry.pin_slots)

    def drop_pin(self, owner: int, line: int, said: int, epoch: int) -> bool:
        return bool(self._owner_call(host.drop_pin_kernel, owner, line, said, epoch)[0])

    def clear_intent(self, owner: int, line: int, said: int) -> None:
        self._owner_call(host.clear_intent_kernel, owner, line, said)

    def recount(self, owner: int, slot: int, dead: int) -> bool:
        return bool(self._owner_call(host.recount_pins_kernel, owner, slot, dead)[0])

    # copies
    def _page_links(self, owner: int) -> npt.NDArray[np.uint64]:
        return self._look(owner, self.geometry.offsets["links_base"], np.dtype(np.uint64), self.geometry.n_pages)

    def _look(self, owner: int, offset: int, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        """Copy `count` records from a segment, as they are at this moment."""
        return self._words(self._segments[owner][offset : offset + dtype.itemsize * count]).view(dtype)

    def _buffer(self, words: int) -> torch.Tensor:
        return self._owner.zeros(words)

    def _upload(self, words: Words) -> torch.Tensor:
        with self._owner.entered():
            return torch.from_numpy(np.array(words, np.int64)).to(self._device)

    def _words(self, tensor: torch.Tensor) -> npt.NDArray[Any]:
        return self._owner.fetch(tensor)
