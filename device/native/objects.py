"""put, get, exists, remove and take as one call each, from what Python's caller wrote to the answer.

A function gets what METH_FASTCALL | METH_KEYWORDS gives: self, the address of the arguments, the number of those that
have no name, and the tuple of the names of those after them, or 0; it answers with a new reference, or with 0 and an
error. Self is a tuple: the address of a CALLS record, and what keeps alive what that names.

A name is known by its address: Python's compiler interns it in the caller. One that is not interned is unusual.

A Status that is not OK goes to a function of Python that raises its error. Three do not: a put that found no room is
done again in Python, where it may wait; a get that finds nothing returns its `default`, if it has one; a put of a key
that is there returns None if `exist_ok` says so. And `take`, which copies to an address, answers NOT_TAKEN instead.

The usual is done here: a key that is a str, bytes or a digest of this cache; a plain tensor in host memory; an owner
that lives; no lease, no copies, no wait. All else is handed to a function of Python, with the same arguments, and
nothing was done before. What was counted here is not counted there.

The interpreter's lock is held for what is small, and at hand: a put takes less time than giving the lock away and
getting it back. It is let go for what is larger, and where a put may have to look for room or evict something. Nothing
of a record is read after it was let go, for other threads use the record then.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.memory.triton import load64, select, store64, word
from nanokv.device.native.ahead import foresee_get, foresee_key, foresee_put
from nanokv.device.native.calls import is_in_segment
from nanokv.device.native.clock import monotonic_ns, now_ns
from nanokv.device.native.keys import digest_of
from nanokv.device.native.peers import NOBODY, lives, may_have, owner_of
from nanokv.device.native.python_objects import (
    call_again,
    call_with,
    call_with_eight,
    call_with_four,
    clear_error,
    drop,
    int_of,
    is_float_zero,
    item,
    keep,
    new_int,
    release_lock,
    size_of_tuple,
    take_lock,
    type_of,
)
from nanokv.device.native.tensors import described
from nanokv.device.protocol.directory import find
from nanokv.device.protocol.get import get_described, lookup, read
from nanokv.device.protocol.header import descriptor_of, load_descriptor, unlike
from nanokv.device.protocol.host_calls import host_remove
from nanokv.device.protocol.put import put
from nanokv.device.protocol.status import DUPLICATE, FULL, MISS, NOT_READY, OK, SIZE, TORN
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.host_records import (
    K_BYTES_RX,
    K_BYTES_TX,
    K_DST,
    K_EMPTY_LIKE,
    K_EXIST_OK,
    K_EXISTS,
    K_FALSE,
    K_FIRST,
    K_FLOAT_TYPE,
    K_GET,
    K_GET_FAILED,
    K_GET_NS,
    K_GET_PAGES,
    K_GETS,
    K_HASHING,
    K_HOLD,
    K_HOLDS,
    K_INT_TYPE,
    K_LAST,
    K_MISSES,
    K_MOST,
    K_NEW,
    K_NO_DEFAULT,
    K_NONE,
    K_PAGE_BYTES,
    K_PREFERRED_SEGMENT,
    K_PUT,
    K_PUT_ERRORS,
    K_PUT_FAILED,
    K_PUT_NS,
    K_PUT_PAGES,
    K_PUT_REFUSED,
    K_PUTS,
    K_RANKS,
    K_REMOVE,
    K_REMOVE_FAILED,
    K_REPLICAS,
    K_TABLE,
    K_TAKE,
    K_TENSOR,
    K_TIMEOUT,
    K_TRUE,
    K_WAKE,
    K_ZERO,
    NEW_BYTES,
    NEW_FORMAT,
    NEW_KINDS,
    NEW_LIKE,
    NEW_NBYTES,
    NOT_ALIKE,
    NOT_TAKEN,
    TIMED,
    TRIES,
    UNUSUAL,
)
from nanokv.device.segment.layout import LOW32, WORD_BYTES
from nanokv.device.segment.world_table import segment

PLACES = tl.constexpr(NEW_KINDS - 1)


@triton.jit
def argument(args: tl.int64, i: tl.int64) -> Any:
    """The i-th argument of a call."""
    return load64(args + i * WORD_BYTES, "relaxed")


@triton.jit
def of(calls: tl.int64, field: tl.constexpr) -> Any:
    """A word of a CALLS record."""
    return load64(calls + field, "relaxed")


@triton.jit
def add(calls: tl.int64, field: tl.constexpr, more: tl.int64) -> None:
    """Count. The interpreter's lock is held."""
    store64(calls + field, load64(calls + field, "relaxed") + more, "relaxed")


@triton.jit
def started(calls: tl.int64, done: tl.constexpr) -> Any:
    """The clock in ns, if this call is one of those that are timed, else 0."""
    now = word(0)
    if load64(calls + done, "relaxed") % TIMED == 1:
        now = monotonic_ns()
    return now


@triton.jit
def timed(calls: tl.int64, since: tl.int64, ns: tl.constexpr, pages: tl.constexpr, nbytes: tl.int64) -> None:
    """Count the time of a call that is timed. An empty object counts as a page."""
    if since != 0:
        size = load64(calls + K_PAGE_BYTES, "relaxed")
        add(calls, ns, monotonic_ns() - since)
        add(calls, pages, select(nbytes > 0, (nbytes + size - 1) // size, word(1)))


@triton.jit
def wake(calls: tl.int64, rank: tl.int64) -> Any:
    """Wake the poller of a rank. False: Python has an error."""
    number = new_int(rank)
    done = call_with(of(calls, K_WAKE), number)
    drop(number)
    if done != 0:
        drop(done)
    return done != 0


@triton.jit
def left(calls: tl.int64, function: tl.constexpr, args: tl.int64, count: tl.int64, names: tl.int64) -> Any:
    """The answer of Python's way."""
    clear_error()
    return call_again(of(calls, function), args, count, names)


@triton.jit
def refused(calls: tl.int64, function: tl.constexpr, status: tl.int64, a: tl.int64, b: tl.int64, c: tl.int64) -> Any:
    """The answer of a function that raises the error of a Status: it is told that, and three objects."""
    number = new_int(status)
    answer = call_with_four(of(calls, function), number, a, b, c)
    drop(number)
    return answer


@triton.jit
def is_no_time(calls: tl.int64, seconds: tl.int64) -> Any:
    """True if a `timeout` is 0, of Python's types float or int."""
    none = seconds == of(calls, K_ZERO)
    if type_of(seconds) == of(calls, K_FLOAT_TYPE):
        none = is_float_zero(seconds) != 0
    return none


@triton.jit
def chosen(calls: tl.int64, preferred: tl.int64, key_check: tl.int64) -> Any:
    """The rank whose segment gets an object; NOBODY: Python says why."""
    owner = word(NOBODY)
    if preferred == of(calls, K_NONE):
        owner = owner_of(calls, key_check)
    elif type_of(preferred) == of(calls, K_INT_TYPE):
        rank = int_of(preferred)
        if (rank >= 0) & (rank < of(calls, K_RANKS)):
            if lives(calls, rank):
                owner = rank
    return owner


@triton.jit
def put_options(calls: tl.int64, args: tl.int64, names: tl.int64) -> Any:
    """The options of a put: (1 if all are known, preferred segment, exist_ok, hold, timeout, replicas).

    `args`: where the values of those that have names begin.
    """
    none, zero = of(calls, K_NONE), of(calls, K_ZERO)
    preferred, exist_ok, hold, timeout, replicas = none, of(calls, K_FALSE), none, zero, zero
    known = word(1)
    if names != 0:
        i = word(0)
        end = size_of_tuple(names)
        while i < end:
            name, value = item(names, i), argument(args, i)
            if name == of(calls, K_PREFERRED_SEGMENT):
                preferred = value
            elif name == of(calls, K_TIMEOUT):
                timeout = value
            elif name == of(calls, K_EXIST_OK):
                exist_ok = value
            elif name == of(calls, K_HOLD):
                hold = value
            elif name == of(calls, K_REPLICAS):
                replicas = value
            else:
                known = word(0)
            i += 1
    return known, preferred, exist_ok, hold, timeout, replicas


@triton.jit
def usual_put(
    calls: tl.int64,
    key: tl.int64,
    tensor: tl.int64,
    preferred: tl.int64,
    exist_ok: tl.int64,
    hold: tl.int64,
    timeout: tl.int64,
    replicas: tl.int64,
) -> Any:
    """A put, counted: (Status, owner, 1 if the owner's poller sleeps); or UNUSUAL, and nothing was done."""
    no = word(0)
    true = of(calls, K_TRUE)
    plain = (hold == of(calls, K_NONE)) & (replicas == of(calls, K_ZERO))
    plain = plain & ((exist_ok == of(calls, K_FALSE)) | (exist_ok == true))
    if (not plain) or (not is_no_time(calls, timeout)):
        return word(UNUSUAL), no, no
    since = started(calls, K_PUTS)
    world = of(calls, K_TABLE)
    known, digest = digest_of(key, of(calls, K_HASHING))
    if not known:
        return word(UNUSUAL), no, no
    foresee_key(world, digest, True)
    owner = chosen(calls, preferred, digest.check)
    if owner == NOBODY:
        return word(UNUSUAL), no, no
    src, nbytes, descriptor = described(tensor, of(calls, K_TENSOR))
    if (src == NOT_ALIKE) or (nbytes > of(calls, K_MOST)) or (not may_have(calls, owner, nbytes)):
        return word(UNUSUAL), no, no
    at_hand = foresee_put(world, owner, digest.hash, nbytes)
    now = now_ns()
    lock = no
    if (nbytes > of(calls, K_HOLDS)) | (not at_hand):
        lock = release_lock()
    status, sleeps = put(world, owner, digest, src, nbytes, now, descriptor)
    if lock != 0:
        take_lock(lock)
    if status == OK:
        add(calls, K_PUTS, word(1))
        add(calls, K_BYTES_TX, nbytes)
        timed(calls, since, K_PUT_NS, K_PUT_PAGES, nbytes)
    elif status != FULL:
        add(calls, K_PUT_ERRORS, word(1))
        if (status == DUPLICATE) & (exist_ok == true):
            status = word(OK)
    return status, owner, sleeps


@triton.jit
def put_call(me: tl.int64, args: tl.int64, count: tl.int64, names: tl.int64) -> Any:
    """put(key, tensor, *, preferred_segment, exist_ok, hold, timeout, replicas) -> None."""
    calls = int_of(item(me, word(0)))
    if count != 2:
        return left(calls, K_PUT, args, count, names)
    key, tensor = argument(args, word(0)), argument(args, word(1))
    known, preferred, exist_ok, hold, timeout, replicas = put_options(calls, args + 2 * WORD_BYTES, names)
    status = word(UNUSUAL)
    owner = word(0)
    sleeps = word(0)
    if known != 0:
        status, owner, sleeps = usual_put(calls, key, tensor, preferred, exist_ok, hold, timeout, replicas)
    if status == UNUSUAL:
        return left(calls, K_PUT, args, count, names)
    if sleeps != 0:
        if not wake(calls, owner):
            return word(0)
    if status == FULL:
        number = new_int(owner)
        function = of(calls, K_PUT_REFUSED)
        answer = call_with_eight(function, key, tensor, preferred, exist_ok, hold, timeout, replicas, number)
        drop(number)
        return answer
    if status != OK:
        return refused(calls, K_PUT_FAILED, status, key, tensor, preferred)
    none = of(calls, K_NONE)
    keep(none)
    return none


@triton.jit
def is_outside(calls: tl.int64, world: tl.int64, address: tl.int64, nbytes: tl.int64) -> Any:
    """True if bytes of the caller lie in no segment: to write there would change objects."""
    outside = (address >= of(calls, K_LAST)) | (address + nbytes <= of(calls, K_FIRST))
    if not outside:
        outside = not is_in_segment(world, address, nbytes)
    return outside


@triton.jit
def count_get(calls: tl.int64, status: tl.int64, nbytes: tl.int64, since: tl.int64) -> None:
    """Count a get."""
    if status == OK:
        add(calls, K_GETS, word(1))
        add(calls, K_BYTES_RX, nbytes)
        timed(calls, since, K_GET_NS, K_GET_PAGES, nbytes)
    elif (status == MISS) | (status == NOT_READY):
        add(calls, K_MISSES, word(1))


@triton.jit
def get_into(calls: tl.int64, key: tl.int64, tensor: tl.int64) -> Any:
    """A get into a tensor of the caller, counted: a Status; or UNUSUAL, and nothing was done."""
    since = started(calls, K_GETS)
    world = of(calls, K_TABLE)
    known, digest = digest_of(key, of(calls, K_HASHING))
    if not known:
        return word(UNUSUAL)
    foresee_key(world, digest, False)
    dst, nbytes, descriptor = described(tensor, of(calls, K_TENSOR))
    if (dst == NOT_ALIKE) or (nbytes > of(calls, K_MOST)) or (not is_outside(calls, world, dst, nbytes)):
        return word(UNUSUAL)
    foresee_get(world, digest)
    now = now_ns()
    lock = word(0)
    if nbytes > of(calls, K_HOLDS):
        lock = release_lock()
    status = word(TORN)
    tries = word(0)
    while (status == TORN) & (tries < TRIES):
        status = get_described(world, digest, dst, nbytes, now, descriptor)
        tries += 1
    if lock != 0:
        take_lock(lock)
    if (status == SIZE) & (tries == 1):  # Python says what does not suit
        return word(UNUSUAL)
    if (status == TORN) | (status == SIZE):  # what suited went away while it was copied
        status = word(MISS)
    count_get(calls, status, nbytes, since)
    return status


@triton.jit
def new_kind(kind: tl.int64, nbytes: tl.int64, d0: tl.int64, d1: tl.int64, d2: tl.int64) -> Any:
    """The place of a dtype and shape among the NEW records."""
    mixed = kind ^ nbytes ^ (d0 << 7) ^ (d1 << 13) ^ (d2 << 19)
    mixed = mixed ^ (mixed >> 17)
    return (mixed ^ (mixed >> 6)) & PLACES


@triton.jit
def made_like(calls: tl.int64, nbytes: tl.int64, world: tl.int64, owner: tl.int64, slot: tl.int64) -> Any:
    """What a new tensor for the object in a header slot is made like, kept; 0 if no such one was made lately."""
    has = descriptor_of(world, segment(world, owner), slot)
    new = calls + K_NEW + new_kind(has.kind & LOW32, nbytes, has.d0, has.d1, has.d2) * NEW_BYTES
    differs = (load64(new + NEW_NBYTES, "relaxed") ^ nbytes) | unlike(has, load_descriptor(new + NEW_FORMAT))
    like = select(differs == 0, load64(new + NEW_LIKE, "relaxed"), word(0))
    if like != 0:
        keep(like)
    return like


@triton.jit
def new_tensor(calls: tl.int64, like: tl.int64, wanted: tl.int64) -> Any:
    """Make a tensor like another one: (it, where its `wanted` bytes are), or (0, NOT_ALIKE). Others may run."""
    made = call_with(of(calls, K_EMPTY_LIKE), like)
    dst = word(NOT_ALIKE)
    if made != 0:
        dst, nbytes, _ = described(made, of(calls, K_TENSOR))
        if (dst == NOT_ALIKE) | (nbytes != wanted):
            drop(made)
            made = word(0)
    return made, dst


@triton.jit
def read_alike(calls: tl.int64, like: tl.int64, key: Key, dst: tl.int64, nbytes: tl.int64) -> Any:
    """Read an object of the dtype and shape of `like` to `dst`: a Status; UNUSUAL if it is of another kind by now."""
    world = of(calls, K_TABLE)
    status = word(TORN)
    tries = word(0)
    while (status == TORN) & (tries < TRIES):
        tries += 1
        status, found = lookup(world, key)
        if status == OK:
            alike = made_like(calls, found.nbytes, world, found.owner, found.slot)
            if alike != 0:
                drop(alike)
            status = word(UNUSUAL)
            if (alike == like) & (found.nbytes == nbytes):
                lock = word(0)
                if nbytes > of(calls, K_HOLDS):
                    lock = release_lock()
                status = read(world, found, key, dst, now_ns())
                if lock != 0:
                    take_lock(lock)
    return select(status == TORN, word(MISS), status)


@triton.jit
def get_new(calls: tl.int64, key: tl.int64) -> Any:
    """A get into a new tensor, counted: (Status, the tensor or 0); or UNUSUAL, and nothing was done."""
    since = started(calls, K_GETS)
    world = of(calls, K_TABLE)
    known, digest = digest_of(key, of(calls, K_HASHING))
    if not known:
        return word(UNUSUAL), word(0)
    status, found = lookup(world, digest)
    made = word(0)
    if status == OK:
        like = word(0)
        if found.nbytes <= of(calls, K_MOST):
            like = made_like(calls, found.nbytes, world, found.owner, found.slot)
        status = word(UNUSUAL)
        if like != 0:  # held to the end, so that no other tensor has its address
            made, dst = new_tensor(calls, like, found.nbytes)
            if made != 0:
                status = read_alike(calls, like, digest, dst, found.nbytes)
            drop(like)
    if status != UNUSUAL:
        count_get(calls, status, found.nbytes, since)
    if (status != OK) & (made != 0):
        drop(made)
        made = word(0)
    return status, made


@triton.jit
def get_call(me: tl.int64, args: tl.int64, count: tl.int64, names: tl.int64) -> Any:
    """get(key, default, *, dst, reinterpret) -> the tensor, or the default. `reinterpret` is unusual."""
    calls = int_of(item(me, word(0)))
    known = (count == 1) | (count == 2)
    answer = of(calls, K_NONE)
    if known & (names != 0):
        known = (size_of_tuple(names) == 1) & (item(names, word(0)) == of(calls, K_DST))
        answer = argument(args, count)
    if not known:
        return left(calls, K_GET, args, count, names)
    key, default = argument(args, word(0)), of(calls, K_NO_DEFAULT)
    if count == 2:
        default = argument(args, word(1))
    status = word(UNUSUAL)
    if answer == of(calls, K_NONE):
        status, answer = get_new(calls, key)
    else:
        status = get_into(calls, key, answer)
        if status == OK:
            keep(answer)
    if status == UNUSUAL:
        return left(calls, K_GET, args, count, names)
    if status == OK:
        return answer
    if ((status == MISS) | (status == NOT_READY)) & (default != of(calls, K_NO_DEFAULT)):
        keep(default)
        return default
    return refused(calls, K_GET_FAILED, status, key, key, key)


@triton.jit
def exists_call(me: tl.int64, args: tl.int64, count: tl.int64, names: tl.int64) -> Any:
    """exists(key) -> bool."""
    calls = int_of(item(me, word(0)))
    if (count == 1) & (names == 0):
        known, digest = digest_of(argument(args, word(0)), of(calls, K_HASHING))
        if known:
            status, _ = find(of(calls, K_TABLE), digest)
            answer = select(status == OK, of(calls, K_TRUE), of(calls, K_FALSE))
            keep(answer)
            return answer
    return left(calls, K_EXISTS, args, count, names)


@triton.jit
def remove_call(me: tl.int64, args: tl.int64, count: tl.int64, names: tl.int64) -> Any:
    """remove(key) -> None."""
    calls = int_of(item(me, word(0)))
    if (count == 1) & (names == 0):
        key = argument(args, word(0))
        known, digest = digest_of(key, of(calls, K_HASHING))
        if known:
            status, owner, sleeps, copies = host_remove(of(calls, K_TABLE), digest.hash, digest.check)
            rank = select(copies != 0, word(0), owner)
            end = select(copies != 0, of(calls, K_RANKS), select(sleeps != 0, owner + 1, owner))
            while rank < end:
                if not wake(calls, rank):
                    return word(0)
                rank += 1
            answer = of(calls, K_NONE)
            if status != OK:
                return refused(calls, K_REMOVE_FAILED, status, key, answer, answer)
            keep(answer)
            return answer
    return left(calls, K_REMOVE, args, count, names)


@triton.jit
def take_call(me: tl.int64, args: tl.int64, count: tl.int64, names: tl.int64) -> Any:
    """take(key, address, room) -> the bytes of an object of any kind, copied to the address; below 0: NOT_TAKEN.

    There is none, or it has more than `room` bytes, is damaged, or was replaced meanwhile.
    """
    calls = int_of(item(me, word(0)))
    if (count == 3) & (names == 0):
        world = of(calls, K_TABLE)
        dst, room = argument(args, word(1)), argument(args, word(2))
        known, digest = digest_of(argument(args, word(0)), of(calls, K_HASHING))
        if known & (type_of(dst) == of(calls, K_INT_TYPE)) & (type_of(room) == of(calls, K_INT_TYPE)):
            dst, room = int_of(dst), int_of(room)
            taken = word(NOT_TAKEN)
            lock = release_lock()
            status, found = lookup(world, digest)
            if (status == OK) & (found.nbytes <= room):
                if read(world, found, digest, dst, now_ns()) == OK:
                    taken = found.nbytes
            take_lock(lock)
            return new_int(taken)
    return left(calls, K_TAKE, args, count, names)
