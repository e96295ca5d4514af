"""Tensors divided among the ranks of tensor parallelism: `*_with_tp`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nanokv.integrations.mooncake.tensor_bytes import HEADER_BYTES, parsed
from tests.integrations.mooncake.test_tensor_store import (
    INVALID,
    NAME,
    NUMBERS,
    Memory,
    Store,
    config,
    same,
    surface,
)


def in_memory(store: Store, tensor: torch.Tensor) -> tuple[Memory, int]:
    """Memory that has a tensor with its header, and how many bytes of it."""
    memory = Memory()
    store.upsert_tensor("in memory", tensor)
    assert store.get_tensor_into("in memory", memory.ptr, 4096) is not None
    return memory, HEADER_BYTES + tensor.nbytes


@surface(NAME, "put_tensor_with_tp")
@surface(NAME, "get_tensor_with_tp")
@pytest.mark.parametrize(("size", "dim"), [(2, 0), (4, 0), (3, 1), (6, 1)])
def test_each_rank_reads_its_shard(store: Store, size: int, dim: int) -> None:
    assert store.put_tensor_with_tp("a", NUMBERS, 0, size, dim) == 0
    for rank, shard in enumerate(NUMBERS.chunk(size, dim)):
        assert same(store.get_tensor_with_tp("a", rank, size, dim), shard)
        assert same(store.get_tensor(f"a_tp_{rank}"), shard)
    assert store.is_exist("a") == 0 and store.get_tensor_with_tp("a", size, size) is None


@surface(NAME, "put_tensor_with_tp")
def test_the_header_tells_which_shard_it_is(store: Store) -> None:
    store.put_tensor_with_tp("a", NUMBERS, tp_size=3, split_dim=1)
    header = parsed(store.get("a_tp_2"), store.get_size("a_tp_2"))
    assert header is not None and header.is_shard and (header.whole, header.shape) == ((4, 6), (4, 2))
    assert header.axes == ((1, 2, 3, 1, 0, 2),)


@surface(NAME, "put_tensor_with_tp")
@surface(NAME, "get_tensor_with_tp")
def test_one_rank_divides_nothing(store: Store) -> None:
    for size in (1, 0, -2):
        assert store.put_tensor_with_tp(f"a{size}", NUMBERS, 0, size) == 0
        assert same(store.get_tensor(f"a{size}"), NUMBERS)
        assert same(store.get_tensor_with_tp(f"a{size}", 0, size), NUMBERS)


@surface(NAME, "put_tensor_with_tp")
@surface(NAME, "batch_put_tensor_with_tp")
@pytest.mark.parametrize(
    ("tensor", "size", "dim"),
    [(NUMBERS, 3, 0), (NUMBERS, 2, 2), (NUMBERS, 2, -1), (torch.tensor(1.0), 2, 0), ([1.0, 2.0], 2, 0), (None, 2, 0)],
)
def test_what_cannot_be_divided_evenly_is_refused(store: Store, tensor: object, size: int, dim: int) -> None:
    assert store.put_tensor_with_tp("a", tensor, 0, size, dim) == INVALID
    assert store.batch_put_tensor_with_tp(["a"], [tensor], 0, size, dim) == [INVALID]
    assert store.remove_by_regex("^a", True) == 0


@surface(NAME, "batch_put_tensor_with_tp")
@surface(NAME, "batch_get_tensor_with_tp")
def test_many_tensors(store: Store) -> None:
    assert store.batch_put_tensor_with_tp(["a", "b", "c"], [NUMBERS, None, NUMBERS.half()], 0, 2, 1) == [0, INVALID, 0]
    a, b, c = store.batch_get_tensor_with_tp(["a", "b", "c"], 1, 2)
    assert same(a, NUMBERS[:, 3:]) and b is None and same(c, NUMBERS.half()[:, 3:])
    assert store.batch_put_tensor_with_tp(["d"], [], 0, 2) == [INVALID]
    assert store.batch_put_tensor_with_tp(["d"], [NUMBERS]) == [0]
    assert same(store.batch_get_tensor_with_tp(["d"])[0], NUMBERS)


@surface(NAME, "batch_put_tensor_with_tp", differs="one that is no tensor does not keep the others from being stored")
def test_each_tensor_of_a_batch_is_stored_by_itself(store: Store) -> None:
    assert store.batch_put_tensor_with_tp(["a", "b"], [NUMBERS, [1]], 0, 2) == [0, INVALID]
    assert same(store.get_tensor_with_tp("a", 0, 2), NUMBERS[:2])


@surface(NAME, "pub_tensor_with_tp")
@surface(NAME, "batch_pub_tensor_with_tp")
def test_a_config_tells_how(store: Store) -> None:
    assert store.pub_tensor_with_tp("a", NUMBERS, config(with_hard_pin=True), 0, 2) == 0
    assert same(store.get_tensor_with_tp("a", 1, 2), NUMBERS[2:])
    # groups: of the call about one tensor one for each shard, of a batch one for each key
    assert store.pub_tensor_with_tp("b", NUMBERS, config(group_ids=["x", "y"]), 0, 2) == 0
    assert store.pub_tensor_with_tp("c", NUMBERS, config(group_ids=["x"]), 0, 2) == INVALID
    assert store.batch_pub_tensor_with_tp(["d"], [NUMBERS], config(group_ids=["x"]), 0, 2) == [0]
    assert store.batch_pub_tensor_with_tp(["e", "f"], [NUMBERS] * 2, config(group_ids=["x"]), 0, 2) == [INVALID] * 2
    wrong = config(preferred_segments=["x", "y"])
    assert store.pub_tensor_with_tp("e", NUMBERS, wrong, 0, 2) == INVALID
    assert store.batch_pub_tensor_with_tp(["e"], [NUMBERS], wrong, 0, 2) == [INVALID]
    assert store.remove_by_regex("^[cef]", True) == 0


# --- memory ---
@surface(NAME, "put_tensor_with_tp_from")
@surface(NAME, "batch_put_tensor_with_tp_from")
def test_a_tensor_in_memory_is_divided(store: Store) -> None:
    memory, nbytes = in_memory(store, NUMBERS)
    assert store.put_tensor_with_tp_from("a", memory.ptr, nbytes, 0, 3, 1) == 0
    assert same(store.get_tensor_with_tp("a", 2, 3), NUMBERS[:, 4:])
    assert store.put_tensor_with_tp_from("b", memory.ptr, nbytes) == 0 and same(store.get_tensor("b"), NUMBERS)
    ptrs, sizes = [memory.ptr, 0, memory.ptr], [nbytes, nbytes, nbytes + 1]
    assert store.batch_put_tensor_with_tp_from(["c", "d", "e"], ptrs, sizes, 0, 2) == [0, INVALID, INVALID]
    assert same(store.get_tensor_with_tp("c", 1, 2), NUMBERS[2:])
    assert store.batch_put_tensor_with_tp_from(["c"], [], [], 0, 2) == [INVALID]
    assert store.batch_put_tensor_with_tp_from([], [], [], 0, 2) == []
    for ptr, size in ((0, nbytes), (memory.ptr, nbytes - 1), (memory.ptr, 10)):
        assert store.put_tensor_with_tp_from("f", ptr, size, 0, 2) == INVALID
    assert store.put_tensor_with_tp_from("f", memory.ptr, nbytes, 0, 3, 0) == INVALID
    assert store.remove_by_regex("^[def]", True) == 0


@surface(NAME, "get_tensor_with_tp_into")
@surface(NAME, "batch_get_tensor_with_tp_into")
def test_a_shard_goes_into_memory(store: Store) -> None:
    memory = Memory()
    store.put_tensor_with_tp("a", NUMBERS, 0, 2)
    store.put_tensor("b", NUMBERS)
    shard = store.get_tensor_with_tp_into("a", memory.ptr, 4096, 1, 2)
    assert shard is not None and same(shard, NUMBERS[2:])
    shard += 1
    assert memory[HEADER_BYTES : HEADER_BYTES + shard.nbytes] == (NUMBERS[2:] + 1).numpy().tobytes()
    assert same(store.get_tensor_with_tp_into("b", memory.ptr, 4096), NUMBERS)
    assert store.get_tensor_with_tp_into("a", 0, 4096, 1, 2) is None
    ptrs, sizes = [memory.ptr, memory.ptr + 1024], [1024, 1024]
    read, missing = store.batch_get_tensor_with_tp_into(["a", "c"], ptrs, sizes, 0, 2)
    assert same(read, NUMBERS[:2]) and missing is None
    assert store.batch_get_tensor_with_tp_into(["a"], ptrs, sizes, 0, 2) == [INVALID]


@pytest.mark.parametrize(
    "call",
    [
        lambda store, size: store.put_tensor_with_tp("a", NUMBERS, 0, size),
        lambda store, size: store.get_tensor_with_tp("a", 0, size),
        lambda store, size: store.batch_get_tensor_with_tp(["a"], 0, size),
        lambda store, size: store.put_tensor_with_tp_from("a", 0, 0, 0, size),
        lambda store, size: store.batch_get_tensor_with_tp_into(["a"], [0], [0], 0, size),
    ],
)
def test_ranks_are_integers_of_32_bits(store: Store, call: Callable[[Store, Any], object]) -> None:
    for size in (2.0, "2", None, 1 << 31):
        with pytest.raises(TypeError):
            call(store, size)
    call(store, True)


def test_a_client_that_is_not_set_up_has_nothing() -> None:
    store = Store()
    assert store.put_tensor_with_tp("a", NUMBERS, 0, 2) == INVALID
    assert store.batch_put_tensor_with_tp(["a"], [NUMBERS], 0, 2) == [INVALID]
    assert store.get_tensor_with_tp("a", 0, 2) is None
    assert store.batch_get_tensor_with_tp_into(["a"], [1], [1], 0, 2) == [None]
