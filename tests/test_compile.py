"""Every kernel compiles for every GPU that is supported, and every protocol function is in some kernel."""

import importlib
import re
from typing import Any

import pytest
from triton.runtime.jit import JITFunction

from tests.compiling import NVIDIA, TARGETS, compiled_everywhere, kernels

pytestmark = pytest.mark.timeout(300)  # all that is compiled or interpreted falls to the first test

PROTOCOL = (
    "activity",
    "checksum",
    "directory",
    "extent",
    "freelist",
    "header",
    "memory",
    "evict",
    "get",
    "put",
    "remove",
    "parts",
    "pins",
    "reclaim",
    "request",
    "retire",
    "ring",
    "ticket",
    "world",
)


@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles(target: str) -> None:
    texts = compiled_everywhere()[target]
    assert texts.keys() == kernels().keys()
    assert {name: text for name, text in texts.items() if text.startswith("error:")} == {}


MOST_STACK = 32  #: bytes a thread: words of the control steps; a thread's part of a tile is 128 or more
STREAMING = (
    *("put_many_kernel", "get_many_kernel"),
    *("put_many_kernel_of_heads", "get_many_kernel_of_heads"),
)


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_that_stream_payload_keep_it_in_registers(target: str) -> None:
    """Nothing of a tile is spilled (scalars may go to lanes of a register); and sixteen bytes an access."""
    texts = compiled_everywhere()[target]
    for name in STREAMING:
        if target in NVIDIA:
            (stack,) = re.findall(r"^// .*\bSTACK:(\d+) ", texts[name], re.M)
            assert int(stack) <= MOST_STACK, (name, stack)
            assert re.search(r"ld\.global\.cg\S*\.v2\.b64", texts[name]), name
        else:
            assert "private_segment_fixed_size: 0\n" in texts[name], name
            assert not re.search(r"vgpr_spill_count: +[1-9]", texts[name]), name
            for what in ("load", "store"):
                assert re.search(rf"(global|flat|buffer)_{what}_dwordx4", texts[name]), (name, what)


def test_a_kernel_that_does_not_compile_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from tests import compiling

    broken = compiling.Kernel(compiling.poll_word_kernel, False, {"word": "fp32", "out": "i64", "limit": "i64"}, {})
    monkeypatch.setattr(compiling, "kernels", lambda: {"broken_kernel": broken})
    compiling.main("sm_90", str(tmp_path))
    assert "Error" in (tmp_path / compiling.REPORT).read_text()


def reached(function: Any, seen: set[Any]) -> set[Any]:
    """The device functions that a device function calls, and those that they call, and so on."""
    if function not in seen:
        seen.add(function)
        for name in function.fn.__code__.co_names:
            called = function.fn.__globals__.get(name)
            if isinstance(called, JITFunction):
                reached(called, seen)
    return seen


def test_every_protocol_function_is_in_a_kernel() -> None:
    seen: set[Any] = set()
    for kernel in kernels().values():
        reached(kernel.function, seen)
    modules = [importlib.import_module(f"nanokv.device.{name}") for name in PROTOCOL]
    written = {
        f for m in modules for f in vars(m).values() if isinstance(f, JITFunction) and f.__module__ == m.__name__
    }
    assert len(written) > 80
    assert {f.__name__ for f in written - seen} == set()
