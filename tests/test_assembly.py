"""What the compilers made of the orderings: read from PTX and AMDGCN, for every kernel and every GPU.

On NVIDIA scope and ordering are part of an instruction (`atom.global.acq_rel.sys.cas.b64`). On AMD (CDNA 3 and 4) `sc1`
at an atomic means system scope; `buffer_wbl2 sc0 sc1` before it is the release, `buffer_inv sc0 sc1` after it the
acquire.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import triton
import triton.language as tl

from nanokv.device import freelist, header
from tests.compiling import NVIDIA, TARGETS, Kernel, assembly, compiled_everywhere, kernels

pytestmark = pytest.mark.timeout(300)  # all that is compiled or interpreted falls to the first test


class Atomic(NamedTuple):
    """One atomic instruction, or an acquiring load or releasing store."""

    line: int
    operation: str  #: "cas", "add", "swap", "load" or "store"
    acquires: bool
    releases: bool
    system: bool


def ptx_atomics(lines: list[str]) -> list[Atomic]:
    """The atomics of a PTX text."""
    found = []
    for at, line in enumerate(lines):
        match = re.search(r"\b(atom|red|ld|st)((?:\.\w+)+)", line)
        parts = match.group(2).split(".") if match else []
        if match is None or (match.group(1) in ("ld", "st") and not {"acquire", "release", "relaxed"} & set(parts)):
            continue
        names = {"cas": "cas", "add": "add", "exch": "swap"}
        plain = {"ld": "load", "st": "store"}.get(match.group(1), "other")
        operation = next((names[part] for part in parts if part in names), plain)
        acquires, releases = bool({"acquire", "acq_rel"} & set(parts)), bool({"release", "acq_rel"} & set(parts))
        found.append(Atomic(at, operation, acquires, releases, "sys" in parts))
    return found


def gcn_atomics(lines: list[str]) -> list[Atomic]:
    """The atomics of an AMDGCN text."""
    found = []
    for at, line in enumerate(lines):
        match = re.match(r"\s*(?:global|flat|buffer)_atomic_(\w+?)(?:_x2)?\s", line)
        if match:
            names = {"cmpswap": "cas", "add": "add", "swap": "swap"}
            before = [text.strip() for text in lines[max(at - 3, 0) : at]]
            after = [text.strip() for text in lines[at + 1 : at + 4]]
            acquires, releases = "buffer_inv sc0 sc1" in after, "buffer_wbl2 sc0 sc1" in before
            found.append(Atomic(at, names.get(match.group(1), "other"), acquires, releases, "sc1" in line.split()))
    return found


def atomics(text: str, target: str) -> list[Atomic]:
    """The atomics of a kernel's assembly."""
    lines = [line for line in text.splitlines() if line.strip() and not re.match(r"\s*(;|//|\.loc|\.cfi|\.Ltmp)", line)]
    return ptx_atomics(lines) if target in NVIDIA else gcn_atomics(lines)


def count(found: list[Atomic], operation: str, *, acquires: bool = False, releases: bool = False) -> int:
    """How many atomics of an operation order at least this much."""
    return sum(a.operation == operation and a.acquires >= acquires and a.releases >= releases for a in found)


def polls_in_a_loop(text: str) -> bool:
    """True if some atomic access stands between a label and a later branch back to it."""
    lines = text.splitlines()
    labels = {match.group(1): at for at, line in enumerate(lines) if (match := re.match(r"\s*([.$]\w+):", line))}
    for at, line in enumerate(lines):
        match = re.search(r"\b(?:bra|s_branch|s_cbranch_\w+)(?:\.uni)?\s+([.$]\w+)", line)
        if match and labels.get(match.group(1), at) < at:
            body = "\n".join(lines[labels[match.group(1)] : at])
            if re.search(r"_atomic_|\batom\.|\bld\.[\w.]*acquire|global_load\w* .*sc0 sc1", body):
                return True
    return False


# what is required of the kernels: (kernel, operation, acquires, releases, at least so many)
REQUIRED = [
    ("commit_object_kernel", "cas", False, True, 3),  # the state, FLAG_ACK, the hint
    ("finish_object_kernel", "cas", False, True, 3),
    ("put_many_kernel", "cas", False, True, 1),
    ("put_many_kernel", "cas", True, False, 3),
    ("put_many_kernel", "add", True, True, 2),  # the turnstile, and the arrival of a CTA
    ("put_many_kernel", "add", False, True, 2),  # and leaving
    ("put_many_kernel", "swap", False, True, 1),  # what the first CTA shares
    ("begin_object_kernel", "add", True, True, 1),
    ("begin_object_kernel", "cas", True, False, 3),
    ("begin_object_kernel", "swap", False, True, 1),  # RESERVED
    ("validate_object_kernel", "add", False, True, 1),
    ("get_many_kernel", "add", True, True, 1),  # the arrival of a CTA
    ("get_many_kernel", "add", False, True, 1),  # and validating
    ("remove_object_kernel", "cas", True, False, 1),
    ("pin_object_kernel", "cas", True, True, 1),
    ("pop_push_kernel", "cas", True, False, 1),
    ("pop_push_kernel", "cas", False, True, 1),
    ("detach_class_kernel", "cas", True, True, 1),
    ("drain_ring_kernel", "swap", True, False, 1),
    ("read_state_kernel", "add", True, True, 1),
    ("release_slot_kernel", "add", True, True, 1),
    ("remote_probe_kernel", "cas", True, True, 1),
]


@pytest.mark.parametrize("target", TARGETS)
def test_commit_validate_and_free_lists_order_at_system_scope(target: str) -> None:
    texts = compiled_everywhere()[target]
    missing = [
        f"{kernel}: {operation} acquires={acquires} releases={releases}"
        for kernel, operation, acquires, releases, least in REQUIRED
        if count(atomics(texts[kernel], target), operation, acquires=acquires, releases=releases) < least
    ]
    assert missing == []


@pytest.mark.parametrize("target", TARGETS)
def test_no_atomic_is_below_system_scope(target: str) -> None:
    found = {kernel: atomics(text, target) for kernel, text in compiled_everywhere()[target].items()}
    assert sum(map(len, found.values())) > 100
    assert {kernel: bad for kernel, all_ in found.items() if (bad := [a for a in all_ if not a.system])} == {}


@pytest.mark.parametrize("target", TARGETS)
def test_no_polling_loop_vanished(target: str) -> None:
    texts = compiled_everywhere()[target]
    loops = ("poll_word_kernel", "pop_push_kernel", "detach_class_kernel", "find_key_kernel", "drain_ring_kernel")
    assert [kernel for kernel in loops if not polls_in_a_loop(texts[kernel])] == []


# --- the checks above must see what is broken ---------------------------------------------------
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
    """Compile whatever is patched in, without the cache."""
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return monkeypatch


@pytest.mark.parametrize("target", TARGETS)
def test_a_relaxed_commit_is_seen(target: str, fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(header, "cas64", relaxed_cas64)
    text = assembly(kernels()["commit_object_kernel"], target)
    assert count(atomics(text, target), "cas") > 0
    assert count(atomics(text, target), "cas", releases=True) == 1  # the hint's


@pytest.mark.parametrize("target", TARGETS)
def test_a_pop_at_gpu_scope_is_seen(target: str, fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(freelist, "cas64", gpu_cas64)
    found = atomics(assembly(kernels()["pop_push_kernel"], target), target)
    assert [a for a in found if a.operation == "cas" and not a.system]


@pytest.mark.parametrize("target", TARGETS)
def test_a_validation_by_an_acquire_load_is_seen(target: str, fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(header, "add64", acquire_add64)
    found = atomics(assembly(kernels()["validate_object_kernel"], target), target)
    assert count(found, "add", releases=True) == 0


@pytest.mark.parametrize("target", TARGETS)
def test_a_poll_by_plain_loads_is_seen(target: str, fresh: pytest.MonkeyPatch) -> None:
    words = {"word": "i64", "out": "i64", "limit": "i64"}
    assert not polls_in_a_loop(assembly(Kernel(hoisted_poll_kernel, False, words, {}), target))
