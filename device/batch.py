"""A batch: a table of requests in device memory, and the one launch that puts or gets all of them.

Nothing of a launch depends on the host: keys, sizes, owners, addresses, how many and the time of day are words in
device memory. So a launch can be captured in a graph; before each replay the table is changed in place, by a copy that
is captured too or by a kernel. Tickets are left as they were found, statuses are overwritten.
"""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch

from nanokv.device.kernels import many
from nanokv.device.kernels.lane import INTERPRETER
from nanokv.device.layout import WORD
from nanokv.device.machine import Descriptor
from nanokv.device.request import REQUEST
from nanokv.device.ticket import TICKET

CTAS_A_MULTIPROCESSOR = 8  #: of one warp each; more do not move more bytes
INTERPRETED_CTAS = 5


class Request(NamedTuple):
    """One object to put or get."""

    key: tuple[int, int]
    address: int  #: of the source or the destination, as the launching device sees it
    nbytes: int
    owner: int = 0  #: put: whose segment gets the object
    what: Descriptor = (0,) * 8  #: put: the descriptor
    flags: int = 0


class Batch:
    """Requests of one rank. Used by one thread and on one stream at a time.

    Args:
        world: the address of the world table, as `device` sees it.
        capacity: how many requests there is room for.
        device: where kernels run; a CPU needs Triton's interpreter.

    Raises:
        ValueError: `capacity` is not positive.

    Attributes:
        requests: int64 [capacity, words of a REQUEST], on the device.
        control: int64 [2], on the device: how many requests there are, and the time of day in ns.
        statuses: int64 [capacity], on the device: what each request came to (`status.Status`).
        prefix: int64 [1], on the device: after `find`, how many of the first keys are there, without a gap.
    """

    def __init__(self, world: int, capacity: int, device: torch.device) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._world = world
        self._on_gpu = device.type == "cuda"
        words = REQUEST.size // WORD
        self._host = torch.zeros(capacity * words + 2, dtype=torch.int64, pin_memory=self._on_gpu)
        table = torch.zeros(capacity * words + 2, dtype=torch.int64, device=device)
        self._table, self.requests, self.control = table, table[: capacity * words].view(capacity, words), table[-2:]
        self._tickets = torch.zeros(capacity * TICKET.size // WORD, dtype=torch.int64, device=device)
        self.statuses = torch.full((capacity,), -1, dtype=torch.int64, device=device)
        self.prefix = torch.zeros(1, dtype=torch.int64, device=device)
        self._answers = torch.zeros(capacity, dtype=torch.int64, pin_memory=self._on_gpu)
        self._ctas = INTERPRETED_CTAS
        if self._on_gpu:
            self._ctas = torch.cuda.get_device_properties(device).multi_processor_count * CTAS_A_MULTIPROCESSOR

    @property
    def capacity(self) -> int:
        """How many requests there is room for."""
        return len(self.statuses)

    def fill(self, requests: Sequence[Request]) -> None:
        """Write the table, by one copy on the current stream.

        Raises:
            ValueError: there are more than `capacity`.
        """
        if len(requests) > self.capacity:
            raise ValueError(f"{len(requests)} requests in a batch with room for {self.capacity}")
        rows = [(each.owner, *each.key, each.nbytes, each.address, each.flags, *each.what) for each in requests]
        words = np.array(rows, np.int64).reshape(-1)
        self._host[: len(words)] = torch.from_numpy(words)
        self._host[-2], self._host[-1] = len(requests), time.time_ns()
        self._table.copy_(self._host, non_blocking=True)

    def put(self) -> None:
        """Put all: one launch on the current stream."""
        self._launch(many.put_many_kernel)

    def get(self) -> None:
        """Get all: one launch on the current stream."""
        self._launch(many.get_many_kernel)

    def find(self) -> None:
        """Look all keys up, and how long a prefix of them is there: one launch on the current stream."""
        self._launch(many.find_many_kernel, self.prefix.data_ptr())

    def answers(self) -> list[int]:
        """The statuses of all requests, once the launches before have ended. Waits for the current stream."""
        self._answers.copy_(self.statuses, non_blocking=True)
        if self._on_gpu:
            torch.cuda.current_stream(self.statuses.device).synchronize()
        return self._answers[: int(self._host[-2])].tolist()

    def _launch(self, kernel: Any, *more: int) -> None:
        with nullcontext() if self._on_gpu else INTERPRETER:
            kernel[(self._ctas,)](
                self._world,
                self.requests.data_ptr(),
                self._tickets.data_ptr(),
                self.statuses.data_ptr(),
                self.control.data_ptr(),
                *more,
                num_warps=1,
            )
