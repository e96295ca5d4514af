"""The owner's end of the wire at its borders: the last value that is right, the first that is not, and who is slow."""

import struct
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanokv.check.wire.plain_wire import PlainWire, pull, wanted
from nanokv.cluster.messages.counts import DropReason
from nanokv.cluster.seals import HEADS
from nanokv.cluster.wire import server as wire_server
from nanokv.cluster.wire.server import WireServer
from nanokv.device.fabric.records import PULL, PULLED
from nanokv.device.protocol.status import Status
from nanokv.device.segment.clock import now_ns
from nanokv.device.segment.layout import MAX_DIMS, NDIM_SHIFT
from nanokv.device.wire.records import (
    CALL,
    CALLED,
    COVERED,
    END,
    EXISTS,
    GET,
    GOT,
    HEAD,
    MAC,
    MOST_CALL,
    MOST_INLINE,
    OFFER,
    PUT,
    REMOVE,
)
from nanokv.errors import HeapUnavailable
from nanokv.transfer.descriptors import what_of
from tests.support.faults import Calls, Limits
from tests.support.until import until

from .conftest import ASKER, OWNER, SECONDS, SECRET, Serve, Served

OK, MISS, SIZE = int(Status.OK), int(Status.MISS), int(Status.SIZE)
KEY = (11, 22)  #: the digest of an object
SECOND = 1_000_000_000
FOREVER = (1 << 63) - 1


def bytes_of(nbytes: int) -> tuple[int, ...]:
    """The descriptor of so many bytes."""
    return what_of(torch.uint8, torch.Size((nbytes,))).descriptor


def shape(*dims: int, ndim: int | None = None, more: int = 0) -> tuple[int, ...]:
    """A descriptor of bytes with these dimensions. ndim: how many it says there are. more: bits of its first word."""
    count = len(dims) if ndim is None else ndim
    dtype = bytes_of(0)[0] & ~(0xFF << NDIM_SHIFT.value)
    return (dtype | count << NDIM_SHIFT.value | more, *dims, *[0] * (MAX_DIMS - len(dims)))


def put_of(data: bytes, key: tuple[int, int] = KEY, what: tuple[int, ...] = (0,) * 8, **more: int) -> Any:
    """A frame that puts an object."""

    def made(wire: PlainWire, **how: Any) -> bytes:
        return wire.frame(PUT.value, 1, pull(key, len(data), what=what, **more).tobytes(), data, **how)

    return made


def status_of(answer: tuple[int, int, bytes]) -> int:
    """The first status in an answer."""
    return int(np.frombuffer(answer[2], np.int64)[0])


def ask_exists(wire: PlainWire) -> int:
    """Whether there is an object, as the owner answers."""
    wire.send(wire.frame(EXISTS.value, 1, struct.pack("<2q", *KEY)))
    return status_of(wire.answer())


def flipped(frame: bytes, at: int) -> bytes:
    """With one bit of a byte changed, which may be counted from the end."""
    changed = bytearray(frame)
    changed[at] ^= 1
    return bytes(changed)


#: frames, each authentic but for what its name says, that end their connection
MALFORMED = {
    "another first word of the MAC": lambda wire: flipped(put_of(b"8 bytes.")(wire), -9),
    "another last word of the MAC": lambda wire: flipped(put_of(b"8 bytes.")(wire), -1),
    "a payload below nothing": lambda wire: wire.frame(EXISTS.value, 1, bytes(16), size=-1),
    "a payload just too large": put_of(bytes(MOST_INLINE + 1)),
    "a message just too large": lambda wire: wire.frame(CALL.value, 1, payload=bytes(MOST_CALL + 1), whole=True),
    "a bit that no descriptor has": put_of(b"8 bytes.", what=shape(8, more=1 << 40)),
    "raw bytes with a shape": put_of(b"8 bytes.", what=(1 << NDIM_SHIFT.value, 1, 0, 0, 0, 0, 0, 0)),
    "no byte of no such dtype": put_of(b"", what=(200, 0, 0, 0, 0, 0, 0, 0)),
    "one dimension too many": put_of(b"8 bytes.", what=shape(8, 1, 1, 1, 1, 1, 1, ndim=MAX_DIMS + 1)),
    "a dimension behind the last": put_of(b"8 bytes.", what=shape(8, 1, ndim=1)),
    "a dimension beyond all memory, of nothing": put_of(b"", what=shape(0, (1 << 52) + 1)),
    "dimensions that overflow to nothing": put_of(b"", what=shape(1 << 40, 1 << 24)),
    "room beyond all, beside some": lambda wire: wire.frame(
        GET.value, 2, wanted(KEY, 8).tobytes() + wanted(KEY, (1 << 40) + 1).tobytes()
    ),
}


@pytest.mark.parametrize("seal", [HEADS])  # what is enciphered is covered by that, and not by its frame: `test_seal`
def test_the_last_byte_of_a_payload_is_covered(served: Served) -> None:
    wire = served.plain()
    wire.send(flipped(put_of(bytes(COVERED.value))(wire), -MAC - 1))
    assert wire.is_ended()
    assert served.world.segment_count() == 0
    until(lambda: served.server.counts == {DropReason.MALFORMED: 1}, "its count")


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_beyond_a_border_ends_its_connection(served: Served, name: str) -> None:
    wire = served.plain()
    wire.send(MALFORMED[name](wire))
    assert wire.is_ended()
    assert served.world.segment_count() == 0
    until(lambda: served.server.counts == {DropReason.MALFORMED: 1}, "its count")


#: objects at the borders, which are stored
RIGHT = {
    "the largest payload": put_of(b"x" * MOST_INLINE),
    "all that the MAC covers": put_of(b"x" * COVERED.value),
    "the first byte that the MAC does not cover": put_of(b"x" * (COVERED.value + 1)),
    "raw bytes": put_of(b"8 bytes."),
    "no dimension": put_of(b"x", what=shape()),
    "all dimensions": put_of(b"8 bytes.", what=shape(8, 1, 1, 1, 1, 1, 1)),
    "the largest dimension, of nothing": put_of(b"", what=shape(0, 1 << 52)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_at_a_border_is_stored_and_read(served: Served, name: str) -> None:
    wire = served.plain()
    frame = RIGHT[name](wire)
    size = int(np.frombuffer(frame, HEAD.dtype, 1)[0]["payload"])
    wire.send(frame)
    assert status_of(wire.answer()) == OK
    wire.send(wire.frame(GET.value, 1, wanted(KEY, size).tobytes()))
    _, _, body = wire.answer()
    assert struct.unpack("<q", body[-8:]) == (OK,)
    assert body[GOT.size : GOT.size + size] == frame[HEAD.size + PULL.size :][:size]


def test_a_message_of_the_most_bytes_is_answered(serve: Serve) -> None:
    wire = serve(handlers={1: lambda _, body: struct.pack("<q", len(body))}).plain()
    wire.send(wire.frame(CALL.value, 1, payload=bytes(MOST_CALL), whole=True))
    kind, _, body = wire.answer()
    assert (kind, struct.unpack("<q", body)) == (CALLED.value, (MOST_CALL,))


def test_a_payload_is_filled_up_with_zeros(served: Served) -> None:
    """And not with what the room had before."""
    served.world.put("long", torch.full((2, 8), 255, dtype=torch.uint8))
    served.world.put("short", torch.ones(1, dtype=torch.uint8))
    wire = served.plain()
    for name in ("long", "short"):
        wire.send(wire.frame(GET.value, 1, wanted(served.world.digest(name), 16).tobytes()))
        _, _, body = wire.answer()
    assert body[GOT.size : GOT.size + 8] == b"\x01" + bytes(7)


def test_what_the_owner_says_of_an_object_is_not_taken_from_the_asker(
    serve: Serve, shm_name: str, calls: Calls
) -> None:
    """Also where the host claims, because pages may have no memory yet."""
    hosted = calls.noted(WireServer, "begin")
    lazy = {"name": shm_name, "rank": 0, "world_size": 2, "elastic": True, "heap_options": {"lazy": True}}
    for number, options in enumerate(({}, lazy)):
        served = serve(16 << 20, **options)
        wire = served.plain()
        wire.send(put_of(b"8 bytes.", status=OK, slot=5, epoch=3, payload=4096)(wire))
        assert status_of(wire.answer()) == OK
        wire.send(wire.frame(GET.value, 1, wanted(KEY, 8).tobytes()))
        _, _, body = wire.answer()
        assert status_of((0, 0, body)) == OK and body[GOT.size : GOT.size + 8] == b"8 bytes."
        assert len(hosted) == number


def test_an_answer_without_an_object_names_no_place(serve: Serve, shm_name: str, calls: Calls) -> None:
    lazy = {"name": shm_name, "rank": 0, "world_size": 2, "elastic": True, "heap_options": {"lazy": True}}
    served = serve(16 << 20, **lazy)
    calls.fail(served.world.engine.allocation, "begin", HeapUnavailable("no memory"))
    wire = served.plain()
    wire.send(put_of(b"8 bytes.", status=OK, slot=5, epoch=3, payload=4096)(wire))
    answer = np.frombuffer(wire.answer()[2], PULLED.dtype)[0]
    assert [answer[name] for name in ("status", "slot", "epoch", "payload")] == [int(Status.FULL), 0, 0, 0]


def test_a_checksum_is_no_part_of_what_an_object_is(serve: Serve) -> None:
    served = serve(checksum=True)
    served.world.put("key", torch.ones(3, 5))
    wire = served.plain()
    wire.send(wire.frame(GET.value, 1, wanted(served.world.digest("key"), 60).tobytes()))
    got = np.frombuffer(wire.answer()[2][: GOT.size], GOT.dtype)[0]
    assert (got["status"], tuple(got["what"])) == (OK, what_of(torch.float32, torch.Size((3, 5))).descriptor)


def test_what_was_removed_is_counted(served: Served) -> None:
    wire = served.plain()
    wire.send(put_of(b"8 bytes.")(wire))
    assert status_of(wire.answer()) == OK
    wire.send(wire.frame(REMOVE.value, 3, struct.pack("<6q", *KEY, *KEY, 0, 0)))
    assert struct.unpack("<3q", wire.answer()[2]) == (OK, MISS, MISS)
    assert served.server.figures["wire_removals"] == 1


def test_the_place_of_an_object_is_where_it_lies(served: Served) -> None:
    wire = served.plain()
    for i in range(3):
        wire.send(put_of(b"8 bytes.", (i, i))(wire))
        put = np.frombuffer(wire.answer()[2], np.int64)[1:5].tolist()
        wire.send(wire.frame(GET.value, 1, wanted((i, i), 8).tobytes()))
        got = np.frombuffer(wire.answer()[2][: GOT.size], GOT.dtype)[0]
        assert put == [got[name] for name in ("rank", "slot", "epoch", "payload")]
    assert put[1] > 0 and put[3] > 0


@pytest.mark.parametrize("frame", [(EXISTS.value, 1, bytes(16)), (END.value, 1), (CALL.value, 1)])
def test_nothing_but_bytes_and_an_end_comes_after_an_offer(serve: Serve, frame: tuple[Any, ...]) -> None:
    served = serve(handlers={1: lambda _, body: body})
    wire = served.plain()
    wire.send(wire.frame(OFFER.value, 1, pull(KEY, 8).tobytes()))
    assert status_of(wire.answer()) == OK
    wire.send(b"8 bytes." + wire.frame(*frame))
    assert wire.is_ended()
    until(lambda: served.server.counts == {DropReason.MALFORMED: 1}, "its count")
    until(lambda: served.server.figures["wire_given_up"] == 1, "what it had begun")
    assert ask_exists(served.plain()) == MISS


def test_a_server_of_no_world_takes_messages_alone() -> None:
    server = WireServer(None, OWNER, SECRET, {1: lambda _, body: body}, patience=SECONDS)
    try:
        for kind, count, records in (
            (EXISTS.value, 1, bytes(16)),
            (GET.value, 1, wanted(KEY, 8).tobytes()),
            (OFFER.value, 1, pull(KEY, 8).tobytes()),
        ):
            wire = PlainWire(server.local, SECRET, ASKER, OWNER, SECONDS)
            wire.send(wire.frame(CALL.value, 1, payload=b"8 bytes."))
            assert wire.answer()[2] == b"8 bytes."
            wire.send(wire.frame(kind, count, records))
            assert wire.is_ended()
            wire.close()
        until(lambda: server.counts == {DropReason.MALFORMED: 3}, "its counts")
    finally:
        server.close()


# --- what changes while an answer goes -------------------------------------------------------
def begun_get(served: Served, *names: str, rooms: tuple[int, ...]) -> PlainWire:
    """A connection that has asked for objects, of which the first is large, and has the beginning of the answer."""
    wire = served.plain()
    rows = b"".join(wanted(served.world.digest(name), room).tobytes() for name, room in zip(names, rooms, strict=True))
    wire.send(wire.frame(GET.value, len(names), rows))
    gots = np.frombuffer(wire.exactly(HEAD.size + len(names) * GOT.size), GOT.dtype, len(names), HEAD.size)
    assert gots["status"][0] == OK
    return wire


def test_objects_that_go_while_their_bytes_wait_have_none(serve: Serve) -> None:
    """The statuses behind the bytes say so: of one that was there, and of one that did not suit."""
    served, nbytes = serve(64 << 20, page_bytes=65536), 8 << 20
    served.world.put("large", torch.zeros(nbytes, dtype=torch.uint8))
    for name in ("small", "wide", "stays", "stays wide"):
        served.world.put(name, torch.zeros(1000, dtype=torch.uint8))
    names = ("large", "small", "wide", "stays", "stays wide")
    wire = begun_get(served, *names, rooms=(nbytes, 1000, 8, 1000, 8))
    for name in ("small", "wide"):
        served.world.remove(name)
        served.world.put(name, torch.ones(500, dtype=torch.uint8))
    wire.exactly(nbytes + 2000)
    statuses = np.frombuffer(wire.exactly(len(names) * 8 + MAC), np.int64, len(names)).tolist()
    assert statuses == [OK, int(Status.TORN), int(Status.TORN), OK, SIZE]


def test_many_pieces_at_once_leave_other_connections_alone(served: Served) -> None:
    """Of more objects than one system call takes."""
    wire, other = served.plain(), served.plain()
    names = [f"k{i}" for i in range(64)]
    for name in names:
        served.world.put(name, torch.zeros(2000, dtype=torch.uint8))
    assert ask_exists(wire) == ask_exists(other) == MISS
    rows = b"".join(wanted(served.world.digest(name), 2000).tobytes() for name in names)
    wire.send(wire.frame(GET.value, len(names), rows))
    wire.exactly(HEAD.size + len(names) * (GOT.size + 2000 + 8) + MAC)
    wire.seen += 1
    assert ask_exists(other) == ask_exists(wire) == MISS


def test_an_object_without_a_shape_has_its_size(served: Served) -> None:
    wire = served.plain()
    wire.send(put_of(b"8 bytes.")(wire))
    assert status_of(wire.answer()) == OK
    rows = b"".join(wanted(KEY, room, any_size=any_size).tobytes() for any_size in (0, 1) for room in (7, 8, 9))
    wire.send(wire.frame(GET.value, 6, rows))
    gots = np.frombuffer(wire.answer()[2], GOT.dtype, 6)
    assert gots["status"].tolist() == [SIZE, OK, SIZE, SIZE, OK, OK] and set(gots["nbytes"].tolist()) == {8}


# --- who is slow -------------------------------------------------------------------------------
def test_bytes_that_move_slowly_are_no_silence(serve: Serve, limits: Limits) -> None:
    """A frame, an object and an answer that take longer than anybody may be silent."""
    limits(wire_server, GRACE_NS=0)
    served, nbytes = serve(64 << 20, patience=2.0, page_bytes=65536), 4 << 20
    served.world.put("large", torch.zeros(nbytes, dtype=torch.uint8))
    asks, offers = served.plain(), served.plain()
    reads = begun_get(served, "large", rooms=(nbytes,))
    offers.send(offers.frame(OFFER.value, 1, pull((3, 4), 120).tobytes()))
    assert status_of(offers.answer()) == OK
    frame, read = put_of(bytes(100))(asks), 0
    for i in range(30):
        asks.send(frame[4 * i : 4 * i + 4])
        offers.send(b"4 by")
        read += len(reads.exactly(nbytes // 31))
        time.sleep(0.1)
    asks.send(frame[120:])
    offers.send(offers.frame(END.value, 0))
    reads.exactly(nbytes - read + 8 + MAC)
    assert status_of(asks.answer()) == status_of(offers.answer()) == OK
    assert served.server.counts == {}


def sleeps(name: str) -> bool:
    """Whether a thread of this process waits for something."""
    (number,) = (thread.native_id for thread in threading.enumerate() if thread.name == name)
    return Path(f"/proc/self/task/{number}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def stays_asleep(name: str) -> bool:
    """Whether a thread of this process sleeps each time that one looks: who spins is seen at work."""
    return all(sleeps(name) for _ in range(50))


def test_answers_that_wait_one_after_the_other(serve: Serve) -> None:
    """And between them there is nothing to do: the loop sleeps."""
    served, nbytes = serve(64 << 20, page_bytes=65536), 8 << 20
    served.world.put("large", torch.zeros(nbytes, dtype=torch.uint8))
    wire, row = served.plain(), wanted(served.world.digest("large"), nbytes).tobytes()
    for _ in range(3):
        wire.send(wire.frame(GET.value, 1, row))
        wire.exactly(HEAD.size + GOT.size)
        until(lambda: sleeps("nanokv-wire"), "the loop to wait until more can go")
        wire.exactly(nbytes + 8 + MAC)
        wire.seen += 1
        assert ask_exists(wire) == MISS
        until(lambda: sleeps("nanokv-wire"), "the loop to have nothing to do")


def test_ends_that_spin_sleep_when_nothing_comes(serve: Serve) -> None:
    """Each looks for a moment, the asker for an answer that takes longer; else they would keep a core for ever."""
    begun = threading.Event()

    class Slow:
        rest = 0.02

        def poll(self) -> bytes | None:
            begun.set()
            return b"late" if stays_asleep("an asker") else None

        def abandon(self) -> None:
            pass

    served = serve(handlers={1: lambda *_: Slow()}, spin=0.001)
    client, found = served.client(spin=0.001), list[bytes]()
    for _ in range(20):
        assert client.exists(np.array([KEY]), SECONDS).tolist() == [MISS]
    until(lambda: stays_asleep("nanokv-wire"), "the loop to have nothing to do")
    thread = threading.Thread(target=lambda: found.append(client.ask(1, b"", SECONDS)), name="an asker")
    thread.start()
    assert begun.wait(SECONDS)
    thread.join()
    assert found == [b"late"]


def test_who_looks_for_room_delays_nobody(serve: Serve, calls: Calls) -> None:
    """It does so in turns, and a message that comes meanwhile is answered in between."""
    sent, answered, order = threading.Event(), threading.Event(), list[str]()

    def handler(*_: Any) -> bytes:
        order.append("message")
        answered.set()
        return b"now"

    def looks(*_: Any, **__: Any) -> None:
        order.append("room")
        assert sent.wait(SECONDS)
        answered.wait(0.5)  # longer than a turn: the message has come, and its handler waits for this thread

    served = serve(handlers={1: handler})
    calls.before(served.world.engine.allocation, "begin", looks)
    wire, other = served.plain(), served.plain()
    many = [pull((i, i), 400_000, what=bytes_of(400_000)) for i in range(20)]
    wire.send(wire.frame(OFFER.value, len(many), b"".join(each.tobytes() for each in many)))
    until(lambda: order, "its first look for room")
    other.send(other.frame(CALL.value, 1))
    sent.set()
    assert other.answer()[0] == CALLED.value
    wire.answer()
    assert order.count("room") > 8 and "message" in order[:4]


def test_who_waits_for_a_handler_is_not_silent(serve: Serve) -> None:
    class Slow:
        rest = 0.05

        def __init__(self) -> None:
            self.end = time.monotonic() + 1.0

        def poll(self) -> bytes | None:
            return b"late" if time.monotonic() > self.end else None

        def abandon(self) -> None:
            pass

    wire = serve(handlers={1: lambda *_: Slow()}, patience=0.2).plain()
    wire.send(wire.frame(CALL.value, 1))
    assert wire.answer()[2][:4] == b"late"


# --- terms and use ------------------------------------------------------------------------------
def test_times_beyond_all_are_for_ever(served: Served) -> None:
    wire = served.plain()
    for key, last in enumerate((FOREVER, FOREVER - 1, 1 << 62)):
        wire.send(put_of(b"8 bytes.", (key, key), until=last)(wire))
        assert status_of(wire.answer()) == OK
        served.world.flush()
        wire.send(wire.frame(EXISTS.value, 1, struct.pack("<2q", key, key)))
        assert status_of(wire.answer()) == OK


def test_a_group_and_an_end_come_with_an_object(served: Served) -> None:
    wire, before = served.plain(), now_ns()
    wire.send(put_of(b"8 bytes.", group=77, until=1000 * SECOND)(wire))
    slot = np.frombuffer(wire.answer()[2], PULLED.dtype)[0]["slot"]
    (label,) = served.world.engine.machine.labels(0, int(slot), 1)
    assert label["group"] == 77 and before <= label["until"] - 1000 * SECOND <= now_ns()


def test_what_is_kept_or_used_is_not_evicted(serve: Serve) -> None:
    """By a lease that came with it, and by gets over the wire; others of its age are."""
    served = serve(1 << 20)
    wire = served.plain()
    for i, access in enumerate((1000 * SECOND & ~0xFFFFFF, 0, 0)):
        wire.send(put_of(bytes(8000), (i, i), access=access)(wire))
        assert status_of(wire.answer()) == OK
    for i in range(300):
        served.world.put(f"k{i}", torch.zeros(2000))
        wire.send(wire.frame(GET.value, 1, wanted((1, 1), 8000).tobytes()))
        assert np.frombuffer(wire.answer()[2], np.int64)[-1] == OK
    wire.send(wire.frame(EXISTS.value, 3, struct.pack("<6q", 0, 0, 1, 1, 2, 2)))
    assert np.frombuffer(wire.answer()[2], np.int64).tolist() == [OK, OK, MISS]
