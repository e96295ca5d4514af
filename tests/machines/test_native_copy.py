"""Copies on a CPU: every byte at every alignment and size, none beside them, and fences around streaming stores."""

import platform
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanokv.device.machines.native_compiler import CPU_VOCABULARY, retargeted
from nanokv.device.memory.native import copy_bytes, store64
from nanokv.device.memory.native_copy import LARGE_BYTES, copy_in, copy_large, copy_out, stream_large
from nanokv.device.protocol.get import read
from nanokv.device.protocol.put import put

ROOM = 4 * LARGE_BYTES
MARGIN = PAGE = 4096  #: bytes before and after the destination, which must stay
WORDS = (numba.int64, numba.int64, numba.int64)
COPIES = {"in": copy_in, "out": copy_out}
LARGE = {"in, large": stream_large, "out, large": copy_large}  # on some CPUs only one of them is used
on_x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="streaming stores are x86-64's")


@cache
def compiled(way: str) -> Any:
    copy = (COPIES | LARGE)[way]

    @numba.njit(WORDS, nogil=True)
    def entry(dst: Any, src: Any, nbytes: Any) -> None:
        copy(dst, src, nbytes)

    return entry


def check(way: str, to: int, of: int, nbytes: int) -> None:
    """Copy between odd places: what arrives is what was there, and nothing around it has changed."""
    rng = np.random.default_rng([to, of, nbytes])
    source, target = (rng.integers(0, 256, ROOM + 2 * MARGIN + PAGE, np.uint8) for _ in range(2))
    source, target = (buffer[-buffer.ctypes.data % PAGE :] for buffer in (source, target))  # both begin with a page
    wanted = target.copy()
    wanted[MARGIN + to :][:nbytes] = source[of:][:nbytes]
    compiled(way)(target.ctypes.data + MARGIN + to, source.ctypes.data + of, nbytes)
    assert np.array_equal(target, wanted)


@pytest.mark.parametrize("way", COPIES | LARGE)
@pytest.mark.parametrize("to", range(64))
def test_every_alignment_of_the_destination(way: str, to: int) -> None:
    check(way, to, of=(to * 7) % 64, nbytes=LARGE_BYTES + 64 + to)


@pytest.mark.parametrize("way", COPIES | LARGE)
@pytest.mark.parametrize("of", range(64))
def test_every_alignment_of_the_source(way: str, of: int) -> None:
    check(way, to=0, of=of, nbytes=2 * LARGE_BYTES)


@pytest.mark.parametrize("way", COPIES | LARGE)
@pytest.mark.parametrize("before", [1, 16, 64, 65, 1024, 2047, 2048, 2049, 4032, 4095])
def test_every_way_of_walking(way: str, before: int) -> None:
    """What the source's place in its page is before the destination's decides where a walk begins."""
    check(way, to=before, of=0, nbytes=LARGE_BYTES + 5 * 64 + 3)


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("nbytes", [0, 1, 63, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, 2 * LARGE_BYTES - 1, ROOM])
def test_sizes_around_the_limits(way: str, nbytes: int) -> None:
    check(way, to=1, of=0, nbytes=nbytes)


@given(
    way=st.sampled_from(sorted(COPIES)),
    to=st.integers(0, 127),
    of=st.integers(0, 127),
    nbytes=st.integers(0, ROOM),
)
def test_any_place_and_size(way: str, to: int, of: int, nbytes: int) -> None:
    check(way, to, of, nbytes)


@given(way=st.sampled_from(sorted(LARGE)), to=st.integers(0, 127), of=st.integers(0, 127), nbytes=st.integers(64, ROOM))
def test_a_large_copy_of_any_place_and_size(way: str, to: int, of: int, nbytes: int) -> None:
    check(way, to, of, nbytes)


# --- what the compiler made of it ---
STREAMED, FENCE, CALL = re.compile(r"\bv?movnt"), re.compile(r"\bsfence\b"), re.compile(r"\bcall")
CLAIMED, RELEASED = re.compile(r"\bmovq\s+\$1111, "), re.compile(r"\bmovq\s+\$7777, ")


def bodies(function: Any) -> list[list[str]]:
    """The instructions of each function in the assembly."""
    text = function.inspect_asm(function.signatures[0])
    return [body.splitlines() for body in re.split(r"^\.Lfunc_end\d+:", text, flags=re.MULTILINE)]


def places(lines: list[str], pattern: re.Pattern[str]) -> list[int]:
    return [number for number, line in enumerate(lines) if pattern.search(line)]


def those_with(function: Any, pattern: re.Pattern[str]) -> list[list[str]]:
    return [lines for lines in bodies(function) if places(lines, pattern)]


@on_x86
def test_a_copy_in_streams_between_two_fences() -> None:
    (body,) = those_with(compiled("in, large"), STREAMED)
    (first, second), streamed = places(body, FENCE), places(body, STREAMED)
    assert first < min(streamed)
    assert max(streamed) < second
    assert not places(body[second:], CALL)  # of memcpy: the last bytes are before the fence too


@on_x86
def test_a_copy_out_streams_nothing() -> None:
    assert not those_with(compiled("out"), STREAMED)
    assert not those_with(compiled("out, large"), STREAMED)


@on_x86
def test_words_stored_before_and_after_a_copy_stay_there() -> None:
    @numba.njit((*WORDS, numba.int64), nogil=True)
    def publish(dst: Any, src: Any, nbytes: Any, flag: Any) -> None:
        store64(flag, 1111, "relaxed")
        copy_bytes(dst, src, nbytes)
        store64(flag, 7777, "release")

    (body,) = those_with(publish, RELEASED)
    (claimed,), (released,) = places(body, CLAIMED), places(body, RELEASED)
    calls, streamed = places(body, CALL), places(body, STREAMED)
    assert calls  # of memcpy, and of what streams, unless the compiler puts it here, as it does for some CPUs
    assert all(claimed < moved < released for moved in calls + streamed)
    if streamed:
        (first, second) = places(body, FENCE)
        assert claimed < first < min(streamed)
        assert max(streamed) < second < released


def copies_of(function: Any) -> set[Callable[..., Any]]:
    """Those that a protocol function calls itself, as it is compiled for a CPU."""
    rebuilt = retargeted(function, CPU_VOCABULARY, {})
    return {value for value in rebuilt.py_func.__globals__.values() if value in COPIES.values()}


def test_a_put_copies_in_and_a_read_copies_out() -> None:
    assert copies_of(put) == {copy_in}
    assert copies_of(read) == {copy_out}
