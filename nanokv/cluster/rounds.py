"""The rounds of a get over a link: `nanokv.device.fabric.rounds`, with a transfer between each two.

Over NIXL all rounds of a call are one call of native code. Over any other link each transfer is a call of `Link.read`.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from nanokv.cluster.links.base import Link, LinkLost, State, Transfer
from nanokv.cluster.links.nixl import NixlLink
from nanokv.cluster.links.nixl_lane import Peer
from nanokv.cluster.locations import Locations
from nanokv.cluster.remote_world import RemoteWorld
from nanokv.cluster.workspace import SMALL, Workspace
from nanokv.device.fabric.judging import UNFIT
from nanokv.device.fabric.records import BROKEN, ENDED, LATE
from nanokv.device.machines.native_code import fabric_code
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import OBJ_HEADER, WORD
from nanokv.keys.hashing import Hasher
from nanokv.transfer.host_tensors import native_look
from nanokv.transfer.object_calls import hashing_record
from nanokv.types import Key

_ENDED, _BROKEN, _LATE = int(ENDED.value), int(BROKEN.value), int(LATE.value)
_HEADER_BYTES = OBJ_HEADER.offsets["bytes_total"] // WORD
_SPINS = 200  #: looks at a transfer before the thread begins to sleep between them
_NAP = 0.00005  #: seconds


class TransferLate(Exception):
    """A transfer did not end in time. It may still write to its destinations."""

    def __init__(self, name: str, timeout: float, is_over: Callable[[], bool]) -> None:
        super().__init__(f"node {name} did not answer within {timeout:.3g} s")
        self.is_over = is_over  #: whether it has ended; True once, and then it must not be asked again


class Rounds(Protocol):
    """The passes of a get. `workspace` holds `count` FETCHes.

    All raise LinkLost and TransferLate. Then nothing is known, and after TransferLate the memory of the workspace, and
    all destinations, must be kept until `is_over`.
    """

    def locate(self, world: RemoteWorld, workspace: Workspace, count: int, timeout: float) -> None:
        """Where the object of each FETCH lies, and its status."""
        ...

    def look(self, world: RemoteWorld, workspace: Workspace, count: int, timeout: float) -> None:
        """Whether the object of each FETCH that is OK lies where it is known to; else it is MISS."""
        ...

    def fetch(self, world: RemoteWorld, workspace: Workspace, count: int, timeout: float) -> int:
        """Read all that are OK to their destinations. Returns how many were there all the while."""
        ...

    def get_one(self, world: RemoteWorld, workspace: Workspace, most: int, timeout: float) -> bool:
        """`locate` and `fetch` of the only FETCH. False: there is no object, or one of more than `most` bytes."""
        ...

    def get_into(self, world: RemoteWorld, workspace: Workspace, key: Key, tensor: torch.Tensor, timeout: float) -> int:
        """Read an object of a tensor's dtype and shape into it, where it is known to lie or wherever: a Status.

        UNFIT: it takes other calls; it has more than SMALL bytes, or key or tensor are not the usual ones.
        """
        ...


class NixlRounds:
    """Over NIXL."""

    def __init__(self, link: NixlLink, locations: Locations, hasher: Hasher) -> None:
        self._link, self._locations = link, locations
        self._record, self._look_record = hashing_record(hasher), native_look().record
        self._hashing = int(self._record.ctypes.data)
        code = fabric_code()
        self._locate, self._look = code["nixl_locate"], code["nixl_look"]
        self._fetch, self._get_one, self._get_into = (code[f"nixl_{name}"] for name in ("fetch", "get_one", "get_into"))

    def locate(self, world: RemoteWorld, workspace: Workspace, count: int, timeout: float) -> None:
        """See `Rounds`."""
        self._run(self._locate, world, timeout, workspace.work, count, workspace.candidates)

    def look(self, world: RemoteWorld, workspace: Workspace, count: int, timeout: float) -> None:
        """See `Rounds`."""
        self._run(self._look, world, timeout, workspace.work, count)

    def fetch(self, world: RemoteWorld, workspace: Workspace, count: int, timeout: float) -> int:
        """See `Rounds`."""
        workspace.aim(world.controls)
        good: int = self._run(self._fetch, world, timeout, workspace.work, count)[1]
        return good

    def get_one(self, world: RemoteWorld, workspace: Workspace, most: int, timeout: float) -> bool:
        """See `Rounds`."""
        workspace.aim(world.controls)
        return bool(self._run(self._get_one, world, timeout, workspace.work, workspace.candidates, most)[1])

    def get_into(self, world: RemoteWorld, workspace: Workspace, key: Key, tensor: torch.Tensor, timeout: float) -> int:
        """See `Rounds`."""
        workspace.aim(world.controls)
        locations = self._locations
        rest = *locations.at, locations.number_of(world.id), self._hashing, self._look_record
        code = partial(self._get_into, key, tensor)
        status: int = self._run(code, world, timeout, workspace.work, workspace.candidates, SMALL, *rest)[1]
        return status

    def _run(self, code: Callable[..., Any], world: RemoteWorld, timeout: float, *arguments: int) -> Any:
        """What native code answers: how its transfers ended, or that and a word."""
        peer = self._link.peer(world.peer)
        lane = self._link.take_lane(peer)
        try:
            answer = code(world.table, lane.aim(peer, timeout), *arguments)
        finally:
            request = self._link.give_lane(lane, peer)
        end = answer if isinstance(answer, int) else answer[0]
        if end != _ENDED:
            self._failed(end, world, peer, request, timeout)
        return answer

    def _failed(self, end: int, world: RemoteWorld, peer: Peer, request: int, timeout: float) -> None:
        if end == _BROKEN:
            raise LinkLost(f"the transfer from node {world.name} has failed")
        raise TransferLate(world.name, timeout, lambda: self._link.has_ended(request, peer))


class LinkRounds:
    """Over any link, a transfer at a time."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._code = fabric_code()
        self._code.require_common()

    def locate(self, world: RemoteWorld, workspace: Workspace, count: int, timeout: float) -> None:
        """See `Rounds`."""
        code, table, work = self._code, world.table, workspace.work
        self._read(world, workspace, code["ask_buckets"](table, work, count), timeout)
        rows, found = code["ask_headers"](table, work, count, workspace.candidates)
        self._read(world, workspace, rows, timeout)
        code["take_headers"](table, work, workspace.candidates, found)

    def look(self, world: RemoteWorld, workspace: Workspace, count: int, timeout: float) -> None:
        """See `Rounds`."""
        self._read(world, workspace, self._code["ask_known"](world.table, workspace.work, count), timeout)
        self._code["take_known"](workspace.work, count)

    def fetch(self, world: RemoteWorld, workspace: Workspace, count: int, timeout: float) -> int:
        """See `Rounds`."""
        code, table, work = self._code, world.table, workspace.work
        workspace.aim(world.controls)
        rows, _ = code["ask_bytes"](table, work, count)
        self._read(world, workspace, rows, timeout)
        code["take_descriptors"](work, count)
        self._read(world, workspace, code["ask_again"](table, work, count), timeout)
        return int(code["take_again"](table, work, count))

    def get_one(self, world: RemoteWorld, workspace: Workspace, most: int, timeout: float) -> bool:
        """See `Rounds`."""
        self.locate(world, workspace, 1, timeout)
        found = workspace.fetches[0]
        if found["status"] != Status.OK or found["header"][_HEADER_BYTES] > most:
            return False
        self.fetch(world, workspace, 1, timeout)
        return True

    def get_into(self, world: RemoteWorld, workspace: Workspace, key: Key, tensor: torch.Tensor, timeout: float) -> int:
        """See `Rounds`."""
        return int(UNFIT.value)

    def _read(self, world: RemoteWorld, workspace: Workspace, count: int, timeout: float) -> None:
        if not count:
            return
        here, there, nbytes = (np.ascontiguousarray(workspace.rows[:count, k]) for k in range(3))
        transfer = self._link.read(world.peer, here, there, nbytes)
        if not wait_for(transfer, timeout):
            raise TransferLate(world.name, timeout, lambda: transfer.state() != State.MOVING)
        state = transfer.state()
        transfer.release()
        if state == State.FAILED:
            raise LinkLost(f"the transfer from node {world.name} has failed")


def wait_for(transfer: Transfer, timeout: float) -> bool:
    """Whether a transfer has ended within `timeout` seconds."""
    end, looks = time.monotonic() + timeout, 0
    while transfer.state() == State.MOVING:
        looks += 1
        if looks > _SPINS:
            if time.monotonic() > end:
                return False
            time.sleep(_NAP)
    return True


def rounds_over(link: Link, locations: Locations, hasher: Hasher) -> Rounds:
    """The rounds over a link, in the fastest way that it has.

    Args:
        locations: what is known of other nodes. hasher: of this process' cache.
    """
    return NixlRounds(link, locations, hasher) if isinstance(link, NixlLink) else LinkRounds(link)
