"""Identities: a key, or a digest from anywhere, reads only what a cache of the same identity has put. No leaks."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import nanokv
from nanokv import Identity, Key, KeyDigest, KVLayout, NanoKVCache
from nanokv.cache.engine import plan_geometry, world_spec
from nanokv.config import make_options
from nanokv.device.segment.layout import ENTRY_TAG_MASK, READY, STATE_MASK
from nanokv.device.segment.views import SegmentView
from nanokv.errors import InvalidArgument, KeyNotFound, NanoKVError, ReuseViolation, WaitTimeout
from nanokv.heap.local import LocalWorld
from nanokv.heap.shm_tools import inspect
from nanokv.heap.world_file import path_of
from nanokv.host_poller.index import key_of
from nanokv.keys.hashing import Hasher, tag_of
from nanokv.keys.identity import digest_of
from nanokv.transfer.paged import PagedKV
from tests.support.rank_processes import new_folder

PAGE = 256
HEAP = 64 * PAGE
#: opaque, so that `paged_kv` does not compare it with the tensors of these tests
LAYOUT = KVLayout(layers=2, kv_heads=4, head_size=8, block_size=16, dtype="bfloat16", tp_size=2, form="raw")
MINE = Identity("llama", "r1", "tok", "lora", "alice", LAYOUT)
SECRET = (torch.arange(12, dtype=torch.uint8) + 100).view(1, 12, 1, 1)  # a block of one layer, as `paged_kv` has it

#: what else each field may be, one axis at a time
OTHERS: dict[str, Any] = {
    "model": "llama2",
    "revision": "r2",
    "tokenizer": "",
    "adapter": "other",
    "tenant": "bob",
    "layout": None,
}
OTHER_LAYOUTS: dict[str, Any] = {
    "layers": 3,
    "kv_heads": 8,
    "head_size": 16,
    "block_size": 8,
    "dtype": "float16",
    "order": "2LNHD",
    "tp_rank": 1,
    "tp_size": 4,
    "first_layer": 2,
    "form": "packed",
}
AXES = [
    *[(name, "", replace(MINE, **{name: value})) for name, value in OTHERS.items()],
    *[(name, "", MINE.with_layout(replace(LAYOUT, **{name: value}))) for name, value in OTHER_LAYOUTS.items()],
    ("namespace", "n", MINE),
    ("no identity", "", None),
    ("no identity but a namespace", "llama", None),
]
TEXTS = [field.name for field in fields(Identity) if field.name != "layout"]

# --- every path that takes a key --------------------------------------------------------------
Call = Callable[[NanoKVCache, Any], Any]


def paged(cache: NanoKVCache) -> PagedKV:
    """Access to a paged cache whose blocks are as large as the secret."""
    return cache.paged_kv([torch.zeros(2, 12, 1, 1, dtype=torch.uint8)], kv_dim=None)


def paged_get(cache: NanoKVCache, key: Any, **how: Any) -> Any:
    layers = [torch.zeros(2, 12, 1, 1, dtype=torch.uint8)]
    (error,) = cache.paged_kv(layers, kv_dim=None).get([key], [0], **how)
    if error is not None:
        assert not layers[0].any(), "bytes came with an error"
        raise error
    return layers[0][0]


def into(cache: NanoKVCache, key: Any) -> Any:
    dst = torch.zeros_like(SECRET)
    try:
        return cache.get(key, dst=dst)
    except NanoKVError:
        assert not dst.any(), "bytes came with an error"
        raise


def part_into(cache: NanoKVCache, key: Any) -> Any:
    dst = torch.zeros_like(SECRET)
    try:
        return cache.get_part(key, 0, 12, dst=dst)
    except NanoKVError:
        assert not dst.any(), "bytes came with an error"
        raise


def many(cache: NanoKVCache, key: Any) -> Any:
    (found,) = cache.get_many([key])
    if found is None:
        raise KeyNotFound
    return found


def many_into(cache: NanoKVCache, key: Any) -> Any:
    dst = torch.zeros_like(SECRET)
    (found,) = cache.get_many([key], dsts=[dst], reinterpret=True)
    assert found is not None or not dst.any()
    if found is None:
        raise KeyNotFound
    return found


def pinned(cache: NanoKVCache, key: Any) -> Any:
    with cache.pin(key) as view:
        return view.clone()


def located(cache: NanoKVCache, key: Any) -> Any:
    meta = cache.get_location(key)
    start = cache.remote_ptr(meta.owner_rank, meta.payload_off) - cache.engine.heap.bases[meta.owner_rank]
    return cache.engine.heap.segment(meta.owner_rank)[start : start + meta.bytes_total].clone()


def waited(cache: NanoKVCache, key: Any) -> bool:
    try:
        cache.wait(key, timeout=0)
    except WaitTimeout:
        return False
    return True


READS: dict[str, Call] = {
    "get": lambda cache, key: cache.get(key),
    "get with a default": lambda cache, key: many(cache, key) if cache.get(key, None) is None else cache.get(key, None),
    "get into": into,
    "get_many": many,
    "get_many into": many_into,
    "get_async": lambda cache, key: cache.get_async(key).wait(),
    "get_part": lambda cache, key: cache.get_part(key, 0, 12),
    "get_part into": part_into,
    "paged slices": lambda cache, key: paged_get(cache, key, held=range(1)),
    "pin": pinned,
    "get_location": located,
    "paged": paged_get,
}
LOOKS: dict[str, Call] = {  # true if there is an object
    "exists": lambda cache, key: cache.exists(key),
    "in": lambda cache, key: key in cache,
    "exists_many": lambda cache, key: cache.exists_many([key])[0],
    "prefix_length": lambda cache, key: cache.prefix_length([key]) == 1,
    "wait": waited,
    "remove_many": lambda cache, key: cache.remove_many([key])[0],
}
WRITES: dict[str, Call] = {  # done only with digests of another identity
    "put": lambda cache, key: cache.put(key, SECRET),
    "put_many": lambda cache, key: cache.put_many([key], [SECRET]),
    "put_async": lambda cache, key: cache.put_async(key, SECRET).wait(),
    "paged put": lambda cache, key: paged(cache).put([key], [0]),
    "paged put_async": lambda cache, key: paged(cache).put_async([key], [0]).wait(),
    "paged get_async": lambda cache, key: paged(cache).get_async([key], [0]).wait(),
    "open_for_write": lambda cache, key: cache.open_for_write(key, 12),
    "commit": lambda cache, key: cache.commit(key),
    "abort": lambda cache, key: cache.abort(key),
    "remove": lambda cache, key: cache.remove(key),
    "digest": lambda cache, key: cache.digest(key),
}


def check_that_nothing_leaks(reader: NanoKVCache, keys: list[Any], handles: list[KeyDigest]) -> None:
    """`reader` is of another identity than the cache that has put objects under `keys`, whose digests are `handles`."""
    for key in keys:
        for name, read in READS.items():
            with pytest.raises(KeyNotFound):
                pytest.fail(f"{name} leaks {read(reader, key)}")
        for name, look in LOOKS.items():
            assert not look(reader, key), name
    for handle in handles:
        for name, call in (READS | LOOKS | WRITES).items():
            with pytest.raises(ReuseViolation, match=r"is of (identity [0-9a-f]{8}|no identity), this cache of "):
                pytest.fail(f"{name} leaks {call(reader, handle)}")


def check_that_all_is_read(reader: NanoKVCache, keys: list[Any]) -> None:
    """The control: a cache of the same identity reads every object by every path."""
    for key in keys:
        for name, read in READS.items():
            assert torch.equal(read(reader, key).view(-1), SECRET.view(-1)), name
        for name, look in LOOKS.items():
            assert name == "remove_many" or look(reader, key), name


# --- in memory --------------------------------------------------------------------------------
Whose = tuple[str, Identity | None]  #: namespace and identity


def world_of(*whose: Whose, heap_bytes: int = HEAP, **given: Any) -> list[NanoKVCache]:
    """A local world, one rank per namespace and identity."""
    options = [make_options({"namespace": name, "identity": identity} | given) for name, identity in whose]
    world = LocalWorld(world_spec(plan_geometry(heap_bytes, PAGE, len(whose), options[0]), options[0]))
    return [NanoKVCache.on_heap(world.heap(rank), 0, each) for rank, each in enumerate(options)]


def try_to_leak(writer: Whose, reader: Whose, alloc: str = "device") -> None:
    """Put under one identity, by every path that puts; try to read under the other one, and under the same."""
    one, other, same = world_of(writer, reader, writer, alloc=alloc)
    seen: list[Any] = []
    one.subscribe(seen.extend)
    with one, other, same:
        one.put("put", SECRET, preferred_segment=0)
        plan = one.open_for_write(b"plan", 12, preferred_segment=0)
        one.engine.heap.segment(0)[plan.payload_base : plan.payload_base + 12].copy_(SECRET.view(-1))
        one.commit(b"plan")
        (error,) = one.put_many(["many"], [SECRET], preferred_segment=0)
        assert error is None
        one.flush()
        keys: list[Key] = ["put", b"plan", "many"]
        handles = {
            *(one.digest(key) for key in keys),
            *(one.get_location(key).digest for key in keys),
            *(each.key for each in seen if each.key is not None),
            *one.segment_keys(),
            plan.digest,
        }
        assert handles == {one.digest(key) for key in keys}
        check_that_nothing_leaks(other, keys, sorted(handles))
        check_that_all_is_read(same, [*keys, *sorted(handles)])
        check_that_all_is_read(one, [*keys, *sorted(handles)])


@pytest.mark.parametrize("alloc", ["device", "host"])
@pytest.mark.parametrize(("axis", "namespace", "identity"), AXES, ids=[axis for axis, *_ in AXES])
def test_no_leak_across_one_axis(axis: str, namespace: str, identity: Identity | None, alloc: str) -> None:
    try_to_leak(("", MINE), (namespace, identity), alloc)
    try_to_leak((namespace, identity), ("", MINE), alloc)


def test_every_field_is_an_axis() -> None:
    assert {*OTHERS} == {field.name for field in fields(Identity)}
    assert {*OTHER_LAYOUTS} == {field.name for field in fields(KVLayout)}


SHORT = st.text(st.sampled_from("ab\0\n1 "), max_size=3)
IDENTITIES = st.builds(
    Identity,
    SHORT.map(lambda text: text + "m"),
    *[SHORT] * 4,
    st.none()
    | st.builds(
        KVLayout,
        layers=st.integers(1, 12),
        kv_heads=st.sampled_from([4, 8]),
        head_size=st.integers(1, 12),
        block_size=st.integers(1, 12),
        dtype=st.sampled_from(["float16", "bfloat16"]),
        order=st.sampled_from(["L2NHD", "2LNHD", "LNHD"]),
        tp_rank=st.integers(0, 1),
        tp_size=st.sampled_from([2, 4]),
        first_layer=st.integers(0, 12),
        form=st.text(st.sampled_from("ab\n1 "), min_size=1, max_size=3),
    ),
)
WHOSE = st.tuples(SHORT.map(lambda text: text.replace("\0", "")), st.none() | IDENTITIES)


@given(writer=WHOSE, reader=WHOSE, alloc=st.sampled_from(["device", "host"]))
def test_no_leak_between_any_two(writer: Whose, reader: Whose, alloc: str) -> None:
    if writer == reader:
        reader = ("another", reader[1]) if reader[0] != "another" else ("", reader[1])
    try_to_leak(writer, reader, alloc)


@given(one=WHOSE, other=WHOSE, key=SHORT, other_key=SHORT)
def test_equal_digests_mean_equal_identities_and_keys(one: Whose, other: Whose, key: str, other_key: str) -> None:
    first, second = Hasher(*one), Hasher(*other)
    same = (one, key) == (other, other_key)
    assert (first(key) == second(other_key)) == same
    assert (first(key).key_hash == second(other_key).key_hash) == same, "equal but for the tag"
    assert (first.tag == second.tag) == (one == other)
    assert tag_of(first(key)) == first.tag and (first.tag == 0) == (one == ("", None))


@pytest.mark.parametrize(("left", "right"), [("namespace", TEXTS[0]), *pairwise(TEXTS)])
def test_neighbours_that_concatenate_alike_differ(left: str, right: str) -> None:
    def whose(one: str, other: str) -> Whose:
        given: dict[str, Any] = {"model": "m", left: one, right: other}
        return given.pop("namespace", ""), Identity(**given)

    for first, second in (("ab", "c"), ("abc", "x")), (("a", "bc"), ("ab", "cx")):
        assert Hasher(*whose(*first))("k") != Hasher(*whose(*second))("k")
    try_to_leak(whose("ab", "c"), whose("a", "bc"))


def test_the_last_text_and_a_key_that_concatenate_alike_differ() -> None:
    assert Hasher("", Identity("m", tenant="a"))("bk") != Hasher("", Identity("m", tenant="ab"))("k")
    assert Hasher("a")("bk") != Hasher("ab")("k")


# --- after a restart, and from a file ---------------------------------------------------------
DYING = """
import os, signal, sys
from tests.api.test_identity import MINE, SECRET, join
worlds = [join(name, ("", MINE), alloc=sys.argv[1]) for name in sys.argv[2:]]
for world in worlds:
    world[0].put("put", SECRET, preferred_segment=1)
    plan = world[1].open_for_write(b"plan", 12, preferred_segment=1)
    world[1].engine.heap.segment(1)[plan.payload_base : plan.payload_base + 12].copy_(SECRET.view(-1))
    world[1].commit(b"plan")
os.kill(os.getpid(), signal.SIGKILL)
"""
KEYS: list[Key] = ["put", b"plan"]


def join(name: str, whose: Whose, **options: Any) -> list[NanoKVCache]:
    """A world of shared memory of two ranks in this process."""

    def attach(rank: int) -> NanoKVCache:
        mine: dict[str, Any] = {"namespace": whose[0], "identity": whose[1]} | options
        return NanoKVCache(HEAP, page_bytes=PAGE, name=name, rank=rank, world_size=2, **mine)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(attach, range(2)))


TRIED = AXES[::3]


@pytest.fixture(scope="module", params=["device", "host"])
def dead(request: pytest.FixtureRequest) -> Iterator[str]:
    """The allocator of worlds "dead-AXIS", whose ranks were of MINE, and were killed; their files may be copied."""
    with pytest.MonkeyPatch.context() as monkeypatch, new_folder(monkeypatch):
        done = subprocess.run(
            [sys.executable, "-c", DYING, request.param, *(dead_name(axis) for axis, *_ in TRIED)],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
            timeout=300,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
        yield request.param


def dead_name(axis: str) -> str:
    return f"dead-{axis.replace(' ', '-')}"


def digests_in_file(name: str) -> list[KeyDigest]:
    """The digests of the READY objects in a world's file, whoever asks."""
    found = inspect(name)
    headers = SegmentView(found.segments[1], found.geometry).headers
    ready = headers[headers["state"] & STATE_MASK.value == READY.value]
    return [key_of(header) for header in ready]


@pytest.mark.parametrize(("axis", "namespace", "identity"), TRIED, ids=[axis for axis, *_ in TRIED])
def test_no_leak_after_a_restart_or_from_a_file(
    dead: str, axis: str, namespace: str, identity: Identity | None
) -> None:
    name, copy, control = (f"{dead_name(axis)}{end}" for end in ("", "-copy", "-control"))
    handles = digests_in_file(name)
    assert sorted(handles) == sorted(map(Hasher("", MINE), KEYS))
    shutil.copy(path_of(name), path_of(copy))
    shutil.copy(path_of(name), path_of(control))
    for taken in (name, copy):
        world = join(taken, (namespace, identity), alloc=dead, on_stale="recover")
        try:
            for cache in world:
                cache.flush()
                check_that_nothing_leaks(cache, KEYS, [*handles, *cache.segment_keys()])
            assert world[1].segment_count() == 2, "the control: the objects are there"
        finally:
            for cache in world:
                cache.close()
    world = join(control, ("", MINE), alloc=dead, on_stale="recover")
    try:
        for cache in world:
            check_that_all_is_read(cache, [*KEYS, *handles])
    finally:
        for cache in world:
            cache.close()


# --- the parts --------------------------------------------------------------------------------
def test_what_an_identity_refuses() -> None:
    for wrong, why in (
        ({"model": ""}, "model must not be empty"),
        ({"model": 3}, "model must be a str, not 3"),
        ({"model": "m", "tenant": None}, "tenant must be a str"),
        ({"model": "m", "layout": "L2NHD"}, "layout must be a KVLayout or None"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            Identity(**wrong)
    with pytest.raises(InvalidArgument, match="identity must be an Identity or None"):
        nanokv.local_world(1, HEAP, page_bytes=PAGE, identity="llama")  # type: ignore[arg-type]


def test_what_a_layout_refuses() -> None:
    good: dict[str, Any] = {"layers": 2, "kv_heads": 4, "head_size": 8, "block_size": 16, "dtype": "bfloat16"}
    for wrong, why in (
        ({"layers": 0}, "layers must be"),
        ({"kv_heads": True}, "kv_heads must be"),
        ({"head_size": 2**31}, "head_size must be"),
        ({"dtype": "bf16"}, "dtype must be one of"),
        ({"tp_rank": 1}, "tp_rank must be 0 to 0"),
        ({"tp_size": 3}, "4 KV heads cannot be divided among 3 ranks"),
        ({"order": "LNHD2"}, "order must be"),
        ({"order": "L2ND"}, "an order without H holds one head, not 4"),
        ({"order": "LLNHD"}, "order must be"),
        ({"order": ""}, "order must be"),
        ({"order": 3}, "order must be"),
        ({"form": None}, "form must be a str"),
        ({"first_layer": -1}, "first_layer must be"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            KVLayout(**good | wrong)


@pytest.mark.parametrize(
    ("kv_heads", "tp_size", "held"),
    [(4, 1, [[0, 1, 2, 3]]), (4, 2, [[0, 1], [2, 3]]), (2, 4, [[0], [0], [1], [1]]), (1, 2, [[0], [0]])],
)
def test_the_heads_of_a_rank(kv_heads: int, tp_size: int, held: list[list[int]]) -> None:
    sizes: dict[str, Any] = {"layers": 2, "head_size": 8, "block_size": 16, "dtype": "bfloat16"}
    layouts = [KVLayout(kv_heads=kv_heads, tp_size=tp_size, tp_rank=rank, **sizes) for rank in range(tp_size)]
    assert [[*layout.heads] for layout in layouts] == held
    assert layouts[0].shape == (2, 2, 16, len(held[0]), 8) and layouts[0].nbytes == 2 * 2 * 16 * len(held[0]) * 8 * 2
    assert replace(layouts[0], order="2NLHD").shape == (2, 16, 2, len(held[0]), 8)
    assert replace(layouts[0], order="LNHD").shape == (2, 16, len(held[0]), 8)


def test_the_digest_of_an_identity_is_stored_data() -> None:
    """Pinned: objects of another process, or of an older one, are found by it."""
    whole, tag = digest_of(MINE, "n")
    assert (whole.hex(), f"{tag:08x}") == ("015f68fc744d66d931a8fb2d6720c71e", "015f68fc")
    assert digest_of(None).tag == 0


def test_a_tag_takes_no_part_in_where_objects_go() -> None:
    """The home ranks of one identity's keys, their buckets, and the tags of their entries spread evenly."""
    count = 4000
    keys = np.array([Hasher("", MINE)(f"k{i}") for i in range(count)], np.int64)
    for n in (2, 3, 5, 8):
        homes = plan_geometry(HEAP, PAGE, n, make_options({})).home_rank(keys[:, 1].view(np.uint64))
        assert np.bincount(homes.astype(np.int64), minlength=n).min() > 0.8 * count / n
    for lowest in (keys[:, 0], keys[:, 0] >> 32, keys[:, 1] & ENTRY_TAG_MASK.value):
        assert np.bincount(lowest & 15, minlength=16).min() > 0.8 * count / 16
