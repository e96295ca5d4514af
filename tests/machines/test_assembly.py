"""The checks of `test_compile` notice broken orderings, scopes and loops, as a compiler could break them."""

from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl

from nanokv.device.protocol import freelist, header
from tests.support.assembly import atomics, count, polls_in_a_loop
from tests.support.compiling import Kernel, assembly, kernels
from tests.support.targets import every_target


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


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Compile with the patches in place, without the cache."""
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return monkeypatch


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
