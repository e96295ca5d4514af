"""Transfers from one node at a time: passes of rounds, single copies, and a look whether it is there.

What is given up may go on: its memory is kept, and no other read uses it (`staging`).
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from nanokv.cluster.card import WorldId
from nanokv.cluster.links.base import Link, LinkLost, State
from nanokv.cluster.nodes import Node
from nanokv.cluster.patience import Patience
from nanokv.cluster.remote_world import RemoteWorld
from nanokv.cluster.rounds import TransferLate, wait_for
from nanokv.cluster.staging import Room, Staging
from nanokv.device.machines.records import Words
from nanokv.device.segment.layout import HEAP_CTL, OBJ_HEADER, WORD
from nanokv.errors import PeerLost

_PROBE = 0.05  #: seconds
MOST_LATE = 16  #: reads from one node that were given up and have not ended: their memory is kept, so no more begin
_SCANNED = 16384  #: headers of one transfer
T = TypeVar("T")


class Transfers:
    """The transfers of one process from other nodes.

    All methods raise PeerLost if the node cannot be reached, or does not answer within `timeout` seconds per round, or
    what is left of them (`patience`).
    """

    def __init__(self, link: Link, staging: Staging, timeout: float) -> None:
        self._link, self._staging, self._timeout = link, staging, timeout

    def _pass(self, node: Node, patience: Patience, work: Callable[..., T], *arguments: Any) -> T:
        """Four rounds, or two, with one of the members of a node; with the next one if that is lost.

        work: called with the world of that member, a workspace whose `timeout` is that of a round, and `arguments`.
        """
        late_ones = self._staging.late_of(node.number)
        if late_ones >= MOST_LATE:
            raise PeerLost(f"node {node.name} does not answer: {late_ones} reads that were given up have not ended")
        first: PeerLost | None = None  # why the first member was lost: those after it have less time
        for _ in range(max(len(node.cards), 1)):
            timeout = patience.left(node.name)
            world, workspace = node.world(), self._staging.workspace()
            workspace.timeout, begun = timeout, time.monotonic()
            try:
                answer = work(world, workspace, *arguments)
            except TransferLate as late:
                self._staging.keep(late.is_over, workspace, node=node.number)
                patience.waited(begun)
                node.lost(world, str(late))
                first = first or PeerLost(f"node {node.name} cannot be reached: {late}")
            except LinkLost as error:
                self._staging.give(workspace)
                node.lost(world, str(error))
                first = first or PeerLost(f"node {node.name} was lost: {error}")
            except BaseException:
                self._staging.give(workspace)
                raise
            else:
                self._staging.give(workspace)
                return answer
        raise first or PeerLost(f"node {node.name} was lost")

    def probe(self, node: Node) -> None:
        """Ask the link whether a node is there: it tells of a process that has ended at once, where messages do not.

        Raises:
            PeerLost: it has ended. (A node that is slow or stopped is not lost by that.)
        """
        world = node.world()
        room, one = self._staging.room(WORD), np.ones(1, np.int64)
        try:
            transfer = self._link.read(world.peer, one * room.address, one * world.bases[0], one * WORD)
        except LinkLost as error:
            node.lost(world, str(error))
            raise PeerLost(f"node {node.name} has ended: {error}") from None
        if not wait_for(transfer, _PROBE):
            self._staging.keep(lambda: transfer.state() != State.MOVING, room)
            return
        failed = transfer.state() == State.FAILED
        transfer.release()
        if failed:
            node.lost(world, "its process has ended")
            raise PeerLost(f"node {node.name} has ended")

    def headers(self, node: Node, rank: int) -> Iterator[tuple[WorldId, int, Words]]:
        """The header arena of a rank as it is now, in parts: whose it is, the first slot, int64 [n, 8].

        A header may be torn: other words may be of another epoch than STATE.
        """
        world = node.world()
        at, base = world.geometry.offsets["hdr_base"], world.bases[rank]
        head = self._copy(node, world, base + HEAP_CTL.offsets["hdr_head"], WORD)
        used = min(int(head.view(np.int64)[0]), world.geometry.hdr_count)
        for first in range(0, used, _SCANNED):
            count = min(_SCANNED, used - first)
            raw = self._copy(node, world, base + at + first * OBJ_HEADER.size, count * OBJ_HEADER.size)
            yield world.id, first, raw.view(np.int64).reshape(count, -1)

    def _copy(self, node: Node, world: RemoteWorld, there: int, nbytes: int) -> npt.NDArray[np.uint8]:
        room, one = self._staging.room(nbytes), np.ones(1, np.int64)
        try:
            self._move(world, one * room.address, one * there, one * nbytes, room)
        except (LinkLost, TransferLate) as error:
            node.lost(world, str(error))
            raise PeerLost(f"node {node.name}: {error}") from None
        return room.view(nbytes)

    def _move(self, world: RemoteWorld, here: Words, there: Words, nbytes: Words, room: Room) -> None:
        """One transfer into a room. Raises LinkLost and TransferLate, and keeps the room then."""
        transfer = self._link.read(world.peer, here, there, nbytes)
        if not wait_for(transfer, self._timeout):
            self._staging.keep(lambda: transfer.state() != State.MOVING, room)
            raise TransferLate(world.name, self._timeout, lambda: True)
        state = transfer.state()
        transfer.release()
        if state == State.FAILED:
            raise LinkLost(f"the transfer from node {world.name} has failed")
