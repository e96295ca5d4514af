"""The machine that launches kernels: on a GPU, or on the CPU by Triton's interpreter (for tests: it is slow).

A host call is one launch: one CTA runs one protocol function, or one CTA per tile moves the payload. Calls about
objects go to the caller's current stream, so that they follow the kernels that the caller launched. Calls of the
owner's host, and all calls of its poller's thread, have a stream of their own, so that they do not wait for those.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
from triton.runtime.interpreter import InterpretedFunction

from nanokv.device.kernels import payload
from nanokv.device.kernels.frame import call_kernel
from nanokv.device.kernels.shares import TILE_BYTES
from nanokv.device.machines.base import Machine
from nanokv.device.machines.batch import Batch
from nanokv.device.machines.engine_cache import Pages
from nanokv.device.machines.entries import ENTRIES
from nanokv.device.machines.lane import Lane, Launch, calling, check_compiler
from nanokv.device.machines.launch_ring import RingReader
from nanokv.device.machines.native_code import gpu_code
from nanokv.device.machines.records import Descriptor, Drained, Place, Request, Words
from nanokv.device.machines.triton_keys import settle_functions
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry

_log = logging.getLogger("nanokv.machine")

MAX_CTAS = 1056  #: eight per multiprocessor of the largest GPUs in use; more would only queue


class LaunchMachine(Machine):
    """Runs the protocol on segments in the memory of a GPU (or in host memory, interpreted).

    Args:
        geometry: of every segment.
        table: the private world table of this rank (`Geometry.world_table`), with the bases that `device` sees; copied.
        segments: every rank's segment, uint8 [segment_bytes], reachable from `device`; kept alive here.
        device: where kernels run.

    Raises:
        RuntimeError: kernels cannot run on `device`, or this Triton is known to miscompile them there.
    """

    wakes = False
    at_once = 1 << 62

    @torch.inference_mode(False)
    def __init__(self, geometry: Geometry, table: Words, segments: list[torch.Tensor], device: torch.device) -> None:
        check_kernels_run(device)
        if device.type == "cuda":
            settle_functions()
        self._device = device
        self._watches = device.type == "cuda"
        self._segments = segments
        self._table = torch.from_numpy(table.copy()).to(device)
        super().__init__(geometry, self._table.data_ptr(), lambda rank: None)
        self._objects = Lane(self.table_address, device, own_stream=False)
        self._owner = Lane(self.table_address, device, own_stream=True)
        self._rings = RingReader(geometry, segments, self._owner)
        self._single = Batch(self.table_address, 1, device)
        self._lock = threading.Lock()
        self._here = threading.local()
        if device.type == "cuda":
            self.load()

    def load(self) -> None:
        """Compile and load what a poller launches in its rounds: else its first hints wait for that.

        What a sweep finds once in a while to be done (`Entry.rare`) is compiled then: 0.1 to 0.4 s each, once.
        """
        usual = [name for name, entry in ENTRIES.items() if entry.by_owner and not entry.rare]
        self._owner.load(*(calling(name) for name in (*usual, "enter", "leave", "evict_pages")))
        self._rings.load()
        try:
            gpu_code().require_all()
        except ImportError as error:  # of numba
            self._watches = False
            _log.warning("NanoKV's poller looks at its ring in Python, which slows the threads beside it: %s", error)

    def enter_owner(self) -> None:
        self._here.is_owner = True
        self._owner.enter_thread()

    # --- the primitives ---
    def call(self, entry: str, *words: int) -> Any:
        count, by_owner = ENTRIES[entry].answers, ENTRIES[entry].by_owner
        lane = self._owner if by_owner or getattr(self._here, "is_owner", False) else self._objects
        answers = lane.run(words, calling(entry))
        return answers[0] if count == 1 else answers[:count]

    def exchange(self, entry: str, *words: Any) -> Any:
        arrays = [word for word in words if isinstance(word, np.ndarray)]
        with self._owner.entered():
            there = [torch.from_numpy(np.array(array, np.int64)).to(self._device) for array in arrays]
        addresses = iter([tensor.data_ptr() for tensor in there])
        answer = self.call(entry, *(next(addresses) if isinstance(word, np.ndarray) else word for word in words))
        for array, tensor in zip(arrays, there, strict=True):
            array[...] = self._owner.fetch(tensor)
        return answer

    def look(self, owner: int, offset: int, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        return self._owner.fetch(self._segments[owner][offset : offset + dtype.itemsize * count]).view(dtype)

    # --- by more than one CTA ---
    def put(self, owner: int, key: tuple[int, int], src: int, nbytes: int, descriptor: Descriptor, now: int) -> int:
        return self._one(Batch.put, Request(key, src, nbytes, owner, descriptor), now)

    def get(self, key: tuple[int, int], dst: int, nbytes: int, what: Descriptor, now: int) -> int:
        return self._one(Batch.get, Request(key, dst, nbytes, what=what), now)

    def read(self, key: tuple[int, int], place: Place, dst: int, now: int) -> int:
        owner, slot, epoch, offset, nbytes = place
        return self._by_tiles(payload.read_kernel, nbytes, owner, slot, epoch, *key, offset, nbytes, dst, now)

    def replicate(self, target: int, key: tuple[int, int], now: int) -> int:
        status, slot, epoch, to, phase, *source = self.call("begin_replica", target, *key, now)
        if status == Status.OK:
            place = Place._make(source)
            copied = self.read(key, place, self._segments[target].data_ptr() + to, now)
            ending = target, slot, epoch, phase, place.owner, place.slot, place.epoch, copied
            status, _ = self.call("end_replica", *ending)
        return status

    def verify(self, key: tuple[int, int], place: Place, copy: int) -> int:
        owner, slot, epoch, _, nbytes = place
        return self._by_tiles(payload.verify_kernel, nbytes, owner, slot, epoch, *key, copy, nbytes)

    def seal(self, key: tuple[int, int], place: Place, descriptor: Descriptor) -> None:
        owner, slot, epoch, offset, nbytes = place
        self._by_tiles(payload.seal_kernel, nbytes, owner, *key, slot, epoch, offset, nbytes, *descriptor)

    def store_payload(self, place: Place, src: int) -> None:
        owner, _, _, offset, nbytes = place
        self._by_tiles(payload.store_payload_kernel, nbytes, owner, offset, src, nbytes)

    def watch(self, owner: int, seen: int, seconds: float, asked: Words, pause: float) -> bool | None:
        return self._rings.watch(owner, seen, seconds, asked, pause) if self._watches else None

    def drain(self, owner: int, tail: int, room: int) -> Drained:
        return self._rings.drain(owner, tail, room)

    def batch(self, capacity: int, pages: Pages | None = None) -> Batch:
        return Batch(self.table_address, capacity, self._device, pages)

    def _by_tiles(self, kernel: Any, nbytes: int, *words: int) -> int:
        ctas = min(max(nbytes // TILE_BYTES.value, 1), MAX_CTAS)
        return self._objects.run(words, Launch(kernel, ctas))[0]

    def _one(self, operation: Callable[[Batch], None], request: Request, now: int) -> int:
        """Put or get one object: a batch of one request."""
        with self._lock:
            self._single.fill([request], now)
            operation(self._single)
            return self._single.answers()[0]


def check_kernels_run(device: torch.device) -> None:
    """Refuse a device on which this process cannot run the kernels: as `check_compiler`."""
    interpreted = isinstance(call_kernel, InterpretedFunction)
    check_compiler(device, torch.version.hip, triton.__version__, interpreted=interpreted)
