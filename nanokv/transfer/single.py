"""Moves bytes between tensors and segments: the part of put and get that is not the protocol.

A contiguous tensor takes one call of the machine if the machine copies that many bytes as fast as torch: any number on
a GPU, few on a CPU, any where torch has one thread. Torch copies all others between `begin` and `finish`: its copy uses
all of its threads, takes any strides and devices, and needs no staging buffer.
"""

from collections.abc import Callable, Sequence

import torch

from nanokv.allocation.base import Allocation
from nanokv.allocation.producer import ProducerAllocation
from nanokv.device.machines.base import Machine
from nanokv.device.machines.own_memory import plain_tensor, plainly
from nanokv.device.machines.records import NO_TERMS, Descriptor, Found, Place, Terms, What, Words
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.host_records import TRIES as READ_TRIES
from nanokv.device.segment.layout import CHECKSUM_SHIFT
from nanokv.errors import InvalidArgument
from nanokv.heap.base import Heap
from nanokv.transfer.descriptors import (
    RAW,
    checked_destination,
    empty_like_described,
    flat_bytes,
    is_plain,
    unsuited,
    what_of,
)
from nanokv.transfer.host_tensors import in_host_memory
from nanokv.types import KeyDigest

_SIZE, _TORN = int(Status.SIZE), int(Status.TORN)  # the enumeration takes 0.1 us each time
_AGAIN = (_SIZE, _TORN)
TRIES: int = READ_TRIES.value  #: how often a reader starts over because the object was replaced while it read


class SingleTransfer:
    """Puts and gets tensors; answers with a `Status`."""

    def __init__(self, heap: Heap, machine: Machine, allocation: Allocation, *, checksum: bool = False) -> None:
        self._machine = machine
        self._allocation = allocation
        self._put_bytes, self._get_bytes = allocation.put, allocation.get
        self.device = heap.device
        self._on_cpu = heap.device.type == "cpu"
        self._checksum = checksum
        self._at_once = machine.at_once
        self._segments = [heap.segment(rank) for rank in range(heap.world_size)]
        self._spans = [(each.data_ptr(), each.data_ptr() + each.nbytes) for each in self._segments]
        self._first, self._last = min(start for start, _ in self._spans), max(end for _, end in self._spans)

    def put(
        self,
        key: KeyDigest,
        tensor: torch.Tensor,
        preferred: int | None,
        terms: Terms = NO_TERMS,
        *,
        refused_by: int | None = None,
    ) -> int:
        """Store a tensor: OK, DUPLICATE, FULL, NO_HEADER, NO_ENTRY, TOO_LARGE or LOST.

        `terms`: who may evict it, and when it goes by itself. `refused_by`: see `Allocation.put_refused`.
        """
        found = in_host_memory(tensor) if self._on_cpu else None
        if found is not None and terms is NO_TERMS:
            what, address = found
            if what[0] <= self._at_once or self.is_at_once(what[0]):
                return self._put_at(key, address, what, preferred, refused_by)
        return self._put_in_steps(key, tensor, preferred, terms, refused_by)

    def _put_at(self, key: KeyDigest, src: int, what: What, preferred: int | None, refused_by: int | None) -> int:
        if refused_by is None:
            return self._put_bytes(key, src, what, preferred)
        return self._allocation.put_refused(key, src, what, preferred, refused_by)

    def _put_in_steps(
        self, key: KeyDigest, tensor: torch.Tensor, preferred: int | None, terms: Terms, refused_by: int | None
    ) -> int:
        tensor = plain_tensor(tensor)
        what = what_of(tensor.dtype, tensor.shape)
        nbytes, descriptor = what.nbytes, what.descriptor
        plain = is_plain(tensor) and tensor.device == self.device
        if plain and terms is NO_TERMS and self.is_at_once(nbytes):
            return self._put_at(key, tensor.data_ptr(), what, preferred, refused_by)
        return self.put_filled(key, nbytes, preferred, descriptor, lambda payload: _fill(payload, tensor, plain), terms)

    def put_filled(
        self,
        key: KeyDigest,
        nbytes: int,
        preferred: int | None,
        descriptor: Descriptor,
        fill: Callable[[torch.Tensor], None],
        terms: Terms = NO_TERMS,
    ) -> int:
        """Begin an object, let `fill` write its bytes (uint8, one dimension), and finish it. Answers as `put`."""
        begun = self._allocation.begin(key, nbytes, preferred, descriptor, plan=False)
        if begun.status != Status.OK:
            return begun.status
        try:
            self._machine.set_terms(begun.place, terms)
            with torch.no_grad(), plainly():
                fill(self.payload(begun.place))
        except BaseException:
            self._allocation.abort(key, begun)
            raise
        self.seal(key, begun.place, descriptor)
        return self._allocation.finish(key, begun)

    def seal(self, key: KeyDigest, place: Place, descriptor: Descriptor) -> None:
        """Give a written object its checksum, if objects have one. To be called before it is committed."""
        if self._checksum:
            self._machine.seal(key, place, descriptor)

    def has_memory(self, owner: int, nbytes: int) -> bool:
        """Whether an object of so many bytes cannot meet pages without memory in a segment."""
        return not isinstance(self._allocation, ProducerAllocation) or self._allocation.has_memory(owner, nbytes)

    def is_at_once(self, nbytes: int) -> bool:
        """Whether the machine copies that many bytes at least as fast as torch."""
        return nbytes <= self._at_once or torch.get_num_threads() == 1

    def payload(self, place: Place) -> torch.Tensor:
        """The bytes of an object as a tensor that shares them."""
        with plainly():
            return self._segments[place.owner][place.payload : place.payload + place.nbytes]

    def get(self, key: KeyDigest) -> torch.Tensor | int:
        """A new tensor of the dtype and shape that were put; or MISS, NOT_READY or CORRUPT."""
        for _ in range(TRIES):
            status, place, descriptor = self._allocation.locate(key)
            if status != Status.OK:
                return status
            tensor = empty_like_described(descriptor, place.nbytes, self.device)
            if tensor is None:
                if self._machine.validate(place) == Status.OK:
                    return Status.CORRUPT
                continue
            try:
                address = tensor.data_ptr()
            except RuntimeError:
                address = 0
            if not address and place.nbytes:  # in a mode or a transform of torch
                with plainly():
                    tensor = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
                address = tensor.data_ptr()
            status = self._read(key, place, tensor, address)
            if status != Status.TORN:
                return tensor if status == Status.OK else status
        return Status.MISS

    def destination(self, dst: torch.Tensor) -> torch.Tensor:
        """A destination as a plain tensor: `checked_destination`, and outside of all segments.

        Raises:
            InvalidArgument: it cannot be filled.
        """
        found = in_host_memory(dst) if self._on_cpu else None
        if found is not None:  # as nearly always: it is plain
            self._check_outside(found[1], found[0].nbytes)
            return dst
        plain = checked_destination(dst, self.device)
        self._check_outside(plain.data_ptr(), plain.nbytes)
        return plain

    def check_places(self, places: Words, nbytes: int) -> None:
        """Refuse destinations of `nbytes` each, at these addresses, of which one lies in a segment: InvalidArgument."""
        if len(places) and places.min() < self._last and self._first < places.max() + nbytes:
            for address in places.tolist():
                self._check_outside(address, nbytes)

    def check_planes(self, planes: Sequence[torch.Tensor]) -> None:
        """Refuse tensors, to be written to, of which one reaches into a segment: InvalidArgument."""
        for plane in planes:
            if plane.numel():
                reach = 1 + sum((items - 1) * stride for items, stride in zip(plane.shape, plane.stride(), strict=True))
                self._check_outside(plane.data_ptr(), reach * plane.element_size())

    def _check_outside(self, address: int, nbytes: int) -> None:
        if nbytes and any(address < end and start < address + nbytes for start, end in self._spans):
            raise InvalidArgument(
                "the destination lies in a segment of this world, as a pinned view does: it would change an object"
            )

    def get_into(self, key: KeyDigest, dst: torch.Tensor, *, reinterpret: bool = False, torn: bool = False) -> int:
        """Fill `dst`: OK, MISS, NOT_READY or CORRUPT. Raises InvalidArgument before anything is copied.

        `torn`: the object was replaced while the caller has read it. Then another one that does not suit is a MISS.
        """
        found = in_host_memory(dst) if self._on_cpu else None
        if found is None:
            dst = self.destination(dst)
            known, address = what_of(dst.dtype, dst.shape), dst.data_ptr()
        else:
            known, address = found
            if self._first - known[0] < address < self._last:
                self._check_outside(address, known[0])
        if reinterpret:
            known = What.of(known.nbytes, RAW)
        if known[0] <= self._at_once or self.is_at_once(known[0]):
            status = self._get_bytes(key, address, known)
            if status not in _AGAIN:
                return status
            torn = torn or status == _TORN
        return self._get_in_steps(key, dst, known, torn)

    def _get_in_steps(self, key: KeyDigest, dst: torch.Tensor, known: What, torn: bool) -> int:
        have, what = known.nbytes, known.descriptor
        at_once = self.is_at_once(have)
        for _ in range(TRIES):
            status = self._get_bytes(key, dst.data_ptr(), known) if at_once else _SIZE
            if status == _SIZE:
                found = self._allocation.locate(key)
                if found.status != Status.OK:
                    return found.status
                if self._machine.validate(found.place) != Status.OK:
                    continue
                if not found.suits(have, what):
                    if torn:
                        return Status.MISS  # the object that suits went away while it was copied
                    if empty_like_described(found.descriptor, found.place.nbytes, torch.device("meta")) is None:
                        return Status.CORRUPT
                    raise unsuited(dst, found)
                status = self._read(key, found.place, dst, dst.data_ptr())
            if status != _TORN:
                return status
            torn = True
        return Status.MISS

    def get_part(self, key: KeyDigest, offset: int, dst: torch.Tensor) -> int:
        """Fill `dst` with the bytes of an object from `offset` on: OK, MISS, NOT_READY or CORRUPT.

        A checksum is of the whole object: where there is one, all of its bytes are read.

        Raises:
            InvalidArgument: `dst` cannot be filled, or the object ends before.
        """
        dst = self.destination(dst)
        end = offset + dst.nbytes
        for _ in range(TRIES):
            found = self._allocation.locate(key)
            if found.status != Status.OK:
                return found.status
            payload = self.payload(found.place)
            if end <= len(payload):
                with torch.inference_mode(), plainly():  # as in `_read`
                    flat_bytes(dst).copy_(payload[offset:end])
                status = self._verify(key, found.place, payload)
            else:
                status = self._machine.validate(found.place)
                if status == Status.OK:
                    raise InvalidArgument(f"bytes {offset} to {end} are asked for, the object has {len(payload)}")
            if status != Status.TORN:
                return status
        return Status.MISS

    def get_taken(
        self, key: KeyDigest, nbytes: int, descriptor: Descriptor, take: Callable[[torch.Tensor], None]
    ) -> int:
        """Let `take` copy the bytes (uint8, one dimension) of an object: OK, MISS, NOT_READY, CORRUPT or SIZE.

        SIZE: its size, dtype or shape differ from `nbytes` and `descriptor`, and nothing was copied.
        """
        for _ in range(TRIES):
            found = self._allocation.locate(key)
            if found.status != Status.OK:
                return found.status
            payload = self.payload(found.place)
            if found.suits(nbytes, descriptor):
                with torch.inference_mode(), plainly():  # the caller's tensors may be inference tensors
                    take(payload)
                status = self._verify(key, found.place, payload)
            else:
                status = self._machine.validate(found.place) or Status.SIZE
            if status != Status.TORN:
                return status
        return Status.MISS

    def _read(self, key: KeyDigest, place: Place, dst: torch.Tensor, address: int) -> int:
        if self.is_at_once(place.nbytes):
            return self._machine.read(key, place, address, now_ns())
        with torch.inference_mode(), plainly():  # `dst` may be an inference tensor, and this a thread of the cache
            flat_bytes(dst).copy_(self.payload(place))
        return self._verify(key, place, dst)

    def _verify(self, key: KeyDigest, place: Place, copy: torch.Tensor) -> int:
        """After torch has copied an object: OK, TORN or CORRUPT."""
        status = self._machine.verify(key, place, copy.data_ptr())
        if status == Status.OK:
            self._machine.touch(place, now_ns())
        return status

    def is_right_in_place(self, key: KeyDigest, found: Found) -> bool:
        """False if the checksum of a pinned object is wrong, or missing where objects have one."""
        if not self._checksum and not found.descriptor[0] >> CHECKSUM_SHIFT.value:
            return True  # nor is one that is 0 looked at: this rank insists on none, and the flag would take a launch
        return self._machine.verify(key, found.place, self.payload(found.place).data_ptr()) == Status.OK

    def view(self, found: Found, payload: torch.Tensor) -> torch.Tensor | None:
        """The bytes of a pinned object in place, as the tensor that was put; None if its descriptor contradicts it."""
        like = empty_like_described(found.descriptor, found.place.nbytes, torch.device("meta"))
        if like is None:
            return None
        return (
            payload.view(like.dtype).view(like.shape)
            if found.place.nbytes
            else like.new_empty(like.shape, device=self.device)
        )


def _fill(payload: torch.Tensor, tensor: torch.Tensor, plain: bool) -> None:
    if plain:
        payload.copy_(flat_bytes(tensor))
    elif len(payload):
        payload.view(tensor.dtype).view(tensor.shape).copy_(tensor)
