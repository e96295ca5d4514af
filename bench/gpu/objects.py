"""Payloads of one size, tables of requests for them, and checks that they arrived."""

from typing import NamedTuple

import torch

from nanokv.bench.gpu.clock import launch
from nanokv.bench.gpu.kernels import copy_flat_kernel, remove_many_kernel
from nanokv.bench.gpu.one_segment import OneSegment, Unsound
from nanokv.device.kernels.shares import TILE_WORDS
from nanokv.device.machines.batch import CPU_CTAS, Batch, default_ctas
from nanokv.device.machines.records import Request

REMOVERS = 1024  #: CTAs that remove, on a GPU


class MeasuredWay(NamedTuple):
    """A way to put and get all objects of an `Objects`.

    Its requests name both addresses (of `source` and `target`) and blocks (0 to `count` - 1).

    Attributes:
        there, back: what is put, and where a get brings it.
    """

    name: str
    putter: Batch
    getter: Batch
    there: torch.Tensor
    back: torch.Tensor


class Objects:
    """`count` objects of `size` bytes: their source, the target of gets, and the target of plain copies (`twin`).

    Each lap has keys of its own. Its requests are made beforehand and lie on the device, so that a lap begins with one
    small copy there (`load`), which is not timed. At its end the bytes that came back are compared, and wiped.

    Args:
        segment: gets the objects.
        count, size: how many, and the bytes of each, a multiple of 16.
        laps: how many tables to make.
        sources: the laps put from so many places in turn; more than the L2 cache holds, if all of a lap fits it.

    Attributes:
        source, target, twin: of the lap that was loaded last.
    """

    def __init__(self, segment: OneSegment, count: int, size: int, laps: int, sources: int = 1) -> None:
        self.segment = segment
        self.count, self.size = count, size
        device = segment.device
        self.sources = torch.randint(0, 256, (sources, count * size), dtype=torch.uint8, device=device)
        self.source = self.sources[0]
        self.target = torch.zeros_like(self.source)
        self.twin = torch.zeros_like(self.source)
        self.putter, self.getter = (Batch(segment.world, count, device) for _ in range(2))
        places = [self.sources[lap % sources] for lap in range(laps)]
        self.puts = torch.stack([self._table(self.putter, place, lap) for lap, place in enumerate(places)])
        self.gets = torch.stack([self._table(self.getter, self.target, lap) for lap in range(laps)])
        self._said = torch.zeros(count, dtype=torch.int64, device=device)
        self._bad = torch.zeros(1, dtype=torch.int64, device=device)
        self._differ = torch.zeros(2, dtype=torch.int64, device=device)  # laps whose gets, whose copies were wrong
        self._tried = 0

    def _table(self, batch: Batch, place: torch.Tensor, lap: int) -> torch.Tensor:
        address = place.data_ptr()
        batch.fill(
            [
                Request(key_of(lap * self.count + n), address + n * self.size, self.size, block=n)
                for n in range(self.count)
            ]
        )
        return batch.requests.clone()

    @property
    def bytes(self) -> int:
        """Bytes of all objects together."""
        return self.count * self.size

    def load(self, lap: int, way: MeasuredWay | None = None) -> None:
        """Give the batches of a way the requests of a lap."""
        self.source = self.sources[lap % len(self.sources)]
        putter, getter = self._batches(way)
        putter.requests.copy_(self.puts[lap])
        getter.requests.copy_(self.gets[lap])
        for batch in (putter, getter):
            batch.control.copy_(self.putter.control)

    def _batches(self, way: MeasuredWay | None) -> tuple[Batch, Batch]:
        return (self.putter, self.getter) if way is None else (way.putter, way.getter)

    def compile(self, way: MeasuredWay | None = None) -> None:
        """Run each kernel of a way once, so that it is compiled and may be captured."""
        self.load(0, way)
        putter, getter = self._batches(way)
        putter.put()
        getter.get()
        self.copy_plainly()
        self.end_copy()
        self.end_lap(way)

    def copy(self) -> None:
        """One device-to-device copy of all bytes: cudaMemcpyAsync on a GPU."""
        self.twin.copy_(self.source)

    def copy_plainly(self, ctas: int | None = None, tile_words: int = TILE_WORDS.value, warps: int = 1) -> None:
        """Copies the same bytes by a kernel that shares tiles as put_many does, without the protocol."""
        ends = self.twin.data_ptr(), self.source.data_ptr(), self.bytes
        launch(copy_flat_kernel, ctas or default_ctas(self.segment.device), *ends, warps=warps, tile_words=tile_words)

    def note(self, batch: Batch) -> None:
        """Count the requests of a batch that were not OK, on the device, without waiting."""
        self._bad += (batch.statuses[: self.count] != 0).sum()
        self._tried += self.count

    def end_lap(self, way: MeasuredWay | None = None) -> None:
        """Note statuses and bytes of a put and a get, remove all objects, and empty the ring: not timed, no waiting."""
        for batch in self._batches(way):
            self.note(batch)
        there, back = (self.source, self.target) if way is None else (way.there, way.back)
        self._compare(0, there, back)
        ctas = REMOVERS if self.segment.device.type == "cuda" else CPU_CTAS
        words = self.segment.world, self._batches(way)[0].requests.data_ptr(), self.count, self._said.data_ptr()
        launch(remove_many_kernel, min(ctas, self.count), *words)
        self._bad += (self._said != 0).sum()
        self._tried += self.count
        self.segment.empty_ring()

    def end_copy(self) -> None:
        """Note the bytes of a plain copy, without waiting."""
        self._compare(1, self.source, self.twin)

    def _compare(self, which: int, there: torch.Tensor, back: torch.Tensor) -> None:
        self._differ[which] += (_words(there) != _words(back)).any()
        back.zero_()

    def check(self) -> int:
        """Check that all statuses so far were OK, and that each get and each plain copy had the right bytes.

        Returns:
            how many puts, gets and removals were tried.

        Raises:
            Unsound: the message names the error.
        """
        bad = int(self._bad)
        if bad:
            raise Unsound(f"{bad} of {self._tried} puts, gets and removals of {self.size} bytes were not OK")
        for name, laps in zip(("got", "copied"), self._differ.tolist(), strict=True):
            if laps:
                raise Unsound(f"other bytes were {name} than were put, at {self.size} bytes, in {laps} laps")
        return self._tried


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as words of eight bytes where it can be seen so: they are compared faster, in less memory."""
    return tensor.view(torch.int64) if tensor.is_contiguous() and tensor.nbytes % 8 == 0 else tensor


def key_of(n: int) -> tuple[int, int]:
    """A digest as if of some key: splitmix64 spreads its bits like those of a hash."""
    return _mixed(2 * n), _mixed(2 * n + 1)


def _mixed(n: int) -> int:
    x = (n + 1) * 0x9E3779B97F4A7C15 % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return (x ^ x >> 31) - 2**63


def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a GPU; 1 for a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
