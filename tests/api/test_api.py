"""The behaviour of the API, the same over every heap and both allocators. fsck follows each test (conftest)."""

import threading
import time
from collections.abc import Callable

import pytest
import torch

import nanokv
from nanokv.device.machines.records import Place
from nanokv.errors import (
    DuplicateKey,
    InvalidArgument,
    KeyNotFound,
    NanoKVError,
    NotReady,
    ObjectPinned,
    OutOfMemory,
    WaitTimeout,
)

PAGE = 4096
World = list[nanokv.NanoKVCache]
MakeWorld = Callable[..., World]

DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world(n=2, heap_bytes=256 * PAGE, page_bytes=PAGE, evict=False)


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    nbytes = max(1, torch.Size(shape).numel() * dtype.itemsize)
    raw = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    if dtype is torch.bool:
        raw = raw % 2
    return raw[: torch.Size(shape).numel() * dtype.itemsize].view(dtype).reshape(shape)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))
    )


@pytest.mark.parametrize("owner", [None, 0, 1])
def test_put_then_get_from_either_rank(world: World, owner: int | None) -> None:
    tensor = filled((3, 5), torch.float32)
    world[0].put("k", tensor, preferred_segment=owner)
    for cache in world:
        assert cache.exists("k")
        assert same_bytes(cache.get("k"), tensor)
    if owner is not None:
        assert world[0].get_location("k").owner_rank == owner


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (2, 0, 3), (3, 4, 5), (1, 1, 1, 1, 1, 1, 2)])
def test_dtype_and_shape_come_back(world: World, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = filled(shape, dtype)
    world[0].put("k", tensor)
    assert same_bytes(world[1].get("k"), tensor)


@pytest.mark.parametrize("nbytes", [1, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE, 33 * PAGE + 17, 128 * PAGE])
def test_sizes_around_pages(world: World, nbytes: int) -> None:
    tensor = filled((nbytes,), torch.uint8, nbytes)
    world[0].put("k", tensor, preferred_segment=1)
    assert same_bytes(world[1].get("k"), tensor)
    assert world[0].get_location("k").n_pages == -(-nbytes // PAGE)


@pytest.mark.parametrize("rows", [4, 150])
def test_layouts_other_than_contiguous(world: World, rows: int) -> None:
    base = filled((rows, 700), torch.float32)
    cases = {
        "transposed": base.t(),
        "strided": base[::2, ::3],
        "expanded": base[:, :1].expand(rows, 50),
        "conjugated": torch.view_as_complex(base.reshape(rows, 350, 2)).conj(),
    }
    for key, tensor in cases.items():
        world[0].put(key, tensor)
        assert same_bytes(world[1].get(key), tensor.resolve_conj().contiguous())


def test_a_tensor_that_requires_grad(world: World) -> None:
    tensor = torch.ones(3, requires_grad=True)
    world[0].put("k", tensor)
    assert torch.equal(world[1].get("k"), tensor.detach())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3).to_sparse(),
        torch.ones(3, device="meta"),
        torch.ones((1,) * 8),
        [1, 2, 3],
    ],
    ids=["sparse", "meta", "eight dimensions", "list"],
)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_stored_is_refused(world: World, tensor: torch.Tensor) -> None:
    with pytest.raises(InvalidArgument):
        world[0].put("k", tensor)
    assert not world[0].exists("k")


@pytest.mark.parametrize("key", ["", "a", "ключ-鍵-🔑", "x" * (1 << 20), b"\x00\xff", b"", "\udcff"])
def test_keys(world: World, key: str | bytes) -> None:
    world[0].put(key, torch.ones(2))
    assert world[1].exists(key)
    assert torch.equal(world[1].get(key), torch.ones(2))
    world[1].remove(key)
    assert not world[0].exists(key)


@pytest.mark.parametrize("key", [None, 7, 1.5, ("a", "b"), (1, 2, 3), (1 << 63, 0)])
def test_what_is_no_key_is_refused(world: World, key: object) -> None:
    with pytest.raises(InvalidArgument):
        world[0].put(key, torch.ones(1))  # type: ignore[arg-type]


def test_a_digest_is_a_key(world: World) -> None:
    digest = world[0].digest("k")
    world[0].put(digest, torch.ones(2))
    assert torch.equal(world[1].get("k"), torch.ones(2))
    assert world[1].digest(b"k") == digest


def test_a_duplicate_is_refused_and_changes_nothing(world: World) -> None:
    world[0].put("k", torch.ones(2), preferred_segment=0)
    for cache in world:
        for owner in (0, 1):
            with pytest.raises(DuplicateKey, match="'k'"):
                cache.put("k", torch.zeros(9), preferred_segment=owner)
    assert torch.equal(world[1].get("k"), torch.ones(2))


def test_update_is_remove_then_put(world: World) -> None:
    for value in range(5):
        world[0].put("k", torch.full((3,), value), preferred_segment=value % 2)
        assert world[1].get("k")[0] == value
        world[1].remove("k")
        with pytest.raises(KeyNotFound, match="'k'"):
            world[0].get("k")
        with pytest.raises(KeyNotFound):
            world[0].remove("k")


def test_dst(world: World) -> None:
    for n in (100, 100_000):
        tensor = filled((n,), torch.float32)
        world[0].put(f"k{n}", tensor, preferred_segment=1)
        dst = torch.zeros(n)
        assert world[0].get(f"k{n}", dst=dst) is dst
        assert same_bytes(dst, tensor)


def test_a_wrong_dst_is_refused_before_anything_is_copied(world: World) -> None:
    for n in (100, 100_000):
        key = f"k{n}"
        world[0].put(key, torch.ones(n))
        short, wide = torch.zeros(n - 1), torch.zeros(n, 2)
        for dst in (
            short,
            torch.zeros(n + 1),
            wide[:, 0],
            torch.zeros(n, device="meta"),
            torch.zeros(n, dtype=torch.int8),
        ):
            with pytest.raises(InvalidArgument):
                world[1].get(key, dst=dst)
        assert not short.any() and not wide.any()


def test_full_is_an_answer_and_freed_space_is_usable(world: World) -> None:
    stored = []
    with pytest.raises(OutOfMemory) as error:
        for i in range(1000):
            world[0].put(f"k{i}", filled((PAGE,), torch.uint8, i), preferred_segment=1)
            stored.append(i)
    assert isinstance(error.value, MemoryError)
    assert len(stored) == 256
    for i in stored:
        assert same_bytes(world[1].get(f"k{i}"), filled((PAGE,), torch.uint8, i))
    for i in stored:
        world[1].remove(f"k{i}")
    big = filled((128 * PAGE,), torch.uint8)
    world[0].put("big", big, preferred_segment=1)
    assert same_bytes(world[0].get("big"), big)


def test_too_large_is_refused(world: World) -> None:
    with pytest.raises((InvalidArgument, OutOfMemory)):
        world[0].put("k", torch.zeros(300 * PAGE, dtype=torch.uint8))
    assert not world[0].exists("k")


def test_eviction_lets_a_full_heap_go_on(make_world: MakeWorld) -> None:
    world = make_world(n=2, heap_bytes=64 * PAGE, page_bytes=PAGE, evict=True)
    for i in range(300):
        world[0].put(f"k{i}", filled((PAGE,), torch.uint8, i), preferred_segment=1)
    assert same_bytes(world[1].get("k299"), filled((PAGE,), torch.uint8, 299))
    held = [i for i in range(300) if world[1].exists(f"k{i}")]
    assert 32 <= len(held) <= 64
    for i in held:
        assert same_bytes(world[0].get(f"k{i}"), filled((PAGE,), torch.uint8, i))


def test_plan(world: World) -> None:
    payload = filled((3 * PAGE + 5,), torch.uint8)
    plan = world[0].open_for_write("k", payload.numel(), preferred_segment=1)
    assert (plan.dst_rank, plan.n_pages, plan.page_bytes, plan.bytes_total) == (1, 4, PAGE, payload.numel())
    assert not world[1].exists("k")
    with pytest.raises(NotReady):
        world[1].get("k")
    with pytest.raises(NotReady):
        world[1].get_location("k")
    with pytest.raises(DuplicateKey):
        world[1].put("k", torch.ones(1))
    target = world[0].engine.single.payload(Place(1, 0, 0, plan.payload_base, plan.bytes_total))
    target.copy_(payload)
    world[0].commit("k")
    meta = world[1].get_location("k")
    assert (meta.header_off, meta.payload_off, meta.epoch) == (plan.header_off, plan.payload_base, plan.epoch)
    assert meta.key_hash == plan.key_hash
    assert same_bytes(world[1].get("k"), payload)


def test_plan_aborted(world: World) -> None:
    world[0].open_for_write("k", 5 * PAGE, preferred_segment=1)
    world[0].abort("k")
    with pytest.raises(KeyNotFound):
        world[0].commit("k")
    with pytest.raises(KeyNotFound):
        world[1].get("k")
    world[1].put("k", torch.ones(3))


@pytest.mark.parametrize("size", [-1, 1.5, None, True])
def test_plan_of_a_wrong_size(world: World, size: object) -> None:
    with pytest.raises(InvalidArgument):
        world[0].open_for_write("k", size)  # type: ignore[arg-type]


def test_pin_holds_the_bytes_in_place(world: World) -> None:
    tensor = filled((2, 3000), torch.float32)
    world[0].put("k", tensor, preferred_segment=1)
    with world[1].pin("k") as view:
        assert same_bytes(view, tensor)
        with pytest.raises(ObjectPinned):
            world[0].remove("k")
        with world[0].pin("k"), pytest.raises(ObjectPinned):
            world[1].remove("k")
        assert world[1].clear() == 0
    world[0].remove("k")
    with pytest.raises(KeyNotFound):
        world[1].pin("k")


def test_a_pin_released_twice_counts_once(world: World) -> None:
    world[0].put("k", torch.ones(4))
    one, two = world[0].pin("k"), world[1].pin("k")
    one.release()
    one.release()
    with pytest.raises(ObjectPinned):
        world[0].remove("k")
    two.release()
    world[0].remove("k")


def test_wait_sees_a_later_put(world: World) -> None:
    keys = [f"k{i}" for i in range(8)]
    putting = threading.Event()

    def produce() -> None:
        putting.wait(10)
        for key in keys:
            world[0].put(key, torch.ones(4), preferred_segment=1)

    thread = threading.Thread(target=produce)
    thread.start()
    putting.set()
    world[1].wait(keys, timeout=10)
    assert world[1].exists_many(keys) == [True] * 8
    thread.join()


def test_wait_has_a_deadline(world: World) -> None:
    world[0].put("here", torch.ones(1))
    before = time.monotonic()
    with pytest.raises(WaitTimeout, match="1 of 2") as error:
        world[1].wait(["here", "never"], timeout=0.1)
    assert isinstance(error.value, TimeoutError)
    assert time.monotonic() - before >= 0.1


def test_many(world: World) -> None:
    keys = [f"k{i}" for i in range(10)]
    tensors = [filled((i + 1,), torch.int64, i) for i in range(10)]
    assert world[0].put_many(keys, tensors, preferred_segment=1) == [None] * 10
    again = world[0].put_many(["k3", "new"], tensors[:2])
    assert isinstance(again[0], DuplicateKey) and again[1] is None
    got = world[1].get_many([*keys, "none"])
    assert got[-1] is None
    assert all(t is not None and same_bytes(t, want) for t, want in zip(got, tensors, strict=False))
    dsts = [torch.empty_like(t) for t in tensors]
    assert [d is r for d, r in zip(dsts, world[1].get_many(keys, dsts=dsts), strict=True)] == [True] * 10
    assert world[0].exists_many(["k0", "none", "k9"]) == [True, False, True]
    assert world[0].remove_many(["k0", "none"]) == [True, False]
    for call in (lambda: world[0].put_many(["a"], []), lambda: world[0].get_many(["a"], dsts=[])):
        with pytest.raises(InvalidArgument):
            call()


def test_put_of_a_key_that_exists(world: World) -> None:
    world[0].put("k", torch.zeros(3), preferred_segment=1)
    world[0].put("k", torch.ones(5), exist_ok=True)
    world[0].put_async("k", torch.ones(5), exist_ok=True).wait(10)
    assert torch.equal(world[1].get("k"), torch.zeros(3)), "the old value stays"
    world[1].open_for_write("plan", 4)
    world[0].put("plan", torch.ones(1), exist_ok=True)
    assert not world[0].exists("plan")
    world[1].abort("plan")
    with pytest.raises((InvalidArgument, OutOfMemory)):
        world[0].put("large", torch.zeros(300 * PAGE, dtype=torch.uint8), exist_ok=True)


def test_get_with_a_default(world: World) -> None:
    world[1].open_for_write("plan", 4)
    assert world[0].get("none", None) is None
    assert world[0].get("plan", "not yet") == "not yet"
    dst = torch.zeros(4, dtype=torch.uint8)
    assert world[0].get("none", None, dst=dst) is None
    world[1].abort("plan")
    world[0].put("k", torch.ones(2))
    found = world[1].get("k", None)
    assert found is not None and same_bytes(found, torch.ones(2))
    with pytest.raises(KeyNotFound):
        world[0].get("none")
    with pytest.raises(InvalidArgument):
        world[0].get("k", None, dst=torch.ones(9))


def test_async(world: World) -> None:
    tensor = filled((50_000,), torch.float32)
    handles = [world[0].put_async(f"k{i}", tensor, preferred_segment=1) for i in range(4)]
    for handle in handles:
        handle.wait(10)
        assert handle.done()
    assert same_bytes(world[1].get_async("k2").wait(10), tensor)
    with pytest.raises(KeyNotFound):
        world[1].get_async("none").wait(10)


def test_index_keys_events_and_clear(world: World) -> None:
    seen: list[tuple[str, nanokv.KeyDigest | None]] = []
    stop = world[1].subscribe(lambda events: seen.extend((e.kind.value, e.key) for e in events))
    keys = [f"k{i}" for i in range(5)]
    for key in keys:
        world[0].put(key, torch.ones(4), preferred_segment=1)
    world[0].put("other", torch.ones(4), preferred_segment=0)
    world[1].flush()
    assert set(world[1].segment_keys()) == {world[1].digest(key) for key in keys}
    assert world[1].segment_count() == 5
    world[0].remove("k0")
    world[1].flush()
    assert sorted(kind for kind, _ in seen) == ["removed"] + ["stored"] * 5
    assert ("removed", world[1].digest("k0")) in seen
    stop()
    assert world[1].clear() == 4
    assert world[1].segment_count() == 0
    assert len(seen) == 6
    assert world[0].exists("other")


def test_a_listener_that_raises_does_no_harm(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def broken(events: object) -> None:
        raise RuntimeError("listener")

    world[1].subscribe(broken)
    world[0].put("k", torch.ones(1), preferred_segment=1)
    world[1].flush()
    assert world[1].segment_count() == 1
    assert "a listener raised" in caplog.text


def test_evict_until_below_takes_the_oldest(world: World) -> None:
    for i in range(64):
        world[0].put(f"k{i}", filled((PAGE,), torch.uint8, i), preferred_segment=1)
    time.sleep(0.1)  # the first eviction tells how long objects live here, as long as this one did: not microseconds
    world[1].evict_until_below(63 / 256)  # its code is compiled by now
    time.sleep(0.2)  # so that they are older than the others by far: the choice is not exact
    used = [f"k{i}" for i in range(32) if world[0].get(f"k{i}", None) is not None]
    world[1].evict_until_below(len(used) / 256)
    assert [key for key in (f"k{i}" for i in range(64)) if key in world[1]] == used
    with pytest.raises(InvalidArgument):
        world[1].evict_until_below(1.5)


def test_stats(world: World) -> None:
    world[0].put("k", torch.ones(PAGE // 4 + 1), preferred_segment=1)
    world[1].get("k")
    with pytest.raises(KeyNotFound):
        world[1].get("none")
    world[1].flush()
    mine, owner = world[0].stats(), world[1].stats()
    assert (mine["puts"], mine["bytes_tx"], owner["gets"], owner["misses"]) == (1, PAGE + 4, 1, 1)
    assert (owner["ready"], owner["heap_used"], owner["heap_total"], owner["ring_depth"]) == (
        1,
        2 * PAGE,
        256 * PAGE,
        0,
    )
    assert owner["indexed"] == 1 and owner["alloc"] in ("device", "host")


def test_preferred_segment_is_checked(world: World) -> None:
    for wrong in (-1, 2, "1"):
        with pytest.raises(InvalidArgument):
            world[0].put("k", torch.ones(1), preferred_segment=wrong)  # type: ignore[arg-type]


def test_pointers(world: World) -> None:
    bases = world[0].heap_bases_tensor
    assert bases.dtype == torch.int64 and bases.shape == (2,)
    assert world[0].remote_ptr(1, 64) == int(bases[1]) + 64
    assert world[0].symmetric_ptr(1, 64) == int(bases[0]) + 64
    for rank, offset in ((2, 0), (0, -1), (0, 1 << 60)):
        with pytest.raises(InvalidArgument):
            world[0].symmetric_ptr(rank, offset)


def test_namespaces_do_not_meet(make_world: MakeWorld) -> None:
    one = make_world(n=2, heap_bytes=16 * PAGE, page_bytes=PAGE, namespace="one")
    (other,) = nanokv.local_world(1, 1 << 20)
    with other:
        assert one[0].digest("k") != other.digest("k")


def test_a_closed_cache_says_so(world: World) -> None:
    world[0].put("k", torch.ones(1), preferred_segment=0)
    world[0].close()
    world[0].close()
    for call in (lambda: world[0].get("k"), lambda: world[0].put("j", torch.ones(1)), world[0].stats):
        with pytest.raises(NanoKVError, match="closed"):
            call()
