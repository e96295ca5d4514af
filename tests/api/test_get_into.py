"""`get` into a tensor of the caller: of the object's dtype and shape, unless its bytes are to be reinterpreted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nanokv.device.machines.records import Place
from nanokv.device.protocol.status import Status
from nanokv.errors import InvalidArgument, KeyNotFound
from tests.support.faults import Calls
from tests.support.worlds import MakeWorld, World

SIZES = (8, 1 << 18)  #: elements of a row: copied by the machine, or by torch
WRONG: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "another float": lambda like: torch.zeros(like.shape, dtype=torch.float16),
    "an integer": lambda like: torch.zeros(like.shape, dtype=torch.int16),
    "its bytes": lambda like: torch.zeros(like.nbytes, dtype=torch.uint8),
    "another shape": lambda like: torch.zeros(like.shape[::-1], dtype=like.dtype),
    "more dimensions": lambda like: torch.zeros((1, *like.shape), dtype=like.dtype),
    "flat": lambda like: torch.zeros(like.numel(), dtype=like.dtype),
}


@pytest.fixture
def world(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # with one thread the machine copies every size
    return make_world(n=2, heap_bytes=1 << 24, page_bytes=1 << 16)


def stored(world: World, columns: int) -> torch.Tensor:
    tensor = torch.randn(4, columns, generator=torch.Generator().manual_seed(columns)).bfloat16()
    world[0].put("k", tensor, preferred_segment=1)
    return tensor


@pytest.mark.parametrize("columns", SIZES)
@pytest.mark.parametrize("wrong", WRONG)
def test_another_dtype_or_shape_is_refused(world: World, columns: int, wrong: str) -> None:
    tensor = stored(world, columns)
    dst = WRONG[wrong](tensor)
    calls = (
        lambda: world[0].get("k", dst=dst),
        lambda: world[1].get_many(["k"], dsts=[dst]),
        lambda: world[0].get_async("k", dst=dst).wait(10),
    )
    for call in calls:
        with pytest.raises(InvalidArgument, match="reinterpret=True") as error:
            call()
        assert not dst.view(torch.uint8).any()
        for each in (tensor, dst):
            assert f"{each.dtype} {list(each.shape)}" in str(error.value)


@pytest.mark.parametrize("columns", SIZES)
@pytest.mark.parametrize("other", WRONG)
def test_bytes_are_reinterpreted_if_asked(world: World, columns: int, other: str) -> None:
    tensor = stored(world, columns)
    expected = tensor.reshape(-1).view(torch.uint8)
    calls: tuple[Callable[[torch.Tensor], torch.Tensor | None], ...] = (
        lambda dst: world[0].get("k", dst=dst, reinterpret=True),
        lambda dst: world[1].get_many(["k"], dsts=[dst], reinterpret=True)[0],
        lambda dst: world[0].get_async("k", dst=dst, reinterpret=True).wait(10),
    )
    for call in calls:
        dst = WRONG[other](tensor)
        assert call(dst) is dst
        assert torch.equal(dst.reshape(-1).view(torch.uint8), expected)


@pytest.mark.parametrize("columns", SIZES)
def test_another_size_is_refused_always(world: World, columns: int) -> None:
    tensor = stored(world, columns)
    dst = torch.zeros(4, columns + 1, dtype=tensor.dtype)
    for reinterpret in (False, True):
        with pytest.raises(InvalidArgument, match=f"of {dst.nbytes} bytes, .* of {tensor.nbytes} bytes$"):
            world[0].get("k", dst=dst, reinterpret=reinterpret)
    assert not dst.any()


@pytest.mark.parametrize("columns", SIZES)
def test_bytes_that_a_kernel_wrote_have_any_dtype(world: World, columns: int) -> None:
    tensor = torch.randn(4, columns)
    plan = world[0].open_for_write("k", tensor.nbytes, preferred_segment=1)
    place = Place(1, 0, 0, plan.payload_base, plan.bytes_total)
    world[0].engine.single.payload(place).copy_(tensor.reshape(-1).view(torch.uint8))
    world[0].commit("k")
    for like in (torch.zeros_like(tensor), torch.zeros(columns, 4)):
        assert torch.equal(world[1].get("k", dst=like).reshape(-1), tensor.reshape(-1))
    with pytest.raises(InvalidArgument, match="the object raw bytes of"):
        world[1].get("k", dst=torch.zeros(4, columns + 1))


def test_one_wrong_dst_among_many(world: World) -> None:
    world[0].put_many(["a", "b"], [torch.ones(8), torch.ones(8)], preferred_segment=1)
    with pytest.raises(InvalidArgument, match=r"torch.int32 \[8\] of 32 bytes, the object torch.float32 \[8\]"):
        world[1].get_many(["a", "b"], dsts=[torch.zeros(8), torch.zeros(8, dtype=torch.int32)])


def test_reinterpret_without_dst_is_refused(world: World) -> None:
    world[0].put("k", torch.ones(8))
    for call in (
        lambda: world[0].get("k", reinterpret=True),
        lambda: world[0].get_many(["k"], reinterpret=True),
        lambda: world[0].get_async("k", reinterpret=True).wait(10),
    ):
        with pytest.raises(InvalidArgument, match="dst"):
            call()


def test_an_empty_object(world: World) -> None:
    world[0].put("k", torch.empty(2, 0, dtype=torch.int8))
    with pytest.raises(InvalidArgument, match=r"torch.float32 \[0\] of 0 bytes, the object torch.int8 \[2, 0\]"):
        world[1].get("k", dst=torch.empty(0))
    assert world[1].get("k", dst=torch.empty(0), reinterpret=True).shape == (0,)


def test_raw_bytes_go_into_blocks(world: World) -> None:
    layers = [torch.zeros(2, 2, 4, 2, 8) for _ in range(2)]
    block = torch.randn(2, 2, 4, 2, 8)
    plan = world[0].open_for_write("k", block.nbytes, preferred_segment=1)
    place = Place(1, 0, 0, plan.payload_base, plan.bytes_total)
    world[0].engine.single.payload(place).copy_(block.reshape(-1).view(torch.uint8))
    world[0].commit("k")
    assert world[1].paged_kv(layers, kv_dim=1).get(["k"], [1]) == [None]
    assert all(torch.equal(layer[1], part) for layer, part in zip(layers, block, strict=True))


@pytest.mark.usefixtures("calls_in_python")
def test_an_object_of_another_shape_that_comes_while_a_read_is_torn_is_no_error_of_the_caller(
    world: World, calls: Calls
) -> None:
    cache, dst = world[0], torch.zeros(4)
    cache.put("k", torch.zeros(4))

    def torn(*_: Any) -> int:
        cache.remove("k")
        cache.put("k", torch.zeros(8))
        return Status.TORN

    calls.instead(cache.engine.single, "_get_bytes", torn, at=(1,))
    with pytest.raises(KeyNotFound):
        cache.get("k", dst=dst)
