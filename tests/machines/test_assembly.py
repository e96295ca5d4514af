"""The checks of `test_compile` notice broken orderings, scopes and loops, as a compiler could break them."""

from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl

from nanokv.device.memory.triton import add64, cas64, load64, store64, xchg64
from nanokv.device.protocol import freelist, header
from tests.support.assembly import atomics, count, polls_in_a_loop, spills_inside, without_barrier
from tests.support.compiling import Kernel, assembly, kernels
from tests.support.targets import every_nvidia_target, every_target

pytestmark = pytest.mark.proved


@triton.jit
def relaxed_cas64(address: tl.int64, expected: tl.int64, new: tl.int64, sem: tl.constexpr) -> Any:
    return tl.atomic_cas(
        tl.cast(address, tl.pointer_type(tl.int64)),
        tl.cast(expected, tl.int64),
        tl.cast(new, tl.int64),
        sem="relaxed",
        scope="sys",
    )


@triton.jit
def gpu_cas64(address: tl.int64, expected: tl.int64, new: tl.int64, sem: tl.constexpr) -> Any:
    return tl.atomic_cas(
        tl.cast(address, tl.pointer_type(tl.int64)),
        tl.cast(expected, tl.int64),
        tl.cast(new, tl.int64),
        sem=sem,
        scope="gpu",
    )


@triton.jit
def acquire_add64(address: tl.int64, value: tl.int64, sem: tl.constexpr) -> Any:
    return tl.atomic_add(tl.cast(address, tl.pointer_type(tl.int64)), value, sem="acquire", scope="sys")


@triton.jit
def hoisted_poll_kernel(word: tl.int64, out: tl.int64, limit: tl.int64) -> None:
    tries = tl.cast(0, tl.int64)
    word_ptr = tl.cast(word, tl.pointer_type(tl.int64))
    while (tl.load(word_ptr) == 0) & (tries < limit):
        tries += 1
    tl.store(tl.cast(out, tl.pointer_type(tl.int64)), tries)


@triton.jit
def ordered_kernel(address: tl.int64, out: tl.int64, what: tl.constexpr, sem: tl.constexpr) -> None:
    """A store, one operation of the vocabulary, a load."""
    store64(address + 8, out, "relaxed")
    if what == "load":
        old = load64(address, sem)
    elif what == "store":
        store64(address, out, sem)
        old = out
    elif what == "cas":
        old = cas64(address, 0, out, sem)
    elif what == "add":
        old = add64(address, out, sem)
    else:
        old = xchg64(address, out, sem)
    store64(out, old + load64(address + 16, "relaxed"), "relaxed")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Compile with the patches in place, without the cache."""
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return monkeypatch


ORDERED = [("load", "acquire"), ("store", "release")]
ORDERED += [(what, sem) for what in ("cas", "add", "xchg") for sem in ("acquire", "release", "acq_rel")]


def ordered(target: str, what: str, sem: str, many_warps: bool) -> str:
    constants = {"what": what, "sem": sem}
    return assembly(Kernel(ordered_kernel, many_warps, {"address": "i64", "out": "i64"}, constants), target)


@every_nvidia_target
@pytest.mark.parametrize("many_warps", [False, True])
@pytest.mark.parametrize(("what", "sem"), ORDERED)
def test_a_barrier_stands_before_each_release_and_after_each_acquire(
    target: str, what: str, sem: str, many_warps: bool
) -> None:
    """Whichever version of Triton this is: either it puts them, or the vocabulary does."""
    text = ordered(target, what, sem, many_warps)
    assert [a for a in atomics(text, target) if a.acquires or a.releases]
    assert without_barrier(text) == []


def test_a_ptx_without_a_barrier_is_seen() -> None:
    text = ordered("sm_90", "add", "acq_rel", False)
    barriers = [at for at, line in enumerate(text.splitlines()) if "bar.sync" in line]
    assert len(barriers) >= 2
    for gone in barriers:
        assert without_barrier("\n".join(line for at, line in enumerate(text.splitlines()) if at != gone))


@every_target
def test_a_relaxed_commit_is_seen(target: str, fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(header, "cas64", relaxed_cas64)
    text = assembly(kernels()["call_commit"], target)
    assert count(atomics(text, target), "cas") > 0
    assert count(atomics(text, target), "cas", releases=True) == 1  # only the hint's


@every_target
def test_a_pop_at_gpu_scope_is_seen(target: str, fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(freelist, "cas64", gpu_cas64)
    found = atomics(assembly(kernels()["pop_push_kernel"], target), target)
    assert [a for a in found if a.operation == "cas" and not a.system]


@every_target
def test_a_validation_by_an_acquire_load_is_seen(target: str, fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(header, "add64", acquire_add64)
    found = atomics(assembly(kernels()["call_validate"], target), target)
    assert count(found, "add", releases=True) == 0


@every_target
def test_a_poll_by_plain_loads_is_seen(target: str, fresh: pytest.MonkeyPatch) -> None:
    words = {"word": "i64", "out": "i64", "limit": "i64"}
    assert not polls_in_a_loop(assembly(Kernel(hoisted_poll_kernel, False, words, {}), target))


# --- scratch memory ---------------------------------------------------------------------------
SAVES = """; -- Begin function copy
copy:
\tscratch_store_dword off, v40, s32
.LBB0_1:
\tglobal_load_dwordx4 v[0:3], v[4:5], off
\ts_cbranch_scc1 .LBB0_1
.LBB0_2:
\tscratch_load_dword v40, off, s32
\ts_setpc_b64 s[30:31]
; -- End function
"""


def test_a_spill_in_the_middle_of_a_function_is_noticed() -> None:
    assert spills_inside(SAVES) == []
    tile = "\tglobal_load_dwordx4 v[0:3], v[4:5], off\n"
    assert spills_inside(SAVES.replace(tile, tile + "\tscratch_store_dword off, v0, s32\n")) == ["copy: a store"]
    assert spills_inside(SAVES.replace(tile, "\tscratch_load_dword v4, off, s32\n" + tile)) == ["copy: a load"]
