"""The link over Mooncake's Transfer Engine: TCP, between processes that find each other by their cards.

Source: mooncake-integration/transfer_engine and mooncake-transfer-engine/src/transport/tcp_transport of
kvcache-ai/Mooncake, and trials with 0.3.13.post1. What decides how it is used here:
- The library's status of a batch of rows spins until all have ended, or until one fails while others move. So each
  row is a batch of its own, once neighbours are merged: its state is told at once, and exactly. Each call lets go of
  Python's lock: beside a thread that computes in Python, every row may cost 5 ms to begin and 5 ms to end.
- The process that is read must run: it checks each row against what it has registered then, and sends it. Rows go over
  four connections, one at a time on each.
- A process has ended: its rows fail in milliseconds, later ones within 1 s. It is stopped or cannot be reached: four
  rows fail after 30 s without a byte (MC_TCP_PROGRESS_TIMEOUT_SEC), the next four after another 30 s; until then bytes
  may still come. `close` stops that.
- A row of memory that its owner has unmapped fails; the owner is not harmed.
- It listens on two ports, of 15000 to 17000 (MC_MIN_RPC_PORT, MC_MAX_RPC_PORT), on every interface, which no setting
  changes. Whoever reaches the second one can read *and write* registered memory: keep others off by a filter or a
  network namespace. Children that keep the process's descriptors keep the ports open.
- To destroy an engine takes up to 1 s, in which no thread of the process runs Python.
"""

import json
import os
import re
import secrets
import threading
import weakref
import zlib
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from nanokv.cluster.links.base import LinkLost, LinkUnavailable, State, Words
from nanokv.errors import InvalidArgument

CONNECT_SECONDS = 5.0  #: how long `connect` waits for an answer; the library itself would wait for 60 s
#: the library reads them when its first engine is made; what the user has set stays, except what this link needs
_DEFAULTS = {"MC_LOG_LEVEL": "ERROR", "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "65535"}  # rows beyond it fail
_NEEDED = {"MC_FORCE_TCP": "1", "MC_TCP_ENABLE_CONNECTION_POOL": "1"}  # without the pool, to begin a row is to connect
_DONE, _FAILED = 1, -1  # of transfer_check_status, which frees the batch then; others: not ended
_DESTROY_SECONDS = 10.0  #: the limit of `close`
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_LAST = (1 << 63) - 1


class Card(NamedTuple):
    """What a process tells others: its name, where it listens, and what it has registered (addresses and sizes)."""

    member: str
    incarnation: str
    host: str
    port: int
    regions: list[tuple[int, int]]

    def encode(self) -> bytes:
        """The card as bytes: a CRC-32 of the JSON in 8 hexadecimal digits, and the JSON."""
        body = json.dumps(self._asdict()).encode()
        return b"%08x" % zlib.crc32(body) + body

    @classmethod
    def decode(cls, data: bytes) -> "Card":
        """The card of these bytes.

        Raises:
            LinkLost: they are no card.
        """
        try:
            if b"%08x" % zlib.crc32(data[8:]) != data[:8]:
                raise ValueError("its checksum is wrong")
            card = cls(**json.loads(data[8:]))
            card = card._replace(port=int(card.port), regions=[(int(at), int(size)) for at, size in card.regions])
            regions = all(at > 0 and 0 < size <= _LAST - at for at, size in card.regions)
            if not (regions and _HOST.fullmatch(card.host) and 0 < card.port < 1 << 16):
                raise ValueError("a field has an impossible value")
        except (ValueError, TypeError, RecursionError) as error:
            raise LinkLost(f"no card of a Mooncake link: {error}") from None
        return card


class _Peer:
    """Another process: the name by which the engine knows it, and its memory."""

    def __init__(self, name: str, card: Card) -> None:
        self.name = name
        self.incarnation = card.incarnation
        regions = np.array(sorted(card.regions), np.int64).reshape(-1, 2)
        self._starts, self._ends = regions[:, 0], regions.sum(axis=1)

    def rows(self, here: Words, there: Words, nbytes: Words) -> tuple[list[int], list[int], list[int]]:
        """The rows of a read, with neighbours merged. Raises what `read` does."""
        if not len(here) == len(there) == len(nbytes) or not len(here) or int(nbytes.min()) <= 0:
            raise InvalidArgument("a read takes one or more rows, each of one or more bytes")
        region = np.searchsorted(self._starts, there, side="right") - 1
        if int(region.min()) < 0 or bool((nbytes > self._ends[region] - there).any()):
            raise LinkLost(f"{self.name} has not registered all of the memory, as far as its card tells")
        if len(here) == 1:  # the usual one: to look for neighbours takes 10 microseconds
            return here.tolist(), there.tolist(), nbytes.tolist()
        gaps = (here[1:] != here[:-1] + nbytes[:-1]) | (there[1:] != there[:-1] + nbytes[:-1])
        gaps |= region[1:] != region[:-1]  # the owner refuses a row that is in two of its regions
        begins = np.concatenate(([0], np.flatnonzero(gaps) + 1))
        return here[begins].tolist(), there[begins].tolist(), np.add.reduceat(nbytes, begins).tolist()


class MooncakeTransfer:
    """A read under way: a batch of the engine for each row. Not `whole`: there are rows that could not be begun."""

    def __init__(self, link: "MooncakeLink", batches: list[int], whole: bool) -> None:
        self._link, self._batches, self._whole = link, batches[::-1], whole
        self._state = State.MOVING
        self._mutex = threading.Lock()

    def state(self) -> State:
        """See `Transfer`."""
        if self._state == State.MOVING and self._mutex.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._mutex.release()
        return self._state

    def _look(self) -> None:
        engine = self._link.engine
        if engine is None:
            if self._link.destroyed.is_set():
                self._state = State.FAILED
            return
        while self._batches:
            code = engine.transfer_check_status(self._batches[-1])
            if code not in (_DONE, _FAILED):
                return
            self._batches.pop()
            self._whole &= code == _DONE
        self._state = State.DONE if self._whole else State.FAILED

    def release(self) -> None:
        """See `Transfer`."""
        if self.state() == State.MOVING:
            self._link.keep(self)


class MooncakeLink:
    """The `Link` over Mooncake's Transfer Engine.

    Args:
        member: the process's name, for messages of others.
        host: its address, by which others reach it. It does not limit on which interfaces the library listens.
        patience: seconds that `connect` waits for an answer.

    Attributes:
        engine: the library's; None once closed.
        destroyed: set once the engine is gone, after which nothing writes into memory of this process any more.

    Raises:
        InvalidArgument: the host is no IPv4 address or name.
        LinkUnavailable: Mooncake is not installed, one of its libraries is missing, or it finds no free port.
    """

    name = "mooncake"

    def __init__(self, member: str, *, host: str = "127.0.0.1", patience: float = CONNECT_SECONDS) -> None:
        if not _HOST.fullmatch(host):
            raise InvalidArgument(f"host must be an IPv4 address or a name, not {host!r}")
        self.destroyed = threading.Event()
        self.engine: Any = _new_engine(host)
        weakref.finalize(self.engine, self.destroyed.set).atexit = False
        self._self = Card(member, secrets.token_hex(8), host, self.engine.get_rpc_port(), [])
        self._patience = patience
        self._mutex = threading.Lock()
        self._memory: dict[int, int] = {}
        self._peers: dict[int, _Peer] = {}
        self._names: dict[tuple[str, int], list[str]] = {}  # incarnations by host and port
        self._count = 0
        self._kept: deque[MooncakeTransfer] = deque()

    def card(self) -> bytes:
        """See `Link`."""
        with self._mutex:
            return self._self._replace(regions=list(self._memory.items())).encode()

    def register(self, address: int, nbytes: int, device: int | None = None, *, shared: bool = True) -> None:
        """See `Link`."""
        if device is not None:
            raise LinkUnavailable(f"Mooncake's TCP moves host memory, not that of GPU {device}")
        code = self._open().register_memory(address, nbytes)
        if code:
            raise LinkUnavailable(f"Mooncake cannot register {nbytes} bytes at {address:#x}: it answered {code}")
        with self._mutex:
            self._memory[address] = nbytes

    def deregister(self, address: int) -> None:
        """See `Link`."""
        with self._mutex:
            known, engine = self._memory.pop(address, None), self.engine
        if known is not None and engine is not None:
            engine.unregister_memory(address)

    def connect(self, card: bytes) -> int:
        """See `Link`. Waits for an answer of the process, for `patience` seconds."""
        told = Card.decode(card)
        engine = self._open()
        name = self._name_of(told)
        if not _answers(engine, name, self._patience):
            raise LinkLost(f"{told.member} does not answer at {told.host}:{told.port}")
        with self._mutex:
            same = (number for number, peer in self._peers.items() if peer.incarnation == told.incarnation)
            number = next(same, self._count + 1)
            self._count = max(self._count, number)
            self._peers[number] = _Peer(name, told)
        return number

    def _name_of(self, card: Card) -> str:
        """Host and port, spelled anew for each process: the engine asks only once where a name's memory is served."""
        with self._mutex:
            known = self._names.setdefault((card.host, card.port), [])
            if card.incarnation not in known:
                known.append(card.incarnation)
            return f"{card.host}:{card.port:0{5 + known.index(card.incarnation)}d}"

    def disconnect(self, peer: int) -> None:
        """See `Link`. Transfers that are under way go on."""
        with self._mutex:
            self._peers.pop(peer, None)

    def read(self, peer: int, here: Words, there: Words, nbytes: Words) -> MooncakeTransfer:
        """See `Link`.

        Raises:
            InvalidArgument: no rows, lists of different lengths, or a row without bytes.
        """
        engine, known = self._open(), self._peers.get(peer)
        if known is None:
            raise LinkLost(f"peer {peer} is not connected")
        rows = known.rows(here, there, nbytes)
        self._sweep()
        begin, name = engine.batch_transfer_async_read, known.name
        batches = [begin(name, [into], [source], [size]) for into, source, size in zip(*rows, strict=True)]
        begun = [batch for batch in batches if batch]
        if not begun:
            raise LinkLost(f"{name} cannot be read: Mooncake has begun nothing")
        return MooncakeTransfer(self, begun, len(begun) == len(batches))

    def keep(self, transfer: MooncakeTransfer) -> None:
        """Look after a transfer that nobody waits for, until it has ended."""
        self._kept.append(transfer)

    def _sweep(self) -> None:
        """The oldest first: one that does not end yet holds up the others."""
        with self._mutex:
            while self._kept and self._kept[0].state() != State.MOVING:
                self._kept.popleft()

    def close(self) -> None:
        """See `Link`. Takes 1 s. Transfers under way end as FAILED, unless a `connect` still waits for an answer."""
        with self._mutex:
            engine, self.engine = self.engine, None
            memory, self._memory = self._memory, {}
            self._peers.clear()
        if engine is None:
            return
        for address in memory:
            engine.unregister_memory(address)
        del engine
        self.destroyed.wait(_DESTROY_SECONDS)

    def _open(self) -> Any:
        engine = self.engine
        if engine is None:
            raise LinkLost("the link is closed")
        return engine


def _new_engine(host: str) -> Any:
    for variable, value in _DEFAULTS.items():
        os.environ.setdefault(variable, value)
    os.environ.update(_NEEDED)
    try:
        from mooncake.engine import TransferEngine
    except ImportError as error:  # also of a shared library
        raise LinkUnavailable(f"Mooncake cannot be loaded (mooncake-transfer-engine-non-cuda): {error}") from None
    engine = TransferEngine()
    if engine.initialize(host, "P2PHANDSHAKE", "tcp", ""):
        raise LinkUnavailable(f"Mooncake cannot start at {host}: no free port")
    return engine


def _answers(engine: Any, name: str, patience: float) -> bool:
    """Whether a process answers in time; if so, the engine has asked where its memory is served, and no read has to."""
    answers: list[bool] = []

    def ask() -> None:
        if engine.send_probe(name) == 0 and (batch := engine.batch_transfer_async_read(name, [], [], [])):
            answers.append(engine.get_batch_transfer_status([batch]) == 0)

    asking = threading.Thread(target=ask, name="nanokv-mooncake-connect", daemon=True)
    asking.start()
    asking.join(patience)
    return answers == [True]
