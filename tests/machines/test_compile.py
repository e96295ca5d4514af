"""Every kernel compiles for every supported GPU, keeps its orderings and spills no payload.

And every protocol function is in some kernel.
"""

import importlib
import pkgutil
import re
from typing import Any

import pytest
from triton.runtime.jit import JITFunction

from examples import rope_prefill
from nanokv.device import library, memory, protocol, segment
from tests.support.assembly import atomics, count, polls_in_a_loop, spills_inside, without_barrier
from tests.support.compiling import NVIDIA, TARGETS, assembly, compiled_for, kernels, kernels_for
from tests.support.targets import every_target

pytestmark = pytest.mark.timeout(1800)  # the first test of a target pays for all of it

ROOMS = (protocol, memory, segment, library)  #: the rooms of device functions


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles(target: str) -> None:
    texts = compiled_for(target)
    assert texts.keys() == kernels_for(target).keys()
    assert {name: text for name, text in texts.items() if text.startswith("error:")} == {}


MOST_STACK = 96  #: bytes per thread on NVIDIA, for control steps and calls; a thread's part of a tile is 128 or more
STREAMING = (
    *("put_many_kernel", "get_many_kernel"),
    *("put_many_kernel_of_heads", "get_many_kernel_of_heads"),
    "get_slices_kernel",
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_that_stream_payload_keep_it_in_registers(target: str) -> None:
    """Nothing of a tile is spilled (scalars may go to lanes of a register); and sixteen bytes an access."""
    texts = compiled_for(target)
    for name in STREAMING:
        if target in NVIDIA:
            (stack,) = re.findall(r"^// .*\bSTACK:(\d+) ", texts[name], re.M)
            assert int(stack) <= MOST_STACK, (name, stack)
            assert re.search(r"ld\.global\.cg\S*\.v2\.b64", texts[name]), name
        else:
            assert spills_inside(texts[name]) == [], name
            assert not re.search(r"vgpr_spill_count: +[1-9]", texts[name]), name
            for what in ("load", "store"):
                assert re.search(rf"(global|flat|buffer)_{what}_dwordx4", texts[name]), (name, what)


def writers() -> list[str]:
    """The kernels that write an engine's paged cache."""
    return [name for name in kernels() if name.startswith("reshape_and_cache_")]


@pytest.mark.exhaustive
@every_target
def test_writers_of_an_engines_cache_spill_nothing_and_move_sixteen_bytes(target: str) -> None:
    assert len(writers()) == 6
    for name in writers():
        text = assembly(kernels()[name], target)
        if target in NVIDIA:
            (stack,) = re.findall(r"^// .*\bSTACK:(\d+) ", text, re.M)
            assert int(stack) <= (MOST_STACK if "older" in name else 0), (name, stack)
            wide = [rf"{what}\.global\.v4\.b32" for what in ("ld", "st")]
        else:
            assert spills_inside(text) == [] and not re.search(r"vgpr_spill_count: +[1-9]", text), name
            wide = [rf"(global|flat|buffer)_{what}_dwordx4" for what in ("load", "store")]
        assert all(re.search(each, text) for each in wide), name


# atomics that the kernels must have: (kernel, operation, acquires, releases, at least how many)
REQUIRED = [
    ("call_commit", "cas", False, True, 3),  # the state, FLAG_ACK, the hint
    ("call_finish", "cas", False, True, 3),
    ("put_many_kernel", "cas", False, True, 1),
    ("put_many_kernel", "cas", True, False, 3),
    ("put_many_kernel", "add", True, True, 2),  # the turnstile, and the arrival of a CTA
    ("put_many_kernel", "add", False, True, 2),  # and leaving
    ("put_many_kernel", "swap", False, True, 1),  # the answer that the first CTA shares
    ("reshape_and_cache_one_layer", "swap", False, True, 1),  # the answer of who begins
    ("reshape_and_cache_last_of_layers", "add", True, True, 1),  # the arrival of a CTA
    ("reshape_and_cache_last_of_layers", "cas", False, True, 1),  # the state
    ("call_begin", "add", True, True, 1),
    ("call_begin", "cas", True, False, 3),
    ("call_validate", "add", False, True, 1),
    ("get_many_kernel", "add", True, True, 1),  # the arrival of a CTA
    ("get_many_kernel", "add", False, True, 1),  # and validating
    ("get_slices_kernel", "add", True, True, 1),
    ("get_slices_kernel", "add", False, True, 1),
    ("call_remove", "cas", True, False, 1),
    ("call_pin", "cas", True, True, 1),
    ("pop_push_kernel", "cas", True, False, 1),
    ("pop_push_kernel", "cas", False, True, 1),
    ("call_detach_class", "cas", True, False, 1),
    ("call_drain", "swap", True, False, 1),
    ("call_state", "add", True, True, 1),
    ("call_release", "add", True, True, 1),
    ("remote_probe_kernel", "cas", True, True, 1),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", TARGETS)
def test_commit_validate_and_free_lists_order_at_system_scope(target: str) -> None:
    texts = compiled_for(target)
    missing = [
        f"{kernel}: {operation} acquires={acquires} releases={releases}"
        for kernel, operation, acquires, releases, least in REQUIRED
        if count(atomics(texts[kernel], target), operation, acquires=acquires, releases=releases) < least
    ]
    assert missing == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", TARGETS)
def test_no_atomic_is_below_system_scope(target: str) -> None:
    found = {kernel: atomics(text, target) for kernel, text in compiled_for(target).items()}
    assert sum(map(len, found.values())) > 100
    assert {kernel: bad for kernel, all_ in found.items() if (bad := [a for a in all_ if not a.system])} == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", NVIDIA)
def test_a_barrier_stands_before_each_release_and_after_each_acquire(target: str) -> None:
    texts = compiled_for(target)
    assert {kernel: bad for kernel, text in texts.items() if (bad := without_barrier(text))} == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", TARGETS)
def test_no_polling_loop_vanished(target: str) -> None:
    texts = compiled_for(target)
    loops = ("poll_word_kernel", "pop_push_kernel", "call_detach_class", "call_find", "call_drain")
    assert [kernel for kernel in loops if not polls_in_a_loop(texts[kernel])] == []


def test_a_kernel_that_does_not_compile_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from tests.support import compiling

    broken = compiling.Kernel(compiling.poll_word_kernel, False, {"word": "fp32", "out": "i64", "limit": "i64"}, {})
    monkeypatch.setattr(compiling, "kernels", lambda: {"broken_kernel": broken})
    compiling.main("sm_90", str(tmp_path))
    assert "Error" in (tmp_path / compiling.REPORT).read_text()


def reached(function: Any, seen: set[Any]) -> set[Any]:
    """The device functions that a device function calls, directly or through others."""
    if function not in seen:
        seen.add(function)
        for name in function.fn.__code__.co_names:
            called = function.fn.__globals__.get(name)
            if isinstance(called, JITFunction):
                reached(called, seen)
    return seen


def test_every_protocol_function_is_in_a_kernel() -> None:
    """And every function of the library, here or in the examples."""
    seen: set[Any] = set()
    reached(rope_prefill.rope_prefill_kernel, seen)
    for kernel in kernels().values():
        reached(kernel.constants.get("function", kernel.function), seen)
    found = [module for room in ROOMS for module in pkgutil.iter_modules(room.__path__, f"{room.__name__}.")]
    modules = [importlib.import_module(module.name) for module in found]
    written = {
        f for m in modules for f in vars(m).values() if isinstance(f, JITFunction) and f.__module__ == m.__name__
    }
    assert len(written) > 80
    assert {f.__name__ for f in written - seen} == {"stored_checksum"}  # only fsck calls it, on a CPU
