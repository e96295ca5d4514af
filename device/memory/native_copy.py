"""Copies of payloads on a CPU. Small ones are LLVM's memcpy; x86-64 has its own for large ones, other CPUs have memcpy.

Both large copies walk several pages at the same time, a line of each: the processor's prefetchers stop at the end of
each page of 4 KiB, and streams side by side hide that. What differs is where the bytes go.

- `copy_out` stores as usual: the destination is the reader's own tensor, which it reads next. AMD's processors read as
  fast by memcpy, and faster what is in a cache, so they have memcpy, but for destinations at which that is slow.
- `copy_in` streams, past the caches: the destination is memory of a segment that nobody has touched for long. A usual
  store would first fetch the line that it overwrites, and put out of the cache what is of use there. A reader that
  comes at once finds the bytes in memory instead of the writer's cache, and loses less than the writer has gained.

Which way they walk. A load waits for an earlier store whose address ends with the same twelve bits, as if it read what
is stored there. So lines are taken from the end of a page where the source's place in its page is a little before the
destination's: forwards, each load would meet the stores of the lines before it, and a copy take eight times as long.

Orderings. Usual stores of x86 become visible in program order, so there a release is an ordinary store. Streaming
stores (`movnt`) do not: they may pass each other, and ordinary stores before and after them. So `copy_in` stands
between two `sfence`, each of which makes all stores before it visible before any store after it:

- the second one: READY (and any word by which another thread is told of the bytes) becomes visible after every byte;
- the first one: what told readers of the old object that these bytes are theirs no more is visible before any byte.

So to everybody else the streamed bytes are ordered, as a whole, like an ordinary store in their place; to the thread
itself its own stores are visible at once in any case. Loads are not concerned: `copy_out` needs no fence. The compiler
moves no access to shared memory across an `sfence`, which to it is a call that may read and write anything.

docs/performance.md has what both gain, and the commands that measure it.
"""

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_LINE = 64  #: bytes of a cache line, and of a vector: one store of AVX-512, two of AVX2, four of SSE2
_PAGE = 4096
#: AMD's Zen: lines at the same place of their pages share a set of the first cache, which has eight ways, room for four
#: lines and their copies. Intel's has twelve, and with twice the pages hides more.
_ZEN = llvm.get_host_cpu_name().startswith("znver")
_PAGES = 4 if _ZEN else 8
_BLOCK = _PAGES * _PAGE
#: From here on the large copies are used; below, memcpy is as fast, and its bytes stay in a cache that is large enough.
LARGE_BYTES = 32 * 1024

_Emit = Callable[..., Any]


@intrinsic
def memcpy(typing: Any, dst: Any, src: Any, nbytes: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        to, of = builder.inttoptr(args[0], byte), builder.inttoptr(args[1], byte)
        cgutils.raw_memcpy(builder, to, of, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


@intrinsic
def is_x86_64(typing: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return cgutils.true_bit if builder.module.triple.startswith("x86_64") else cgutils.false_bit

    return types.boolean(), emit


@intrinsic
def store_fence(typing: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if builder.module.triple.startswith("x86_64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse.sfence"), [])
        return context.get_dummy_value()

    return types.void(), emit


def _mover(lines: int, *, streams: bool) -> Callable[..., Any]:
    """A function that copies a line from each of so many pages: all loads first, then the stores, to whole lines."""

    @intrinsic
    def move(typing: Any, dst: Any, src: Any) -> tuple[Any, _Emit]:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vector = ir.VectorType(ir.IntType(64), _LINE // 8).as_pointer()
            offsets = [ir.Constant(ir.IntType(64), page * _PAGE) for page in range(lines)]
            to, of = ([builder.inttoptr(builder.add(at, by), vector) for by in offsets] for at in args)
            values = [builder.load(place, align=1) for place in of]
            for value, place in zip(values, to, strict=True):
                store = builder.store(value, place, align=_LINE)
                if streams:
                    flag = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
                    store.set_metadata("nontemporal", flag)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), emit

    return move


_move_pages, _stream_pages, _stream_line = (
    _mover(_PAGES, streams=False),
    _mover(_PAGES, streams=True),
    _mover(1, streams=True),
)


@numba.njit(inline="always")
def _way(dst: Any, src: Any, lines: Any) -> Any:
    """Where a walk over so many lines begins, and its step: from the end where the source's place comes first."""
    before = (dst - src) & (_PAGE - 1)
    if 0 < before < _PAGE // 2:
        return (lines - 1) * _LINE, -_LINE
    return 0, _LINE


@numba.njit(nogil=True)
def copy_large(dst: Any, src: Any, nbytes: Any) -> None:
    """At least a line: the first bytes, up to a whole line of the destination, are copied without asking."""
    at = -dst & (_LINE - 1)
    memcpy(dst, src, at)
    first, step = _way(dst, src, _PAGE // _LINE)
    while at + _BLOCK <= nbytes:
        line = at + first
        for _ in range(_PAGE // _LINE):
            _move_pages(dst + line, src + line)
            line += step
        at += _BLOCK
    memcpy(dst + at, src + at, nbytes - at)


@numba.njit(nogil=True)
def stream_large(dst: Any, src: Any, nbytes: Any) -> None:
    """At least a line: the first bytes, up to a whole line of the destination, are copied without asking."""
    store_fence()
    at = -dst & (_LINE - 1)
    memcpy(dst, src, at)
    first, step = _way(dst, src, _PAGE // _LINE)
    while at + _BLOCK <= nbytes:
        line = at + first
        for _ in range(_PAGE // _LINE):
            _stream_pages(dst + line, src + line)
            line += step
        at += _BLOCK
    lines = (nbytes - at) // _LINE
    first, step = _way(dst, src, lines)
    line = at + first
    for _ in range(lines):
        _stream_line(dst + line, src + line)
        line += step
    at += lines * _LINE
    memcpy(dst + at, src + at, nbytes - at)
    store_fence()


@numba.njit(inline="always")
def copy_out(dst: Any, src: Any, nbytes: Any) -> None:
    """Copy bytes that may be in no cache to where they are read next."""
    slow = not _ZEN or 0 < (dst - src) & (_PAGE - 1) < _LINE  # there glibc's memcpy meets its own stores, on Zen too
    if is_x86_64() and slow and nbytes >= LARGE_BYTES:
        copy_large(dst, src, nbytes)
    else:
        memcpy(dst, src, nbytes)


@numba.njit(inline="always")
def copy_in(dst: Any, src: Any, nbytes: Any) -> None:
    """Copy bytes into memory that is in no cache, and need not be; ordered like one ordinary store."""
    if is_x86_64() and nbytes >= LARGE_BYTES:
        stream_large(dst, src, nbytes)
    else:
        memcpy(dst, src, nbytes)
