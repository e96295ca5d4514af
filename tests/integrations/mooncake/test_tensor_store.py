"""Whole tensors: put, get, upsert, in batches, and as a config says."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from nanokv.integrations.mooncake import MooncakeDistributedStore, ReplicateConfig
from nanokv.integrations.mooncake.tensor_bytes import DTYPES, HEADER_BYTES
from tests.integrations.mooncake.conftest import Start

NAME = "Mooncake Store"
Store = MooncakeDistributedStore
surface = pytest.mark.surface
INVALID = -600


class Memory:
    """Memory of a caller, with its address."""

    def __init__(self, nbytes: int = 4096) -> None:
        self.array = np.zeros(nbytes, np.uint8)
        self.ptr = int(self.array.ctypes.data)

    def __getitem__(self, where: slice) -> bytes:
        return self.array[where].tobytes()


def config(**fields: Any) -> ReplicateConfig:
    made = ReplicateConfig()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def same(one: object, other: torch.Tensor) -> bool:
    """The same dtype, shape and bytes."""
    assert isinstance(one, torch.Tensor)
    bytes_of = [tensor.contiguous().flatten().view(torch.uint8) for tensor in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bytes_of)


NUMBERS = torch.arange(24, dtype=torch.float32).reshape(4, 6)


# --- one tensor ---
@surface(NAME, "put_tensor")
@surface(NAME, "get_tensor")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_is_read_as_it_was_put(store: Store, dtype: torch.dtype) -> None:
    for shape in [(3,), (4, 6), (2, 3, 1, 5), (0,), (2, 0, 3), (1,) * 8]:
        raw = torch.arange(math.prod(shape) * dtype.itemsize, dtype=torch.uint8)
        tensor = (raw % 2 if dtype == torch.bool else raw).view(dtype).reshape(shape)
        assert store.put_tensor(str(shape), tensor) == 0
        assert store.get_size(str(shape)) == HEADER_BYTES + tensor.nbytes
        assert same(store.get_tensor(str(shape)), tensor)


@surface(NAME, "get_tensor")
def test_a_tensor_that_was_read_is_the_callers_own(store: Store) -> None:
    store.put_tensor("a", NUMBERS)
    read = store.get_tensor("a")
    assert read is not None and read.storage_offset() == 0 and read.is_contiguous()
    read += 1
    assert same(store.get_tensor("a"), NUMBERS)


@surface(NAME, "get_tensor")
def test_without_dimensions_it_gets_one(store: Store) -> None:
    assert store.put_tensor("a", torch.tensor(3.5)) == 0
    assert same(store.get_tensor("a"), torch.tensor([3.5]))  # as the real one


@surface(NAME, "put_tensor")
@pytest.mark.parametrize(
    "tensor",
    [
        NUMBERS.t(),
        NUMBERS[:, ::2],
        NUMBERS[1:3],
        NUMBERS.expand(3, 4, 6),
        NUMBERS.clone().requires_grad_(),
        torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    ],
    ids=["transposed", "with gaps", "inside another", "expanded", "of a graph", "negated view"],
)
def test_what_is_stored_is_the_values(store: Store, tensor: torch.Tensor) -> None:
    assert store.put_tensor("a", tensor) == 0
    assert same(store.get_tensor("a"), tensor.detach().clone())


@surface(NAME, "put_tensor", differs="a torch.nn.Parameter is stored as a tensor; the real one refuses it")
def test_a_parameter_is_a_tensor(store: Store) -> None:
    assert store.put_tensor("a", torch.nn.Parameter(NUMBERS.clone())) == 0
    assert same(store.get_tensor("a"), NUMBERS)


@surface(NAME, "put_tensor")
@pytest.mark.parametrize(
    "given",
    [
        None,
        [1.0],
        np.zeros(3),
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2, dtype=torch.uint8).view(torch.float8_e4m3fnuz),
        torch.zeros([1] * 9),
        torch.zeros(3, device="meta"),
        torch.eye(3).to_sparse(),
        torch._to_functional_tensor(torch.ones(3)),
    ],
    ids=["None", "list", "array", "complex", "fp8 fnuz", "9 dimensions", "no memory", "sparse", "functional"],
)
def test_what_cannot_be_stored_is_refused(store: Store, given: object) -> None:
    assert store.put_tensor("a", given) == store.upsert_tensor("a", given) == INVALID
    assert store.is_exist("a") == 0


@surface(NAME, "get_tensor", differs="a tensor larger than the local buffer is read; the real one answers None")
def test_the_local_buffer_limits_no_tensor(start: Start) -> None:
    store = start(local=1 << 20)
    tensor = torch.arange(2 << 20, dtype=torch.int16)
    assert store.put_tensor("a", tensor) == 0 and same(store.get_tensor("a"), tensor)


@surface(NAME, "put_tensor")
@surface(NAME, "upsert_tensor")
def test_a_put_keeps_what_is_there_and_an_upsert_replaces_it(store: Store) -> None:
    assert store.put_tensor("a", NUMBERS) == store.put_tensor("a", NUMBERS + 1) == 0
    assert same(store.get_tensor("a"), NUMBERS)
    assert store.upsert_tensor("a", NUMBERS[:2].long()) == 0
    assert same(store.get_tensor("a"), NUMBERS[:2].long())


@surface(NAME, "put_tensor")
def test_a_full_store_is_told(store: Store) -> None:
    assert store.put_tensor("a", torch.zeros(40 << 20, dtype=torch.uint8)) == -200
    assert store.is_exist("a") == 0


@surface(NAME, "get_tensor")
@surface(NAME, "batch_get_tensor")
@surface(NAME, "get_tensor_into")
@pytest.mark.parametrize("value", [b"x", b"x" * 400, b"NOOM" + b"\0" * 396])
def test_a_value_that_is_no_tensor_is_none(store: Store, value: bytes) -> None:
    store.put("a", value)
    memory = Memory()
    assert store.get_tensor("a") is None and store.batch_get_tensor(["a", "missing"]) == [None, None]
    assert store.get_tensor_into("a", memory.ptr, 4096) is None
    assert not memory.array.any()  # and is not copied


# --- how it is stored ---
@surface(NAME, "pub_tensor")
@surface(NAME, "upsert_pub_tensor")
@surface(NAME, "batch_pub_tensor")
@surface(NAME, "batch_upsert_pub_tensor")
def test_a_config_tells_how(store: Store) -> None:
    assert store.pub_tensor("a", NUMBERS, config(with_hard_pin=True)) == 0
    assert store.upsert_pub_tensor("a", NUMBERS + 1, config(replica_num=1)) == 0
    assert same(store.get_tensor("a"), NUMBERS + 1)
    tensors: list[object] = [NUMBERS, NUMBERS + 1]
    assert store.batch_pub_tensor(["b", "c"], tensors, config(group_ids=["x", "y"])) == [0, 0]
    assert store.batch_upsert_pub_tensor(["b", "c"], tensors[::-1], config()) == [0, 0]
    assert same(store.get_tensor("b"), NUMBERS + 1) and same(store.get_tensor("c"), NUMBERS)


@surface(NAME, "pub_tensor")
@surface(NAME, "batch_pub_tensor")
@pytest.mark.parametrize(
    "fields", [{"replica_num": 0}, {"preferred_segments": ["a", "b"]}, {"group_ids": ["x", "y", "z"]}]
)
def test_a_config_that_cannot_be_is_refused(store: Store, fields: dict[str, Any]) -> None:
    wrong = config(**fields)
    assert store.pub_tensor("a", NUMBERS, wrong) == store.upsert_pub_tensor("a", NUMBERS, wrong) == INVALID
    assert store.batch_pub_tensor(["a", "b"], [NUMBERS, NUMBERS], wrong) == [INVALID, INVALID]
    assert store.batch_upsert_pub_tensor(["a", "b"], [NUMBERS, NUMBERS], wrong) == [INVALID, INVALID]
    assert store.batch_is_exist(["a", "b"]) == [0, 0]


# --- many ---
@surface(NAME, "batch_put_tensor")
@surface(NAME, "batch_get_tensor")
@surface(NAME, "batch_upsert_tensor")
def test_many_tensors(store: Store) -> None:
    assert store.batch_put_tensor(["a", "b", "c"], [NUMBERS, None, NUMBERS.half()]) == [0, INVALID, 0]
    a, b, c = store.batch_get_tensor(["a", "b", "c"])
    assert same(a, NUMBERS) and b is None and same(c, NUMBERS.half())
    assert store.batch_upsert_tensor(["a", "b"], [NUMBERS + 1, NUMBERS + 2]) == [0, 0]
    assert same(store.get_tensor("a"), NUMBERS + 1) and same(store.get_tensor("b"), NUMBERS + 2)
    assert store.batch_put_tensor([], []) == store.batch_get_tensor([]) == []


@surface(NAME, "batch_put_tensor")
@surface(NAME, "batch_upsert_tensor")
def test_lists_of_different_lengths_store_nothing(store: Store) -> None:
    assert store.batch_put_tensor(["a"], [NUMBERS, NUMBERS]) == [INVALID]
    assert store.batch_upsert_tensor(["a", "b"], [NUMBERS]) == [INVALID, INVALID]
    assert store.batch_is_exist(["a", "b"]) == [0, 0]
