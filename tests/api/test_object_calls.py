"""put, get, exists, remove and take as one native call: they do what Python's way does, or hand the call to it."""

import contextlib
import gc
import inspect
import itertools
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import nanokv
from nanokv import KeyDigest, NanoKVCache
from nanokv.dtypes import DTYPE_NAMES
from nanokv.errors import DuplicateKey, InvalidArgument, KeyNotFound, OutOfMemory, PeerLost, ReuseViolation
from nanokv.transfer.descriptors import flat_bytes
from nanokv.transfer.dlpack import describing_function
from nanokv.transfer.object_calls import NO_DEFAULT, calls_in_python
from tests.support.faults import Calls
from tests.support.worlds import MakeWorld

PAGE = 4096
MODEL = nanokv.Identity("model", revision="1", tokenizer="t")
WAYS: list[dict[str, Any]] = [{}, {"namespace": "a tenant"}, {"identity": MODEL}]
IDS = ["plain", "namespace", "identity"]
Pair = tuple[NanoKVCache, NanoKVCache]
DTYPES = [getattr(torch, name) for name in DTYPE_NAMES if hasattr(torch, name)]
SHAPES = [(), (0,), (1,), (6,), (2, 3), (3, 2), (6, 1), (1, 6), (2, 0, 3), (1, 2, 3), (2, 3, 1, 1, 1, 1, 1)]
pytestmark = pytest.mark.skipif(describing_function() is None, reason="torch has no C function that describes a tensor")


def pair_of(**options: Any) -> Pair:
    """Two worlds alike: the calls of the first are native, those of the second are Python's."""
    (native,) = nanokv.local_world(1, 1 << 20, page_bytes=PAGE, **options)
    with calls_in_python():
        (python,) = nanokv.local_world(1, 1 << 20, page_bytes=PAGE, **options)
    assert native.engine.calls.native and not python.engine.calls.native
    return native, python


@pytest.fixture(params=WAYS, ids=IDS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    one, other = pair_of(**request.param)
    with one, other:
        yield one, other


def values(number: int = 1) -> torch.Tensor:
    return torch.full((8,), number)


def served(call: Any, *arguments: Any, **more: Any) -> list[str]:
    """Make a call; returns the functions of `object_calls` that Python has run for it."""
    names: list[str] = []

    def trace(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.endswith("object_calls.py"):
            names.append(frame.f_code.co_name)

    sys.setprofile(trace)
    try:
        call(*arguments, **more)
    finally:
        sys.setprofile(None)
    return names


def test_v1_has_none() -> None:
    with nanokv.local_world(1, 1 << 20, page_bytes=PAGE, alloc="host")[0] as cache:
        assert not cache.engine.calls.native


@pytest.fixture(scope="module", params=WAYS, ids=IDS)
def world(request: pytest.FixtureRequest) -> Iterator[Pair]:
    one, other = pair_of(**request.param)
    with one, other:
        yield one, other


@given(key=st.one_of(st.text(max_size=300), st.binary(max_size=300)))
def test_both_ways_hash_alike(world: Pair, key: str | bytes) -> None:
    one, other = world
    surrogates = isinstance(key, str) and any("\ud800" <= char <= "\udfff" for char in key)
    for cache in (one, other):
        digest = other.digest(key)  # Python's, of both
        with contextlib.suppress(KeyNotFound):
            cache.remove(digest)  # of an example that failed
        cache.put(key, values(7))
        assert digest in cache and key in cache
        assert torch.equal(cache.get(digest, dst=values()), values(7))
        assert torch.equal(cache.get(key), values(7))
        cache.remove(key)
        assert digest not in cache
        cache.put(digest, values(9))
        assert bool(served(cache.get, key, dst=values())) == (cache is other or surrogates)
        cache.remove(digest)


@pytest.mark.parametrize("key", ["k" * 100_000, "k" * 224, "k" * 225, "\0", "é" * 200, "\ud800", b"bytes", b"", ""])
def test_keys_of_any_length_and_kind(pair: Pair, key: str | bytes) -> None:
    for cache in pair:
        cache.put(key, values(3))
        assert torch.equal(cache.get(pair[1].digest(key)), values(3))
        assert torch.equal(cache.get(key, dst=values()), values(3))


def test_a_str_of_another_type_is_a_str(pair: Pair) -> None:
    class Name(str):
        __slots__ = ()

    class Raw(bytes):
        __slots__ = ()

    for cache in pair:
        cache.put(Name("n"), values(4))
        cache.put(Raw(b"r"), values(5))
        assert torch.equal(cache.get("n"), values(4)) and torch.equal(cache.get("r"), values(5))


def views() -> list[torch.Tensor]:
    """Tensors of all dtypes and shapes, and views of any strides; lazily conjugated and negated ones."""
    numbers = torch.randn(3, 4, dtype=torch.complex64)
    plain = [torch.arange(max(1, torch.Size(shape).numel())) for shape in SHAPES]
    made = [
        flat.to(dtype)[: torch.Size(shape).numel()].reshape(shape)
        for dtype in DTYPES
        for flat, shape in zip(plain, SHAPES, strict=True)
    ]
    lazy = [numbers.conj(), numbers.conj().imag, numbers.conj().imag.contiguous(), torch._neg_view(torch.ones(3))]
    strided = [torch.arange(24.0).view(2, 3, 4)[:, 1:, ::2], torch.arange(6).view(2, 3).t(), torch.ones(1).expand(5)]
    return [
        *made,
        *lazy,
        *strided,
        torch.arange(9)[3:],
        torch.arange(4).view(1, 4)[:, :1],
        torch.nn.Parameter(plain[3].float()),
    ]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are of one dtype and shape, and have the same values, bit for bit."""
    raw = [flat_bytes(each.detach().resolve_conj().resolve_neg().contiguous()) for each in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*raw)


def test_every_kind_of_tensor_in_turns_comes_back(pair: Pair) -> None:
    """Each beside all others: none of them is known from the call before."""
    for cache in pair:
        for number, tensor in enumerate(views()):
            cache.put(f"{number}", tensor)
            found = cache.get(f"{number}")
            again = cache.get(f"{number}")  # natively, like the first one's tensor
            there = torch.empty_like(found)
            assert cache.get(f"{number}", dst=there) is there
            for each in (found, again, there):
                assert same(each, tensor) and each.is_contiguous() and not each.is_neg() and not each.is_conj()
            cache.remove(f"{number}")


def test_usual_calls_run_no_function_of_python() -> None:
    one, other = pair_of()
    with one, other:
        for number, tensor in enumerate((values(), torch.ones(3), torch.ones(2, 2, dtype=torch.complex64))):
            for key in (f"s {number}", f"b {number}".encode(), one.digest(f"d {number}")):
                assert served(one.put, key, tensor) == []
                assert served(one.get, key, dst=torch.empty_like(tensor)) == []
                assert served(other.put, key, tensor) != []
        more: list[dict[str, Any]] = [{"preferred_segment": 0}, {"timeout": 0}, {"timeout": -0.0}, {"exist_ok": True}]
        for options in (*more, {"replicas": 0}, {"hold": None}):
            assert served(one.put, f"with {options}", values(), **options) == []
        assert served(one.put, "s 0", values(), exist_ok=True) == []
        assert served(one.get, "none", None, dst=values()) == served(one.get, "none", None) == []
        assert "get" in served(one.get, "s 0"), "the first of its kind"
        assert served(one.get, "s 0") == []
        assert served(one.exists, "s 0") == served(one.remove, "s 0") == []
        assert served(one.put, "held", values(), hold=9.0) != []


def test_arguments_by_name_and_wrong_ones_are_those_of_the_method(pair: Pair) -> None:
    """The native calls take the place of the methods in an object, so what Python allows and refuses is the same."""
    names: dict[str, Any] = {
        f"preferred_{'segment'}": 0,
        "".join(("exist", "_ok")): True,
    }  # strings that no compiler has seen
    for cache in pair:
        cache.put(key="by name", tensor=values())
        cache.put("by name", tensor=values(), **names)
        assert cache.get(key="by name").equal(cache.get("by name", dst=None, reinterpret=False))
        assert cache.get(key="none", default=5) == cache.get("none", default=5, dst=values()) == 5
        assert cache.exists(key="by name") and "by name" in cache
        cache.remove(key="by name")
    wrong: list[Callable[[Any], Any]] = [
        lambda cache: cache.put("k"),
        lambda cache: cache.put("k", values(), 0),
        lambda cache: cache.put("k", values(), tensor=values()),
        lambda cache: cache.put("k", values(), segment=0),
        lambda cache: cache.get(),
        lambda cache: cache.get("k", None, values()),
        lambda cache: cache.get("k", dsts=values()),
        lambda cache: cache.exists(),
        lambda cache: cache.remove("k", "k"),
    ]
    for call in wrong:
        told = []
        for cache in pair:
            with pytest.raises(TypeError) as error:
                call(cache)
            told.append(str(error.value))
        assert told[0] == told[1] and told[0].startswith("NanoKVCache.")
    assert all(cache.stats()["put_errors"] == 1 for cache in pair), "the put of what was there"


def test_a_native_call_shows_the_method_that_it_stands_for(pair: Pair) -> None:
    for name in ("put", "get", "exists", "remove"):
        native, method = getattr(pair[0], name), getattr(NanoKVCache, name)
        assert native.__name__ == name and native.__doc__ == method.__doc__
        kinds = {each.name: each.kind for each in inspect.signature(native).parameters.values()}
        wanted = list(inspect.signature(method).parameters.values())[1:]
        assert kinds == {each.name: each.kind for each in wanted}


def test_a_subclass_keeps_its_own_methods() -> None:
    class Counting(NanoKVCache):
        puts = 0

        def put(self, key: Any, tensor: torch.Tensor, **more: Any) -> None:
            self.puts += 1
            super().put(key, tensor, **more)

    with Counting(1 << 20, page_bytes=PAGE) as cache:
        cache.put("k", values(), preferred_segment=0)
        assert cache.puts == 1 and served(cache.get, "k", dst=values()) == []


def test_a_method_that_was_wrapped_is_called(calls: Calls) -> None:
    seen = calls.noted(NanoKVCache, "exists")
    with NanoKVCache(1 << 20, page_bytes=PAGE) as cache:
        assert not cache.exists("k") and seen == [(cache, "k")]


def test_no_native_call_is_left_of_a_closed_cache() -> None:
    (cache,) = nanokv.local_world(1, 1 << 20, page_bytes=PAGE)
    assert "put" in vars(cache)
    cache.close()
    assert vars(cache).keys().isdisjoint(("put", "get", "exists", "remove"))


def test_a_segment_is_noted_once() -> None:
    """The first put writes the quota into the segment, in Python; the others need not."""
    for cache in pair_of(quota_bytes=1 << 19, namespace="a tenant"):
        with cache:
            assert served(cache.put, "first", values()) != []
            assert (served(cache.put, "second", values()) == []) == bool(cache.engine.calls.native)
            assert cache.get("first", dst=values()).equal(values())


def test_wrong_calls_are_told_alike(pair: Pair) -> None:
    stranger = KeyDigest(5, 77 << 32)
    wrong: list[Any] = [
        *[lambda c, k=k: c.put(k, values()) for k in (None, 3, ["k"], (1, 2, 3), (2**64, 0), stranger)],
        *[lambda c, k=k: c.get(k, dst=values()) for k in (None, 3, ["k"], (1, 2, 3), stranger)],
        *[lambda c, k=k: c.get(k) for k in (None, stranger)],
        *[lambda c, k=k: c.exists(k) for k in (None, 3, stranger)],
        *[lambda c, k=k: c.remove(k) for k in (None, 3, stranger)],
        *[
            lambda c, t=t: c.put("x", t)
            for t in (None, "tensor", torch.ones(2).to_sparse(), torch.ones(2, device="meta"))
        ],
        *[lambda c, d=d: c.get("k", dst=d) for d in ("dst", 3, torch.zeros(8), torch.zeros(9, dtype=torch.int64))],
        lambda c: c.get("k", dst=torch.zeros(16, dtype=torch.int64)[::2]),
        lambda c: c.get("k", dst=torch.ones(8, dtype=torch.complex64).conj()),
        lambda c: c.put("k", values()),
        lambda c: c.put("k", values(), exist_ok=1),
        lambda c: c.get("none"),
        lambda c: c.get("none", dst=values()),
        lambda c: c.remove("none"),
        lambda c: c.get("k", reinterpret=True),
        lambda c: c.put("big", torch.zeros(2 << 20, dtype=torch.uint8)),
        *[lambda c, s=s: c.put("x", values(), preferred_segment=s) for s in (-1, 1, 2**70, True, "0", 0.0)],
        *[lambda c, s=s: c.put("x", values(), timeout=s) for s in (None, "0", False, float("nan"))],
        *[lambda c, s=s: c.put("x", values(), replicas=s) for s in (None, False, 1, 2.0)],
        lambda c: c.put("x", values(), hold="long"),
    ]
    for cache in pair:
        cache.put("k", values())
    for number, call in enumerate(wrong):
        told = []
        for cache in pair:
            try:
                call(cache)
            except (nanokv.NanoKVError, TypeError) as error:
                told.append((type(error), str(error)))
            else:
                pytest.fail(f"the call number {number} is not refused")
        assert told[0] == told[1], number
    counted = [{name: cache.stats()[name] for name in ("puts", "put_errors", "gets", "misses")} for cache in pair]
    assert counted[0] == counted[1] and counted[0]["puts"] == 1
    for cache in pair:
        cache.flush()
        assert list(cache.segment_keys()) == [cache.digest("k")]


def test_a_destination_in_a_segment_is_refused(pair: Pair) -> None:
    for cache in pair:
        cache.put("k", values(1))
        cache.put("other", values(2))
        with cache.pin("k") as pinned, pytest.raises(InvalidArgument, match="lies in a segment"):
            cache.get("other", dst=pinned)
        assert torch.equal(cache.get("k"), values(1))


def test_a_full_segment_makes_room() -> None:
    for cache in pair_of():
        with cache:
            for number in range(600):
                cache.put(f"k{number}", values(number), preferred_segment=0)
            assert cache.stats()["evictions"] and torch.equal(cache.get("k599"), values(599))
    for cache in pair_of(evict=False):
        with cache:
            with pytest.raises(OutOfMemory):
                for number in range(600):
                    cache.put(f"k{number}", values(number), preferred_segment=0)
            assert torch.equal(cache.get("k0", dst=values()), values(0))


def test_a_put_that_is_refused_is_counted_once() -> None:
    (cache,) = nanokv.local_world(1, 1 << 20, page_bytes=PAGE, evict=False)
    with cache:
        refused = torch.zeros(16 * PAGE, dtype=torch.uint8)
        for number in range(16):
            cache.put(f"k{number}", refused, preferred_segment=0)

        def counted(put: Any) -> int:
            before = cache.stats()
            with pytest.raises(OutOfMemory):
                put()
            assert cache.stats()["put_errors"] == before["put_errors"] + 1
            return int(cache.stats()["refused"]) - before["refused"]

        def many(**more: Any) -> None:
            error = cache.put_many(["x"], [refused], **more)[0]
            assert error is not None
            raise error

        once = counted(lambda: cache.put("x", refused))
        assert counted(lambda: cache.put("x", refused, preferred_segment=0)) == once
        assert counted(many) == counted(lambda: many(preferred_segment=0)) == once


def test_a_put_into_a_segment_that_is_left_goes_elsewhere_and_to_a_preferred_one_nowhere(make_world: MakeWorld) -> None:
    world = make_world(n=3, page_bytes=PAGE)
    keys = [key for key in (f"k{i}" for i in range(200)) if world[0].digest(key).key_check % 3 == 2]
    world[2].close()
    for key in keys:
        world[0].put(key, values(4))
        assert world[0].get_location(key).owner_rank in (0, 1) and torch.equal(world[1].get(key), values(4))
    with pytest.raises(PeerLost, match="rank 2"):
        world[0].put("x", values(), preferred_segment=2)
    assert "x" not in world[0]


def test_no_object_of_python_is_held_or_lost(pair: Pair) -> None:
    one, _ = pair
    key, raw, digest, tensor = "a key that nobody else has", b"of bytes", one.digest("another"), values(5)
    wrong, default, floats = "wrong \ud800", object(), torch.ones(8)
    things: tuple[Any, ...] = (
        *(key, raw, digest, tensor, wrong, default, floats, None, True, False, NO_DEFAULT),
        *(xxhash.xxh3_128_digest, torch.empty_like, float, int),
    )
    keys: tuple[Any, ...] = (key, raw, digest)
    for each in keys:
        one.put(each, tensor)
    one.put("floats", floats)
    rounds = 500

    def work() -> None:
        for each in keys:
            one.get(each, dst=tensor)
            one.get(each)
            one.put(each, tensor, exist_ok=True)
            one.get("none", default, dst=tensor)
            one.exists(each)
            with pytest.raises(DuplicateKey):
                one.put(each, tensor)
            with pytest.raises(KeyNotFound):
                one.get("none")
            with pytest.raises(KeyNotFound):
                one.remove("none")
        one.put("floats", floats, exist_ok=True)
        one.get("floats", dst=floats)
        one.put(wrong, tensor, exist_ok=True)

    for _ in range(5):  # what is made at first is no leak
        work()
    gc.collect()
    before = [sys.getrefcount(thing) for thing in things]
    for _ in range(rounds):
        work()
    gc.collect()
    after = [sys.getrefcount(thing) for thing in things]
    grown = [
        (thing, x, y) for thing, x, y in zip(things, before, after, strict=True) if abs(x - y) >= rounds // 2
    ]  # others hold None and types too, and more of them now and then
    assert not grown


def test_the_memory_goes_with_the_cache() -> None:
    (cache,) = nanokv.local_world(1, 1 << 20, page_bytes=PAGE)
    machine = weakref.ref(cache.engine.machine)
    gc.collect()
    gc.disable()
    try:
        cache.put("k", values())
        cache.get("k")
        cache.close()
        assert machine() is None, "something in a circle holds the world"
    finally:
        gc.enable()


@pytest.mark.parametrize("checksum", [False, True])
def test_bytes_of_any_object_are_taken(checksum: bool) -> None:
    with nanokv.local_world(1, 1 << 20, page_bytes=PAGE, checksum=checksum)[0] as cache:
        room = torch.zeros(2 * PAGE, dtype=torch.uint8)

        def take(key: Any) -> int:
            return cache.engine.calls.take(key, room.data_ptr(), room.numel())

        for key, nbytes in {"none": 0, "one": 1, "ключ": 5000, "all": 2 * PAGE}.items():
            tensor = torch.arange(nbytes, dtype=torch.int64).to(torch.uint8)
            cache.put(key, tensor)
            assert take(key) == take(cache.digest(key)) == nbytes and torch.equal(room[:nbytes], tensor)
        cache.put("long", torch.zeros(2 * PAGE + 1, dtype=torch.uint8))
        cache.put("floats", torch.ones(3))
        assert take("long") < 0 and take("missing") < 0 and take("\ud800") < 0 and take(7) < 0
        assert take("floats") == take(b"floats") == 12 and torch.equal(room[:12].view(torch.float32), torch.ones(3))
        if checksum:
            at = cache.get_location("floats").payload_off
            cache.engine.heap.segment(0)[at] ^= 1
            assert take("floats") < 0
            cache.engine.heap.segment(0)[at] ^= 1
        assert take("floats") == 12


def test_what_is_taken_is_whole(pair: Pair) -> None:
    """While another thread replaces it."""
    one, _ = pair
    room, enough = torch.zeros(PAGE, dtype=torch.uint8), threading.Event()
    take = partial(one.engine.calls.take, "k", room.data_ptr(), PAGE)

    def replace() -> None:
        for lap in itertools.count():
            one.put("k", torch.full((PAGE - lap % 3,), lap % 251, dtype=torch.uint8), preferred_segment=0)
            if enough.is_set():
                return
            one.remove("k")

    with ThreadPoolExecutor(1) as pool:
        done, taken = pool.submit(replace), 0
        while taken < 300:
            nbytes = take()
            if nbytes >= 0:
                taken += 1
                assert PAGE - 3 < nbytes <= PAGE and (room[:nbytes] == room[0]).all()
        enough.set()
        done.result()
    assert take() > 0


@pytest.mark.parametrize("nbytes", [64, 100_000], ids=["with the lock", "without the lock"])
def test_new_tensors_of_an_object_that_is_replaced_by_another_kind_are_of_its_kind(nbytes: int) -> None:
    """Kinds of one size: a reader that takes the bytes of one for the other would not be torn, but wrong."""
    (cache,) = nanokv.local_world(1, 4 << 20, page_bytes=PAGE)
    kinds = [torch.full((nbytes // 4,), 7, dtype=torch.int32), torch.full((nbytes // 8,), 9.0, dtype=torch.float64)]
    enough = threading.Event()

    def replace() -> None:
        for lap in itertools.count():
            cache.put("k", kinds[lap % 2])
            if enough.is_set():
                return
            cache.remove("k")

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with cache, ThreadPoolExecutor(1) as pool:
            done, seen = pool.submit(replace), set()
            end = time.monotonic() + 20
            for lap in itertools.count():
                found = cache.get("k", None)
                if found is not None:
                    seen.add(found.dtype)
                    assert torch.equal(found, kinds[found.dtype is torch.float64])
                if (lap >= 2000 and len(seen) == 2) or time.monotonic() > end:
                    break
            enough.set()
            done.result()
        assert len(seen) == 2
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("python", [False, True], ids=["native", "python"])
def test_counters_are_exact_under_threads(python: bool) -> None:
    one, other = pair_of()
    cache, tensor, laps = other if python else one, values(), 300

    def work(number: int) -> None:
        for lap in range(laps):
            key = f"{number} {lap % 20}"
            cache.put(key, tensor)
            cache.put(key, tensor, hold=1.0, exist_ok=True)  # Python's, and refused
            cache.get(key, dst=values())
            cache.get("none", None)
            cache.remove(key)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with one, other:
            with ThreadPoolExecutor(4) as threads:
                list(threads.map(work, range(4)))
            stats = cache.stats()
    finally:
        sys.setswitchinterval(before)
    assert stats["puts"] == stats["gets"] == stats["misses"] == stats["put_errors"] == 4 * laps
    assert stats["bytes_tx"] == stats["bytes_rx"] == 4 * laps * tensor.nbytes


def test_an_interpreter_without_its_lock_is_refused_by_name() -> None:
    code = """
import sys
sys._is_gil_enabled = lambda: False
import nanokv
try:
    nanokv.local_world(1, 1 << 20)
except nanokv.errors.HeapUnavailable as error:
    assert "PYTHON_GIL=1" in str(error), error
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "refused\n", done.stderr


def test_errors_of_a_digest_of_another_identity_name_both() -> None:
    (cache,) = nanokv.local_world(1, 1 << 20, page_bytes=PAGE, identity=MODEL)
    with cache, pytest.raises(ReuseViolation, match="this cache of"):
        cache.get(KeyDigest(5, 77 << 32))
