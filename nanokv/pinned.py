"""A pinned object: its bytes in place, held until the `with` block ends."""

from types import TracebackType

import torch

from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Place
from nanokv.types import ObjMeta


class Pinned:
    """Holds one object in place. `tensor` shares the segment's bytes, without a copy; do not write to it.

    The view must not be used after `release`: the pages may then belong to another object.
    """

    def __init__(self, machine: Machine, place: Place, line: int, tensor: torch.Tensor, meta: ObjMeta) -> None:
        self._machine = machine
        self._place = place
        self._line: int | None = line
        self.tensor = tensor  #: dtype and shape as put, on the heap's device
        self.meta = meta

    def release(self) -> None:
        """Give the pin back. Idempotent."""
        line, self._line = self._line, None
        if line is not None:
            self._machine.unpin(self._place, line)

    def __enter__(self) -> torch.Tensor:
        return self.tensor

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
