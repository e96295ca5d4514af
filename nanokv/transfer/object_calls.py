"""put, get, exists, remove and take of one object: one road, from the public method to the answer.

The usual is one native call (`device.native.objects`): it checks what it was told, hashes the key, asks whether the
owner lives, looks at the tensor, copies, counts, and wakes the owner's poller. All else it hands to `PythonCalls`, with
the same arguments, and has then done nothing: another kind of key or tensor, a lease, copies, a wait, a put without
room, a segment to be noted in or to get memory, and whatever is wrong. Where a machine has no such calls, `PythonCalls`
does everything. `object_calls` is the one place that chooses.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from sys import intern
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np
import torch
import xxhash
from torch import Tensor

from nanokv.allocation.base import Allocation
from nanokv.allocation.producer import ProducerAllocation
from nanokv.allocation.room import NO_ROOM, NO_WAIT, RoomWait
from nanokv.allocation.status_errors import error_for
from nanokv.allocation.terms import Hold, terms_of
from nanokv.arguments import integer, seconds
from nanokv.device.machines.base import Machine
from nanokv.device.machines.native import NativeMachine
from nanokv.device.machines.own_memory import plainly
from nanokv.device.machines.records import NO_TERMS, Descriptor, Words
from nanokv.device.protocol.status import Status
from nanokv.device.segment.host_records import (
    CALLS,
    HASHING,
    NEW,
    NEW_KINDS,
    NOT_TAKEN,
    PEER,
    PREFIX_WORDS,
)
from nanokv.device.segment.layout import WORD
from nanokv.errors import InvalidArgument, PeerLost
from nanokv.heap.base import Heap
from nanokv.keys.hashing import Hasher
from nanokv.statistics import Traffic
from nanokv.transfer.descriptors import RAW, what_of
from nanokv.transfer.dlpack import describing_function
from nanokv.transfer.host_tensors import native_look
from nanokv.transfer.replicas import NO_COPIES, Replicas
from nanokv.transfer.single import SingleTransfer
from nanokv.types import Key, KeyDigest

#: bytes of an object for which the interpreter's lock is held: a microsecond or two, where a hand-over takes up to 5 ms
HOLDS = 16 << 10
_FOREVER = (1 << 63) - 1
M = TypeVar("M", bound=Callable[..., Any])
NO_DEFAULT: Any = object()  #: of a get without a `default`
MISSING = (Status.MISS, Status.NOT_READY)  #: why a key has no object (yet)
_OK, _DUPLICATE = int(Status.OK), int(Status.DUPLICATE)  # the enumeration takes 0.1 us each time
_NOT_TAKEN: int = NOT_TAKEN.value

_in_python: list[None] = []  # an item for each `calls_in_python` that goes on


@contextmanager
def calls_in_python() -> Iterator[None]:
    """Let caches that are made meanwhile, by any thread, do every call in Python: for tests, which compare the ways."""
    _in_python.append(None)
    try:
        yield
    finally:
        _in_python.pop()


class CallsInPython(Protocol):
    """What does calls that are unusual, and says what becomes of a Status that is not OK.

    put, get, exists, remove and take get what the caller wrote; what they, and the others, return is the answer.
    """

    @property
    def heap(self) -> Heap: ...
    @property
    def allocation(self) -> Allocation: ...
    @property
    def hasher(self) -> Hasher: ...
    @property
    def promotion(self) -> object:
        """None: reads are not counted, so native code may get."""
        ...

    def put(self, *args: Any, **named: Any) -> Any: ...
    def put_refused(self, *args: Any, **named: Any) -> Any: ...
    def put_failed(self, *args: Any, **named: Any) -> Any: ...
    def get(self, *args: Any, **named: Any) -> Any: ...
    def get_failed(self, *args: Any, **named: Any) -> Any: ...
    def exists(self, *args: Any, **named: Any) -> Any: ...
    def remove(self, *args: Any, **named: Any) -> Any: ...
    def remove_failed(self, *args: Any, **named: Any) -> Any: ...
    def take(self, *args: Any, **named: Any) -> Any: ...
    def serve(self, native: "NativeRecords") -> None:
        """Keep the records of native calls up to date."""
        ...


class ObjectCalls:
    """The calls of one cache. put, get, exists and remove have the arguments of the public methods.

    Attributes:
        take: (key, address, room) -> the bytes that were copied; below 0: none.
        native: those of the public methods that are native calls, by name. A cache has them in its methods' place.
        record: the address of their CALLS record, and what keeps that; None: there are no native calls.
    """

    __slots__ = ("exists", "get", "native", "put", "record", "remove", "take")

    def __init__(self, python: CallsInPython) -> None:
        self.put: Callable[..., Any] = python.put
        self.get: Callable[..., Any] = python.get
        self.exists: Callable[..., bool] = python.exists
        self.remove: Callable[..., Any] = python.remove
        self.take: Callable[[Key, int, int], int] = python.take
        self.native: dict[str, Callable[..., Any]] = {}
        self.record: tuple[int, object] | None = None


def object_calls(python: CallsInPython, machine: Machine) -> ObjectCalls:
    """Native calls where the machine has them, a producer allocates, and torch tells what a tensor is."""
    if (
        isinstance(machine, NativeMachine)
        and isinstance(python.allocation, ProducerAllocation)
        and describing_function() is not None
        and not _in_python
    ):
        return _native_calls(python, machine, python.allocation)
    return ObjectCalls(python)


def _native_calls(python: CallsInPython, machine: NativeMachine, allocation: ProducerAllocation) -> ObjectCalls:
    heap, geometry = python.heap, machine.geometry
    routing = Routing(heap, machine, allocation)
    calls, hashing, look = routing.record, hashing_record(python.hasher), native_look()
    objects: dict[str, Any] = {
        "none": None,
        "false": False,
        "true": True,
        "zero": 0,
        "no_default": NO_DEFAULT,
        "int_type": int,
        "float_type": float,
        "empty_like": torch.empty_like,
        "wake": heap.wake,
        **{name: intern(name) for name in ("preferred_segment", "exist_ok", "hold", "timeout", "replicas", "dst")},
        "put": python.put,
        "put_refused": python.put_refused,
        "put_failed": python.put_failed,
        "get": python.get,
        "get_failed": python.get_failed,
        "exists": python.exists,
        "remove": python.remove,
        "remove_failed": python.remove_failed,
        "take": python.take,
    }
    words = {name: id(thing) for name, thing in objects.items()} | {
        "hashing": hashing.ctypes.data,
        "tensor": look.record,
        "first": min(heap.bases),
        "last": max(heap.bases) + geometry.segment_bytes,
        "most": machine.at_once,
        "holds": HOLDS,
        "page_bytes": geometry.page_bytes,
    }
    for name, value in words.items():
        calls[name] = value
    python.serve(NativeRecords(calls, machine.new_kind))
    python.hasher.each_natively = machine.hashes(hashing)
    held = (routing, hashing, look, objects, machine, xxhash.xxh3_128_digest)
    me = (int(calls.ctypes.data), held)
    chosen = ObjectCalls(python)
    chosen.record = me
    for name in ("put", "get", "exists", "remove", "take"):
        if name == "get" and python.promotion:  # reads are counted, to promote objects: Python gets
            continue
        call = machine.bound(f"{name}_call", me, getattr(PythonCalls, name))
        setattr(chosen, name, call)
        if name != "take":
            chosen.native[name] = call
    return chosen


def hashing_record(hasher: Hasher) -> Any:
    """A HASHING record: what native code knows of a cache's keys."""
    record = np.zeros((), HASHING.dtype)
    record["prefix"] = np.frombuffer(hasher.prefix, np.int64, PREFIX_WORDS)
    record["upper"], record["tag"] = hasher.upper, hasher.signed_tag
    record["str_type"], record["bytes_type"], record["digest_type"] = id(str), id(bytes), id(KeyDigest)
    record["function"] = id(xxhash.xxh3_128_digest)
    return record


class Routing:
    """Which rank of a world gets an object, and whether its segment needs nothing of Python for it, for native code.

    Attributes:
        record: a CALLS record, of which what `device.native.peers` reads is filled in. It lives as long as this.
    """

    def __init__(self, heap: Heap, machine: Machine, allocation: ProducerAllocation) -> None:
        self.record: Any = np.zeros((), CALLS.dtype)
        self._liveness, self._peers = heap.liveness(), np.zeros(heap.world_size, PEER.dtype)
        peers, backing = self._peers, allocation.backing
        peers["closed"] = self._liveness.closed
        peers["until"] = np.where(self._liveness.stays, _FOREVER, 0)
        peers["noted"] = allocation.note_owner is None
        if backing is not None:
            peers["backed"], peers["bump"] = np.array(backing.words, np.int64).T
        for name, value in {
            "table": machine.table_address,
            "peers": peers.ctypes.data,
            "locks": self._liveness.locks,
            "trust": self._liveness.trust,
            "ranks": heap.world_size,
            "ahead": 0 if backing is None else backing.ahead,
            "end": machine.geometry.offsets["heap_limit"],
        }.items():
            self.record[name] = value
        noted = peers["noted"]
        allocation.when_noted(lambda owner: noted.__setitem__(owner, 1))


class NativeRecords:
    """What `PythonCalls` tells the native calls of its cache."""

    def __init__(self, calls: Any, place: Callable[[int, Descriptor], int]) -> None:
        self.calls, self._place = calls, place
        self._new: Words = calls["new"].reshape(NEW_KINDS, NEW.size // WORD)
        self._likes: list[Tensor | None] = [None] * NEW_KINDS
        self._lock = threading.Lock()

    def see_new(self, made: Tensor) -> None:
        """A tensor was made for an object; the next one for such an object is made by the native call."""
        if type(made) is not Tensor or not 0 < made.nbytes <= self.calls["most"]:
            return
        with torch.inference_mode(False), plainly():
            like = torch.empty((), dtype=made.dtype, device="cpu").expand(made.shape)
        self._see(what_of(made.dtype, made.shape).descriptor, made.nbytes, like)
        if made.ndim == 1 and made.dtype is torch.uint8:
            self._see(RAW, made.nbytes, like)  # as the bytes that a kernel wrote are got

    def _see(self, descriptor: Descriptor, nbytes: int, like: Tensor) -> None:
        place = self._place(nbytes, descriptor)
        with self._lock:
            words = self._new[place]
            words[-1] = 0  # what was there is not found any more, and may go
            words[:-1] = (nbytes, *descriptor)
            self._likes[place] = like
            words[-1] = id(like)


def _public(method: M) -> M:
    """Give a method the name of the public one: what Python says of wrong arguments names that."""
    method.__qualname__ = f"NanoKVCache.{method.__name__}"
    return method


class PythonCalls:
    """The calls in Python, for every machine, key, tensor and option. Their arguments are those of the public methods.

    Args:
        room: waits until a put finds some.
    """

    def __init__(
        self,
        heap: Heap,
        allocation: Allocation,
        hasher: Hasher,
        single: SingleTransfer,
        replicas: Replicas,
        traffic: Traffic,
        room: RoomWait,
    ) -> None:
        self.heap, self.allocation, self.hasher, self.promotion = heap, allocation, hasher, replicas.promotion
        self._single, self._replicas, self._traffic, self._room = single, replicas, traffic, room
        self._geometry = heap.geometry
        self._native: NativeRecords | None = None

    def serve(self, native: NativeRecords) -> None:
        """Keep the records of native calls up to date."""
        self._native = native
        self._traffic.counted_natively(native.calls)

    @_public
    def put(
        self,
        key: Key,
        tensor: Tensor,
        *,
        preferred_segment: int | None = None,
        exist_ok: bool = False,
        hold: float | Hold | None = None,
        timeout: float = NO_WAIT,
        replicas: int = NO_COPIES,
    ) -> None:
        """Store a tensor."""
        self.put_refused(key, tensor, preferred_segment, exist_ok, hold, timeout, replicas, None)

    def put_refused(
        self,
        key: Key,
        tensor: Tensor,
        preferred: int | None,
        exist_ok: bool,
        hold: float | Hold | None,
        timeout: float,
        replicas: int,
        refused_by: int | None,
    ) -> None:
        """Store a tensor. `refused_by`: the rank whose segment has answered a first try FULL, and counted it."""
        with self._traffic.counting_put_errors():
            preferred = checked_segment(self.heap, preferred)
            if exist_ok is not False and exist_ok is not True:
                raise InvalidArgument(f"exist_ok must be True or False, not {exist_ok!r}")
            timeout = seconds("timeout", timeout)
            copies = self._replicas.checked(replicas) if replicas is not NO_COPIES else 0
            digest = self.hasher(key)
            started = self._traffic.put_starts()
            if hold is None and not copies:
                status = self._single.put(digest, tensor, preferred, refused_by=refused_by)
            else:
                status = self.put_once(digest, tensor, preferred, hold, copies)
            if timeout and status in NO_ROOM:
                status = self._room(timeout, partial(self.put_once, digest, tensor, preferred, hold, copies))
        self._traffic.put(status, tensor.nbytes, started)
        if status and not (exist_ok and status == _DUPLICATE):
            self.put_failed(status, key, tensor, preferred)

    def put_failed(self, status: int, key: Key, tensor: Tensor, preferred: int | None) -> NoReturn:
        """Raise the error of a put."""
        owner = "its owner" if preferred is None else f"rank {preferred}"
        raise error_for(status, key, self._geometry, nbytes=tensor.nbytes, owner=owner)

    def put_once(
        self, digest: KeyDigest, tensor: Tensor, preferred: int | None, hold: float | Hold | None, copies: int
    ) -> int:
        """A put that does not wait, and is not counted."""
        terms = NO_TERMS if hold is None else terms_of(hold, self.hasher.group)
        if copies:
            return self._replicas.put(digest, tensor, preferred, terms, copies)
        return self._single.put(digest, tensor, preferred, terms)

    @_public
    def get(self, key: Key, default: Any = NO_DEFAULT, *, dst: Tensor | None = None, reinterpret: bool = False) -> Any:
        """Read an object, into `dst` or a new tensor."""
        if reinterpret is not False:
            check_reinterpret(reinterpret, dst)
        digest = self.hasher(key)
        started = self._traffic.get_starts()
        found: Tensor | int
        if dst is None:
            found = self._single.get(digest)
        else:
            found = self._single.get_into(digest, dst, reinterpret=reinterpret) or dst
        if isinstance(found, int):
            self._traffic.get(found, 0)
            if default is not NO_DEFAULT and found in MISSING:
                return default
            self.get_failed(found, key)
        self._traffic.get(_OK, found.nbytes, started)
        if self.promotion is not None:
            self.promotion.note(digest)
        elif dst is None and self._native is not None:
            self._native.see_new(found)
        return found

    def get_failed(self, status: int, key: Key, *_: object) -> NoReturn:
        """Raise the error of a get."""
        raise error_for(status, key, self._geometry)

    @_public
    def exists(self, key: Key) -> bool:
        """Whether an object can be read now."""
        return self.allocation.exists(self.hasher(key)) == _OK

    @_public
    def remove(self, key: Key) -> None:
        """Remove an object."""
        status = self.allocation.remove(self.hasher(key))
        if status:
            self.remove_failed(status, key)

    def remove_failed(self, status: int, key: Key, *_: object) -> NoReturn:
        """Raise the error of a removal."""
        raise error_for(status, key, self._geometry)

    def take(self, key: Key, address: int, room: int) -> int:
        """Leave it to other calls."""
        return _NOT_TAKEN


def checked_segment(heap: Heap, preferred: object) -> int | None:
    """A `preferred_segment`.

    Raises:
        InvalidArgument: there is no such rank.
        PeerLost: it has ended.
    """
    if preferred is None:
        return None
    rank = integer("preferred_segment", preferred, 0, heap.world_size - 1)
    if heap.peer_closed(rank):
        raise PeerLost(f"rank {rank} of {heap.name!r} has ended")
    return rank


def check_reinterpret(reinterpret: bool, dst: object) -> None:
    """Raise InvalidArgument unless `reinterpret` is False, or True with a destination."""
    if reinterpret is not True or dst is None:
        raise InvalidArgument(f"reinterpret must be False, or True with a dst, not {reinterpret!r}")
