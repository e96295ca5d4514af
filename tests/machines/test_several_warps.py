"""Compiled for CTAs of several warps, the library keeps their warps together and orders what all of them have done.

The checks notice what they are there for: a look that each warp takes for itself, a barrier or a wait that is missing.
"""

from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl

from nanokv.device import remote
from nanokv.device.memory import triton as memory
from nanokv.device.memory.triton import load64, look_lines, look_rows, pointer64, word
from tests.support.assembly import atomics, count
from tests.support.compiling import AMD, NVIDIA, Kernel, assembly, kernels
from tests.support.several_warps import apart, ptx_instructions, undrained, unordered
from tests.support.targets import every_target

pytestmark = pytest.mark.proved

WHOLE = "put_get_probe_kernel"  #: a whole put, with eviction and checksum, and a whole get
REST = (
    *("library_finish_put_part", "library_begin_get_part", "library_sum_get_part", "library_finish_get_part"),
    *("library_pin", "library_unpin", "library_remove", "library_lookup_described", "library_verify", "library_abort"),
)  #: what else the library can do
FIRST_WORD = tl.constexpr(1)


@triton.jit
def looks_kernel(words: tl.int64, out: tl.int64) -> None:
    """Each kind of look at shared words steers a branch; then all that the CTA has stored is released."""
    count = load64(words, "relaxed")
    if count > 0:
        same, empty = look_lines(words, words + 64, 8, word(-1), word(5))
        if (same | empty) != 0:
            first = look_rows(words, count, word(7), word(0), word(-1), word(-1), 8, 8)
            if first >= 0:
                lanes = tl.arange(0, 512).to(tl.int64)
                tl.store(pointer64(out) + FIRST_WORD + lanes, lanes + first)
                memory.store64(out, word(1), "release")


@triton.jit
def commit_kernel(payload: tl.int64, header: tl.int64, bases: tl.tensor) -> None:
    """Stores of all warps, and a commit by one."""
    lanes = tl.arange(0, 512)
    tl.store(pointer64(payload) + lanes, lanes)
    remote.kv_commit_ready(header, 1, 0, 1, bases)


COMMIT = Kernel(commit_kernel, False, {"payload": "i64", "header": "i64", "bases": "*i64"}, {})
LOOKS = Kernel(looks_kernel, False, {"words": "i64", "out": "i64"}, {})


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Compile without the cache."""
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return monkeypatch


def faults(text: str, target: str) -> list[str]:
    """What is wrong with the assembly of a CTA of several warps."""
    assert [found for found in atomics(text, target) if not found.system] == []
    return apart(text) + unordered(text) if target in NVIDIA else undrained(text)


def check(kernel: Kernel, target: str, warps: int) -> None:
    """One kernel, compiled for CTAs of so many warps."""
    text = assembly(kernel, target, warps)
    assert kernel not in (LOOKS, COMMIT) or any(found.releases for found in atomics(text, target))
    assert faults(text, target) == []


@every_target
@pytest.mark.parametrize("warps", [2, 4, 8])
def test_looks_are_taken_once(target: str, warps: int) -> None:
    check(LOOKS, target, warps)


@every_target
def test_a_commit_orders_all_warps(target: str) -> None:
    check(COMMIT, target, 4)


@every_target
def test_a_whole_put_and_get_stay_together(target: str) -> None:
    check(kernels()[WHOLE], target, 4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("name", REST)
def test_all_of_the_library_stays_together(name: str, target: str) -> None:
    check(kernels()[name], target, 4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("warps", [2, 8])
def test_any_number_of_warps_stays_together(target: str, warps: int) -> None:
    check(kernels()[WHOLE], target, warps)


def test_one_warp_looks_by_plain_loads() -> None:
    """Several warps cost a CTA of one nothing: no atomic, and no way through shared memory."""
    text = assembly(LOOKS, "sm_90", 1)
    names = [each.name for each in ptx_instructions(text)]
    assert count(atomics(text, "sm_90"), "load") == 0
    assert not any(name.startswith(("ld.shared", "st.shared")) for name in names)
    assert any(name.startswith("ld.volatile.global.b64") for name in names)


# --- the checks notice --------------------------------------------------------------------------
@triton.jit
def plain_load64(address: tl.int64, sem: tl.constexpr) -> Any:
    return tl.load(tl.cast(address, tl.pointer_type(tl.int64)), volatile=True)


@triton.jit
def own(value: tl.int64) -> Any:
    return value


@triton.jit
def undone() -> None:
    pass


def test_a_load_by_each_warp_is_seen(fresh: pytest.MonkeyPatch) -> None:
    fresh.setitem(looks_kernel.fn.__globals__, "load64", plain_load64)
    assert apart(assembly(LOOKS, "sm_90", 4)) != []


def test_a_look_by_each_warp_is_seen(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(memory, "uniform", own)
    assert len(apart(assembly(LOOKS, "sm_90", 4))) == 3  # of the line, of the rows, and of their loop


def test_a_release_without_a_barrier_is_seen() -> None:
    text = assembly(LOOKS, "sm_90", 4)
    lines = text.splitlines()
    release = next(at for at, line in enumerate(lines) if ".release." in line)
    without = [line for at, line in enumerate(lines) if not (at < release and "bar.sync" in line)]
    assert unordered(text) == [] and len(unordered("\n".join(without))) == 1


def test_an_acquire_without_a_barrier_is_seen() -> None:
    text = assembly(kernels()["pop_push_kernel"], "sm_90", 4)
    without = "\n".join(line for line in text.splitlines() if "bar.sync" not in line)
    orderings = [found for found in atomics(text, "sm_90") if found.acquires or found.releases]
    assert unordered(text) == [] and len(unordered(without)) == len(orderings) > 1


@pytest.mark.parametrize("target", [AMD[0], pytest.param(AMD[1], marks=pytest.mark.exhaustive)])
def test_a_wave_that_does_not_wait_is_seen(target: str, fresh: pytest.MonkeyPatch) -> None:
    """So it would be without `drain`: the compiler lets no wave wait at a barrier for its stores."""
    fresh.setattr(memory, "drain", undone)
    fresh.setattr(remote, "drain", undone)
    assert len(undrained(assembly(LOOKS, target, 4))) == 1
    assert len(undrained(assembly(COMMIT, target, 4))) == 1
