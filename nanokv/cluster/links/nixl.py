"""The link over NIXL, with its backend UCX: RDMA, TCP, or the shared memory of one host, as UCX chooses.

A process has two agents. The one that serves has a progress thread, because UCX needs it to answer reads over TCP; the
thread sleeps until something comes. The one that reads has none: the caller makes progress while it waits, and two
threads that do so make reads of 1 MiB over TCP take three times as long.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from nanokv.cluster.links.base import (
    LinkLost,
    LinkUnavailable,
    State,
    Words,
    checked_rows,
    opened_card,
    sealed_card,
)
from nanokv.cluster.links.nixl_lane import NixlLane, Peer
from nanokv.cluster.links.nixl_library import TRANSFER_FUNCTIONS, Agent, NixlError, function_address
from nanokv.cluster.listening import listening
from nanokv.device.machines.native_code import fabric_code

PROGRESS_DELAY_US = 10_000  #: the serving agent's thread wakes so often if nothing comes: 0.5 % of a core
_IN_PROGRESS, _SUCCESS, _CLOSED = 1, 0, -1000
_LOOK_NS = 50_000  #: of progress, each time that a transfer is asked for its state
_FAREWELL, _NAP = 5.0, 0.001  #: seconds that `close` waits for calls under way, and between two looks at them
#: of UCX, unless the environment says otherwise. Over TCP: bytes of a send and of a receive; UCX's own 8 KiB are slow
#: (docs/cluster.md).
_UCX = ("TCP_TX_SEG_SIZE=256k", "TCP_RX_SEG_SIZE=256k")
#: The lock of all agents of this process, a word that native code takes too. One thread at a time is in an agent
#: (`fabric/nixl`). Agents are also made and ended alone: twice, under load, NIXL 1.5.1 aborted in a thread that began a
#: transfer, while another node of the same process ended its agents.
_AGENTS = np.zeros(1, np.int64)
os.register_at_fork(after_in_child=lambda: _AGENTS.fill(0))  # the thread that has it is not in the child


_NO_TCP = (
    "UCX's TCP is off, as who can connect to its port can write to any memory of this process: where there is no RDMA, "
    "link='wire' does without UCX; the variable UCX_TLS, such as UCX_TLS=tcp,self, turns it on (docs/cluster.md)"
)


def asks_for_tcp(transports: str) -> bool:
    """Whether a value of UCX_TLS names TCP, or all; a list of what is not wanted ("^shm") does not."""
    return not transports.startswith("^") and bool({"tcp", "all"} & {name.strip() for name in transports.split(",")})


def ucx_parameters(devices: str, ports: str, *, has_tcp: bool) -> dict[str, str]:
    """The parameters of NIXL's backend for UCX."""
    more = [] if has_tcp else ["TLS=^tcp"]  # the variable UCX_TLS, if it is set, goes before that
    more += [] if devices == "all" else [f"NET_DEVICES={devices}"]
    more += [f"TCP_PORT_RANGE={ports}"] if ports else []
    return {"engine_config": ",".join((*_UCX, *more))}


class NixlTransfer:
    """A read under way."""

    def __init__(self, link: "NixlLink", request: int, peer: Peer, state: State) -> None:
        self._link, self._request, self._peer, self._state = link, request, peer, state
        self._lock = threading.Lock()

    def state(self) -> State:
        """See `Transfer`."""
        with self._lock:
            if self._state == State.MOVING:
                code = self._link.look_at(self._request, self._peer)
                if code != _IN_PROGRESS:
                    self._state = State.DONE if code == _SUCCESS else State.FAILED
            return self._state

    def release(self) -> None:
        """See `Transfer`."""
        if self.state() == State.MOVING:
            self._link.keep(self)


class NixlLink:
    """The `Link` over NIXL.

    Args:
        member: a name that no other process of the cluster has, and had.
        devices: the network devices that UCX uses, as UCX_NET_DEVICES, such as "lo" or "mlx5_0:1". Default: loopback.
            "all": all of them, and UCX then listens on the addresses of all.
        ports: the range of ports for TCP, as UCX_TCP_PORT_RANGE, such as "40000-40999". Default: any.

    Raises:
        LinkUnavailable: NIXL is not installed, or UCX does not work here, or only by TCP, for which nobody has asked.

    UCX's TCP is off unless the variable UCX_TLS names it: who can connect to its port can write to any memory of this
    process (docs/cluster.md, Security).
    """

    name = "nixl"

    def __init__(self, member: str, *, devices: str = "lo", ports: str = "") -> None:
        has_tcp = asks_for_tcp(os.environ.get("UCX_TLS", ""))
        parameters = ucx_parameters(devices, ports, has_tcp=has_tcp)
        self._lock = threading.Lock()
        self._serving_lock = threading.Lock()  # `close` must not take the agent from a thread that is in it
        self._lock_address = int(_AGENTS.ctypes.data)
        self._code = fabric_code()
        self._code.require_common()
        self._devices = devices
        unasked = self._make_agents(member, parameters, has_tcp)
        if unasked:  # another thread of this process may have opened them meanwhile
            self._close_agents()
            unasked = self._make_agents(f"{member}.again", parameters, has_tcp)
        if unasked:
            self._close_agents()
            raise LinkUnavailable(f"UCX listens at {', '.join(unasked)}, though UCX_TLS does not name tcp. {_NO_TCP}")
        self._functions = {field: function_address(name) for field, name in TRANSFER_FUNCTIONS.items()}
        self._memory: dict[int, tuple[Any, Any]] = {}
        self._peers: dict[int, Peer] = {}
        self._leaving: dict[bytes, Peer] = {}
        self._count = 0
        self._lanes: list[NixlLane] = []
        self._busy = 0
        self._moving: list[NixlTransfer] = []
        self._closed = False
        self._looker = NixlLane(self._reading, self._functions, self._lock_address)

    def _make_agents(self, member: str, parameters: dict[str, str], has_tcp: bool) -> list[str]:
        """Make the two agents. Returns the ports that were opened meanwhile, if none may be."""
        before = listening()
        try:
            with self.reading_alone():
                self._serving = Agent(f"{member}.serves", PROGRESS_DELAY_US, parameters)
                try:
                    self._reading = Agent(f"{member}.reads", None, parameters)
                except LinkUnavailable:
                    self._serving.close()
                    raise
        except LinkUnavailable as error:
            where = f"devices={self._devices!r}, UCX_TLS={os.environ.get('UCX_TLS', '')!r}"
            raise LinkUnavailable(f"{error} ({where})" + ("" if has_tcp else f". {_NO_TCP}")) from None
        return [] if has_tcp else [address for inode, address in listening().items() if inode not in before]

    def _close_agents(self) -> None:
        with self.reading_alone():
            self._serving.close()
            self._reading.close()

    # --- memory ---
    def card(self) -> bytes:
        """See `Link`."""
        with self._serving_lock:
            self._check_open()
            return sealed_card(self._serving.metadata())

    def register(self, address: int, nbytes: int, device: int | None = None, *, shared: bool = True) -> None:
        """See `Link`."""
        try:
            with self._serving_lock:
                if self._closed:
                    raise LinkUnavailable("this link is closed")
                serving = self._serving.register(address, nbytes, device) if shared else None
            with self.reading_alone():
                if self._closed:
                    raise LinkUnavailable("this link is closed")
                self._memory[address] = serving, self._reading.register(address, nbytes, device)
        except NixlError as error:
            where = "host memory" if device is None else f"memory of GPU {device}"
            raise LinkUnavailable(f"NIXL cannot register {nbytes} bytes of {where}: {error}") from None

    def deregister(self, address: int) -> None:
        """See `Link`."""
        serving, reading = self._memory.pop(address, (None, None))
        with self.reading_alone():
            if reading is not None and not self._closed:
                self._reading.deregister(reading)
        with self._serving_lock:
            if serving is not None and not self._closed:
                self._serving.deregister(serving)

    # --- peers ---
    def connect(self, card: bytes) -> int:
        """See `Link`."""
        raw = opened_card(card)
        with self._lock, self.reading_alone():
            self._check_open()
            name = self._reading.add_peer(raw)
            for number, peer in self._peers.items():
                if peer.name == name:
                    return number
            self._count += 1
            peer = self._leaving.pop(name) if name in self._leaving else Peer(name)
            peer.is_leaving = False
            self._peers[self._count] = peer
            return self._count

    def disconnect(self, peer: int) -> None:
        """See `Link`."""
        with self._lock, self.reading_alone():
            known = self._peers.pop(peer, None)
            if known is not None:
                known.is_leaving = True
                self._leaving[known.name] = known
                self._forget(known)

    def _forget(self, peer: Peer) -> None:
        """Let NIXL forget a peer that leaves, once, if no transfer comes from it."""
        if peer.is_leaving and not peer.moving and not self._closed and self._leaving.pop(peer.name, None) is peer:
            self._reading.remove_peer(peer.name)

    def _check_open(self) -> None:
        if self._closed:
            raise LinkLost("this link is closed")

    def peer(self, number: int) -> Peer:
        """A peer by its number.

        Raises:
            LinkLost: there is none of this number (any more).
        """
        known = self._peers.get(number)
        if known is None:
            raise LinkLost(f"peer {number} is not connected")
        return known

    # --- transfers ---
    def take_lane(self, peer: Peer) -> NixlLane:
        """A lane for this thread, to read from a peer. Until `give_lane`, NIXL forgets neither agent nor peer.

        Raises:
            LinkLost: this link is closed.
        """
        with self._lock:
            self._check_open()
            self._busy += 1
            peer.moving += 1
            if self._lanes:
                return self._lanes.pop()
        with self.reading_alone():
            return NixlLane(self._reading, self._functions, self._lock_address)

    def give_lane(self, lane: NixlLane, peer: Peer) -> int:
        """Give a lane back. Returns its transfer that has not ended, at which the caller looks until it has; or 0."""
        request = lane.take_request()
        with self._lock:
            self._lanes.append(lane)
            self._busy -= 1
            if not request:
                self._count_end(peer)
        return request

    @contextlib.contextmanager
    def lane(self, peer: Peer) -> Iterator[NixlLane]:
        """A lane for transfers that end before it is given back. Raises as `take_lane`."""
        lane = self.take_lane(peer)
        try:
            yield lane
        finally:
            self.give_lane(lane, peer)

    def _count_end(self, peer: Peer) -> None:
        """A transfer from a peer has ended. The caller has the lock."""
        peer.moving -= 1
        if peer.is_leaving:
            with self.reading_alone():
                self._forget(peer)

    def read(self, peer: int, here: Words, there: Words, nbytes: Words) -> NixlTransfer:
        """See `Link`."""
        rows = checked_rows(here, there, nbytes)
        aimed = self.peer(peer)
        lane = self.take_lane(aimed)
        try:
            code = self._code["nixl_begin"](lane.aim(aimed, 0.0), rows.ctypes.data, len(rows))
        finally:
            request = self.give_lane(lane, aimed)
        if code != _IN_PROGRESS and request:
            self.look_at(request, aimed)
        if code not in (_SUCCESS, _IN_PROGRESS):
            raise LinkLost(f"a transfer from {aimed.name.decode()} cannot begin: NIXL answered {code}")
        return NixlTransfer(self, request, aimed, State.DONE if code == _SUCCESS else State.MOVING)

    def look_at(self, request: int, peer: Peer) -> int:
        """NIXL's status of a request that was taken; one that has ended is let go of. After `close` all have."""
        with self.reading_alone():
            if self._closed:
                return _CLOSED
            code = int(self._code["nixl_look_at"](self._looker.address, request, _LOOK_NS))
        if code != _IN_PROGRESS:
            with self._lock:
                self._count_end(peer)
        return code

    def has_ended(self, request: int, peer: Peer) -> bool:
        """Whether a transfer has ended; then it must not be asked about again."""
        return self.look_at(request, peer) != _IN_PROGRESS

    @contextlib.contextmanager
    def reading_alone(self) -> Iterator[None]:
        """No other thread is in a reading agent meanwhile, nor makes or ends one."""
        self._code["nixl_lock"](self._lock_address)
        try:
            yield
        finally:
            self._code["nixl_unlock"](self._lock_address)

    def keep(self, transfer: NixlTransfer) -> None:
        """Keep a transfer that nobody waits for until it has ended."""
        with self._lock:
            kept, self._moving = self._moving, []
        moving = [each for each in kept if each.state() == State.MOVING]  # which takes the lock, where one has ended
        with self._lock:
            self._moving += [*moving, transfer]

    def close(self) -> None:
        """See `Link`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        end = time.monotonic() + _FAREWELL
        while self._busy and time.monotonic() < end:
            time.sleep(_NAP)
        with self._serving_lock, self.reading_alone():
            self._serving.close()
            if not self._busy:  # else a thread waits for its transfer: the agent stays, for as long as the process
                self._reading.close()
