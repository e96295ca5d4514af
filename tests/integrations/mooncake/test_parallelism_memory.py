"""Tensors in a layout, from memory of the caller and into it."""

import torch

from nanokv.integrations.mooncake.tensor_bytes import HEADER_BYTES, parsed
from tests.integrations.mooncake.test_parallelism import WHOLE, axis, header_of, keys, layout, part, target, tp
from tests.integrations.mooncake.test_tensor_store import (
    INVALID,
    NAME,
    Memory,
    Store,
    config,
    same,
    surface,
)

FULL = target("full", tp(0, 2))
NBYTES = HEADER_BYTES + WHOLE.nbytes


def registered(store: Store, tensor: torch.Tensor = WHOLE) -> Memory:
    """Registered memory that has a tensor with its header."""
    memory = Memory()
    assert store.register_buffer(memory.ptr, 4096) == 0
    store.put_tensor("seed", tensor)
    assert store.get_tensor_into("seed", memory.ptr, 4096) is not None
    store.remove("seed", True)
    return memory


# --- into memory ---
@surface(NAME, "get_tensor_with_parallelism_into")
def test_a_tensor_is_joined_in_memory(store: Store) -> None:
    memory = registered(store)
    store.put_tensor_with_tp("a", WHOLE + 1, 0, 2)
    for at in (0, 1024):
        there = store.get_tensor_with_parallelism_into("a", memory.ptr + at, 2048, FULL)
        assert there is not None and same(there, WHOLE + 1)
        header = parsed(memory[at : at + HEADER_BYTES], NBYTES)
        assert header is not None and not header.is_shard and header.shape == header.whole == (8, 6)
        assert memory[at + HEADER_BYTES : at + NBYTES] == (WHOLE + 1).numpy().tobytes()
    assert store.put_tensor_from("b", memory.ptr, NBYTES) == 0 and same(store.get_tensor("b"), WHOLE + 1)


@surface(NAME, "get_tensor_with_parallelism_into")
def test_a_shard_is_made_in_memory(store: Store) -> None:
    memory = registered(store)
    store.put_tensor_with_tp("a", WHOLE, 0, 2)
    for rank, size in ((1, 2), (3, 4)):
        shard = store.get_tensor_with_parallelism_into("a", memory.ptr, 4096, target("shard", tp(rank, size)))
        assert shard is not None and same(shard, WHOLE.chunk(size)[rank])
        assert store.put_tensor_from("b", memory.ptr, HEADER_BYTES + shard.nbytes) == 0
        header = header_of(store, "b")
        assert header.is_shard and header.whole == (8, 6) and header.axes == ((1, rank, size, 0, 0, 8 // size),)
        store.remove("b", True)


@surface(NAME, "get_tensor_with_parallelism_into")
def test_other_objects_are_copied_into_memory(store: Store) -> None:
    memory = registered(store)
    store.put_tensor("a", WHOLE)
    for rank in range(2):
        store.put_tensor_with_parallelism("b", WHOLE, writer_partition=part(rank, 2, 1))
    assert same(store.get_tensor_with_parallelism_into("a", memory.ptr, 4096), WHOLE)
    assert same(store.get_tensor_with_parallelism_into("a", memory.ptr, 4096, target("full")), WHOLE)
    assert same(store.get_tensor_with_parallelism_into("b", memory.ptr, 4096, target("full")), WHOLE)
    shard = store.get_tensor_with_parallelism_into("b", memory.ptr, 4096, target("shard", tp(1, 2, 1)))
    assert same(shard, WHOLE[:, 3:])


@surface(NAME, "get_tensor_with_parallelism_into")
def test_memory_has_to_be_registered_and_have_room(store: Store) -> None:
    store.put_tensor("a", WHOLE)
    store.put_tensor_with_tp("a", WHOLE, 0, 2)
    other, memory = Memory(), registered(store)
    memory.array[:] = 0
    for each in (None, FULL, target("shard", tp(0, 4))):
        for ptr, room in ((other.ptr, 4096), (0, 4096), (memory.ptr, 300), (memory.ptr + 1024, 4096)):
            assert store.get_tensor_with_parallelism_into("a", ptr, room, each) is None
    assert store.get_tensor_with_parallelism_into("a", memory.ptr, NBYTES - 1, FULL) is None
    assert store.get_tensor_with_parallelism_into("missing", memory.ptr, 4096, FULL) is None
    assert not memory.array.any() and not other.array.any()
    assert same(store.get_tensor_with_parallelism_into("a", memory.ptr, NBYTES, FULL), WHOLE)


@surface(NAME, "get_tensor_with_parallelism_into")
def test_nothing_is_copied_if_a_shard_is_missing(store: Store) -> None:
    memory = registered(store)
    store.put_tensor_with_parallelism("a", WHOLE[:4], tp(0, 2))
    memory.array[:] = 7
    assert store.get_tensor_with_parallelism_into("a", memory.ptr, 4096, FULL) is None
    assert (memory.array == 7).all()


@surface(NAME, "batch_get_tensor_with_parallelism_into")
def test_many_tensors_into_memory(store: Store) -> None:
    memory = registered(store)
    store.put_tensor("a", WHOLE)
    store.put_tensor_with_tp("b", WHOLE + 1, 0, 2)
    ptrs, sizes = [memory.ptr, memory.ptr + 1024, memory.ptr + 2048], [1024] * 3
    a, b, missing = store.batch_get_tensor_with_parallelism_into(["a", "b", "c"], ptrs, sizes, [None, FULL, FULL])
    assert same(a, WHOLE) and same(b, WHOLE + 1) and missing is None
    a, b = store.batch_get_tensor_with_parallelism_into(["a", "b"], ptrs[:2], sizes[:2])
    assert same(a, WHOLE) and b is None
    assert store.batch_get_tensor_with_parallelism_into(["a", "b"], ptrs, sizes) == [None, None]
    assert store.batch_get_tensor_with_parallelism_into(["a"], ptrs[:1], sizes[:1], (None,)) == [None]


# --- from memory ---
@surface(NAME, "put_tensor_with_parallelism_from")
@surface(NAME, "upsert_tensor_with_parallelism_from")
def test_all_shards_of_a_tensor_in_memory_are_stored(store: Store) -> None:
    memory = registered(store)
    for put in (store.put_tensor_with_parallelism_from, store.upsert_tensor_with_parallelism_from):
        assert put("a", memory.ptr, NBYTES, tp(0, 2)) == put("b", memory.ptr, NBYTES, tp(1, 3, 1)) == 0
        assert put("c", memory.ptr, NBYTES, layout(axis("dp", 0, 2), axis("tp", 0, 2, 1))) == 0
        c = [f"c__dp_0of2__tp_{rank}of2_sd1" for rank in range(2)]
        assert keys(store) == ["a_tp_0", "a_tp_1", "b_tp_0", "b_tp_1", "b_tp_2", *c]
        assert same(store.get_tensor("b_tp_2"), WHOLE[:, 4:]) and same(store.get_tensor(c[1]), WHOLE[:, 3:])
        assert header_of(store, c[1]).axes == ((0, 0, 2, -1, 0, 0), (1, 1, 2, 1, 0, 3))
        assert same(store.get_tensor_with_parallelism("a", FULL), WHOLE)


@surface(NAME, "put_tensor_with_parallelism_from")
@surface(NAME, "upsert_tensor_with_parallelism_from")
def test_other_requests_from_memory(store: Store) -> None:
    memory = registered(store)
    for put in (store.put_tensor_with_parallelism_from, store.upsert_tensor_with_parallelism_from):
        assert put("a", memory.ptr, NBYTES) == 0 and same(store.get_tensor("a"), WHOLE)
        assert put("b", memory.ptr, NBYTES, layout(axis("dp", 0, 2))) == 0
        assert header_of(store, "b__dp_0of2").axes == ((0, 0, 2, -1, 0, 0),)
        for rank in range(2):
            assert put("c", memory.ptr, NBYTES, writer_partition=part(rank, 2, 1)) == 0
        assert same(store.get_tensor_with_parallelism("c", target("full")), WHOLE)


@surface(NAME, "put_tensor_with_parallelism_from")
def test_a_shard_in_memory_keeps_its_place(store: Store) -> None:
    store.put_tensor_with_tp("a", WHOLE, 0, 2)
    memory, nbytes = Memory(), HEADER_BYTES + WHOLE.nbytes // 2
    assert store.get_tensor_into("a_tp_1", memory.ptr, 4096) is not None
    assert store.put_tensor_with_parallelism_from("b", memory.ptr, nbytes) == 0
    assert store.put_tensor_with_parallelism_from("c", memory.ptr, nbytes, layout(axis("dp", 0, 2))) == 0
    assert header_of(store, "b") == header_of(store, "a_tp_1")
    header = header_of(store, "c__dp_0of2")
    assert (header.whole, header.shape) == ((8, 6), (4, 6))


@surface(
    NAME,
    "put_tensor_with_parallelism_from",
    differs="a shard in memory cannot be divided as if it were the whole; the real one reads behind it",
)
def test_a_shard_in_memory_is_not_divided_as_the_whole(store: Store) -> None:
    store.put_tensor_with_tp("a", WHOLE, 0, 2)
    memory, nbytes = Memory(), HEADER_BYTES + WHOLE.nbytes // 2
    assert store.get_tensor_into("a_tp_1", memory.ptr, 4096) is not None
    before = keys(store)
    assert store.put_tensor_with_parallelism_from("b", memory.ptr, nbytes, tp(0, 2)) == INVALID
    assert store.put_tensor_with_parallelism_from("b", memory.ptr, nbytes, writer_partition=part(1, 2, 0)) == INVALID
    assert keys(store) == before


@surface(NAME, "put_tensor_with_parallelism_from")
@surface(NAME, "upsert_tensor_with_parallelism_from")
def test_memory_that_cannot_be_stored_is_refused(store: Store) -> None:
    memory = registered(store)
    for put in (store.put_tensor_with_parallelism_from, store.upsert_tensor_with_parallelism_from):
        for each in (None, tp(0, 2), layout(axis("dp", 0, 2))):
            for ptr, nbytes in ((0, NBYTES), (memory.ptr, NBYTES + 1), (memory.ptr, 10)):
                assert put("a", ptr, nbytes, each) == INVALID
        assert put("a", memory.ptr, NBYTES, tp(0, 3)) == put("a", memory.ptr, NBYTES, tp(0, 0)) == INVALID
        assert put("a", memory.ptr, NBYTES, writer_partition=part(0, 3, 0)) == INVALID
        assert put("a", memory.ptr, NBYTES, tp(0, 2), config(), part(0, 2, 0)) == INVALID
        assert put("a", memory.ptr, NBYTES, None, config(preferred_segments=["x", "y"])) == INVALID
    assert keys(store) == []


@surface(NAME, "batch_put_tensor_with_parallelism_from")
@surface(NAME, "batch_upsert_tensor_with_parallelism_from")
def test_many_tensors_from_memory(store: Store) -> None:
    memory = registered(store)
    ptrs, sizes = [memory.ptr] * 2, [NBYTES] * 2
    for put in (store.batch_put_tensor_with_parallelism_from, store.batch_upsert_tensor_with_parallelism_from):
        assert put(["a", "b"], ptrs, sizes, [tp(0, 2), None]) == [0, 0]
        assert same(store.get_tensor("a_tp_1"), WHOLE[4:]) and same(store.get_tensor("b"), WHOLE)
        assert put(["c", "d"], ptrs, [NBYTES, 10], [None, None]) == [0, INVALID]
        assert put(["e", "f"], ptrs, [NBYTES, 10]) == [
            INVALID,
            INVALID,
        ]  # without requests all or none, as the real one
        assert put(["g"], ptrs[:1], sizes[:1], writer_partitions=[part(0, 2, 0)]) == [0]
        assert put(["h"], ptrs, sizes, [None]) == put(["h"], ptrs, sizes) == [INVALID]
        assert put(["h"], ptrs[:1], sizes[:1], None, config(group_ids=["x", "y"])) == [INVALID]
        assert put([], [], []) == []
        assert [key for key in keys(store) if key[0] in "defh"] == []
        store.remove_all(True)
