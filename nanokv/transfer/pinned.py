"""Pinned objects: their bytes in place, held until the `with` block ends, or until nothing refers to them any more."""

import contextlib
import os
import warnings
import weakref
from collections import deque
from types import TracebackType
from typing import NamedTuple

import torch

from nanokv.device.machines.base import Machine
from nanokv.device.machines.records import Place
from nanokv.heap.base import Heap
from nanokv.heap.mapped_tensor import tensor_at
from nanokv.types import ObjMeta


class Pin(NamedTuple):
    """A pin that the machine has made."""

    place: Place
    line: int  #: of the pin ledger


class _Owner:
    """What the storage of a payload refers to, where it is no array. It goes with the last view."""


class Pins:
    """The pins of one cache. A pin that was dropped is given back by the poller's thread (`give_back_dropped`).

    The garbage collector may drop a pin in any thread, also in one that holds a lock that the machine needs.
    """

    def __init__(self, machine: Machine, heap: Heap) -> None:
        self._machine = machine
        self._heap = heap
        self.process = os.getpid()  #: the process whose pins these are; not a child of its fork
        self.dropped: deque[Pin] = deque()

    def payload(self, place: Place) -> tuple[torch.Tensor, object]:
        """An object's bytes in place (uint8, one dimension), and what lives as long as any view of them."""
        raw = self._heap.host_view(place.owner)
        if raw is not None:
            part = raw[place.payload : place.payload + place.nbytes]
            return torch.from_numpy(part), part
        owner = _Owner()
        address = self._heap.bases[place.owner] + place.payload
        return tensor_at(address, place.nbytes, self._heap.segment(place.owner).device, owner), owner

    def give_back(self, pin: Pin) -> None:
        """End a pin. Nothing in a child of a fork: the pin is the parent's."""
        if os.getpid() == self.process:
            self._machine.unpin(*pin)

    def give_back_dropped(self) -> None:
        """End the pins that were dropped. Any thread may call."""
        with contextlib.suppress(IndexError):  # none is left
            while True:
                self.give_back(self.dropped.popleft())


class Pinned:
    """Holds one object in place. `tensor` shares the segment's bytes, without a copy; do not write to it.

    The views must not be used after `release`: the pages may then belong to another object. Without `release` the pin
    lasts as long as this object or a view of `tensor` does, and a ResourceWarning tells that it was dropped.
    """

    def __init__(self, pins: Pins, pin: Pin, owner: object, tensor: torch.Tensor, meta: ObjMeta) -> None:
        self._pins = pins
        self._pin = pin
        self._owner = owner
        self._end = weakref.finalize(owner, _drop, pins, pin)
        self._end.atexit = False  # the end of a process gives back its pins
        self.tensor = tensor  #: dtype and shape as put, on the heap's device
        self.meta = meta

    def release(self) -> None:
        """Give the pin back. Idempotent."""
        if self._end.detach() is not None:
            self._pins.give_back(self._pin)

    def __enter__(self) -> torch.Tensor:
        return self.tensor

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _drop(pins: Pins, pin: Pin) -> None:
    if os.getpid() == pins.process:
        pins.dropped.append(pin)
        warnings.warn(
            f"a pin of the object at {pin.place.payload:#x} in segment {pin.place.owner} was dropped without release",
            ResourceWarning,
            stacklevel=2,
        )
