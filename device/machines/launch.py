"""The machine that launches kernels: on a GPU, or on the CPU by Triton's interpreter (for tests: it is slow).

A host call is one launch: one CTA runs one protocol function, or one CTA per tile moves the payload. Calls about
objects go to the caller's current stream, so that they follow the kernels that the caller launched. Calls of the
owner's host, and all calls of its poller's thread, have a stream of their own, so that they do not wait for those.
"""

import logging
import pkgutil
import sys
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from nanokv.device.kernels import payload
from nanokv.device.kernels.frame import call_kernel
from nanokv.device.kernels.ring import copy_drained_kernel
from nanokv.device.kernels.shares import TILE_BYTES
from nanokv.device.machines.base import Machine
from nanokv.device.machines.batch import Batch
from nanokv.device.machines.engine_cache import Pages
from nanokv.device.machines.entries import ENTRIES
from nanokv.device.machines.gpu_threads import driver_function
from nanokv.device.machines.lane import STAGING_BYTES, Lane, Launch, calling, check_compiler
from nanokv.device.machines.native_code import gpu_code
from nanokv.device.machines.records import Descriptor, Hints, Place, Request, Words
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.host_records import SECOND, WATCH
from nanokv.device.segment.layout import HEAP_CTL, OBJ_HEADER, WORD

# --- constants of device functions, settled once per process -----------------------------------
# - The cache's key of a function holds those of the functions that it calls. Triton before 3.9 leaves out of it what
#   such a function names if that was not hashed before (`DependenciesFinder._update_hash`), so the key depends on what
#   the process has launched first, and a service may compile at its start what was compiled before. So all device
#   functions are hashed in one order before the first launch.
# - A launch compares every constant that a kernel and the functions below it name with its value when they were hashed
#   (`JITFunction.run`): 413 for a put of many objects, two thirds of the time of its launch. A constant of the layout
#   does not change while a process runs, so those of our functions are not compared again. The constants that a user's
#   kernel names itself still are.
DEVICE = "nanokv.device"
PACKAGES = ("memory", "segment", "protocol", "kernels", "library", "remote")  #: that hold device functions


@cache
def settle_functions() -> int:
    """Hash every device function, in the order of modules' names and of lines. Returns how many there are.

    It takes 0.2 s, once in a process. No launch compares their constants any more.
    """
    functions = []
    for name in PACKAGES:
        top = import_module(f"{DEVICE}.{name}")
        names = [each.name for each in pkgutil.walk_packages(getattr(top, "__path__", []), f"{top.__name__}.")]
        for each in sorted({top.__name__, *names}):
            import_module(each)
            own = [f for f in vars(sys.modules[each]).values() if isinstance(f, JITFunction) and f.__module__ == each]
            functions.extend(sorted(own, key=lambda function: int(function.starting_line_number)))
    for function in functions:
        _ = function.cache_key
    for function in functions:  # when all are hashed: a key holds what is compared
        function.used_global_vals.clear()
    return len(functions)


# --- drains a ring whose segment lies in a GPU's memory ---------------------------------------
# Mostly there is no new hint. To see that, the host copies one word on a stream of its own: it launches no kernel, and
# does not wait for the engine's (`HeadWatch`: in native code, without the interpreter's lock). What it sees decides
# only when to take hints: the kernel that takes them reads the ring anew. For that two kernels take the hints and copy
# the headers that they are about, and one copy brings both to the host, which waits once.
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

    def drain(self, owner: int, tail: int, room: int) -> Hints:
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


def _drained(words: Words, asked: int, taken: int, head: int, hole: int) -> Hints:
    good, records = words[asked : 2 * asked], words[2 * asked :]
    return Hints(words[:taken], head, hole, records.view(OBJ_HEADER.dtype)[:taken], good[:taken] != 0)


# --- the machine -------------------------------------------------------------------------------
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

        What a sweep finds once in a while to be done (`NativeEntry.rare`) is compiled then: 0.1 to 0.4 s each, once.
        """
        usual = [name for name, entry in ENTRIES.items() if entry.by_owner and not entry.rare]
        self._owner.load(*(calling(name) for name in (*usual, "enter", "leave", "evict_pages")))
        self._rings.load()
        try:
            gpu_code().require_all()
        except ImportError as error:  # of numba
            self._watches = False
            _log.warning("NanoKV's poller looks at its ring in Python, which slows the threads beside it: %s", error)

    def ready(self, *entries: str) -> None:
        if self._device.type == "cuda":
            self._owner.load(*map(calling, entries))

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

    def drain(self, owner: int, tail: int, room: int) -> Hints:
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
