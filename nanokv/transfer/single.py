"""Moves bytes between tensors and segments: the part of put and get that is not the protocol.

Contiguous tensors go through one call of the machine: on a GPU all, on a CPU small ones, and large ones too where torch
has one thread. Others, and those in another layout or on another device, are copied by torch between `begin` and
`finish`: its copy uses all its threads, and needs no staging buffer.
"""

import time
from collections.abc import Callable

import torch

from nanokv.allocation.base import Path, Write
from nanokv.allocation.producer import DevicePath
from nanokv.device.machines.base import Descriptor, Found, Machine
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import CHECKSUM_SHIFT, LOW32
from nanokv.heap.base import Heap
from nanokv.transfer.descriptors import check_dst, check_place, describe, empty_like_described, flat_bytes, is_plain
from nanokv.types import KeyDigest

#: On a CPU: up to here torch's threads gain nothing over one memcpy, and each torch call beside a copy that has emptied
#: the processor's caches costs 10 to 20 µs. Beyond, memcpy beats torch's copy by 5 to 30 % where torch has one thread,
#: as torchrun and inference engines set it (measured, 2 cores).
ONE_MEMCPY_BYTES = 1024 * 1024
TRIES = 16  #: times that a reader starts over because the object was replaced while it read


class Mover:
    """Puts and gets tensors, answering with a Status."""

    def __init__(self, heap: Heap, machine: Machine, path: Path, *, checksum: bool = False) -> None:
        self._machine = machine
        self._path = path
        self._direct = path if isinstance(path, DevicePath) else None
        self.device = heap.device
        self._is_native = machine.kind == "native"
        self._is_native_or_direct = self._is_native or self._direct is not None  # v1's keys stand in no directory
        self._checksum = checksum
        self._segments = [heap.segment(rank) for rank in range(heap.world_size)]

    def put(self, key: KeyDigest, tensor: torch.Tensor, preferred: int | None) -> int:
        """Store a tensor: OK, DUPLICATE, FULL, NO_HEADER, NO_ENTRY, TOO_LARGE or LOST."""
        nbytes, what = describe(tensor)
        plain = is_plain(tensor) and tensor.device == self.device
        if plain and self._direct is not None and self._is_one_call(nbytes):
            return self._direct.put(key, tensor.data_ptr(), nbytes, preferred, what)
        return self.put_filled(key, nbytes, preferred, what, lambda payload: _fill(payload, tensor, plain))

    def put_filled(
        self, key: KeyDigest, nbytes: int, preferred: int | None, what: Descriptor, fill: Callable[[torch.Tensor], None]
    ) -> int:
        """Begin an object, let `fill` write its bytes (uint8, one dimension), and finish it. Answers as `put`."""
        write = self._path.begin(key, nbytes, preferred, what, plan=False)
        if write.status != Status.OK:
            return write.status
        try:
            with torch.no_grad():
                fill(self.payload(write.owner, write.payload, nbytes))
        except BaseException:
            self._path.abort(key, write)
            raise
        self.seal(key, write, what)
        return self._path.finish(key, write)

    def seal(self, key: KeyDigest, write: Write, what: Descriptor) -> None:
        """Give what was written its checksum, if objects have one. To be called before it is committed."""
        if self._checksum:
            self._machine.seal(write.owner, key, write.slot, write.epoch, write.payload, write.nbytes, what)

    def _is_one_call(self, nbytes: int) -> bool:
        """Whether the machine moves so many bytes at least as fast as torch."""
        return not self._is_native or nbytes <= ONE_MEMCPY_BYTES or torch.get_num_threads() == 1

    def payload(self, owner: int, offset: int, nbytes: int) -> torch.Tensor:
        """Bytes of a segment as a tensor that shares them."""
        return self._segments[owner][offset : offset + nbytes]

    def get(self, key: KeyDigest) -> torch.Tensor | Status:
        """A new tensor of the dtype and shape that were put; or MISS, NOT_READY or CORRUPT."""
        for _ in range(TRIES):
            found = self._path.locate(key)
            if found.status != Status.OK:
                return Status(found.status)
            tensor = empty_like_described(found.descriptor, found.nbytes, self.device)
            if tensor is None:
                if self._machine.validate(found.owner, found.slot, found.epoch) == Status.OK:
                    return Status.CORRUPT
                continue
            status = self._read(key, found, tensor)
            if status != Status.TORN:
                return tensor if status == Status.OK else Status(status)
        return Status.MISS

    def get_into(self, key: KeyDigest, dst: torch.Tensor) -> int:
        """Fill `dst`: OK, MISS, NOT_READY or CORRUPT. Raises InvalidArgument before anything is copied."""
        have, _ = describe(dst)
        check_place(dst, self.device)
        torn = False
        for _ in range(TRIES):
            status = self._get_small(key, dst, have)
            if status is None:
                found = self._path.locate(key)
                if found.status != Status.OK:
                    return found.status
                if self._machine.validate(found.owner, found.slot, found.epoch) != Status.OK:
                    continue
                if torn and found.nbytes != have:
                    return Status.MISS  # the object of this size went away while it was copied
                check_dst(dst, found.nbytes, self.device)
                status = self._read(key, found, dst)
            if status != Status.TORN:
                return status
            torn = True
        return Status.MISS

    def get_taken(self, key: KeyDigest, nbytes: int, what: Descriptor, take: Callable[[torch.Tensor], None]) -> int:
        """Let `take` copy the bytes (uint8, one dimension) of an object: OK, MISS, NOT_READY, CORRUPT or SIZE.

        SIZE, and nothing was copied: it has another size, dtype or shape than `nbytes` and `what` say.
        """
        form = what[0] & LOW32.value
        for _ in range(TRIES):
            found = self._path.locate(key)
            if found.status != Status.OK:
                return found.status
            payload = self.payload(found.owner, found.payload, found.nbytes)
            if (found.nbytes, found.descriptor[0] & LOW32.value, *found.descriptor[1:]) == (nbytes, form, *what[1:]):
                with torch.no_grad():
                    take(payload)
                status = self._machine.verify(key, found, payload.data_ptr())
            else:
                status = self._machine.validate(found.owner, found.slot, found.epoch) or Status.SIZE
            if status != Status.TORN:
                return status
        return Status.MISS

    def _get_small(self, key: KeyDigest, dst: torch.Tensor, nbytes: int) -> int | None:
        """One call for small objects; None if it does not apply, or if the sizes differ."""
        if self._direct is None or not self._is_one_call(nbytes):
            return None
        status = self._machine.get(key, dst.data_ptr(), nbytes, time.time_ns())
        return None if status == Status.SIZE else status

    def _read(self, key: KeyDigest, found: Found, dst: torch.Tensor) -> int:
        if self._is_native_or_direct and self._is_one_call(found.nbytes):
            return self._machine.read(key, found, dst.data_ptr(), time.time_ns())
        with torch.no_grad():
            flat_bytes(dst).copy_(self.payload(found.owner, found.payload, found.nbytes))
        status = self._machine.verify(key, found, dst.data_ptr())
        if status == Status.OK:
            self._machine.touch(found.owner, found.slot, time.time_ns())
        return status

    def is_right_in_place(self, key: KeyDigest, found: Found) -> bool:
        """False if the checksum of a pinned object is wrong, or missing where objects have one."""
        if not self._checksum and not found.descriptor[0] >> CHECKSUM_SHIFT.value:
            return True
        at = self._segments[found.owner].data_ptr() + found.payload
        return self._machine.verify(key, found, at) == Status.OK

    def view(self, found: Found) -> torch.Tensor | None:
        """The bytes of a pinned object in place, as the tensor that was put; None if its descriptor contradicts it."""
        payload = self.payload(found.owner, found.payload, found.nbytes)
        like = empty_like_described(found.descriptor, found.nbytes, torch.device("meta"))
        if like is None:
            return None
        return (
            payload.view(like.dtype).view(like.shape)
            if found.nbytes
            else like.new_empty(like.shape, device=self.device)
        )


def _fill(payload: torch.Tensor, tensor: torch.Tensor, plain: bool) -> None:
    if plain:
        payload.copy_(flat_bytes(tensor))
    elif len(payload):
        payload.view(tensor.dtype).view(tensor.shape).copy_(tensor)
