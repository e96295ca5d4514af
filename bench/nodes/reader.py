"""The process that measures: a node that gets from the owner and puts to it, call by call beside bare transfers."""

import ctypes
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import CFUNCTYPE, byref, c_int, c_void_p
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
import torch

from nanokv import NanoKVCache
from nanokv.bench.nodes.echo import Echo
from nanokv.bench.nodes.owner import NODE, PATIENCE
from nanokv.bench.nodes.transports import TRANSPORTS, take_half
from nanokv.bench.suite.settings import KIB, MIB
from nanokv.check.command_process import Commands
from nanokv.cluster import NanoKVCluster, place
from nanokv.cluster.links.nixl import NixlLink
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.wire.client import WireClient
from nanokv.cluster.wire.ways import Ways
from nanokv.device.fabric.records import ENDED
from nanokv.device.machines.native_code import fabric_code
from nanokv.device.machines.records import Place, Words
from nanokv.device.protocol.status import Status
from nanokv.transfer.host_tensors import native_look
from nanokv.transfer.object_calls import hashing_record

# --- bare transfers over the link of a member, without objects: what each round of a get cannot be faster than ---
SECONDS = 30.0
_WRITE, _SUCCESS, _IN_PROGRESS = 1, 0, 1
_ENDED = int(ENDED.value)
_CREATE = CFUNCTYPE(c_int, c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)
_ADD = CFUNCTYPE(c_int, c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint64)
_POST = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)
_TWO = CFUNCTYPE(c_int, c_void_p, c_void_p)
_ONE = CFUNCTYPE(c_int, c_void_p)


class TransferFailed(Exception):
    """A bare transfer did not end well."""


class Bare:
    """Reads from, and writes to, memory of another node, each time another part: objects lie in other places too.

    Each transfer is made anew.

    Args:
        cluster: whose link is used.
        node: the other node. here: registered memory of this process (an address).
        there: addresses of the other's memory. place_bytes: at each of them.
    """

    def __init__(self, cluster: NanoKVCluster, node: str, here: int, there: Sequence[int], place_bytes: int) -> None:
        link = cluster.member.link
        assert isinstance(link, NixlLink)
        self._link, self.here, self.there, self._next, self._part = link, here, there, 0, place_bytes
        self._made: dict[tuple[int, int], Words] = {}
        self._peer = link.peer(cluster.member.nodes[node].world().peer)
        self._read_rows = fabric_code()["nixl_read_rows"]

    def _rows(self, nbytes: int) -> Words:
        """ROWs of the next parts. They are made once: what is timed is NIXL."""
        start, parts = self._next, -(-nbytes // self._part)
        self._next = (start + parts) % len(self.there)
        if (nbytes, start) not in self._made:
            rows = [
                (self.here + at, self.there[(start + i) % len(self.there)], min(self._part, nbytes - at))
                for i, at in enumerate(range(0, nbytes, self._part))
            ]
            self._made[nbytes, start] = np.array(rows, np.int64)
        return self._made[nbytes, start]

    def read(self, nbytes: int, times: int = 1) -> None:
        """Read so many bytes, `times` times, one after the other, in native code."""
        rows = self._rows(nbytes)
        with self._link.lane(self._peer) as lane:
            at, address, count = lane.aim(self._peer, SECONDS), rows.ctypes.data, len(rows)
            for _ in range(times):
                if self._read_rows(at, address, count) != _ENDED:
                    raise TransferFailed(f"a read of {nbytes} bytes")

    def write(self, nbytes: int) -> None:
        """Write so many bytes."""
        with self._link.lane(self._peer) as lane, self._link.reading_alone():
            lane.aim(self._peer, SECONDS)
            self._write(lane.record[0], nbytes)

    def _write(self, row: Any, nbytes: int) -> None:
        agent, here, there, request = int(row["agent"]), int(row["here"]), int(row["there"]), c_void_p()
        for one in (here, there):
            _ONE(int(row["clear"]))(one)
        add = _ADD(int(row["add"]))
        for mine, theirs, size in self._rows(nbytes).tolist():
            add(here, mine, size, 0)
            add(there, theirs, size, 0)
        peer, options = int(row["peer"]), int(row["options"])
        status = _CREATE(int(row["create"]))(agent, _WRITE, here, there, peer, byref(request), options)
        if status == _SUCCESS:
            status = _POST(int(row["post"]))(agent, request, None)
        look = _TWO(int(row["status"]))
        while status == _IN_PROGRESS:
            status = look(agent, request)
        _TWO(int(row["release"]))(agent, request)
        _ONE(int(row["destroy"]))(request)
        if status != _SUCCESS:
            raise TransferFailed(f"a write of {nbytes} bytes: NIXL answered {status}")


class Copies:
    """Copies from and to the memory of another node that is mapped: as `Bare`, without a link."""

    def __init__(self, cluster: NanoKVCluster, node: str, here: int, there: Sequence[int], place_bytes: int) -> None:
        world, card = cluster.member.mapped[cluster.member.nodes[node]], cluster.member.nodes[node].cards[0]
        self._world = world  # it stays mapped
        moved = world.single.payload(Place(0, 0, 0, 0, 1)).data_ptr() - card.bases[0]
        self._here, self._there, self._next, self._part = here, [at + moved for at in there], 0, place_bytes

    def _parts(self, nbytes: int) -> Iterator[tuple[int, int, int]]:
        for at in range(0, nbytes, self._part):
            yield self._here + at, self._there[self._next], min(self._part, nbytes - at)
            self._next = (self._next + 1) % len(self._there)

    def read(self, nbytes: int) -> None:
        """Copy so many bytes to this process."""
        for here, there, size in self._parts(nbytes):
            ctypes.memmove(here, there, size)

    def write(self, nbytes: int) -> None:
        """Copy so many bytes to the other one."""
        for here, there, size in self._parts(nbytes):
            ctypes.memmove(there, here, size)


# --- the reader -------------------------------------------------------------------------------
LINE = 64
BATCH = 256
PLACE_BYTES = BATCH * 64 * KIB
RING = 4  #: objects of a size, and batches of a size
SMALL_HEAP = 1 * MIB
NODES = 3
_IDLE_SECONDS = 3.0

OURS, BARE = "NanoKV", "the bytes alone"
ANSWER = 64  #: bytes of an answer that has no object, and of a question that brings none


class Process:
    """Another process, as the system shows it."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def private_bytes(self) -> int:
        """Memory that it has touched, and shares with nobody: RssAnon."""
        status = (self._folder / "status").read_text(encoding="utf-8")
        (line,) = [line for line in status.splitlines() if line.startswith("RssAnon:")]
        return int(line.split()[1]) << 10

    def percent_of_a_core(self, seconds: float) -> float:
        """How much its threads run, for so long."""
        spent, begun = self._cpu_seconds(), perf_counter_ns()
        time.sleep(seconds)
        return 100 * (self._cpu_seconds() - spent) / (perf_counter_ns() - begun) * 1e9

    def _cpu_seconds(self) -> float:
        fields = (self._folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class ReadWay(NamedTuple):
    """One way to do what is measured."""

    call: Callable[[int], Any]  #: what is timed, given a number below RING
    is_right: Callable[[Any], bool] = lambda answer: True  #: looks at its answer, when the time has been taken


Asked = dict[str, dict[str, ReadWay]]  #: by call and system


class NodeReader(Commands):
    """The nodes "cold", which remembers no locations, and "warm", which does."""

    def __init__(self, folder: str, transport: str, owner: dict[str, Any], place_bytes: int) -> None:
        take_half(0)
        torch.set_num_threads(1)
        way = TRANSPORTS[transport]
        if not way.is_near:
            place.here = str  # type: ignore[assignment]  # nobody knows where it is, so it takes no UNIX socket
        self._worlds = [NanoKVCache(SMALL_HEAP, page_bytes=4096, evict=False) for _ in range(2)]
        url = f"file://{folder}"
        usual = {"timeout": PATIENCE, "link": way.link}
        self.cold = NanoKVCluster(self._worlds[0], url, node="cold", locations=0, **usual)
        self.warm = NanoKVCluster(self._worlds[1], url, node="warm", **usual)
        self._memory = torch.zeros(PLACE_BYTES, dtype=torch.uint8)
        self.warm.register(self._memory)
        self._owner_pid: int = owner["pid"]
        self._echo = Echo(owner["echo"][0 if way.is_near else 1], self._memory.data_ptr())
        self.bare: Bare | None = None
        self.copies: Copies | None = None
        if way.link == "nixl":
            self.bare = Bare(self.warm, NODE, self._memory.data_ptr(), owner["places"], place_bytes)
        self._count = 0
        while len(self.cold.nodes) < len(self.warm.nodes) or len(self.warm.nodes) < NODES:
            time.sleep(0.01)
        if way.is_mapped:
            for cluster in (self.cold, self.warm):
                while cluster.member.mapped.of(cluster.member.nodes[NODE]) is None:
                    time.sleep(0.01)
            self.copies = Copies(self.warm, NODE, self._memory.data_ptr(), owner["places"], place_bytes)

    def _keys(self, what: str, count: int) -> list[str]:
        """Keys whose home is the owner: a reader that knows nothing asks it first."""
        at_home = (key for i in itertools.count() if self.cold.home(key := f"{what} {i}") == NODE)
        return list(itertools.islice(at_home, count))

    # --- what is measured ---
    def get(self, nbytes: int) -> Asked:
        """A get of one object, beside one bare exchange.

        Over NIXL beside reads: a small object is as good as its rounds, and stands beside as many reads of a line.
        """
        keys = self._keys(f"{nbytes}", RING)
        for key in keys:
            if not self.warm.exists(key):
                self.warm.put(key, torch.full((nbytes,), 1, dtype=torch.uint8), preferred_segment=(NODE, 0))
        self._until_known(keys)

        def ours(cluster: NanoKVCluster) -> ReadWay:
            return ReadWay(lambda i: cluster.get(keys[i]), lambda got: bool(got[-1] == 1))

        def bare(rounds: int) -> ReadWay:
            small, read, copies = nbytes <= KIB, self.bare, self.copies
            if copies is not None:
                return ReadWay(lambda i: copies.read(nbytes))
            if read is None:
                return ReadWay(lambda i: self._echo.exchange(ANSWER, nbytes))
            return ReadWay(lambda i: read.read(LINE if small else nbytes, rounds if small else 1))

        return {
            "get": {OURS: ours(self.cold), BARE: bare(4)},
            "get, location known": {OURS: ours(self.warm), BARE: bare(2)},
        }

    def _until_known(self, keys: list[str]) -> None:
        while not all(self.warm.member.locations.node_of(self.warm.digest(key)) for key in keys):
            self.warm.member.events.wait(self.warm.member.events.heard, 0.01)

    def put(self, nbytes: int) -> Asked:
        """A put of one object, of registered memory, beside one bare exchange; over NIXL, a bare write and one."""
        tensor = self._memory[:nbytes]

        def put(i: int) -> None:
            self._count += 1
            self.warm.put(f"put {self._count}", tensor, preferred_segment=(NODE, 0))

        return {"put": {OURS: ReadWay(put), BARE: ReadWay(lambda i: self._send(nbytes))}}

    def _send(self, nbytes: int) -> None:
        """Bring bytes to the owner, and hear that they are there."""
        if self.copies is not None:
            self.copies.write(nbytes)
        elif self.bare is None:
            self._echo.exchange(nbytes, ANSWER)
        else:
            self.bare.write(nbytes)
            self._echo.exchange(ANSWER, ANSWER)

    def get_many(self, nbytes: int) -> Asked:
        """A batch in one call, in the order in which it was put, beside one bare transfer of as many bytes."""
        keys = [self._keys(f"batch {nbytes} {k}", BATCH) for k in range(RING)]
        tensors, dsts = (torch.full((BATCH, nbytes), k, dtype=torch.uint8) for k in (1, 0))
        for some in keys:
            if not self.warm.exists(some[0]):
                assert not any(self.warm.put_many(some, tensors, preferred_segment=(NODE, 0)))
            self._until_known(some[-1:])
        digests = [self.cold.world.engine.digests(some) for some in keys]

        def into_rows(cluster: NanoKVCluster) -> ReadWay:
            return ReadWay(
                lambda i: cluster.get_many(digests[i], dsts=dsts),
                lambda got: all(got) and bool((dsts[:, -1] == 1).all()),
            )

        anew = ReadWay(lambda i: self.warm.get_many(digests[i]), lambda got: all(bool(each[-1] == 1) for each in got))
        bare = ReadWay(lambda i: self._receive(BATCH * nbytes))
        return {
            f"get_many of {BATCH}": {OURS: into_rows(self.cold), BARE: bare},
            f"get_many of {BATCH}, locations known": {OURS: into_rows(self.warm), BARE: bare},
            f"get_many of {BATCH}, locations known, new tensors": {OURS: anew, BARE: bare},
        }

    def _receive(self, nbytes: int) -> None:
        """Bring bytes from the owner."""
        if self.copies is not None:
            self.copies.read(nbytes)
        elif self.bare is None:
            self._echo.exchange(ANSWER, nbytes)
        else:
            self.bare.read(nbytes)

    def put_many(self, nbytes: int) -> Asked:
        """A batch in one call, of registered memory, beside the same as a put."""
        tensors = self._memory[: BATCH * nbytes].view(BATCH, nbytes)

        def put(i: int) -> Any:
            self._count += 1
            keys = [f"put {self._count} {k}" for k in range(BATCH)]
            return self.warm.put_many(keys, tensors, preferred_segment=(NODE, 0))

        bare = ReadWay(lambda i: self._send(BATCH * nbytes))
        return {f"put_many of {BATCH}": {OURS: ReadWay(put, lambda errors: not any(errors)), BARE: bare}}

    # --- many connections ---
    def connections(self, count: int, calls: int) -> dict[str, float]:
        """What `count` connections cost the owner, and how many puts of 1 KiB it takes by one and by four of them."""
        member, card = self.warm.member, self.warm.member.nodes[NODE].cards[0]
        secret, me = member.membership.secret(), Sender(member.name, member.incarnation)
        hashing, look = hashing_record(self.warm.world.engine.hasher), native_look().record
        tensor, found = self._memory[:KIB], {}

        def puts(client: WireClient, first: int, count: int) -> None:
            for i in range(first, first + count):
                key = self.warm.digest(f"connections {i}")
                if client.put_one(key, tensor, 0, int(hashing.ctypes.data), look, PATIENCE) != int(Status.OK):
                    raise TransferFailed("a put was not stored")

        owner = Process(self._owner_pid)
        puts(member.ways.to(card), 0, 100)  # what is made once
        time.sleep(_IDLE_SECONDS)
        alone = owner.percent_of_a_core(_IDLE_SECONDS)
        before, begun = owner.private_bytes(), perf_counter_ns()
        every = [Ways(secret, me, place.here()) for _ in range(count)]
        try:
            for ways in every:
                ways.to(card).exists(np.zeros((1, 2), np.int64), PATIENCE)
            found["us a handshake"] = (perf_counter_ns() - begun) / 1e3 / count
            found["KiB a connection"] = (owner.private_bytes() - before) / 1024 / count
            time.sleep(_IDLE_SECONDS)  # until idle connections have given their memory back
            found["% of a core, idle"] = max(owner.percent_of_a_core(_IDLE_SECONDS) - alone, 0.0)
            first = 1000
            for threads in (1, 4):
                clients = [ways.to(card) for ways in every[:threads]]
                with ThreadPoolExecutor(threads) as pool:
                    begun = perf_counter_ns()
                    jobs = [pool.submit(puts, client, first + i * calls, calls) for i, client in enumerate(clients)]
                    for job in jobs:
                        job.result()
                    took = perf_counter_ns() - begun
                first += threads * calls
                found[f"puts a second, {threads} threads"] = 1e9 * threads * calls / took
        finally:
            for ways in every:
                ways.close()
        return found

    # --- a lap ---
    def lap(self, what: str, nbytes: int, calls: int) -> dict[str, dict[str, list[int]]]:
        """Durations in ns of `calls` calls of each way, which take turns.

        what: "get", "put", "get_many" or "put_many".
        """
        ways: Asked = getattr(self, what)(nbytes)
        found: dict[str, dict[str, list[int]]] = {call: {system: [] for system in ways[call]} for call in ways}
        for i in range(-RING, calls):
            for call, systems in ways.items():
                for system, way in systems.items():
                    start = perf_counter_ns()
                    answer = way.call(i % RING)
                    took = perf_counter_ns() - start
                    assert way.is_right(answer), f"{system}, {call}: a wrong answer"
                    del answer
                    if i >= 0:
                        found[call][system].append(took)
        return found

    def at_end(self) -> None:
        """Leave."""
        for each in (self.cold, self.warm):
            each.close()
        for world in self._worlds:
            world.close()
