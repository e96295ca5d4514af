"""Tensors in memory of the caller, and what wrong calls are answered."""

import ctypes
from collections.abc import Callable

import pytest
import torch

from nanokv.integrations.mooncake.tensor_bytes import HEADER_BYTES
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


@surface(NAME, "get_tensor_into")
@surface(NAME, "put_tensor_from")
@surface(NAME, "upsert_tensor_from")
def test_a_tensor_goes_into_memory_and_comes_from_it(store: Store) -> None:
    memory, nbytes = Memory(), HEADER_BYTES + NUMBERS.nbytes
    store.put_tensor("a", NUMBERS)
    there = store.get_tensor_into("a", memory.ptr, nbytes)
    assert there is not None and same(there, NUMBERS) and memory[:nbytes] == store.get("a")
    there[0, 0] = 77  # it is that memory
    assert store.put_tensor_from("b", memory.ptr, nbytes) == store.put_tensor_from("b", memory.ptr, nbytes) == 0
    assert store.upsert_tensor_from("a", memory.ptr, nbytes) == 0
    assert same(store.get_tensor("b"), there.clone()) and same(store.get_tensor("a"), there.clone())


@surface(NAME, "get_tensor_into")
def test_there_has_to_be_room(store: Store) -> None:
    store.put_tensor("a", NUMBERS)
    memory = Memory()
    assert store.get_tensor_into("a", memory.ptr, HEADER_BYTES + NUMBERS.nbytes - 1) is None
    assert store.get_tensor_into("a", 0, 4096) is None and store.get_tensor_into("missing", memory.ptr, 4096) is None
    assert not memory.array.any()


@surface(NAME, "put_tensor_from")
@surface(NAME, "upsert_tensor_from")
@surface(NAME, "batch_put_tensor_from")
@surface(NAME, "batch_upsert_tensor_from")
def test_memory_without_a_tensor_is_refused(store: Store) -> None:
    memory, nbytes = Memory(), HEADER_BYTES + NUMBERS.nbytes
    store.put_tensor("a", NUMBERS)
    store.get_tensor_into("a", memory.ptr, 4096)
    for ptr, size in ((0, nbytes), (memory.ptr, nbytes + 1), (memory.ptr, nbytes - 1), (memory.ptr, 10)):
        assert store.put_tensor_from("b", ptr, size) == store.upsert_tensor_from("b", ptr, size) == INVALID
        ptrs, sizes = [memory.ptr, ptr], [nbytes, size]
        assert store.batch_put_tensor_from(["b", "c"], ptrs, sizes) == [INVALID, INVALID]
        assert store.batch_upsert_tensor_from(["b", "c"], ptrs, sizes) == [INVALID, INVALID]
    assert store.batch_is_exist(["b", "c"]) == [0, 0]


@surface(NAME, "batch_get_tensor_into")
@surface(NAME, "batch_put_tensor_from")
@surface(NAME, "batch_upsert_tensor_from")
def test_many_tensors_in_memory(store: Store) -> None:
    memory, nbytes = Memory(), HEADER_BYTES + NUMBERS.nbytes
    ptrs, sizes = [memory.ptr, memory.ptr + 1024], [1024, 1024]
    store.batch_put_tensor(["a", "b"], [NUMBERS, NUMBERS + 1])
    a, missing = store.batch_get_tensor_into(["a", "missing"], ptrs, sizes)
    assert same(a, NUMBERS) and missing is None
    a, b = store.batch_get_tensor_into(["a", "b"], ptrs, sizes)
    assert same(a, NUMBERS) and same(b, NUMBERS + 1)
    assert store.batch_put_tensor_from(["c", "d"], ptrs, [nbytes, nbytes]) == [0, 0]
    assert store.batch_upsert_tensor_from(["a", "b"], ptrs[::-1], [nbytes, nbytes]) == [0, 0]
    read = store.batch_get_tensor(["a", "b", "c", "d"])
    expected = (NUMBERS + 1, NUMBERS, NUMBERS, NUMBERS + 1)
    assert all(same(*each) for each in zip(read, expected, strict=True))
    assert store.batch_get_tensor_into(["a", "b"], ptrs, sizes[:1]) == [INVALID, INVALID]
    assert store.batch_get_tensor_into(["a", "b"], [memory.ptr, 0], sizes) == [INVALID, INVALID]
    assert store.batch_put_tensor_from([], [], []) == store.batch_get_tensor_into([], [], []) == []


@surface(NAME, "get_tensor_into_cuda", refused="INVALID_PARAMS, as a real client that is no dummy client")
@surface(NAME, "batch_get_tensor_into_cuda", refused="INVALID_PARAMS, as a real client that is no dummy client")
def test_nothing_is_read_into_a_gpu(store: Store) -> None:
    store.put_tensor("a", NUMBERS)
    assert store.get_tensor_into_cuda("a", torch.empty(4, 6)) == INVALID
    assert store.batch_get_tensor_into_cuda(["a", "b"], [torch.empty(4, 6)]) == [INVALID, INVALID]


# --- wrong calls ---
@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.put_tensor(3, NUMBERS),
        lambda store: store.put_tensor("a"),
        lambda store: store.put_tensor("a", NUMBERS, config()),
        lambda store: store.pub_tensor("a", NUMBERS, None),
        lambda store: store.batch_put_tensor("a", [NUMBERS]),
        lambda store: store.batch_put_tensor(["a"], (NUMBERS,)),
        lambda store: store.batch_put_tensor(["a", 3], [NUMBERS, NUMBERS]),
        lambda store: store.batch_pub_tensor(["a"], [NUMBERS], "config"),
        lambda store: store.get_tensor_into("a", -1, 10),
        lambda store: store.put_tensor_from("a", "address", 10),
        lambda store: store.batch_get_tensor_into(["a"], 5, [5]),
        lambda store: store.batch_get_tensor_into_cuda(["a"], NUMBERS),
    ],
)
def test_arguments_of_other_types_are_type_errors(store: Store, call: Callable[[Store], object]) -> None:
    with pytest.raises(TypeError):
        call(store)
    assert store.is_exist("a") == 0


def test_a_client_that_is_not_set_up_has_nothing() -> None:
    store, memory = Store(), (ctypes.c_ubyte * 400)()
    ptr = ctypes.addressof(memory)
    assert store.put_tensor("a", NUMBERS) == store.upsert_pub_tensor("a", NUMBERS) == INVALID
    assert store.batch_put_tensor(["a"], [NUMBERS]) == store.batch_put_tensor_from(["a"], [ptr], [400]) == [INVALID]
    assert store.get_tensor("a") is None and store.get_tensor_into("a", ptr, 400) is None
    assert store.batch_get_tensor(["a", "b"]) == [None, None]
    assert store.batch_get_tensor_into(["a"], [ptr], [400]) == [INVALID]
