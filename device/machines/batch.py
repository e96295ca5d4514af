"""A batch: a table of requests in device memory, and one launch that puts, gets, finds, copies or removes all of them.

A launch depends on no value of the host: keys, sizes, owners, addresses, the number of requests and the time are
words in device memory. So a launch can be captured in a graph; before each replay the table is changed in place, by a
captured copy or by a kernel. A launch leaves the tickets ready for the next one and overwrites the statuses.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from nanokv.device.kernels import many
from nanokv.device.kernels.copies import replicate_many_kernel
from nanokv.device.kernels.many import FOUND_WORDS, REGISTERS
from nanokv.device.kernels.shares import TILE_BYTES
from nanokv.device.kernels.slices import get_slices_kernel
from nanokv.device.machines.engine_cache import Pages
from nanokv.device.machines.gpu_threads import let_others_capture
from nanokv.device.machines.lane import INTERPRETER
from nanokv.device.machines.records import Found, Place, Request
from nanokv.device.machines.slices import Slices
from nanokv.device.protocol.request import REQUEST
from nanokv.device.protocol.ticket import TICKET
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.layout import WORD

CTAS_A_MULTIPROCESSOR = 8  #: CTAs of one warp each; more of them do not move more bytes
CPU_CTAS = 5  #: in Triton's interpreter, or on the PTX machine
CONTROL_WORDS = 2


class Batch:
    """Requests of one rank. Used by one thread and on one stream at a time.

    Args:
        world: the address of the world table, as `device` sees it.
        capacity: the largest number of requests.
        device: where kernels run; a CPU needs Triton's interpreter, or the PTX machine.
        pages: the engine's cache that is put from and got into; None: requests have addresses.
        ctas: per launch, at most. Default: as many as the GPU runs at a time.

    Raises:
        ValueError: `capacity` is not positive.

    Attributes:
        requests: int64 [capacity, words of a REQUEST], on the device.
        control: int64 [2], on the device: the number of requests, and the time (`now_ns`).
        tickets: int64 [capacity, words of a TICKET], on the device; free for users' kernels. Between launches all words
            before `answer` are zero, and `answer` holds what the last launch shared.
        statuses: int64 [capacity], on the device: the result of each request (`status.Status`).
        prefix: int64 [1], on the device: after `find`, how many of the first keys were found, without a gap.
        reported: int64 [capacity], in pinned host memory: `statuses` as they were at `report`.
    """

    @torch.inference_mode(False)
    def __init__(
        self, world: int, capacity: int, device: torch.device, pages: Pages | None = None, ctas: int | None = None
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._world = world
        self._on_gpu = device.type == "cuda"
        if self._on_gpu:
            let_others_capture()
        words = REQUEST.size // WORD
        self._host = torch.zeros(
            CONTROL_WORDS + capacity * words, dtype=torch.int64, device="cpu", pin_memory=self._on_gpu
        )
        self._table = torch.zeros_like(self._host, device=device)
        self.control, requests = self._table[:CONTROL_WORDS], self._table[CONTROL_WORDS:]
        self.requests = requests.view(capacity, words)
        self.tickets = torch.zeros(capacity, TICKET.size // WORD, dtype=torch.int64, device=device)
        self.statuses = torch.full((capacity,), -1, dtype=torch.int64, device=device)
        self.prefix = torch.zeros(1, dtype=torch.int64, device=device)
        self.reported = torch.zeros(capacity, dtype=torch.int64, device="cpu", pin_memory=self._on_gpu)
        self._pages = pages
        self._tiles: int | None = None  # a table that a kernel writes may have as many as there can be
        self._found = torch.zeros(0, FOUND_WORDS.value, dtype=torch.int64, device=device)
        self._filled = torch.cuda.Event() if self._on_gpu else None  # type: ignore[no-untyped-call]
        self._ctas = ctas or default_ctas(device)
        on_nvidia = self._on_gpu and torch.version.hip is None
        self._options = {"maxnreg": REGISTERS} if on_nvidia else {}

    @property
    def capacity(self) -> int:
        """The largest number of requests."""
        return len(self.statuses)

    def fill(self, requests: Sequence[Request], now: int | None = None) -> None:
        """Write the table, by one copy on the current stream. Not to be captured.

        Args:
            now: the time in ns. Default: `now_ns()` of this host.

        Raises:
            ValueError: more than `capacity` requests.
        """
        if len(requests) > self.capacity:
            raise ValueError(f"{len(requests)} requests in a batch with room for {self.capacity}")
        self._tiles = sum(max(-(-each.nbytes // TILE_BYTES.value), 1) for each in requests)
        words = np.array([_row(each) for each in requests], np.int64).reshape(-1)
        if self._filled is not None:
            self._filled.synchronize()  # the copy before may still read the words that are overwritten here
        used = CONTROL_WORDS + len(words)
        self._host[0], self._host[1] = len(requests), now_ns() if now is None else now
        self._host[CONTROL_WORDS:used] = torch.from_numpy(words)
        with self._entered():
            self._table[:used].copy_(self._host[:used], non_blocking=True)
            if self._filled is not None:
                self._filled.record()

    def put(self) -> None:
        """Put all: one launch on the current stream."""
        self._move(is_put=True)

    def get(self) -> None:
        """Get all: one launch on the current stream."""
        self._move(is_put=False)

    def get_slices(self, slices: Slices) -> None:
        """Get a box of each request's object: one launch on the current stream. `slices` has one box per request."""
        self._tiles = slices.tiles * self._count()
        words = (self.tickets, self.statuses, self.control, slices.table)
        self.launch(get_slices_kernel, *words, slices.layout)

    def find(self) -> None:
        """Find all keys, and the length of the prefix that is found: one launch on the current stream."""
        self.launch(many.find_many_kernel, self.tickets, self.statuses, self.control, self.prefix)

    def remove(self) -> None:
        """Remove the objects of all keys: one launch on the current stream."""
        self.launch(many.remove_many_kernel, self.statuses, self.control)

    def replicate(self) -> None:
        """Copy the objects of all keys into the segments of the requests' owners: one launch on the current stream."""
        self.launch(replicate_many_kernel, self.statuses, self.control)

    def lookup(self) -> list[Found]:
        """Where the objects of all keys lie: one launch. Waits for the current stream."""
        if not len(self._found):
            with torch.inference_mode(False):
                self._found = self._found.new_zeros(self.capacity, FOUND_WORDS.value)
        self.launch(many.lookup_many_kernel, self._found, self.control)
        with self._entered():
            rows = self._found[: self._count()].cpu().tolist()
        return [Found(row[0], Place(*row[1:6]), tuple(row[6:])) for row in rows]

    def report(self) -> None:
        """Copy the statuses to `reported`, on the current stream, without waiting; may be captured."""
        with self._entered():
            self.reported.copy_(self.statuses, non_blocking=True)

    def answers(self) -> list[int]:
        """The statuses of all requests, once the launches before have ended. Waits for the current stream."""
        self.report()
        if self._on_gpu:
            torch.cuda.current_stream(self.statuses.device).synchronize()
        return self.reported[: self._count()].tolist()

    def _count(self) -> int:
        return int(self._host[0])

    def _move(self, *, is_put: bool) -> None:
        pages, layout = (0, ()) if self._pages is None else (self._pages.table.data_ptr(), self._pages.layout)
        self.launch(many.move_many_kernel, self.tickets, self.statuses, self.control, pages, is_put, layout)

    def launch(self, kernel: Any, *args: Any) -> None:
        """Launch a kernel whose first arguments are the world and the requests, as those of `many` are.

        The result does not depend on the number of CTAs. A launch gets as many as `fill` found work for; all CTAs if
        it is captured, since it may be replayed with other requests, or if nobody called `fill`: a kernel writes them.
        """
        words = (arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in (self.requests, *args))
        with self._entered(), nullcontext() if self._on_gpu else INTERPRETER:
            captured = self._on_gpu and torch.cuda.is_current_stream_capturing()
            unknown = captured or self._tiles is None
            ctas = self._ctas if unknown else min(self._ctas, max(self._tiles or 0, 1))
            kernel[(ctas,)](self._world, *words, num_warps=1, **self._options)

    def _entered(self) -> AbstractContextManager[Any]:
        if not self._on_gpu:
            return nullcontext()
        let_others_capture()
        return torch.cuda.device(self.statuses.device)


def default_ctas(device: torch.device) -> int:
    """CTAs of a launch, at most."""
    if device.type == "cpu":
        return CPU_CTAS
    return torch.cuda.get_device_properties(device).multi_processor_count * CTAS_A_MULTIPROCESSOR


def _row(request: Request) -> tuple[int, ...]:
    """The words of a REQUEST, in its order."""
    key_hash, key_check = request.key
    place = (request.nbytes, request.address, request.block, request.plane, request.flags)
    return request.owner, key_hash, key_check, *place, *request.terms, *request.what
