"""Rebuild a device function over another memory vocabulary: the protocol that a GPU runs, on another machine.

A protocol function touches shared memory only through the names of `memory.triton.VOCABULARY`. So its code object needs
only other globals to run natively, or under a checker.
"""

import types
from collections.abc import Callable, Mapping
from typing import Any

import triton.language as tl


def _identity(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def retarget(
    function: Any,
    vocabulary: Mapping[str, Any],
    wrap: Callable[[Callable[..., Any]], Any] = _identity,
    done: dict[Any, Any] | None = None,
) -> Any:
    """Return `function` with each name of `vocabulary` replaced, and every device function it calls rebuilt likewise.

    Args:
        function: a `@triton.jit` function.
        vocabulary: the replacement of each name of the memory vocabulary.
        wrap: turns a plain Python function into the target's kind (`numba.njit`; by default it stays as it is).
        done: the functions rebuilt so far; several calls that share one dict also share the functions that they call.
    """
    done = {} if done is None else done
    raw = function.fn
    if raw not in done:
        # numba's disk cache cannot load a function whose globals have no __name__
        scope = {name: raw.__globals__[name] for name in ("__builtins__", "__name__")}
        for name in raw.__code__.co_names:
            if name in vocabulary:
                scope[name] = vocabulary[name]
            elif name in raw.__globals__:
                scope[name] = _rebuilt(raw.__globals__[name], vocabulary, wrap, done)
        plain = types.FunctionType(raw.__code__, scope, raw.__name__, raw.__defaults__, raw.__closure__)
        plain.__module__ = raw.__module__
        done[raw] = wrap(plain)
    return done[raw]


def _rebuilt(value: Any, vocabulary: Mapping[str, Any], wrap: Callable[..., Any], done: dict[Any, Any]) -> Any:
    if isinstance(value, tl.constexpr):
        return value.value
    if hasattr(value, "fn"):
        return retarget(value, vocabulary, wrap, done)
    return value
