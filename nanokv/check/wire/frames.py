"""Frames of chance for the owner's end of the wire: what a member with a bug, or one that means ill, may send.

Most are authentic, with fields at the borders of what can be; some have a flipped bit, or end in the middle. Whatever
comes, the owner answers as a store does, or ends that connection; others are served, and nothing is left behind.
"""

import random
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch

import nanokv
from nanokv.allocation.producer import ProducerAllocation
from nanokv.check.report import CheckFailure, Row, tell
from nanokv.check.wire.plain_wire import PlainWire, pull
from nanokv.cluster.messages.sealed import Sender
from nanokv.cluster.seals import SEALS
from nanokv.cluster.wire.server import WireServer, World
from nanokv.device.fabric.records import PULLED
from nanokv.device.protocol.status import Status
from nanokv.device.wire.records import CALL, END, EXISTS, GET, GO, OFFER, PUT, REMOVE
from nanokv.fsck import check_cache
from nanokv.transfer.descriptors import what_of
from nanokv.transfer.object_calls import Routing

PART = "wire"
_SECRET = b"a secret of the check, and no other"
_OWNER, _ASKER = Sender("owner.0", 7), Sender("asker.0", 9)
_KINDS = [each.value for each in (PUT, PUT, OFFER, GET, GET, EXISTS, REMOVE, CALL)]
_RECORD_WORDS = {GET.value: 12, EXISTS.value: 2, REMOVE.value: 2}
_BORDERS = [0, 1, -1, 8, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63), 257, 4097]
_BYTES8 = what_of(torch.uint8, torch.Size((8,))).descriptor
_OK, _MISS, _DUPLICATE = int(Status.OK), int(Status.MISS), int(Status.DUPLICATE)
_KEYS = 9  #: for each half of a digest
_REST_SECONDS = 20.0  #: until all connections have ended
_TOLD = 50_000  #: frames

Key = tuple[int, int]


@contextmanager
def _served(seal: str) -> Iterator[tuple[nanokv.NanoKVCache, WireServer]]:
    """A world, and its end of the wire. Afterwards it has nothing left that was begun."""
    with ExitStack() as ends:
        world = ends.enter_context(nanokv.NanoKVCache(16 << 20, page_bytes=4096))
        engine = world.engine
        assert isinstance(engine.allocation, ProducerAllocation)
        routing = Routing(engine.heap, engine.machine, engine.allocation)
        served = World(engine.heap, engine.machine.table_address, engine.allocation, routing)
        handlers = {1: lambda sender, body: body}
        server = WireServer(served, _OWNER, _SECRET, handlers, patience=0.5, seal=seal)
        ends.callback(server.close)
        yield world, server


class _Asker:
    """Sends frames of chance by one connection after the other, and compares the answers with what must be there.

    Attributes:
        there: whether there is an object of a key; no entry: that is not known.
    """

    def __init__(self, server: WireServer, seed: int, seal: str) -> None:
        self._server, self._chance, self._seal = server, random.Random(seed), seal
        self.there: dict[Key, bool] = dict.fromkeys(((one, two) for one in range(_KEYS) for two in range(_KEYS)), False)
        self._wire = self._connected()

    def _connected(self) -> PlainWire:
        return PlainWire(self._server.local, _SECRET, _ASKER, _OWNER, seal=self._seal)

    def close(self) -> None:
        """End the connection."""
        self._wire.close()

    def _word(self) -> int:
        chance = self._chance
        return chance.choice(_BORDERS) if chance.random() < 0.7 else chance.getrandbits(64) - (1 << 63)

    def _key(self) -> Key:
        return self._chance.randrange(_KEYS), self._chance.randrange(_KEYS)

    def _pulls(self, count: int) -> tuple[bytes, list[Key], bool]:
        """PULL records, their keys, and whether none of them may go by itself."""
        chance, rows, keys, stays = self._chance, [], [], True
        for _ in range(count):
            keys.append(self._key())
            usual = chance.random() < 0.9
            until = 0 if usual else chance.choice([0, abs(self._word()) >> 1])
            stays = stays and until == 0
            row = pull(
                keys[-1],
                8 if usual or chance.random() < 0.5 else self._word(),
                what=_BYTES8 if usual or chance.random() < 0.5 else tuple(self._word() for _ in range(8)),
                rank=chance.choice([-1, 0]) if usual else chance.choice([-1, 0, self._word()]),
                access=0 if usual else chance.choice([0, abs(self._word()) >> 1]),
                until=until,
            )
            rows.append(row.tobytes())
        return b"".join(rows), keys, stays

    def _rows(self, kind: int, count: int) -> tuple[bytes, list[Key]]:
        """Records of another kind, and their keys."""
        rows, keys = [], []
        for _ in range(count):
            keys.append(self._key())
            rows.append(
                struct.pack(
                    f"<{_RECORD_WORDS[kind]}q", *keys[-1], *(self._word() for _ in range(_RECORD_WORDS[kind] - 2))
                )
            )
        return b"".join(rows), keys

    def step(self) -> None:
        """Send one frame, and judge its answer. Raises CheckFailure: it is wrong."""
        chance = self._chance
        kind = chance.choice(_KINDS) if chance.random() < 0.95 else chance.randrange(32)
        count = 0 if chance.random() < 0.03 else chance.choice([1, 1, 2, 3])
        payload = bytes(chance.choice([0, 0, 8, 8, 16, 24, 5000]))
        records, keys, stays = b"", list[Key](), True
        if kind in (PUT.value, OFFER.value):
            records, keys, stays = self._pulls(count)
            if chance.random() < 0.95:
                payload = bytes(8 * count) if kind == PUT.value else b""
        elif kind in _RECORD_WORDS:
            records, keys = self._rows(kind, count)
            payload = b"" if chance.random() < 0.95 else payload
        frame = self._wire.frame(kind, count, records, payload, whole=kind == CALL.value)
        fate, raw = chance.random(), self._wire.raw(frame)
        if fate < 0.02:
            bit = chance.randrange(8 * len(raw))
            raw = raw[: bit // 8] + bytes([raw[bit // 8] ^ 1 << bit % 8]) + raw[bit // 8 + 1 :]
        elif fate < 0.04:
            self._wire.send_raw(raw[: chance.randrange(len(raw))])
            self._anew()
            return
        try:
            self._wire.send_raw(raw)
            answer = self._wire.answer()
            if answer[0] == GO.value:
                claimed = int((np.frombuffer(answer[2], PULLED.dtype)["status"] == _OK).sum())
                if chance.random() < 0.1:  # it ends in the middle, and what it has claimed is free some time later
                    self._wire.send(bytes(4 * claimed))
                    for key in keys:
                        self.there.pop(key, None)
                    self._anew()
                    return
                self._wire.send(bytes(8 * claimed) + self._wire.frame(END.value, 0))
                answer = self._wire.answer()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._anew()
            return
        self._judge(kind, keys, answer[2], stays)

    def _anew(self) -> None:
        self._wire.close()
        self._wire = self._connected()

    def _judge(self, kind: int, keys: list[Key], body: bytes, stays: bool) -> None:
        if kind in (PUT.value, OFFER.value):
            statuses = np.frombuffer(body, PULLED.dtype)["status"].tolist()
        elif kind in (EXISTS.value, REMOVE.value):
            statuses = np.frombuffer(body, np.int64).tolist()
        else:
            return
        for key, status in zip(keys, statuses, strict=True):
            known = self.there.get(key)
            wrong = {
                PUT.value: (status == _OK and known is True) or (status == _DUPLICATE and known is False),
                EXISTS.value: known is not None and (status == _OK) != known,
            }
            wrong[OFFER.value], wrong[REMOVE.value] = wrong[PUT.value], wrong[EXISTS.value]
            if wrong[kind] and status in (_OK, _MISS, _DUPLICATE):
                raise CheckFailure(
                    f"kind {kind} of key {key}, which is {'there' if known else 'not there'}: {Status(status).name}"
                )
            if kind == REMOVE.value and status in (_OK, _MISS):
                self.there[key] = False
            elif kind in (PUT.value, OFFER.value) and status == _OK:
                if stays:
                    self.there[key] = True
                else:
                    self.there.pop(key, None)


def run_wire(frames: int, seed: int, seals: Sequence[str] = SEALS) -> list[Row]:
    """Send so many frames of chance to an owner, over a connection of each seal; judge each answer, and what is left.

    Args:
        seed: of all that is random.
    """
    return [_run(frames // len(seals), seed, seal) for seal in seals]


def _run(frames: int, seed: int, seal: str) -> Row:
    row = Row(PART, f"frames of chance, seal={seal!r}, fsck", unit="frames")
    with row.timed(), _served(seal) as (world, server):
        asker = _Asker(server, seed, seal)
        try:
            for number in range(frames):
                if number and number % _TOLD == 0:
                    tell(f"{PART}: {number} frames")
                asker.step()
                row.tried += 1
        finally:
            asker.close()
        end = time.monotonic() + _REST_SECONDS
        while server.figures["wire_connections"] and time.monotonic() < end:
            time.sleep(0.01)
        if server.figures["wire_connections"]:
            raise CheckFailure(f"{server.figures['wire_connections']} connections are left, of none")
        world.flush()
        left = [str(finding) for finding in check_cache([world]).findings]
        if left or world.stats()["unfinished"]:
            raise CheckFailure(f"{world.stats()['unfinished']} objects are unfinished; {'; '.join(left)}")
        counts = {reason.name.lower(): count for reason, count in server.counts.items()}
        row.note = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        row.numbers |= {name: float(count) for name, count in counts.items()}
    return row
