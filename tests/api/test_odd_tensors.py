"""Tensors whose memory is not what they show, and destinations that share memory: each call refuses them, or is right.

Whoever reads at the address of such a tensor ends the process, and so this test run.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.masked import masked_tensor

import nanokv
from nanokv import Hold, NanoKVCache
from nanokv.device.machines.own_memory import plain_tensor
from nanokv.errors import InvalidArgument
from nanokv.transfer.host_tensors import in_host_memory

PAGE = 1 << 16
VALUES = torch.arange(8.0)
HUGE = {  #: more than any memory, and more than 64 bits count
    "an expanded terabyte": lambda: torch.zeros(1, dtype=torch.uint8).expand(1 << 40),
    "more than 64 bits": lambda: torch.zeros(1).expand(1 << 31, 1 << 31),
}
pytestmark = pytest.mark.filterwarnings("ignore")  # torch calls some of these prototypes


class Wrapper(torch.Tensor):
    """A tensor that wraps another one, as DTensor and quantised weights do."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Wrapper":
        made: Wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.wrapped = inner
        return made

    wrapped: torch.Tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        plain = [each.wrapped if isinstance(each, Wrapper) else each for each in args]
        return func(*plain, **(kwargs or {}))


class Doubled(torch.Tensor):
    """A tensor with memory of its own, whose values are twice what lies there."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError


class Harmless(torch.Tensor):
    """A class of the caller that adds nothing to the memory."""


class Talkative(torch.Tensor):
    """A class that takes part in each operation, and changes none."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]


class Liar(torch.Tensor):
    """A class that shows another shape than it has."""

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return torch.Size((2, 4))


def freed(offset: int = 0) -> torch.Tensor:
    """A tensor whose storage was given back, as FSDP does."""
    tensor = torch.arange(8.0 + offset)[offset:]
    tensor.untyped_storage().resize_(0)
    return tensor


def cut() -> torch.Tensor:
    """A tensor, too large for one native call, whose storage was made smaller than its elements need."""
    tensor = torch.zeros(1 << 19)
    tensor.untyped_storage().resize_(64)
    return tensor


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(8)


#: what has no memory that holds its values; each call makes a new one
ODD: dict[str, Callable[[], Any]] = {
    "wrapper": lambda: Wrapper(VALUES),
    "memory and operations of its own": lambda: torch.Tensor._make_subclass(Doubled, VALUES),
    "liar": lambda: VALUES.as_subclass(Liar),
    "masked": lambda: masked_tensor(VALUES, torch.ones(8, dtype=torch.bool)),
    "fake": fake,
    "nested": lambda: torch.nested.nested_tensor([torch.ones(4), torch.ones(4)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(4), torch.ones(2)], layout=torch.jagged),
    "functional": lambda: torch._to_functional_tensor(VALUES.clone()),
    "zeros of forward differentiation": lambda: torch._efficientzerotensor((8,)),
    "storage given back": freed,
    "storage given back, behind its beginning": lambda: freed(4096),
    "storage cut": cut,
    "sparse": VALUES.to_sparse,
    "csr": lambda: VALUES.reshape(2, 4).to_sparse_csr(),
    "mkldnn": VALUES.to_mkldnn,
    "meta": lambda: VALUES.to("meta"),
    "quantised": lambda: torch.quantize_per_tensor(VALUES, 0.1, 0, torch.quint8),
    "uninitialised": torch.nn.UninitializedParameter,
    "eight dimensions": lambda: torch.zeros((1,) * 8),
}

#: what has, and is stored as its values
GOOD: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: VALUES,
    "parameter": lambda: torch.nn.Parameter(VALUES.clone()),
    "harmless": lambda: VALUES.as_subclass(Harmless),
    "talkative": lambda: VALUES.as_subclass(Talkative),
    "with a gradient": lambda: VALUES.clone().requires_grad_(),
    "of a graph": lambda: VALUES.clone().requires_grad_() * 1,
    "one element of a stride": lambda: torch.rand(8, 4)[:, 2][3:4],
    "a row of one element of a stride": lambda: torch.rand(8, 4)[:, 2][3:4].reshape(1, 1, 1),
    "expanded": lambda: torch.rand(1, 4).expand(3, 4),
    "transposed": lambda: torch.rand(3, 4).T,
    "without dimensions": lambda: torch.tensor(3.5),
    "empty": lambda: torch.zeros(0, 3),
    "empty, of a storage given back": lambda: freed()[:0],
    "conjugated": lambda: torch.randn(4, dtype=torch.complex64).conj(),
    "negated": lambda: torch.randn(4, dtype=torch.complex64).conj().imag,
    "copied on write": lambda: torch._lazy_clone(VALUES),
    "of an array": lambda: torch.from_numpy(np.arange(8.0)),
    "large": lambda: torch.rand(1 << 19),
    "large, one in a stride": lambda: torch.rand(1 << 19, 2)[:, 0],
    "a large parameter": lambda: torch.nn.Parameter(torch.rand(1 << 19)),
    "a large harmless one": lambda: torch.rand(1 << 19).as_subclass(Harmless),
}


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[NanoKVCache, NanoKVCache]]:
    one, other = nanokv.local_world(2, 32 << 20, page_bytes=PAGE)
    with one, other:
        yield one, other


@pytest.fixture(autouse=True)
def _empty(pair: tuple[NanoKVCache, NanoKVCache], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # with one thread the machine copies every size
    yield
    pair[0].clear()
    pair[1].clear()


def puts(cache: NanoKVCache, tensor: Any) -> dict[str, Callable[[], Any]]:
    """Every call that stores a tensor, each under a key of its own."""

    def many(key: str, **more: Any) -> None:
        outcome = cache.put_many([key], [tensor], **more)[0]
        if outcome is not None:
            raise outcome

    return {
        "put": lambda: cache.put("put", tensor),
        "preferred": lambda: cache.put("preferred", tensor, preferred_segment=1),
        "hold": lambda: cache.put("hold", tensor, hold=Hold(priority="high")),
        "replicas": lambda: cache.put("replicas", tensor, replicas=1),
        "both": lambda: cache.put("both", tensor, hold=5.0, replicas=1),
        "async": lambda: cache.put_async("async", tensor).wait(10),
        "many": lambda: many("many"),
        "many hold": lambda: many("many hold", hold=5.0),
        "many replicas": lambda: many("many replicas", replicas=1),
    }


@pytest.mark.parametrize("kind", ODD)
def test_each_kind_is_refused_by_every_put(pair: tuple[NanoKVCache, NanoKVCache], kind: str) -> None:
    for last in (VALUES, torch.zeros(3)):  # the last tensor that a call has seen may have the same dtype and shape
        for name, put in puts(pair[0], ODD[kind]()).items():
            in_host_memory(last)
            with pytest.raises(InvalidArgument):
                put()
            assert name not in pair[0]
    with contextlib.suppress(InvalidArgument):  # as rows
        outcomes = pair[0].put_many([f"r{i}" for i in range(8)], ODD[kind]())
        assert all(isinstance(outcome, InvalidArgument) for outcome in outcomes)


@pytest.mark.parametrize("kind", ODD)
def test_each_kind_is_refused_as_a_destination(pair: tuple[NanoKVCache, NanoKVCache], kind: str) -> None:
    one, _ = pair
    one.put("k", VALUES)
    one.put("l", VALUES)
    dst = ODD[kind]()
    calls: list[Callable[[], Any]] = [
        lambda: one.get("k", dst=dst),
        lambda: one.get("k", dst=dst, reinterpret=True),
        lambda: one.get_async("k", dst=dst).wait(10),
        lambda: one.get_part("k", 0, 32, dst=dst),
        lambda: one.get_many(["k"], dsts=[dst]),
        lambda: one.get_many(["k", "l"], dsts=[torch.zeros(8), dst]),
        lambda: one.get_many(["k"] * 8, dsts=dst),
    ]
    for call in calls:
        in_host_memory(VALUES)
        with pytest.raises(InvalidArgument):
            call()


@pytest.mark.parametrize("kind", GOOD)
def test_what_has_memory_is_stored_as_its_values(pair: tuple[NanoKVCache, NanoKVCache], kind: str) -> None:
    one, other = pair
    tensor = GOOD[kind]()
    for name, put in puts(one, tensor).items():
        if name in ("replicas", "both", "many replicas") and not tensor.numel():
            continue
        put()
        got = other.get(name)
        assert type(got) is torch.Tensor and got.dtype == tensor.dtype, name
        assert torch.equal(got, tensor.detach().as_subclass(torch.Tensor)), name


@pytest.mark.parametrize(
    "kind",
    [
        *("plain", "parameter", "harmless", "talkative", "with a gradient"),
        *("large", "a large parameter", "a large harmless one"),
    ],
)
def test_a_destination_with_memory_is_filled_and_returned(pair: tuple[NanoKVCache, NanoKVCache], kind: str) -> None:
    one, other = pair
    values = torch.rand(GOOD[kind]().shape)
    one.put("k", values, preferred_segment=1)
    gets: list[Callable[[torch.Tensor], Any]] = [
        lambda dst: other.get("k", dst=dst),
        lambda dst: other.get_part("k", 0, values.nbytes, dst=dst),
        lambda dst: other.get_many(["k"], dsts=[dst])[0],
        lambda dst: other.get_async("k", dst=dst).wait(10),
    ]
    for get in gets:
        dst = GOOD[kind]()
        dst = dst.clone().as_subclass(type(dst)) if type(dst) is not torch.nn.Parameter else dst
        assert get(dst) is dst
        assert torch.equal(dst.detach().as_subclass(torch.Tensor), values)


def test_one_element_of_a_stride_is_a_destination(pair: tuple[NanoKVCache, NanoKVCache]) -> None:
    one, other = pair
    one.put("k", torch.full((1,), 7.0), preferred_segment=1)
    for get in (
        lambda dst: other.get("k", dst=dst),
        lambda dst: other.get_part("k", 0, 4, dst=dst),
        lambda dst: other.get_many(["k"], dsts=[dst]),
    ):
        whole = torch.zeros(8, 4)
        get(whole[:, 2][3:4])
        assert whole[3, 2] == 7.0 and whole.count_nonzero() == 1


def test_within_a_transform_of_torch(pair: tuple[NanoKVCache, NanoKVCache]) -> None:
    one, _ = pair
    one.put("k", VALUES)

    def refused(tensor: torch.Tensor) -> torch.Tensor:
        in_host_memory(VALUES)
        for call in (
            lambda: one.put("x", tensor),
            lambda: one.get("k", dst=tensor),
            lambda: one.put_many(["x"], tensor),
        ):
            with pytest.raises(InvalidArgument):
                call()
        assert one.put_many(["x"], [tensor])[0] is not None
        assert torch.equal(one.get("k"), VALUES)  # of no tensor of the transform
        return tensor.sum()

    torch.vmap(refused)(torch.rand(2, 8))
    torch.func.grad(refused)(torch.rand(8))
    assert "x" not in one


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("elements", [8, 1 << 19])
def test_within_a_mode_of_torch_nothing_is_other(
    pair: tuple[NanoKVCache, NanoKVCache], elements: int, strict: bool
) -> None:
    one, _ = pair
    values, dsts = torch.rand(elements), [torch.zeros(elements) for _ in range(3)]
    with FakeTensorMode(allow_non_fake_inputs=not strict):
        one.put("k", values)
        one.put("held", values, hold=5.0)
        assert one.put_many(["many"], [values]) == [None]
        got = [one.get("k"), one.get("held"), *one.get_many(["many"])]
        part = one.get_part("k", 4, 8)
        one.get("k", dst=dsts[0])
        one.get_many(["k"], dsts=dsts[1:2])
        one.get_part("k", 0, values.nbytes, dst=dsts[2])
    assert torch.equal(part, values.view(torch.uint8)[4:12])
    for each in (*got, *dsts):
        assert type(each) is torch.Tensor and torch.equal(each, values)


def test_within_functionalize(pair: tuple[NanoKVCache, NanoKVCache]) -> None:
    one, _ = pair
    one.put("k", VALUES)
    dst, found = torch.zeros(8), []

    def work(tensor: torch.Tensor) -> torch.Tensor:
        found.append(one.get("k"))
        one.get("k", dst=dst)
        with pytest.raises(InvalidArgument):
            one.put("x", tensor)
        return tensor

    torch.func.functionalize(work)(torch.rand(8))
    assert torch.equal(dst, VALUES) and torch.equal(found[0], VALUES) and "x" not in one


@pytest.mark.parametrize("elements", [4, 1 << 18])
def test_rows_that_share_memory_are_no_destinations(pair: tuple[NanoKVCache, NanoKVCache], elements: int) -> None:
    one, other = pair
    keys, values = ["k0", "k1", "k2"], torch.rand(3, elements)
    one.put_many(keys, values, preferred_segment=1)
    whole = torch.zeros(3 * elements)
    first, middle = whole[:elements], whole[elements // 2 :][:elements]
    shared: list[Any] = [
        torch.zeros(1, elements).expand(3, elements),
        whole.as_strided((3, elements), (elements // 2, 1)),
        [first, middle, torch.zeros(elements)],
        [torch.zeros(elements), middle, first],
        [first, torch.zeros(elements), first],
        [first, torch.zeros(elements), middle.as_subclass(Harmless)],
    ]
    for dsts in shared:
        with pytest.raises(InvalidArgument, match="share memory"):
            other.get_many(keys, dsts=dsts)
    assert not whole.any()
    rows = torch.zeros(6, elements)[::2]
    assert other.get_many(keys, dsts=rows) == [True] * 3 and torch.equal(rows, values)
    backwards = list(whole.view(3, elements).unbind(0))[::-1]
    assert other.get_many(keys, dsts=backwards) == backwards
    assert torch.equal(torch.stack(backwards), values)


@pytest.mark.parametrize("elements", [8, 1 << 19])
def test_memory_of_a_segment_is_no_destination(pair: tuple[NanoKVCache, NanoKVCache], elements: int) -> None:
    """A pinned view is an object, which never changes."""
    one, other = pair
    for rank, key in enumerate(("there", "here")):
        one.put(key, torch.full((elements,), float(rank)), preferred_segment=1 - rank)
    with one.pin("there") as there, one.pin("here") as here:
        in_host_memory(here)
        for view in (there, here):
            for cache in pair:
                gets: list[Callable[[], Any]] = [
                    partial(cache.get, "here", dst=view),
                    partial(cache.get_part, "here", 0, view.nbytes, dst=view),
                    partial(cache.get_many, ["here"], dsts=[view]),
                    partial(cache.get_many, ["here", "there"], dsts=[torch.zeros(3), view]),
                    partial(cache.get_many, ["here"], dsts=view[None]),
                ]
                for get in gets:
                    with pytest.raises(InvalidArgument, match=r"in a segment|dst is torch"):
                        get()
        assert not there.any() and (here == 1).all()
        one.put("copy", here)  # a source may be one
    assert torch.equal(other.get("copy"), other.get("here"))


def test_empty_destinations_share_nothing(pair: tuple[NanoKVCache, NanoKVCache]) -> None:
    one, _ = pair
    for key in ("e0", "e1"):
        one.put(key, torch.zeros(0, 3))
    one.put("k", VALUES)
    assert one.get_many(["e0", "e1"], dsts=torch.zeros(2, 0, 3)) == [True, True]
    dst = torch.zeros(8)
    found = one.get_many(["e0", "k", "e1"], dsts=[dst[:0].view(0, 3), dst, dst[4:4].view(0, 3)])
    assert found[1] is dst and torch.equal(dst, VALUES)


@pytest.mark.parametrize("kind", ["wrapper", "storage given back", "nested", "functional", "fake"])
def test_an_engine_whose_layers_have_no_memory(pair: tuple[NanoKVCache, NanoKVCache], kind: str) -> None:
    layers = [torch.zeros(4, 2, 8, 2, 16), torch.zeros(4, 2, 8, 2, 16)]
    if kind == "fake":
        with FakeTensorMode():
            layers[1] = torch.zeros(4, 2, 8, 2, 16)
    elif kind == "wrapper":
        layers[1] = Wrapper(layers[1])
    elif kind == "functional":
        layers[1] = torch._to_functional_tensor(layers[1])
    elif kind == "nested":
        layers[1] = ODD["nested"]()
    else:
        layers[1].untyped_storage().resize_(0)
    with pytest.raises(InvalidArgument):
        pair[0].paged_kv(layers, kv_dim=1)


def test_blocks_that_share_memory_are_put_and_not_got(pair: tuple[NanoKVCache, NanoKVCache]) -> None:
    one, _ = pair
    values = torch.rand(1, 2, 8, 2, 16)
    layer = torch.zeros(4, 2, 8, 2, 16)
    both = torch.rand(5, 2, 8, 2, 16)
    a_head_on = torch.rand(4 * 2 * 8 * 2 * 16 + 16)
    shifted = [a_head_on[:-16].view(4, 2, 8, 2, 16), a_head_on[16:].view(4, 2, 8, 2, 16)]
    for layers in ([values.expand(4, 2, 8, 2, 16)], [layer, layer], [both[:4], both[1:]], shifted):
        paged = one.paged_kv(layers, kv_dim=1)
        assert paged.put(["k"], [3]) == [None]
        with pytest.raises(InvalidArgument, match="share memory"):
            paged.get(["k"], [1])
        one.remove("k")
    across = torch.rand(4, 3, 2, 8, 2, 16)  # the layers of a block side by side
    paged = one.paged_kv([across[:, number] for number in range(3)], kv_dim=1)
    assert paged.put(["a"], [3]) == [None] and paged.get(["a"], [1]) == [None]
    assert torch.equal(across[1], across[3])
    permuted = torch.rand(2, 4, 2, 8, 16).permute(1, 0, 3, 2, 4)  # K and V, blocks, heads, tokens
    paged = one.paged_kv([permuted], kv_dim=1)
    assert paged.put(["k"], [3]) == [None] and paged.get(["k"], [1]) == [None]
    assert torch.equal(permuted[1], permuted[3])


@pytest.mark.parametrize("kind", HUGE)
def test_what_no_segment_holds_is_refused_before_it_is_made(pair: tuple[NanoKVCache, NanoKVCache], kind: str) -> None:
    for put in puts(pair[0], HUGE[kind]()).values():
        with pytest.raises(InvalidArgument):
            put()
    assert pair[0].stats()["ready"] == 0


def test_layers_that_lie_in_a_segment_are_put_and_not_got(pair: tuple[NanoKVCache, NanoKVCache]) -> None:
    one = pair[0]
    one.put("layer", torch.rand(4, 2, 8, 2, 16), preferred_segment=1)
    with one.pin("layer") as view:
        before = view.clone()
        for cache in pair:
            paged = cache.paged_kv([torch.zeros(4, 2, 8, 2, 16), view], kv_dim=1)
            assert paged.put(["block"], [3]) == [None]
            gets: list[Callable[[], Any]] = [
                partial(paged.get, ["block"], [1]),
                partial(paged.get, ["block"], [1], layers=range(1), held=range(2)),
                paged.get_async(["block"], [1]).result,
            ]
            for get in gets:
                with pytest.raises(InvalidArgument, match="lies in a segment of this world"):
                    get()
            cache.remove("block")
        assert torch.equal(view, before)


def test_what_is_refused_says_why() -> None:
    said = {
        "wrapper": "Wrapper are what its operations say",
        "liar": "Liar looks other than its memory",
        "nested": "not a nested one",
        "storage given back": "its storage has 0 bytes, 32 are needed",
        "sparse": "not layout torch.sparse_coo",
        "uninitialised": "UninitializedParameter",
    }
    for kind, match in said.items():
        with pytest.raises(InvalidArgument, match=match):
            plain_tensor(ODD[kind]())
    for wrong in (None, 3, "tensor", np.zeros(3), [VALUES]):
        with pytest.raises(InvalidArgument, match=r"a torch\.Tensor is needed"):
            plain_tensor(wrong)
    assert plain_tensor(VALUES) is VALUES
