"""The memory vocabulary, in Triton: all that a protocol function may do to memory that others share.

Every shared word is a 64-bit word at an int64 address. The ordering stands at each call, never by default:
"relaxed", "acquire", "release" or "acq_rel", always at system scope, because other GPUs and the host read these words.
`memory_native` defines the same names for a CPU; `retarget` swaps them.

Two rules that the compiler's own behaviour makes necessary:
- an acquire load is an `atomic_add` of 0: a plain load may be hoisted out of a loop, and some versions put the fence of
  `atomic_load` on its wrong side;
- a barrier stands before every releasing and after every acquiring atomic: a scalar atomic is executed by one warp, and
  the stores of the other warps are ordered by the barrier alone.
"""

from typing import Any, TypeAlias

import triton
import triton.language as tl

Word: TypeAlias = tl.int64  # how device functions name their arguments; Triton allows only its own types there

VOCABULARY = ("word", "select", "table64", "load64", "store64", "cas64", "add64", "xchg64", "copy_bytes")


@triton.jit
def word(value: Word) -> Any:
    """A constant as a 64-bit word, so that a variable keeps one type through a loop."""
    return tl.cast(value, tl.int64)


@triton.jit
def select(condition: Word, yes: Word, no: Word) -> Any:
    """`yes if condition else no`, both evaluated."""
    return tl.where(condition, yes, no)


@triton.jit
def pointer64(address: Word) -> Any:
    """The word at an address, as a Triton pointer."""
    return tl.cast(address, tl.pointer_type(tl.int64))


@triton.jit
def table64(address: Word) -> Any:
    """Read a word of a private table, which nobody changes while a kernel runs."""
    return tl.load(pointer64(address))


@triton.jit
def load64(address: Word, sem: tl.constexpr) -> Any:
    """Load a shared word. A relaxed load may be old or torn from its neighbours; whoever uses it validates later."""
    if sem == "relaxed":
        value = tl.load(pointer64(address), volatile=True)
    else:
        value = tl.atomic_add(pointer64(address), 0, sem=sem, scope="sys")
        tl.debug_barrier()
    return value


@triton.jit
def store64(address: Word, value: Word, sem: tl.constexpr) -> None:
    """Store a shared word."""
    if sem == "relaxed":
        tl.store(pointer64(address), value)
    else:
        tl.debug_barrier()
        tl.atomic_xchg(pointer64(address), value, sem=sem, scope="sys")


@triton.jit
def cas64(address: Word, expected: Word, new: Word, sem: tl.constexpr) -> Any:
    """Compare and swap; returns the word that was there."""
    tl.debug_barrier()
    # the compiler converts the operand of an exchange or an addition, but not those of a compare-and-swap
    old = tl.atomic_cas(pointer64(address), word(expected), word(new), sem=sem, scope="sys")
    tl.debug_barrier()
    return old


@triton.jit
def add64(address: Word, value: Word, sem: tl.constexpr) -> Any:
    """Fetch and add; returns the word that was there. Adding 0 with "acq_rel" reads the newest value, and orders."""
    tl.debug_barrier()
    old = tl.atomic_add(pointer64(address), value, sem=sem, scope="sys")
    tl.debug_barrier()
    return old


@triton.jit
def xchg64(address: Word, value: Word, sem: tl.constexpr) -> Any:
    """Exchange; returns the word that was there."""
    tl.debug_barrier()
    old = tl.atomic_xchg(pointer64(address), value, sem=sem, scope="sys")
    tl.debug_barrier()
    return old


@triton.jit
def copy_bytes(dst: Word, src: Word, nbytes: Word) -> None:
    """Copy bytes with the whole CTA. Not atomic: whoever reads shared bytes with it validates afterwards."""
    BLOCK: tl.constexpr = 1024
    wide = nbytes // 8
    lanes = tl.arange(0, BLOCK)
    if ((dst | src) & 7) != 0:
        wide = wide * 0
    for start in range(0, wide, BLOCK):
        at = start.to(tl.int64) + lanes
        tl.store(
            tl.cast(dst, tl.pointer_type(tl.int64)) + at,
            tl.load(tl.cast(src, tl.pointer_type(tl.int64)) + at, mask=at < wide, cache_modifier=".cg"),
            mask=at < wide,
        )
    for start in range(wide * 8, nbytes, BLOCK):
        at = start.to(tl.int64) + lanes
        tl.store(
            tl.cast(dst, tl.pointer_type(tl.int8)) + at,
            tl.load(tl.cast(src, tl.pointer_type(tl.int8)) + at, mask=at < nbytes, cache_modifier=".cg"),
            mask=at < nbytes,
        )
