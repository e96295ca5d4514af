"""v2: the producer allocates in the owner's segment itself, through the machine. No server, no message."""

import time

from nanokv.allocation.base import Write
from nanokv.device.machines.base import Descriptor, Found, Machine
from nanokv.device.protocol.directory import POSITIVE
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import FLAG_PLAN
from nanokv.host_poller.make_room import make_room
from nanokv.types import KeyDigest

_ROOM_TRIES = 4  #: times that a put makes room: what it joined or evicted may be taken by others


def home_rank(key: KeyDigest, world_size: int) -> int:
    """The rank whose directory holds a key, and its owner when no segment is preferred."""
    return int(key.key_check & POSITIVE.value) % world_size


class DevicePath:
    """The Path of `alloc="device"`."""

    alloc = "device"

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._world_size = machine.geometry.world_size

    def owner_of(self, key: KeyDigest, preferred: int | None) -> int:
        """Where a new object goes."""
        return home_rank(key, self._world_size) if preferred is None else preferred

    def put(self, key: KeyDigest, src: int, nbytes: int, preferred: int | None, what: Descriptor) -> int:
        """The whole put of `nbytes` contiguous bytes at address `src`, in one call of the machine."""
        owner = self.owner_of(key, preferred)
        status = self._machine.put(owner, key, src, nbytes, what, time.time_ns())
        tries = 0
        while status == Status.FULL and tries < _ROOM_TRIES and make_room(self._machine, owner, nbytes):
            status = self._machine.put(owner, key, src, nbytes, what, time.time_ns())
            tries += 1
        return status

    def begin(self, key: KeyDigest, nbytes: int, preferred: int | None, what: Descriptor, *, plan: bool) -> Write:
        owner = self.owner_of(key, preferred)
        flags = FLAG_PLAN.value if plan else 0
        begun = self._machine.begin(owner, key, nbytes, flags, what, time.time_ns())
        tries = 0
        while begun.status == Status.FULL and tries < _ROOM_TRIES and make_room(self._machine, owner, nbytes):
            begun = self._machine.begin(owner, key, nbytes, flags, what, time.time_ns())
            tries += 1
        phase = begun.phase
        if plan and begun.status == Status.OK:
            self._machine.leave(owner, phase)  # a plan is written by a kernel that no activity word counts
            phase = -1
        return Write(begun.status, owner, begun.slot, begun.epoch, begun.payload, nbytes, phase)

    def finish(self, key: KeyDigest, write: Write) -> int:
        if write.phase < 0:
            return self._machine.commit(write.owner, write.slot, write.epoch)
        return self._machine.finish(write.owner, write.slot, write.epoch, write.phase)

    def abort(self, key: KeyDigest, write: Write) -> int:
        phase = self._machine.enter(write.owner) if write.phase < 0 else write.phase
        status = self._machine.abort(write.owner, write.slot, write.epoch)
        self._machine.leave(write.owner, phase)
        return status

    def locate(self, key: KeyDigest) -> Found:
        return self._machine.lookup(key)

    def exists(self, key: KeyDigest) -> int:
        return self._machine.find(key)

    def remove(self, key: KeyDigest) -> int:
        return self._machine.remove(key)

    def remove_slot(self, owner: int, slot: int, epoch: int) -> int:
        return self._machine.remove_slot(owner, slot, epoch)

    def close(self) -> None:
        """Nothing to let go of."""
