"""Puts and gets of one object in one native call: what is left to Python, what is left behind, and waits that end."""

import ctypes
import threading
from typing import Any

import numpy as np
import pytest
import torch

from nanokv.cluster.card import WorldId
from nanokv.cluster.wire.client import SMALL, WireClient
from nanokv.device.fabric.records import PULL
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import WORD
from nanokv.errors import CacheClosed
from nanokv.transfer.descriptors import what_of
from nanokv.transfer.host_tensors import native_look
from nanokv.transfer.object_calls import hashing_record
from nanokv.types import KeyDigest
from tests.support.until import until

from .conftest import SECONDS, Serve, Served

OK, MISS, DUPLICATE, SIZE = (int(Status[name]) for name in ("OK", "MISS", "DUPLICATE", "SIZE"))

_WORDS, _STATUS = PULL.size // WORD, PULL.offsets["status"] // WORD


class Caller:
    """Calls of a client, with the records that they need."""

    def __init__(self, served: Served) -> None:
        self.client: WireClient = served.client()
        self._hashing = hashing_record(served.world.engine.hasher)
        self.hashing = int(self._hashing.ctypes.data)
        self.look = native_look().record
        self.learned: list[int] = []  #: the statuses of puts of which it was told

    def put(self, key: Any, tensor: Any) -> int | None:
        return self.client.put_one(key, tensor, -1, self.hashing, self.look, SECONDS, self._learn)

    def _learn(self, world: WorldId, at: int) -> None:
        self.learned.append(int(np.ctypeslib.as_array((ctypes.c_int64 * _WORDS).from_address(at))[_STATUS]))

    def get(self, key: Any, tensor: Any) -> int | None:
        return self.client.get_one(key, tensor, self.hashing, self.look, SECONDS)

    def get_any(self, key: KeyDigest, room: torch.Tensor) -> tuple[int, int]:
        return self.client.get_any(key, room.data_ptr(), room.nbytes, self.hashing, SECONDS)[:2]


def test_what_native_code_does_not_know_is_left_to_python(served: Served) -> None:
    """And nothing is sent."""
    caller, there = Caller(served), torch.zeros(3, 4)
    for key in (5, "\ud800", ("a",), KeyDigest(1, 1 << 60)):
        assert caller.put(key, there) is None and caller.get(key, there) is None
    for tensor in (there.t(), there[:, :2], torch.zeros(2, dtype=torch.complex64).conj(), [1.0], np.zeros(3)):
        assert caller.put("key", tensor) is None and caller.get("key", tensor) is None
    with pytest.raises(AssertionError, match="is no digest of this world's"):
        caller.get_any(KeyDigest(1, 1 << 60), there)
    figures = served.server.figures
    assert figures["wire_puts"] == figures["wire_gets"] == 0 and served.world.segment_count() == 0
    assert caller.put("key", there) == OK and caller.get("key", there) == OK


def test_a_call_leaves_nothing_to_the_next_one(served: Served) -> None:
    """The room in which an object is described is that of all calls over a connection."""
    caller, there, room = Caller(served), torch.zeros(100), torch.zeros(100)
    served.world.put("first", torch.ones(50))
    for i in range(10):
        assert caller.get_any(served.world.digest("first"), room) == (OK, 200)
        assert caller.put(f"k{i}", there) == OK
        assert caller.get(f"k{i}", there) == OK
        assert caller.get("first", there) == SIZE and caller.put(f"k{i}", there) == DUPLICATE
    served.world.flush()
    assert all(served.world.exists(f"k{i}") for i in range(10))  # none has an end
    assert not served.world.engine.machine.labels(0, 0, 11)["group"].any()


def test_where_an_object_lies_is_learned_if_it_is_there(served: Served) -> None:
    caller, there = Caller(served), torch.zeros(100)
    assert [caller.put("key", there) for _ in range(3)] == [OK, DUPLICATE, DUPLICATE]
    assert caller.learned == [OK]


def test_an_object_that_is_too_large_brings_no_byte(served: Served) -> None:
    caller = Caller(served)
    served.world.put("key", torch.ones(SMALL + 1, dtype=torch.uint8))
    what = what_of(torch.uint8, torch.Size((SMALL + 1,))).descriptor
    found = caller.client.get_any(served.world.digest("key"), 0, 0, caller.hashing, SECONDS)
    assert found == (SIZE, SMALL + 1, what, b"")


def test_a_call_that_fails_leaves_its_connection_and_says_why(served: Served) -> None:
    """As Ctrl-C does, or an argument that native code does not take."""
    caller, there, digest = Caller(served), torch.zeros(3, 4), served.world.digest("key")
    wrong: Any = "no address"
    for call in (
        lambda: caller.client.put_one("key", there, -1, wrong, caller.look, SECONDS),
        lambda: caller.client.get_one("key", there, wrong, caller.look, SECONDS),
        lambda: caller.client.get_any(digest, 0, 0, wrong, SECONDS),
    ):
        assert caller.get("key", there) == MISS
        with pytest.raises(TypeError):
            call()
        until(lambda: served.server.figures["wire_connections"] == 0, "the end of its connection")


def test_a_client_that_closes_ends_waits_however_long_they_may_be(serve: Serve) -> None:
    class Never:
        rest = 0.05

        def poll(self) -> bytes | None:
            return None

        def abandon(self) -> None:
            pass

    begun = threading.Event()

    def handler(*_: Any) -> Never:
        begun.set()
        return Never()

    client, found = serve(handlers={1: handler}).client(), list[type[Exception]]()

    def ask() -> None:
        try:
            client.ask(1, b"", 1e6)
        except Exception as error:
            found.append(type(error))

    thread = threading.Thread(target=ask)
    thread.start()
    assert begun.wait(SECONDS)
    client.close()
    until(lambda: found == [CacheClosed], "the end of the wait")
    thread.join()
