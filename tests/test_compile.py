"""Every kernel compiles for every GPU that is supported, and every protocol function is in some kernel."""

import importlib
from typing import Any

import pytest
from triton.runtime.jit import JITFunction

from tests.compiling import TARGETS, compiled_everywhere, kernels

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
    "object",
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
