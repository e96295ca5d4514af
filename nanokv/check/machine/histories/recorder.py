"""Records a history from compiled code: operations of less than a microsecond that truly overlap.

Each caller, a thread or a process, writes rows of six words: (called, returned, operation, key, status, value). Times
are tickets of one counter that all add to, from 1 on, so that "before" is certain; a ticket costs some nanoseconds. The
call is noted before the operation begins: the row of an operation that was cut off by a kill has not returned.
"""

# mypy: disallow-untyped-decorators=false

from functools import cache
from typing import Any

import triton
import triton.language as tl

from nanokv.check.machine.hammer import differing, fill
from nanokv.check.machine.slow import slow_function
from nanokv.device.machines.native_code import native_function
from nanokv.device.memory.triton import add64, load64, select, store64, table64, word
from nanokv.device.protocol.directory import find
from nanokv.device.protocol.get import lookup, read
from nanokv.device.protocol.header import raw_bytes
from nanokv.device.protocol.put import put
from nanokv.device.protocol.remove import remove
from nanokv.device.protocol.status import OK
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.device.segment.world_table import World

ROW_WORDS = 6
ROW_BYTES = tl.constexpr(ROW_WORDS * WORD_BYTES.value)
AT_CALLED = tl.constexpr(0 * WORD_BYTES.value)
AT_RETURNED = tl.constexpr(1 * WORD_BYTES.value)
AT_OPERATION = tl.constexpr(2 * WORD_BYTES.value)
AT_KEY = tl.constexpr(3 * WORD_BYTES.value)
AT_STATUS = tl.constexpr(4 * WORD_BYTES.value)
AT_VALUE = tl.constexpr(5 * WORD_BYTES.value)
PUT = tl.constexpr(0)
GET = tl.constexpr(1)
REMOVE = tl.constexpr(2)
EXISTS = tl.constexpr(3)
NAMES = ("put", "get", "remove", "exists")
TORN_VALUE = -1  #: a get whose words were not all alike
_TORN = tl.constexpr(TORN_VALUE)
PATIENCE = tl.constexpr(1 << 26)  # looks for the other callers before a caller begins without them


@triton.jit
def do_one(
    world: World,
    operation: tl.int64,
    key: tl.int64,
    value: tl.int64,
    owner: tl.int64,
    words: tl.int64,
    buffer: tl.int64,
    room: tl.int64,
) -> Any:
    """One operation: (status, value)."""
    status = word(OK)
    if operation == PUT:
        fill(buffer, words, value)
        status, _ = put(world, owner, Key(key, key), buffer, words * WORD_BYTES, value, raw_bytes())
    elif operation == GET:
        status, found = lookup(world, Key(key, key))
        if status == OK:
            status = read(world, found, Key(key, key), buffer, value)
            wrong = differing(buffer, found.nbytes // WORD_BYTES, key)
            value = select(wrong == 0, table64(buffer), word(_TORN))
    elif operation == REMOVE:
        status, _ = remove(world, Key(key, key))
    else:
        status, _ = find(world, Key(key, key))
    return status, value


@triton.jit
def record(
    world: World,
    clock: tl.int64,
    caller: tl.int64,
    seed: tl.int64,
    rounds: tl.int64,
    keys: tl.int64,
    buffer: tl.int64,
    room: tl.int64,
    rows: tl.int64,
    callers: tl.int64,
) -> Any:
    """When `callers` have come here, do `rounds` random operations on `keys` keys (1, 2, ...), each noted in a row.

    `clock`: two words, both 0 at first. `caller` and `rounds`: below 2**8 and 2**24. Returns `rounds`.
    """
    add64(clock + WORD_BYTES, 1, "acq_rel")
    waited = word(0)
    while (load64(clock + WORD_BYTES, "acquire") < callers) & (waited < PATIENCE):
        waited += 1
    random = seed + 0
    i = word(0)
    while i < rounds:
        random = (random * 1103515245 + 12345) & 0x7FFFFFFF
        key = 1 + (random >> 8) % keys
        operation = (random >> 13) & 3
        value = (key << 32) | (caller << 24) | (i + 1)
        owner = (random >> 20) % world.world_size
        words = 1 + (random >> 16) % room
        row = rows + i * ROW_BYTES
        store64(row + AT_OPERATION, operation, "relaxed")
        store64(row + AT_KEY, key, "relaxed")
        store64(row + AT_VALUE, value, "relaxed")
        # a caller that is killed from here on has a row that never returned; the operation begins with an acq_rel step
        store64(row + AT_CALLED, 1 + add64(clock, 1, "acq_rel"), "relaxed")
        status, value = do_one(world, operation, key, value, owner, words, buffer, room)
        returned = 1 + add64(clock, 1, "acq_rel")
        store64(row + AT_STATUS, status, "relaxed")
        store64(row + AT_VALUE, value, "relaxed")
        store64(row + AT_RETURNED, returned, "release")
        i += 1
    return i


@cache
def compiled_record() -> Any:
    """`record` as a Python callable, without the interpreter's lock."""
    return native_function(record)


@cache
def yielding_record() -> Any:
    """Record while giving way after each load: others run in the middle of every operation, also on few cores."""
    return slow_function(record, "give way")


@cache
def lingering_record() -> Any:
    """Record while lingering after each load: a process that is killed is in the middle of an operation."""
    return slow_function(record)
