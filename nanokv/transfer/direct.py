"""Calls about one key, and one tensor in host memory, as one native call, which hashes the key and looks at the tensor.

It does the usual: a str or a KeyDigest of this cache, a plain tensor of the kind of the last one, an object that is put
or found at once. All else it leaves to the caller, and has then done nothing that a second try would not do.
"""

from collections.abc import Callable

import numpy as np
import torch
import xxhash
from torch import Tensor

from nanokv.allocation.base import Allocation
from nanokv.allocation.producer import ProducerAllocation
from nanokv.device.machines.base import Machine
from nanokv.device.machines.native import NativeMachine
from nanokv.device.protocol.status import Status
from nanokv.device.segment.host_records import HASHING, PREFIX_WORDS, UNUSUAL
from nanokv.keys import Hasher
from nanokv.transfer.dlpack import describing_function
from nanokv.transfer.host_tensors import last_kind
from nanokv.types import Key, KeyDigest

LEFT_TO_CALLER: int = UNUSUAL.value
_UNSUITED = (int(Status.SIZE), int(Status.INVALID))


def direct_of(machine: Machine, allocation: Allocation, hasher: Hasher) -> "Direct | None":
    """The calls of a cache; None if its machine or its allocator has none, or torch cannot tell what a tensor is."""
    if not isinstance(machine, NativeMachine) or not isinstance(allocation, ProducerAllocation):
        return None
    if describing_function() is None:
        return None
    return Direct(
        machine, hasher, allocation.note_owner, None if allocation.backing is None else allocation.backing.is_ready
    )


class Direct:
    """The calls of one cache. Each answers with a Status, or with LEFT_TO_CALLER."""

    def __init__(
        self,
        machine: NativeMachine,
        hasher: Hasher,
        note_owner: Callable[[int], None] | None,
        has_memory: Callable[[int, int], bool] | None = None,
    ) -> None:
        self._note_owner, self._has_memory = note_owner, has_memory
        self._put, self._get, self._find = machine.put_object, machine.get_object, machine.find_object
        self._take = machine.take_object
        self._most = machine.at_once
        self._record = np.zeros((), HASHING.dtype)
        self._record["prefix"] = np.frombuffer(hasher.prefix, np.int64, PREFIX_WORDS)
        self._record["upper"], self._record["tag"] = hasher.upper, hasher.signed_tag
        self._record["str_type"], self._record["digest_type"] = id(str), id(KeyDigest)
        self._function = xxhash.xxh3_128_digest  # held: its address is in the record
        self._record["function"] = id(self._function)
        self._hashing = int(self._record.ctypes.data)

    def put(self, key: Key, tensor: torch.Tensor, owner: int) -> int:
        """Store a tensor in the segment of `owner`. FULL: the caller makes room. Raises what `note_owner` raises."""
        what, lazy, is_complex, _, record, _ = last_kind[0]
        if what[0] > self._most or (lazy and _may_be_lazy(tensor, is_complex)):
            return LEFT_TO_CALLER
        if self._note_owner is not None:
            self._note_owner(owner)
        if self._has_memory is not None and not self._has_memory(owner, what[0]):
            return LEFT_TO_CALLER
        return self._put(key, tensor, owner, self._hashing, record)

    def get(self, key: Key, dst: torch.Tensor) -> int:
        """Fill `dst`. TORN: the caller tries again."""
        what, lazy, is_complex, _, record, _ = last_kind[0]
        if what[0] > self._most or (lazy and _may_be_lazy(dst, is_complex)):
            return LEFT_TO_CALLER
        status = self._get(key, dst, self._hashing, record)
        return status if status not in _UNSUITED else LEFT_TO_CALLER  # who tells what does not suit

    def take(self, key: Key, address: int, room: int) -> int:
        """Copy the object of a key, of any kind, to an address: its bytes. Below 0: ask in another way.

        That may be because there is none, it has more than `room` bytes, it is damaged, or it was replaced meanwhile.
        """
        return self._take(key, self._hashing, address, room)

    def exists(self, key: Key) -> int:
        """OK if the object can be read now."""
        return self._find(key, self._hashing)


def _may_be_lazy(tensor: Tensor, is_complex: bool) -> bool:
    return type(tensor) is not Tensor or tensor.is_neg() or (is_complex and tensor.is_conj())
