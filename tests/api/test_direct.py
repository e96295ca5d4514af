"""One native call for a key and a tensor does what the usual way does, or leaves the call to it."""

import itertools
import sys
import threading
from collections.abc import Iterator
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
from nanokv.device.protocol.status import Status
from nanokv.errors import DuplicateKey, InvalidArgument, KeyNotFound, OutOfMemory, ReuseViolation
from nanokv.transfer.direct import LEFT_TO_CALLER
from nanokv.transfer.dlpack import describing_function
from nanokv.transfer.host_tensors import in_host_memory

PAGE = 4096
MODEL = nanokv.Identity("model", revision="1", tokenizer="t")
WAYS: list[dict[str, Any]] = [{}, {"namespace": "a tenant"}, {"identity": MODEL}]
IDS = ["plain", "namespace", "identity"]
pytestmark = [
    pytest.mark.usefixtures("described"),
    pytest.mark.skipif(describing_function() is None, reason="torch has no C function that describes a tensor"),
]


@pytest.fixture
def described() -> None:
    """The kind of tensor that most tests use is the last one."""
    in_host_memory(torch.zeros(8, dtype=torch.int64))


@pytest.fixture(params=WAYS, ids=IDS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[NanoKVCache, NanoKVCache]]:
    """A cache that has direct calls, and one that has none."""
    one, other = nanokv.local_world(2, 1 << 20, page_bytes=PAGE, **request.param)
    with one, other:
        in_host_memory(torch.zeros(8, dtype=torch.int64))
        other._direct = None
        yield one, other


def values(number: int = 1) -> torch.Tensor:
    return torch.full((8,), number)


def direct(cache: NanoKVCache) -> Any:
    assert cache._direct is not None
    return cache._direct


def test_a_cache_in_host_memory_has_it_and_no_other_one() -> None:
    for options in WAYS:
        with nanokv.local_world(1, 1 << 20, page_bytes=PAGE, **options)[0] as cache:
            assert cache._direct is not None
    with nanokv.local_world(1, 1 << 20, page_bytes=PAGE, alloc="host")[0] as cache:
        assert cache._direct is None


@given(key=st.text(max_size=300))
def test_both_ways_hash_alike(world: tuple[NanoKVCache, NanoKVCache], key: str) -> None:
    one, other = world
    there = values()
    status = direct(one).put(key, values(7), 1)
    surrogates = any("\ud800" <= char <= "\udfff" for char in key)
    assert status == (LEFT_TO_CALLER if surrogates else 0)
    if surrogates:
        one.put(key, values(7), preferred_segment=1)
    assert torch.equal(other.get(key, dst=there), values(7))
    other.remove(key)
    other.put(key, values(9), preferred_segment=1)
    assert torch.equal(one.get(key, dst=there), values(9))
    if not surrogates:
        assert direct(one).get(key, there) == direct(one).exists(key) == 0
    digest = one.digest(key)
    assert direct(one).exists(digest) == 0 and key in one and key in other
    assert direct(one).get(digest, there) == 0
    one.remove(digest)
    assert direct(one).exists(digest) == Status.MISS and key not in one


@pytest.fixture(scope="module", params=WAYS, ids=IDS)
def world(request: pytest.FixtureRequest) -> Iterator[tuple[NanoKVCache, NanoKVCache]]:
    one, other = nanokv.local_world(2, 1 << 20, page_bytes=PAGE, **request.param)
    with one, other:
        other._direct = None
        yield one, other


@pytest.mark.parametrize("key", ["k" * 100_000, "\0", "é" * 200, "\ud800", b"bytes", b""])
def test_keys_of_any_length_and_kind(pair: tuple[NanoKVCache, NanoKVCache], key: str | bytes) -> None:
    one, other = pair
    one.put(key, values(3), preferred_segment=1)
    assert torch.equal(other.get(key), values(3))
    assert torch.equal(one.get(key, dst=values()), values(3))


def test_a_str_of_another_type_is_a_str(pair: tuple[NanoKVCache, NanoKVCache]) -> None:
    class Name(str):
        __slots__ = ()

    one, other = pair
    one.put(Name("n"), values(4), preferred_segment=0)
    assert torch.equal(other.get("n"), values(4))


def test_wrong_calls_are_told_by_the_usual_way(pair: tuple[NanoKVCache, NanoKVCache]) -> None:
    one, other = pair
    one.put("k", values(), preferred_segment=1)
    for cache in (one, other):
        for key in (None, 3, ["k"], (1, 2, 3), (2**64, 0)):
            with pytest.raises(InvalidArgument):
                cache.put(key, values(), preferred_segment=1)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument):
                cache.get(key, dst=values())  # type: ignore[call-overload]
            with pytest.raises(InvalidArgument):
                cache.exists(key)  # type: ignore[arg-type]
        unsuited: list[Any] = ["dst", 3, torch.zeros(8), torch.zeros(9, dtype=torch.int64)]
        for dst in (*unsuited, torch.zeros(16, dtype=torch.int64)[::2]):
            for last in (torch.zeros(8), values()):
                in_host_memory(last)
                with pytest.raises(InvalidArgument):
                    cache.get("k", dst=dst)
        in_host_memory(values())
        with pytest.raises(DuplicateKey):
            cache.put("k", values(), preferred_segment=1)
        with pytest.raises(KeyNotFound):
            cache.get("none", dst=values())
        assert cache.get("none", None, dst=values()) is None
    stranger = KeyDigest(5, 77 << 32)
    with pytest.raises(ReuseViolation):
        one.put(stranger, values(), preferred_segment=1)
    with pytest.raises(ReuseViolation):
        one.get(stranger, dst=values())
    with pytest.raises(ReuseViolation):
        one.exists(stranger)


def test_what_is_left_to_the_caller_has_not_begun() -> None:
    (cache,) = nanokv.local_world(1, 1 << 20, page_bytes=PAGE)
    with cache:
        in_host_memory(values())
        wrong: list[tuple[Any, Any]] = [("k", torch.zeros(3)), (5, values()), ("k", None), ("\ud800", values())]
        for key, tensor in (*wrong, (b"k", values())):
            assert direct(cache).put(key, tensor, 0) == LEFT_TO_CALLER
            assert direct(cache).get(key, tensor) == LEFT_TO_CALLER
        cache.flush()
        assert "k" not in cache and not cache.segment_count()


def test_lazy_tensors_are_stored_as_their_values(pair: tuple[NanoKVCache, NanoKVCache]) -> None:
    one, other = pair
    numbers = torch.randn(8, dtype=torch.complex64)
    for number, tensor in enumerate((numbers, numbers.conj(), numbers.conj().imag.contiguous(), numbers.conj().imag)):
        in_host_memory(torch.zeros(8, dtype=tensor.dtype))
        one.put(f"lazy {number}", tensor, preferred_segment=1)
        assert torch.equal(other.get(f"lazy {number}"), tensor)
    for lazy in (numbers.conj(), torch.view_as_complex(torch.zeros(8, 2)).conj().imag):
        in_host_memory(torch.zeros(8, dtype=lazy.dtype))
        with pytest.raises(InvalidArgument):
            one.get("lazy 0" if lazy.is_complex() else "lazy 3", dst=lazy)


def test_a_full_segment_makes_room() -> None:
    (cache,) = nanokv.local_world(1, 1 << 20, page_bytes=PAGE)
    with cache:
        for number in range(600):
            cache.put(f"k{number}", values(number), preferred_segment=0)
        assert cache.stats()["evictions"] and torch.equal(cache.get("k599"), values(599))
    (cache,) = nanokv.local_world(1, 1 << 20, page_bytes=PAGE, evict=False)
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
            before = cache.stats()["refused"]
            with pytest.raises(OutOfMemory):
                put()
            return int(cache.stats()["refused"]) - before

        def many(**more: Any) -> None:
            error = cache.put_many(["x"], [refused], **more)[0]
            assert error is not None
            raise error

        once = counted(lambda: cache.put("x", refused))
        in_host_memory(refused)
        assert counted(lambda: cache.put("x", refused, preferred_segment=0)) == once
        assert counted(many) == counted(lambda: many(preferred_segment=0)) == once


def test_a_timeout_of_0_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    (cache,) = nanokv.local_world(1, 1 << 20, page_bytes=PAGE)
    with cache:
        in_host_memory(values())
        monkeypatch.setattr(cache, "_single", None)  # so that only the direct call can put
        for number, timeout in enumerate((0, 0.0, float("0"), False or 0)):
            cache.put(f"k{number}", values(), preferred_segment=0, timeout=timeout)
        for wrong in (None, "0", False, float("nan")):
            with pytest.raises(InvalidArgument):
                cache.put("x", values(), preferred_segment=0, timeout=wrong)  # type: ignore[arg-type]
        monkeypatch.undo()


def test_no_object_of_python_is_held_or_lost(pair: tuple[NanoKVCache, NanoKVCache]) -> None:
    one, _ = pair
    key, digest, tensor = "a key that nobody else has", one.digest("another"), values(5)
    wrong = "wrong \ud800"
    things: tuple[Any, ...] = (key, digest, tensor, wrong, xxhash.xxh3_128_digest)
    for each in (key, digest):
        one.put(each, tensor, preferred_segment=1)
    before = [sys.getrefcount(thing) for thing in things]
    for _ in range(1000):
        for each in (key, digest):
            assert direct(one).get(each, tensor) == 0
            assert direct(one).put(each, tensor, 1) > 0  # DUPLICATE
        assert direct(one).put(wrong, tensor, 1) == LEFT_TO_CALLER
    assert [sys.getrefcount(thing) for thing in things] == before


@pytest.mark.parametrize("checksum", [False, True])
def test_bytes_of_any_object_are_taken(checksum: bool) -> None:
    with nanokv.local_world(1, 1 << 20, page_bytes=PAGE, checksum=checksum)[0] as cache:
        room = torch.zeros(2 * PAGE, dtype=torch.uint8)
        take = partial(direct(cache).take, address=room.data_ptr(), room=room.numel())
        for key, nbytes in {"none": 0, "one": 1, "ключ": 5000, "all": 2 * PAGE}.items():
            tensor = torch.arange(nbytes, dtype=torch.int64).to(torch.uint8)
            cache.put(key, tensor)
            assert take(key) == take(cache.digest(key)) == nbytes and torch.equal(room[:nbytes], tensor)
        cache.put("long", torch.zeros(2 * PAGE + 1, dtype=torch.uint8))
        cache.put("floats", torch.ones(3))
        assert take("long") < 0 and take("missing") < 0 and take(b"one") < 0 and take("\ud800") < 0 and take(7) < 0
        assert take("floats") == 12 and torch.equal(room[:12].view(torch.float32), torch.ones(3))
        if checksum:
            at = cache.get_location("floats").payload_off
            cache._heap.segment(0)[at] ^= 1
            assert take("floats") < 0
            cache._heap.segment(0)[at] ^= 1
        assert take("floats") == 12


def test_what_is_taken_is_whole(pair: tuple[NanoKVCache, NanoKVCache]) -> None:
    """While another thread replaces it."""
    one, other = pair
    room, enough = torch.zeros(PAGE, dtype=torch.uint8), threading.Event()

    def replace() -> None:
        for lap in itertools.count():
            other.put("k", torch.full((PAGE - lap % 3,), lap % 251, dtype=torch.uint8), preferred_segment=0)
            if enough.is_set():
                return
            other.remove("k")

    with ThreadPoolExecutor(1) as pool:
        done, taken = pool.submit(replace), 0
        while taken < 300:
            nbytes = direct(one).take("k", room.data_ptr(), PAGE)
            if nbytes >= 0:
                taken += 1
                assert PAGE - 3 < nbytes <= PAGE and (room[:nbytes] == room[0]).all()
        enough.set()
        done.result()
    assert direct(one).take("k", room.data_ptr(), PAGE) > 0


def test_threads_share_the_records(pair: tuple[NanoKVCache, NanoKVCache]) -> None:
    one, other = pair

    def work(number: int) -> None:
        tensor, there = torch.full((4 + number % 2,), number), torch.zeros(4 + number % 2, dtype=torch.int64)
        for lap in range(300):
            key = f"{number} of {lap}"
            one.put(key, tensor, preferred_segment=lap % 2)
            assert torch.equal(one.get(key, dst=there), tensor) and torch.equal(other.get(key), tensor)
            there.zero_()
            one.remove(key)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
