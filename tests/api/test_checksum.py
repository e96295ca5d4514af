"""Checksums: the same number on every machine, every changed word is seen, and no wrong bytes are returned."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

import nanokv
from nanokv.device.machines.native_code import native_function
from nanokv.device.machines.records import Place
from nanokv.device.memory.triton import GOLDEN, MIX_ONE, MIX_TWO, checksum_bytes, mixed
from nanokv.device.protocol.checksum import checksum
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import FLAG_CHECKSUM, OBJ_DESC, unpack
from nanokv.device.segment.views import SegmentView
from nanokv.errors import DuplicateKey, InvalidArgument, SegmentCorrupt
from nanokv.transfer.descriptors import describe
from tests.support.plain_world import native

WHOLE = (1 << 64) - 1
SIZES = (0, 1, 7, 8, 9, 64, 511, 4096, 4104, 8191)


def signed(word: int) -> int:
    """A 64-bit word as a signed integer."""
    return ((word & WHOLE) ^ (1 << 63)) - (1 << 63)


def mixed_reference(word: int, place: int) -> int:
    """`memory.mixed`, in Python's integers."""
    x = (word + (place + 1) * GOLDEN.value) & WHOLE
    x = ((x ^ (x >> 30)) * MIX_ONE.value) & WHOLE
    x = ((x ^ (x >> 27)) * MIX_TWO.value) & WHOLE
    return x ^ (x >> 31)


def unmixed(mixed_word: int, place: int) -> int:
    """The word of which `mixed_reference` makes another one."""
    x = mixed_word
    for shift, factor in ((31, MIX_TWO), (27, MIX_ONE), (30, None)):
        y = x
        for _ in range(64 // shift + 1):
            y = x ^ (y >> shift)
        x = y if factor is None else y * pow(factor.value, -1, 1 << 64) & WHOLE
    return (x - (place + 1) * GOLDEN.value) & WHOLE


def sum_reference(data: bytes, first: int = 0) -> int:
    """`memory.checksum_bytes`."""
    words = np.frombuffer(data + bytes(-len(data) % 8), "<u8").tolist()
    return signed(sum(mixed_reference(word, first + at) for at, word in enumerate(words)))


@triton.jit
def sum_kernel(address: tl.int64, nbytes: tl.int64, first: tl.int64, out_ptr: tl.tensor) -> None:
    """The Triton version, for the interpreter."""
    tl.store(out_ptr, checksum_bytes(address, nbytes, first))


@triton.jit
def sum_words(address: tl.int64, nbytes: tl.int64, first: tl.int64) -> Any:
    """The native version: numba compiles functions that a device function calls."""
    return checksum_bytes(address, nbytes, first)


# --- the arithmetic ---------------------------------------------------------------------------
@given(st.binary(max_size=200), st.integers(0, 7), st.integers(0, 2**40))
def test_the_native_sum_is_the_reference(data: bytes, shift: int, first: int) -> None:
    raw = np.frombuffer(bytes(shift) + data, np.uint8)
    assert native(sum_words)(raw.ctypes.data + shift, len(data), first) == sum_reference(data, first)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-16, 2**40))
def test_mixing_is_the_reference(word: int, place: int) -> None:
    assert native(mixed_word)(word, place) == signed(mixed_reference(word & WHOLE, place))


@triton.jit
def mixed_word(word: tl.int64, place: tl.int64) -> Any:
    """`mixed` natively."""
    return mixed(word, place)


def test_mixing_can_be_undone() -> None:
    """`mixed` is a bijection: a change of a single word always changes the sum."""
    dice = random.Random(1)
    for word in [0, 1, WHOLE, 1 << 63, *(dice.getrandbits(64) for _ in range(200))]:
        x = mixed_reference(word, 5)
        for shift, factor in ((31, MIX_TWO.value), (27, MIX_ONE.value), (30, 1)):
            x ^= (x >> shift) ^ (x >> 2 * shift)
            x = (x * pow(factor, -1, 1 << 64)) & WHOLE
        assert (x - 6 * GOLDEN.value) & WHOLE == word


def test_sums_of_pieces_add_up() -> None:
    data = random.Random(2).randbytes(1003)
    pieces = sum_reference(data[:512]) + sum_reference(data[512:], 64)
    assert signed(pieces) == sum_reference(data)


def test_swapped_words_and_pairs_of_flipped_bits_are_seen() -> None:
    data = bytearray(random.Random(3).randbytes(256))
    want = sum_reference(bytes(data))
    swapped = data[8:16] + data[:8] + data[16:]
    assert sum_reference(bytes(swapped)) != want
    for bit in range(64):
        for other in range(1, 32):
            changed = bytearray(data)
            for word in (0, other):
                changed[word * 8 + bit // 8] ^= 1 << bit % 8
            assert sum_reference(bytes(changed)) != want, (bit, other)


def test_key_size_and_descriptor_are_in_it() -> None:
    words = [random.Random(4).getrandbits(63) for _ in range(12)]
    function = native_function(checksum)
    want = function(*words)
    assert 0 <= want < 1 << 32
    for at in range(12):
        assert function(*words[:at], words[at] ^ 1, *words[at + 1 :]) != want, at


def test_the_interpreter_agrees() -> None:
    code = "import tests.api.test_checksum as t; t.compare_interpreted()"
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", code],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{2 * len(SIZES)} sums" in done.stdout


def compare_interpreted() -> None:
    """The Triton version at aligned and unaligned addresses. Runs in a process with TRITON_INTERPRET=1."""
    dice, done = random.Random(5), 0
    for size in SIZES:
        for shift in (0, 3):
            data, out = dice.randbytes(size), torch.zeros(1, dtype=torch.int64)
            raw = np.frombuffer(bytes(shift) + data, np.uint8).copy()
            sum_kernel[(1,)](int(raw.ctypes.data) + shift, size, 9, out)
            assert int(out) == sum_reference(data, 9), (size, shift)
            done += 1
    print(f"{done} sums")


# --- objects ----------------------------------------------------------------------------------
@contextmanager
def world_of(alloc: Any, checksum: bool = True, **options: Any) -> Iterator[list[nanokv.NanoKVCache]]:
    """Two ranks."""
    world = nanokv.local_world(2, 1 << 23, page_bytes=16384, alloc=alloc, checksum=checksum, **options)
    try:
        yield world
    finally:
        for cache in world:
            cache.close()


def flip(cache: nanokv.NanoKVCache, key: str, byte: int, bit: int = 3) -> None:
    """Flip a bit of an object's payload in its segment."""
    meta = cache.get_location(key)
    cache.engine.heap.segment(meta.owner_rank)[meta.payload_off + byte] ^= 1 << bit


def tensors() -> dict[str, torch.Tensor]:
    """Objects for every path of the bytes: one call, torch's copy, another layout, no bytes."""
    dice = torch.Generator().manual_seed(1)
    small = torch.randint(0, 255, (1000,), dtype=torch.uint8, generator=dice)
    large = torch.randn(300_000, generator=dice)
    return {
        "small": small,
        "shifted": small[3:],
        "large": large,
        "transposed": large[:90_000].view(300, 300).t(),
        "half": large[:33].to(torch.float16),
        "scalar": torch.tensor(7),
        "empty": torch.empty(0, 3),
    }


@pytest.fixture(params=["device", "host"])
def alloc(request: pytest.FixtureRequest) -> str:
    """Both allocators."""
    return str(request.param)


def test_what_is_put_comes_back(alloc: str) -> None:
    with world_of(alloc) as world:
        for name, tensor in tensors().items():
            world[0].put(name, tensor)
            back = world[1].get(name)
            assert back.dtype == tensor.dtype and torch.equal(back, tensor), name
            assert torch.equal(world[1].get(name, dst=torch.empty_like(back)), tensor), name
            with world[1].pin(name) as pinned:
                assert torch.equal(pinned, tensor), name


@pytest.mark.parametrize("name", ["small", "large", "transposed", "half", "scalar"])
@pytest.mark.parametrize("last", [False, True])
def test_a_flipped_bit_is_seen_by_every_way_to_read(alloc: str, name: str, last: bool) -> None:
    tensor = tensors()[name]
    with world_of(alloc) as world:
        world[0].put(name, tensor)
        flip(world[0], name, tensor.nbytes - 1 if last else tensor.nbytes // 2)
        for reader in world:
            with pytest.raises(SegmentCorrupt, match=name):
                reader.get(name)
            with pytest.raises(SegmentCorrupt, match=name):
                reader.get(name, dst=torch.empty_like(tensor.contiguous()))
            with pytest.raises(SegmentCorrupt, match=name):
                reader.get_many([name])
            with pytest.raises(SegmentCorrupt, match=name):
                reader.pin(name)
        world[0].remove(name)  # impossible if a pin were left


def test_one_torch_thread_takes_the_one_call(alloc: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        test_a_flipped_bit_is_seen_by_every_way_to_read(alloc, "large", True)
    finally:
        torch.set_num_threads(before)


def test_every_single_bit_of_an_object_is_seen() -> None:
    tensor = torch.arange(24, dtype=torch.uint8)
    with world_of("device") as world:
        world[0].put("k", tensor)
        for byte in range(24):
            for bit in range(8):
                flip(world[0], "k", byte, bit)
                with pytest.raises(SegmentCorrupt):
                    world[1].get("k")
                flip(world[0], "k", byte, bit)
        assert torch.equal(world[1].get("k"), tensor)


@pytest.mark.parametrize("word", range(OBJ_DESC.size // 8))
def test_the_descriptor_is_covered(word: int) -> None:
    tensor = torch.zeros(4, 4, 1, dtype=torch.float16)
    with world_of("device") as world:
        world[0].put("k", tensor)
        found = world[0].engine.machine.lookup(world[0].digest("k"))
        cache = world[found.place.owner]
        raw = cache.engine.heap.host_view(cache.rank)
        assert raw is not None
        view = SegmentView(raw, cache.engine.heap.geometry)
        words = view.descriptors[found.place.slot : found.place.slot + 1].view(np.uint64)
        for bit in range(64):
            words[word] ^= np.uint64(1 << bit)
            if word or bit < 16 or bit >= 32:  # the other bits of the first word are unused
                with pytest.raises(SegmentCorrupt):
                    world[1].get("k")
            words[word] ^= np.uint64(1 << bit)
        assert torch.equal(world[1].get("k"), tensor)


def test_a_plan_has_one_once_the_host_has_committed(alloc: str) -> None:
    with world_of(alloc) as world:
        plan = world[0].open_for_write("plan", 5000)
        world[0].engine.single.payload(Place(plan.dst_rank, 0, 0, plan.payload_base, 5000)).fill_(7)
        world[0].commit("plan")
        assert set(world[1].get("plan").tolist()) == {7}
        flip(world[0], "plan", 4999)
        with pytest.raises(SegmentCorrupt):
            world[1].get("plan")


def test_any_reader_verifies_and_only_ranks_with_the_option_refuse_objects_without_checksum() -> None:
    """The option belongs to a rank; the flag and the checksum belong to the object."""
    from nanokv.config import make_options
    from nanokv.heap.local import LocalWorld
    from nanokv.heap.world_spec import WorldSpec

    geometry = Geometry.plan(1 << 16, 256, 2)
    heaps = LocalWorld(WorldSpec(geometry, mode="device", may_evict=False, water=(85, 95)))
    with_sums, without = (
        nanokv.NanoKVCache.on_heap(heaps.heap(rank), 0, make_options({"checksum": rank == 0})) for rank in range(2)
    )
    with_sums.put("sealed", torch.arange(100))
    without.put("plain", torch.arange(100))
    assert torch.equal(without.get("sealed"), torch.arange(100))
    flip(with_sums, "sealed", 10)
    for read in (without.get, without.pin):
        with pytest.raises(SegmentCorrupt, match="sealed"):
            read("sealed")
    assert torch.equal(without.get("plain"), torch.arange(100))
    for read in (with_sums.get, with_sums.pin):
        with pytest.raises(SegmentCorrupt, match="plain"):
            read("plain")
    for cache in (with_sums, without):
        cache.close()


def with_checksum_0(cache: nanokv.NanoKVCache, key: str) -> torch.Tensor:
    """A tensor whose checksum under a key is 0."""
    like = torch.zeros(1, dtype=torch.int64)
    nbytes, (kind, *dims) = describe(like)
    whole = unmixed(0xABCDEF01 << 32, 0)
    for at, word in enumerate((*cache.digest(key), nbytes, kind, *dims), 1):
        whole ^= mixed_reference(word & WHOLE, -at)
    like[0] = signed(unmixed(whole, 0))
    return like


def test_a_copy_of_an_object_whose_checksum_is_0_has_it_too() -> None:
    assert all(
        unmixed(mixed_reference(word, place), place) == word for word in (0, 1, WHOLE, 77) for place in (-3, 0, 5)
    )
    caches = nanokv.local_world(3, 1 << 20, page_bytes=4096, checksum=True)
    for key, copy in (
        ("replicated", lambda: caches[0].replicate("replicated", 1)),
        ("put with copies", lambda: None),
    ):
        value = with_checksum_0(caches[0], key)
        caches[0].put(key, value, preferred_segment=0, replicas=1 if key == "put with copies" else 0)
        copy()
        assert caches[0].copies(key) == [0, 1]
        for cache in caches:
            found = cache.engine.machine.lookup(cache.digest(key))
            assert cache.rank in (found.place.owner, 2)
            assert unpack("FORMAT", "checksum", found.descriptor[0]) == 0
            header = cache.engine.machine.headers(found.place.owner, found.place.slot, 1)[0]
            assert header["flags"] & FLAG_CHECKSUM.value
            assert torch.equal(cache.get(key), value)
    for cache in caches:
        cache.close()


def test_what_was_refused_is_counted_and_nothing_else() -> None:
    with world_of("device") as world:
        world[0].put("k", torch.arange(9))
        owner = world[0].get_location("k").owner_rank
        assert world[owner].stats()["corrupt"] == 0
        flip(world[0], "k", 0)
        with pytest.raises(SegmentCorrupt):
            world[0].get("k")
        assert world[owner].stats()["corrupt"] == 1
        world[0].remove("k")
        world[0].put("k", torch.arange(9))
        with pytest.raises(DuplicateKey):
            world[0].put("k", torch.arange(9))
        assert torch.equal(world[0].get("k"), torch.arange(9))


def test_off_nothing_is_stored() -> None:
    with world_of("device", checksum=False) as world:
        world[0].put("k", torch.arange(9))
        found = world[0].engine.machine.lookup(world[0].digest("k"))
        header = world[0].engine.machine.headers(found.place.owner, found.place.slot, 1)[0]
        assert not header["flags"] & FLAG_CHECKSUM.value
        assert unpack("FORMAT", "checksum", found.descriptor[0]) == 0


def test_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    from nanokv.config import make_options

    assert not make_options({}).checksum
    monkeypatch.setenv("NANOKV_CHECKSUM", "1")
    assert make_options({}).checksum
    assert not make_options({"checksum": False}).checksum
    monkeypatch.setenv("NANOKV_CHECKSUM", "yes")
    with pytest.raises(InvalidArgument, match="NANOKV_CHECKSUM"):
        make_options({})
    monkeypatch.delenv("NANOKV_CHECKSUM")
    with pytest.raises(InvalidArgument, match="checksum"):
        make_options({"checksum": 1})
