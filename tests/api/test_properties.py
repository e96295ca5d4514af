"""The API against a dict: random calls by any rank on tiny heaps; a model predicts every answer.

The model knows where each object lies: OutOfMemory is right if and only if no run of free pages is long enough
(neighbouring free extents are joined). With eviction on, only pinned and unfinished objects may stand in the way.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import nanokv
from nanokv.device.machines.records import Place
from nanokv.errors import DuplicateKey, InvalidArgument, KeyNotFound, NanoKVError, NotReady, ObjectPinned, OutOfMemory
from nanokv.fsck import check_cache
from nanokv.transfer.pinned import Pinned

PAGE = 256
PAGES = 16
CLASSES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)  #: pages of an extent in v2
KEYS = st.sampled_from([f"k{i}" for i in range(8)])
SIZES = st.one_of(st.integers(0, 3 * PAGE), st.integers(0, PAGES * PAGE), st.sampled_from([PAGE, 2 * PAGE, 16 * PAGE]))
RANKS = st.integers(0, 2)  #: taken modulo the ranks of the world
OWNERS = st.none() | RANKS


@dataclass
class Thing:
    """An object, as the model knows it."""

    data: torch.Tensor
    owner: int
    first: int  #: its first page
    pages: int  #: of its extent
    opener: int | None = None  #: the rank that writes it; None: it is READY
    pins: list[Pinned] = field(default_factory=list)

    @property
    def stuck(self) -> bool:
        """True if it must not be evicted or removed."""
        return self.opener is not None or bool(self.pins)


def answer(call: Callable[[], Any]) -> Any:
    """The result of a call, or the error that it raises."""
    try:
        return call()
    except NanoKVError as error:
        return error


class Api(RuleBasedStateMachine):
    """Random calls; subclasses choose the allocator."""

    alloc = "device"

    def __init__(self) -> None:
        super().__init__()
        self.world: list[nanokv.NanoKVCache] = []
        self.things: dict[str, Thing] = {}
        self.count = 0

    @initialize(ranks=st.integers(1, 3), evict=st.booleans(), shards=st.sampled_from([1, 4]))
    def begin(self, ranks: int, evict: bool, shards: int) -> None:
        self.evict = evict
        options: dict[str, Any] = {"alloc": self.alloc, "evict": evict, "shards": shards}
        self.world = nanokv.local_world(ranks, PAGES * PAGE, page_bytes=PAGE, **options)

    # --- the model ---
    def cache(self, rank: int) -> nanokv.NanoKVCache:
        return self.world[rank % len(self.world)]

    def owner(self, owner: int | None) -> int | None:
        return None if owner is None else owner % len(self.world)

    def extent(self, nbytes: int) -> int:
        """The pages that an object takes."""
        pages = -(-nbytes // PAGE)
        return pages if self.alloc == "host" or not pages else min(size for size in CLASSES if size >= pages)

    def room(self, owner: int, things: Iterable[Thing]) -> int:
        """The longest run of pages that none of these objects holds."""
        free = [True] * PAGES
        for thing in things:
            if thing.owner == owner:
                free[thing.first : thing.first + thing.pages] = [False] * thing.pages
        return max((len(list(run)) for is_free, run in groupby(free) if is_free), default=0)

    def data(self, nbytes: int) -> torch.Tensor:
        self.count += 1
        return ((torch.arange(nbytes) * 7 + self.count * 31) % 251).to(torch.uint8)

    def place(self, offset: int) -> int:
        return (offset - self.world[0].engine.geometry.offsets["heap_base"]) // PAGE

    def forget_evicted(self, owner: int) -> None:
        """Forget the objects that a segment may have evicted and has lost. Stuck ones must be there."""
        for key, thing in list(self.things.items()):
            if thing.owner == owner and thing.opener is None and not self.world[0].exists(key):
                assert not thing.pins, f"{key} was evicted under a pin"
                del self.things[key]

    def expect_no_room(self, key: str, nbytes: int, preferred: int | None) -> None:
        digest = self.world[0].digest(key)
        owner = preferred if preferred is not None else (digest.key_check & (1 << 63) - 1) % len(self.world)
        if self.evict:
            self.forget_evicted(owner)
        blocking = [thing for thing in self.things.values() if thing.stuck or not self.evict]
        assert self.room(owner, blocking) < self.extent(nbytes), f"{nbytes} bytes had room in rank {owner}"

    def stored(self, key: str, data: torch.Tensor, owner: int | None, offset: int, opener: int | None) -> None:
        """Add an object at an offset, where no other may be."""
        found = self.world[0].get_location(key).owner_rank if owner is None else owner
        if self.evict:
            self.forget_evicted(found)
        thing = Thing(data, found, self.place(offset), self.extent(data.numel()), opener)
        for other in (t for t in self.things.values() if t.owner == found and t.pages and thing.pages):
            assert not (thing.first < other.first + other.pages and other.first < thing.first + thing.pages), "overlap"
        self.things[key] = thing

    def check_put(self, key: str, data: torch.Tensor, preferred: int | None, result: Any) -> None:
        if key in self.things and isinstance(result, DuplicateKey):
            return
        if isinstance(result, OutOfMemory):
            self.expect_no_room(key, data.numel(), preferred)
        else:
            assert result is None, result
            if self.evict and key in self.things:
                self.forget_evicted(self.things[key].owner)
            assert key not in self.things
            meta = self.world[0].get_location(key)
            assert preferred in (None, meta.owner_rank)
            self.stored(key, data, meta.owner_rank, meta.payload_off, None)

    def expected(self, key: str) -> type[NanoKVError] | None:
        """The error that a use of a key must raise now, pins aside."""
        if key not in self.things:
            return KeyNotFound
        return NotReady if self.things[key].opener is not None else None

    # --- objects ---
    @rule(key=KEYS, nbytes=SIZES, rank=RANKS, owner=OWNERS)
    def put(self, key: str, nbytes: int, rank: int, owner: int | None) -> None:
        data, preferred = self.data(nbytes), self.owner(owner)
        result = answer(lambda: self.cache(rank).put(key, data, preferred_segment=preferred))
        self.check_put(key, data, preferred, result)

    @rule(key=KEYS, rank=RANKS, nbytes=st.integers(PAGES * PAGE + 1, 2 * PAGES * PAGE))
    def put_too_large(self, key: str, rank: int, nbytes: int) -> None:
        result = answer(lambda: self.cache(rank).put(key, self.data(nbytes)))
        assert isinstance(result, InvalidArgument | OutOfMemory | DuplicateKey), result
        assert isinstance(result, DuplicateKey) <= (key in self.things)

    @rule(key=KEYS, rank=RANKS)
    def get(self, key: str, rank: int) -> None:
        self.check_got(key, answer(lambda: self.cache(rank).get(key)))

    def check_got(self, key: str, result: Any) -> None:
        error = self.expected(key)
        if error is None:
            assert isinstance(result, torch.Tensor), f"{key}: {result!r}"
            assert torch.equal(result, self.things[key].data)
        else:
            assert type(result) is error, f"{key}: {result!r}"

    @rule(key=KEYS, rank=RANKS, extra=st.integers(0, 1))
    def get_into(self, key: str, rank: int, extra: int) -> None:
        size = self.things[key].data.numel() if key in self.things else 10
        dst = torch.full((size + extra,), 255, dtype=torch.uint8)
        result = answer(lambda: self.cache(rank).get(key, dst=dst))
        if extra and self.expected(key) is None:
            assert isinstance(result, InvalidArgument)
            assert (dst == 255).all()
        else:
            self.check_got(key, result)
            assert result is dst or isinstance(result, NanoKVError)

    @rule(key=KEYS, rank=RANKS)
    def remove(self, key: str, rank: int) -> None:
        result = answer(lambda: self.cache(rank).remove(key))
        error = self.expected(key) or (ObjectPinned if self.things[key].pins else None)
        assert (result is None) if error is None else (type(result) is error), f"{key}: {result!r}"
        if error is None:
            del self.things[key]

    @rule(key=KEYS, rank=RANKS)
    def exists(self, key: str, rank: int) -> None:
        assert self.cache(rank).exists(key) == (self.expected(key) is None)
        assert (key in self.cache(rank)) == (self.expected(key) is None)

    # --- many ---
    @rule(keys=st.lists(KEYS, max_size=5), nbytes=SIZES, rank=RANKS, owner=OWNERS)
    def put_many(self, keys: list[str], nbytes: int, rank: int, owner: int | None) -> None:
        if self.evict:
            keys = keys[:1]  # evictions by the second one cannot be told from those by the first
        tensors, preferred = [self.data(nbytes) for _ in keys], self.owner(owner)
        before = dict(self.things)
        results = self.cache(rank).put_many(keys, tensors, preferred_segment=preferred)
        for key, tensor, result in zip(keys, tensors, results, strict=True):
            if isinstance(result, OutOfMemory):
                continue
            if isinstance(result, DuplicateKey):
                assert key in self.things
            else:
                self.check_put(key, tensor, preferred, result)
        assert len(keys) > 1 or before.keys() <= {*self.things, *keys} or self.evict

    @rule(keys=st.lists(KEYS, max_size=5), rank=RANKS)
    def get_many(self, keys: list[str], rank: int) -> None:
        for key, tensor in zip(keys, self.cache(rank).get_many(keys), strict=True):
            wanted = self.things[key].data if self.expected(key) is None else None
            assert (tensor is None) == (wanted is None), key
            assert tensor is None or wanted is None or torch.equal(tensor, wanted)
        assert self.cache(rank).exists_many(keys) == [self.expected(key) is None for key in keys]

    @rule(keys=st.lists(KEYS, max_size=5, unique=True), rank=RANKS)
    def remove_many(self, keys: list[str], rank: int) -> None:
        can = [key in self.things and not self.things[key].stuck for key in keys]
        assert self.cache(rank).remove_many(keys) == can
        for key, gone in zip(keys, can, strict=True):
            if gone:
                del self.things[key]

    # --- pins and plans ---
    @rule(key=KEYS, rank=RANKS)
    def pin(self, key: str, rank: int) -> None:
        result = answer(lambda: self.cache(rank).pin(key))
        error = self.expected(key)
        if error is None:
            assert isinstance(result, Pinned), result
            self.things[key].pins.append(result)
        else:
            assert type(result) is error

    @rule(key=KEYS)
    def unpin(self, key: str) -> None:
        if key in self.things and self.things[key].pins:
            self.things[key].pins.pop().release()

    @rule(key=KEYS, nbytes=SIZES, rank=RANKS, owner=OWNERS)
    def open_for_write(self, key: str, nbytes: int, rank: int, owner: int | None) -> None:
        data, preferred = self.data(nbytes), self.owner(owner)
        cache = self.cache(rank)
        plan = answer(lambda: cache.open_for_write(key, nbytes, preferred_segment=preferred))
        if isinstance(plan, DuplicateKey):
            assert key in self.things
        elif isinstance(plan, OutOfMemory):
            self.expect_no_room(key, nbytes, preferred)
        else:
            assert isinstance(plan, nanokv.WritePlan), plan
            assert (plan.bytes_total, plan.n_pages) == (nbytes, -(-nbytes // PAGE))
            if self.evict and key in self.things:
                self.forget_evicted(self.things[key].owner)
            assert key not in self.things
            cache.engine.single.payload(Place(plan.dst_rank, 0, 0, plan.payload_base, nbytes)).copy_(data)
            self.stored(key, data, plan.dst_rank, plan.payload_base, cache.rank)

    @rule(key=KEYS, rank=RANKS, commit=st.booleans())
    def end_plan(self, key: str, rank: int, commit: bool) -> None:
        cache = self.cache(rank)
        mine = key in self.things and self.things[key].opener == cache.rank
        result = answer(lambda: (cache.commit if commit else cache.abort)(key))
        assert (result is None) if mine else (type(result) is KeyNotFound), result
        if mine and commit:
            self.things[key].opener = None
        elif mine:
            del self.things[key]

    # --- the owner ---
    @rule(rank=RANKS, ratio=st.sampled_from([0.0, 0.25, 0.5, 1.0]))
    def evict_until_below(self, rank: int, ratio: float) -> None:
        cache = self.cache(rank)
        cache.evict_until_below(ratio)
        mine = [thing for thing in self.things.values() if thing.owner == cache.rank]
        used = sum(thing.pages for thing in mine)
        self.forget_evicted(cache.rank)
        left = [thing for thing in self.things.values() if thing.owner == cache.rank]
        assert sum(t.pages for t in left) <= ratio * PAGES or all(t.stuck or not t.pages for t in left)
        assert len(left) == len(mine) or used > ratio * PAGES, "nothing goes if there is no need"

    @rule(rank=RANKS)
    def clear(self, rank: int) -> None:
        cache = self.cache(rank)
        gone = [key for key, thing in self.things.items() if thing.owner == cache.rank and not thing.stuck]
        assert cache.clear() == len(gone)
        for key in gone:
            del self.things[key]

    @rule(rank=RANKS)
    def flush(self, rank: int) -> None:
        cache = self.cache(rank)
        cache.flush()
        wanted = {cache.digest(k) for k, t in self.things.items() if t.owner == cache.rank and t.opener is None}
        assert set(cache.segment_keys()) == wanted
        assert cache.segment_count() == len(wanted)

    # --- always ---
    @precondition(lambda self: self.world)
    @invariant()
    def pinned_bytes_stay(self) -> None:
        for key, thing in self.things.items():
            for held in thing.pins:
                assert torch.equal(held.tensor, thing.data), key

    def teardown(self) -> None:
        try:
            if self.world:
                self.end()
        finally:
            for cache in self.world:
                cache.close()

    def end(self) -> None:
        """Every object is where the model has it; nothing is lost once all are removed."""
        self.assert_clean()
        for key, thing in self.things.items():
            for held in thing.pins:
                held.release()
            if thing.opener is not None:
                self.world[thing.opener].commit(key)
            assert torch.equal(self.world[0].get(key), thing.data)
            self.world[-1].remove(key)
        largest = self.data(PAGES * PAGE)
        for cache in self.world:
            cache.put("largest", largest, preferred_segment=cache.rank)
            assert torch.equal(cache.get("largest"), largest)
            cache.remove("largest")
        self.assert_clean()

    def assert_clean(self) -> None:
        for cache in self.world:
            cache.flush()
        report = check_cache(self.world)
        assert report.clean, str(report)


class HostApi(Api):
    """The same, with the master as the allocator."""

    alloc = "host"


STEPS = settings(stateful_step_count=30)

TestDevice = Api.TestCase
TestDevice.settings = STEPS
TestHost = HostApi.TestCase
TestHost.settings = STEPS
