"""Which rank gets an object, as a host in native code asks: who lives, and whose payload has memory.

A rank has gone when the `closed` word of its segment says so, or when the kernel holds its lock for nobody. A look at
the lock takes a microsecond and is believed for a while, as in `nanokv.heap.process_heap`, whose words these are.

The interpreter's lock is held: the descriptor of the locks is not closed, and its number not given to another file,
between the look at its word and the system call (`nanokv.heap.locks` sets the word to -1 before).
"""

import fcntl
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from nanokv.device.memory.triton import load64, store64, word
from nanokv.device.native.clock import coarse_ns
from nanokv.device.native.python_objects import load32
from nanokv.device.protocol.directory import home_of
from nanokv.device.segment.host_records import (
    K_AHEAD,
    K_END,
    K_LOCKS,
    K_PEERS,
    K_RANKS,
    K_TABLE,
    K_TRUST,
    PEER_BACKED,
    PEER_BUMP,
    PEER_BYTES,
    PEER_CLOSED,
    PEER_NOTED,
    PEER_UNTIL,
)
from nanokv.device.segment.layout import POSITIVE

NOBODY = tl.constexpr(-1)  #: no rank


@intrinsic
def is_locked(typing: Any, fd: Any, byte: Any) -> tuple[Any, Callable[..., Any]]:
    """1 if another open file holds a lock on a byte of this one, 0 if none does; below 0: the system cannot tell.

    By fcntl(F_OFD_GETLK), which puts F_UNLCK into the struct flock that it is given if nobody stands in the way.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        half, full, short = ir.IntType(32), ir.IntType(64), ir.IntType(16)
        flock = ir.LiteralStructType([short, short, full, full, half])  # type, whence, start, length, pid
        room = cgutils.alloca_once(builder, flock)
        asked = (short(fcntl.F_WRLCK), short(0), args[1], full(1), half(0))
        for i, value in enumerate(asked):
            builder.store(value, cgutils.gep_inbounds(builder, room, 0, i))
        kind = ir.FunctionType(half, [half, half], var_arg=True)
        function = cgutils.get_or_insert_function(builder.module, kind, "fcntl")
        failed = builder.call(function, [builder.trunc(args[0], half), half(fcntl.F_OFD_GETLK), room])
        found = builder.load(cgutils.gep_inbounds(builder, room, 0, 0))
        held = builder.zext(builder.icmp_signed("!=", found, short(fcntl.F_UNLCK)), full)
        return builder.select(builder.icmp_signed("!=", failed, half(0)), full(-1), held)

    return types.int64(types.int64, types.int64), emit


@triton.jit
def peer_at(calls: tl.int64, rank: tl.int64) -> Any:
    """The PEER record of a rank."""
    return load64(calls + K_PEERS, "relaxed") + rank * PEER_BYTES


@triton.jit
def lives(calls: tl.int64, rank: tl.int64) -> Any:
    """True if a rank has not closed its segment, and its process was there a moment ago."""
    peer = peer_at(calls, rank)
    there = load32(load64(peer + PEER_CLOSED, "relaxed")) == 0
    if there:
        now = coarse_ns()
        if now >= load64(peer + PEER_UNTIL, "relaxed"):
            there = is_locked(load32(load64(calls + K_LOCKS, "relaxed")), rank) == 1
            if there:
                store64(peer + PEER_UNTIL, now + load64(calls + K_TRUST, "relaxed"), "relaxed")
    return there


@triton.jit
def owner_of(calls: tl.int64, key_check: tl.int64) -> Any:
    """The rank that a key chooses, as `allocation.Routing.owner_of`; NOBODY if none lives."""
    ranks = load64(calls + K_RANKS, "relaxed")
    owner = home_of(load64(calls + K_TABLE, "relaxed"), key_check)
    if not lives(calls, owner):
        start = (key_check & POSITIVE) // ranks
        i = word(0)
        owner = word(NOBODY)
        while (owner < 0) & (i < ranks):
            rank = (start + i) % ranks
            if lives(calls, rank):
                owner = rank
            i += 1
    return owner


@triton.jit
def may_have(calls: tl.int64, owner: tl.int64, nbytes: tl.int64) -> Any:
    """True if a segment needs nothing of Python for an object: a note of its cache, or memory behind its pages."""
    peer = peer_at(calls, owner)
    ready = load64(peer + PEER_NOTED, "relaxed") != 0
    at = load64(peer + PEER_BACKED, "relaxed")
    if at != 0:
        backed, end = load64(at, "relaxed"), load64(calls + K_END, "relaxed")
        wanted = load64(load64(peer + PEER_BUMP, "relaxed"), "relaxed") + nbytes + load64(calls + K_AHEAD, "relaxed")
        ready = ready & ((backed >= end) | (backed == 0) | (wanted <= backed))
    return ready
