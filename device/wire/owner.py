"""The owner's end: a loop over connections that puts, gets, finds and removes, without the interpreter's lock.

Guarantees
- Nothing of a frame is believed, and nothing is claimed or removed, before its MAC is right. Every field is compared
  with what can be before it is used. What breaks a rule ends its connection.
- Only this thread writes to the pages of a put, and only while it is in `receive`. So what is given up can be freed at
  once: no byte comes late (I1). The objects are plans (FLAG_PLAN): no grace period waits for a slow producer.
- On a sealed connection (`parcels`) a byte reaches its pages deciphered, and an object is committed when the tags of
  all its parcels are right. A get is read from the pages into parcels, then validated; its status is sealed behind it.
- A connection that ends, breaks a rule, or is dropped by its host loses what it had begun; a put is there whole, or not
  at all (I6: what was begun when this process died comes back as any dead producer's objects).
- A get is validated after the kernel has taken its bytes, and the statuses that count follow them (I4).
- No connection delays another: no call waits for a socket but `epoll_wait`, and after MOST_A_TURN bytes a connection
  waits for its next turn. One question of a connection is under way at a time. What no byte moves for longer than
  `patience`, though something of it has begun, ends.
- The loop never returns to Python. What needs the host (a message, a put that found no room, a connection that has
  ended) goes into a queue, and is the host's (C_HOSTED), whose thread alone looks at it until that hands it back.

Why the orderings suffice: they are those of `pulls`, `get`, `directory` and `remove`, of which this is a caller. A
poller is woken after the hint was left (`ring`): `clear_flag` is a full fence. A connection is handed over by the
system calls that the other thread waits in (eventfd, epoll), which order all before them.
"""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.fabric.pulls import RIGHT, begin_each, copy_pulls, end_each, fault_of_pulls
from nanokv.device.fabric.records import (
    P_ACCESS,
    P_EPOCH,
    P_GROUP,
    P_KEY_CHECK,
    P_NBYTES,
    P_PAYLOAD,
    P_RANK,
    P_SLOT,
    P_SOURCE,
    P_STATUS,
    P_UNTIL,
    P_WHAT,
    PULL_BYTES,
)
from nanokv.device.memory.native_copy import memcpy
from nanokv.device.memory.triton import load64, select, store64, word
from nanokv.device.native.c_calls import give_way
from nanokv.device.native.clock import monotonic_ns, now_ns
from nanokv.device.native.futex import clear_flag, wake_all
from nanokv.device.native.many import key_at
from nanokv.device.native.peers import may_have, owner_of
from nanokv.device.native.sockets import (
    AGAIN,
    CAN_READ,
    CAN_WRITE,
    DELETE,
    DONT_WAIT,
    EVENT_BYTES,
    EVENT_DATA,
    INTERRUPTED,
    MODIFY,
    MORE_COMES,
    NO_SIGNAL,
    epoll_control,
    epoll_wait,
    error,
    give_back,
    send,
    send_message,
    write,
)
from nanokv.device.native.unsigned import store_word, word_at
from nanokv.device.protocol.directory import find
from nanokv.device.protocol.get import is_described, lookup, validate, verify
from nanokv.device.protocol.header import descriptor_of, load_descriptor, raw_bytes, store_descriptor
from nanokv.device.protocol.host_calls import host_remove
from nanokv.device.protocol.label import label
from nanokv.device.protocol.lease import lease, touch
from nanokv.device.protocol.status import FULL, OK, SIZE, TORN
from nanokv.device.protocol.structs import Found
from nanokv.device.segment.layout import (
    ACCESS_TIME,
    ANN_ASLEEP,
    DTYPE_MASK,
    LOW32,
    MAX_DIMS,
    NDIM_MASK,
    NDIM_SHIFT,
    TERMS_PRIORITY_SHIFT,
    WORD_BYTES,
)
from nanokv.device.segment.world_table import World, segment
from nanokv.device.wire.frames import (
    NO_FRAME,
    add_to,
    begin_frame,
    close_frame,
    count_of,
    covered,
    fill_up,
    is_authentic,
    is_sealed,
    kind_of,
    of,
    put_in,
    size_of_question,
    whole_words,
)
from nanokv.device.wire.parcels import begin_parcel, close_parcel, put_in_parcel, take
from nanokv.device.wire.records import (
    ALL_ROOMS,
    ALL_SEALED_ROOMS,
    BELL,
    C_AT,
    C_COME,
    C_COUNT,
    C_FD,
    C_FIRST,
    C_GOING,
    C_GONE,
    C_GROWN,
    C_HAVE,
    C_HEAD,
    C_HOSTED,
    C_INPUT,
    C_LAST,
    C_LEFT,
    C_MESSAGE,
    C_NEED,
    C_OPEN,
    C_OUTPUT,
    C_PARCEL,
    C_PIECE,
    C_PULLS,
    C_SEEN,
    C_SINCE,
    C_STATE,
    C_VECTORS,
    C_WAITS,
    CALL,
    CALLED,
    CONNECTION_BYTES,
    END,
    EXISTS,
    FORGED,
    G_EPOCH,
    G_NBYTES,
    G_PAYLOAD,
    G_RANK,
    G_SLOT,
    G_STATUS,
    G_WHAT,
    GET,
    GO,
    GONE,
    GOT_BYTES,
    GOT_THEM,
    HEAD_BYTES,
    HOSTED,
    IN_PARCEL,
    INLINE,
    KEY_BYTES,
    MAC_BYTES,
    MESSAGE_BYTES,
    MOST,
    MOST_EVENTS,
    OFFER,
    PAYLOAD,
    PULLED_SIZE,
    PUT,
    PUT_DONE,
    READING,
    REMOVE,
    ROOM,
    S_BAD,
    S_BELL,
    S_CALLS,
    S_CONNECTIONS,
    S_EPOLL,
    S_EVENT,
    S_EVENTS,
    S_FUTEX,
    S_GETS,
    S_GIVEN_UP,
    S_HOST,
    S_MOST,
    S_ONE,
    S_PATIENCE,
    S_PUTS,
    S_QUEUE,
    S_QUEUED,
    S_RANKS,
    S_REMOVALS,
    S_SERVES,
    S_SILENT,
    S_SIZES,
    S_SPIN,
    S_STOP,
    S_USED,
    SENDING,
    STATUSES,
    STREAMING,
    VECTORS,
    W_ANY_SIZE,
    W_ROOM,
    W_WHAT,
    WANTED_BYTES,
)

TICK_MS, TICK_NS = tl.constexpr(100), tl.constexpr(100_000_000)  #: between two looks at all connections
RESTS = tl.constexpr(1_000_000_000)  #: ns without a question, after which a connection gives its memory back
SMALL = tl.constexpr(8192)  #: bytes of a frame: what is larger uses more than the first pages of a room
MOST_A_TURN = tl.constexpr(1 << 20)  #: bytes that a connection moves before the others have a turn
MOST_BYTES = tl.constexpr(1 << 52)  #: of an object: more than there is memory
TIME_MASK = tl.constexpr((1 << TERMS_PRIORITY_SHIFT.value) - 1)  #: of TERMS: what is no priority
DIMS = tl.constexpr(MAX_DIMS)
LAST_RANK = tl.constexpr(62)  #: ranks above it are woken with it


# --- what somebody asks for -------------------------------------------------------------------
@triton.jit
def makes_its_size(box: tl.int64, pull: tl.int64) -> Any:
    """Whether the dtype and shape of a PULL make its bytes; raw bytes have neither."""
    form, nbytes = of(pull, P_WHAT), of(pull, P_NBYTES)
    code, ndim = form & DTYPE_MASK, (form >> NDIM_SHIFT) & NDIM_MASK
    size = load64(of(box, S_SIZES) + code * WORD_BYTES, "relaxed")
    right = (form & ~(DTYPE_MASK | (NDIM_MASK << NDIM_SHIFT))) == 0
    total, i = size, word(0)
    if code == 0:
        right = right & (ndim == 0)
        total = nbytes
    right = right & ((size > 0) | (code == 0)) & (ndim <= DIMS)
    while right & (i < DIMS):
        d = load64(pull + P_WHAT + (1 + i) * WORD_BYTES, "relaxed")
        if i < ndim:
            right = (d >= 0) & (d <= MOST_BYTES)
            if right & (d > 0):
                right = total <= MOST_BYTES // d  # so no product overflows
            if right:
                total = total * d
        else:
            right = d == 0
        i += 1
    return right & (total == nbytes)


@triton.jit
def are_right(world: World, box: tl.int64, pulls: tl.int64, count: tl.int64, payload: tl.int64) -> Any:
    """Whether PULLs ask for what can be, and lie side by side in a payload of so many bytes (-1: they bring none).

    Then each has the rank that gets it, and nothing in it of what the owner says.
    """
    right = fault_of_pulls(world, pulls, count, of(box, S_MOST)) == RIGHT
    at = word(0)
    i = word(0)
    while right & (i < count):
        pull = pulls + i * PULL_BYTES
        right = makes_its_size(box, pull) & (of(pull, P_UNTIL) >= 0) & (of(pull, P_ACCESS) >= 0)
        put_in(pull, P_SOURCE, at)
        at += of(pull, P_NBYTES)
        if of(pull, P_RANK) < 0:
            owner = owner_of(of(box, S_CALLS), of(pull, P_KEY_CHECK))
            put_in(pull, P_RANK, select(owner < 0, word(0), owner))  # this rank lives, so somebody does
        put_in(pull, P_STATUS, word(FULL))
        put_in(pull, P_SLOT, word(0))
        put_in(pull, P_EPOCH, word(0))
        put_in(pull, P_PAYLOAD, word(0))
        i += 1
    return right & ((at == payload) | (payload < 0))


# --- puts -------------------------------------------------------------------------------------
@triton.jit
def claim_all(world: World, box: tl.int64, pulls: tl.int64, count: tl.int64) -> Any:
    """Claim keys and pages for PULLs that are right. True: the host must look for room for some of them.

    Where pages may have no memory behind them yet, the host claims.
    """
    total, size = word(0), world.page_bytes
    i = word(0)
    while i < count:
        total += (of(pulls + i * PULL_BYTES, P_NBYTES) + size - 1) // size * size
        i += 1
    ready = True
    i = word(0)
    while ready & (i < count):
        rank = of(pulls + i * PULL_BYTES, P_RANK)
        if i > 0:
            if rank != of(pulls + (i - 1) * PULL_BYTES, P_RANK):
                ready = may_have(of(box, S_CALLS), rank, total)
        else:
            ready = may_have(of(box, S_CALLS), rank, total)
        i += 1
    if ready:
        begin_each(world, pulls, count)
    full = False
    i = word(0)
    while i < count:
        full = full | (of(pulls + i * PULL_BYTES, P_STATUS) == FULL)
        i += 1
    return full


@triton.jit
def later(time: tl.int64, now: tl.int64) -> Any:
    """The time of which `relative_terms.relative` made a distance; what is for ever stays so."""
    moved = select(time >= ACCESS_TIME, word(0), time) + now
    return select((time >= ACCESS_TIME) | (moved > ACCESS_TIME), word(ACCESS_TIME), moved)


@triton.jit
def set_terms(world: World, pull: tl.int64) -> None:
    """Give an object that is WRITING its terms, whose times count from now."""
    access, group, until = of(pull, P_ACCESS), of(pull, P_GROUP), of(pull, P_UNTIL)
    if (access | group | until) != 0:
        now = now_ns()
        time = access & TIME_MASK
        if time != 0:
            access = (access & ~TIME_MASK) | (later(time, now) & ACCESS_TIME)
        owner, slot = of(pull, P_RANK), of(pull, P_SLOT)
        if access != 0:
            lease(world, owner, slot, access)
        if (group | until) != 0:
            label(world, owner, slot, group, select(until != 0, later(until, now), word(0)))


@triton.jit
def end_all(world: World, box: tl.int64, pulls: tl.int64, count: tl.int64, well: tl.int64) -> None:
    """`end_each`, and count what was put. Who sleeps is woken after the answer."""
    put_in(box, S_RANKS, of(box, S_RANKS) | end_each(world, pulls, count, well))
    i = word(0)
    while i < count:
        add_to(box, S_PUTS, select(of(pulls + i * PULL_BYTES, P_STATUS) == OK, word(1), word(0)))
        i += 1


@triton.jit
def answer_pulls(connection: tl.int64, kind: tl.int64, pulls: tl.int64, count: tl.int64) -> None:
    """Make the answer about PULLs: PUT_DONE or GO."""
    out = of(connection, C_OUTPUT)
    begin_frame(connection, out, kind, count, word(0), word(0))
    i = word(0)
    while i < count:
        pull, to = pulls + i * PULL_BYTES, out + HEAD_BYTES + i * PULLED_SIZE
        store64(to, of(pull, P_STATUS), "relaxed")
        store64(to + WORD_BYTES, of(pull, P_RANK), "relaxed")
        store64(to + 2 * WORD_BYTES, of(pull, P_SLOT), "relaxed")
        store64(to + 3 * WORD_BYTES, of(pull, P_EPOCH), "relaxed")
        store64(to + 4 * WORD_BYTES, of(pull, P_PAYLOAD), "relaxed")
        i += 1
    end = HEAD_BYTES + count * PULLED_SIZE
    begin_sending(connection, out, close_frame(connection, out, end, word(0), end), word(0))


@triton.jit
def take_claimed(world: World, box: tl.int64, connection: tl.int64) -> None:
    """Go on with a PUT or OFFER whose keys are claimed, as far as they can be, and make the answer."""
    frame = of(connection, C_INPUT)
    count, pulls = count_of(frame), frame + HEAD_BYTES
    i = word(0)
    while i < count:
        pull = pulls + i * PULL_BYTES
        if of(pull, P_STATUS) == OK:
            set_terms(world, pull)
        i += 1
    kind = word(GO)
    if kind_of(frame) == PUT:
        copy_pulls(world, pulls, count, pulls + count * PULL_BYTES)
        kind = word(PUT_DONE)
    else:
        memcpy(of(connection, C_PULLS), pulls, count * PULL_BYTES)
        pulls = of(connection, C_PULLS)
        put_in(connection, C_OPEN, count)
    if kind == PUT_DONE:
        end_all(world, box, pulls, count, word(1))
    answer_pulls(connection, kind, pulls, count)


# --- gets -------------------------------------------------------------------------------------
@triton.jit
def find_all(world: World, connection: tl.int64, wanted: tl.int64, count: tl.int64) -> None:
    """Look for all keys of a GET, and make the answer: whole, with the bytes, if these are few; else its beginning."""
    out = of(connection, C_OUTPUT)
    gots = out + HEAD_BYTES
    total = word(0)
    i = word(0)
    while i < count:
        one, got = wanted + i * WANTED_BYTES, gots + i * GOT_BYTES
        status, found = lookup(world, key_at(one))
        store_descriptor(got + G_WHAT, raw_bytes())
        if status == OK:
            seg = segment(world, found.owner)
            store_descriptor(got + G_WHAT, descriptor_of(world, seg, found.slot))
            put_in(got, G_WHAT, of(got, G_WHAT) & LOW32)  # without what is stored of a checksum
            suits = found.nbytes <= of(one, W_ROOM)
            if of(one, W_ANY_SIZE) == 0:
                same = is_described(world, seg, found.slot, load_descriptor(one + W_WHAT))
                suits = (found.nbytes == of(one, W_ROOM)) & same
            if suits:
                total += found.nbytes
            else:
                status = word(SIZE)
        put_in(got, G_STATUS, status)
        put_in(got, G_NBYTES, found.nbytes)
        put_in(got, G_RANK, found.owner)
        put_in(got, G_SLOT, found.slot)
        put_in(got, G_EPOCH, found.epoch)
        put_in(got, G_PAYLOAD, found.payload)
        i += 1
    head = HEAD_BYTES + count * GOT_BYTES
    if total > INLINE:
        begin_frame(connection, out, word(GOT_THEM), count, total, word(0))
        begin_sending(connection, out, head, count)
    else:
        begin_frame(connection, out, word(GOT_THEM), count, total, word(1))
        at = out + head
        i = word(0)
        while i < count:
            got = gots + i * GOT_BYTES
            if of(got, G_STATUS) == OK:
                memcpy(at, segment(world, of(got, G_RANK)) + of(got, G_PAYLOAD), of(got, G_NBYTES))
                at += of(got, G_NBYTES)
            i += 1
        fill_up(out + head, total)
        end, nbytes = head + whole_words(total), count * WORD_BYTES
        i = word(0)
        while i < count:
            judge(world, connection, i, out + end)
            i += 1
        size = close_frame(connection, out, covered(head, total), nbytes, end + nbytes)
        begin_sending(connection, out, size, word(0))


@triton.jit
def judge(world: World, connection: tl.int64, i: tl.int64, at: tl.int64) -> None:
    """Write the status of one object that counts, after its bytes were copied, to its word of those at an address."""
    got = of(connection, C_OUTPUT) + HEAD_BYTES + i * GOT_BYTES
    one = of(connection, C_INPUT) + HEAD_BYTES + i * WANTED_BYTES
    owner, slot, epoch, status = of(got, G_RANK), of(got, G_SLOT), of(got, G_EPOCH), of(got, G_STATUS)
    if status == OK:
        payload = of(got, G_PAYLOAD)
        there = segment(world, owner) + payload
        status = verify(world, Found(owner, slot, epoch, payload, of(got, G_NBYTES)), key_at(one), there)
        if status == OK:
            touch(world, owner, slot, epoch, now_ns())
    elif status == SIZE:
        status = select(validate(world, owner, slot, epoch) == OK, word(SIZE), word(TORN))
    store64(at + i * WORD_BYTES, status, "relaxed")


# --- keys -------------------------------------------------------------------------------------
@triton.jit
def find_or_remove(world: World, box: tl.int64, connection: tl.int64, kind: tl.int64, count: tl.int64) -> None:
    """Answer an EXISTS or a REMOVE: a status for each key."""
    out, keys = of(connection, C_OUTPUT), of(connection, C_INPUT) + HEAD_BYTES
    begin_frame(connection, out, word(STATUSES), count, word(0), word(0))
    gone = word(0)
    i = word(0)
    while i < count:
        key = key_at(keys + i * KEY_BYTES)
        status = word(OK)
        if kind == EXISTS:
            status, _ = find(world, key)
        else:
            status, owner, sleeps, copies = host_remove(world, key.hash, key.check)
            if copies != 0:
                put_in(box, S_RANKS, word(-1))
            elif sleeps != 0:
                put_in(box, S_RANKS, of(box, S_RANKS) | (word(1) << select(owner < LAST_RANK, owner, word(LAST_RANK))))
            gone += select(status == OK, word(1), word(0))
        store64(out + HEAD_BYTES + i * WORD_BYTES, status, "relaxed")
        i += 1
    add_to(box, S_REMOVALS, gone)
    end = HEAD_BYTES + count * WORD_BYTES
    begin_sending(connection, out, close_frame(connection, out, end, word(0), end), word(0))


# --- what goes --------------------------------------------------------------------------------
@triton.jit
def begin_sending(connection: tl.int64, first: tl.int64, head: tl.int64, count: tl.int64) -> None:
    """Let `head` bytes at the address `first` go next, and behind them the objects of `count` GOTs, and an end."""
    put_in(connection, C_FIRST, first)
    put_in(connection, C_HEAD, head)
    put_in(connection, C_COUNT, count)
    put_in(connection, C_PIECE, word(0))
    put_in(connection, C_AT, word(0))
    put_in(connection, C_LAST, word(0))
    put_in(connection, C_STATE, word(SENDING))
    if head > SMALL:
        put_in(connection, C_GROWN, word(1))


@triton.jit
def size_of_piece(connection: tl.int64, piece: tl.int64) -> Any:
    """The bytes of a piece of what goes; those of the end are known when it is made."""
    size = of(connection, C_HEAD)
    if piece > of(connection, C_COUNT):
        size = of(connection, C_LAST)
    elif piece > 0:
        got = of(connection, C_OUTPUT) + HEAD_BYTES + (piece - 1) * GOT_BYTES
        size = select(of(got, G_STATUS) == OK, of(got, G_NBYTES), word(0))
    return size


@triton.jit
def address_of_piece(world: World, connection: tl.int64, piece: tl.int64) -> Any:
    """Where the bytes of a piece are."""
    at = of(connection, C_FIRST)
    if piece > of(connection, C_COUNT):
        at = at + of(connection, C_HEAD)
    elif piece > 0:
        got = of(connection, C_OUTPUT) + HEAD_BYTES + (piece - 1) * GOT_BYTES
        at = segment(world, of(got, G_RANK)) + of(got, G_PAYLOAD)
    return at


@triton.jit
def make_end(connection: tl.int64) -> None:
    """Make the end of a GOT, whose statuses are there: the MAC of its beginning and of them."""
    out, head, nbytes = of(connection, C_OUTPUT), of(connection, C_HEAD), of(connection, C_COUNT) * WORD_BYTES
    close_frame(connection, out, head, nbytes, head + nbytes)
    put_in(connection, C_LAST, nbytes + MAC_BYTES)


@triton.jit
def send_some(world: World, connection: tl.int64) -> Any:
    """Let the kernel take what it will from the current piece on: what `send` answers."""
    piece, at, count = of(connection, C_PIECE), of(connection, C_AT), of(connection, C_COUNT)
    vectors, used, total = connection + C_VECTORS, word(0), word(0)
    flags = word(DONT_WAIT | NO_SIGNAL)
    if (count == 0) | (piece > count):
        size = size_of_piece(connection, piece)
        store64(vectors, address_of_piece(world, connection, piece) + at, "relaxed")
        store64(vectors + WORD_BYTES, size - at, "relaxed")
        used = word(1)
    else:
        flags = flags | MORE_COMES
        while (piece <= count) & (used < VECTORS) & (total < MOST_A_TURN):
            size = size_of_piece(connection, piece) - at
            if size > 0:
                vector = vectors + used * 2 * WORD_BYTES
                store64(vector, address_of_piece(world, connection, piece) + at, "relaxed")
                most = MOST_A_TURN - total  # what is cut off ends the list: nothing comes behind it
                store64(vector + WORD_BYTES, select(size < most, size, most), "relaxed")
                total += size
                used += 1
            at = word(0)
            piece += 1
    sent = word(0)
    if used == 1:
        sent = send(of(connection, C_FD), load64(vectors, "relaxed"), load64(vectors + WORD_BYTES, "relaxed"), flags)
    elif used > 1:
        message = connection + C_MESSAGE
        i = word(0)
        while i < MESSAGE_BYTES:
            store64(message + i, word(0), "relaxed")
            i += WORD_BYTES
        store64(message + 2 * WORD_BYTES, vectors, "relaxed")
        store64(message + 3 * WORD_BYTES, used, "relaxed")
        sent = send_message(of(connection, C_FD), message, flags)
    return sent


@triton.jit
def advance(world: World, connection: tl.int64, moved: tl.int64) -> Any:
    """Count bytes that went. True: all of the answer has gone. The end is made when all before it has gone.

    An object is judged when its last byte has gone, so that no turn sums the bytes of a whole answer.
    """
    piece, at, count = of(connection, C_PIECE), of(connection, C_AT) + moved, of(connection, C_COUNT)
    while (piece <= count) & (at >= size_of_piece(connection, piece)):
        at -= size_of_piece(connection, piece)
        if piece > 0:
            judge(world, connection, piece - 1, of(connection, C_OUTPUT) + of(connection, C_HEAD))
        piece += 1
    put_in(connection, C_PIECE, piece)
    put_in(connection, C_AT, at)
    done = piece > count
    if (count > 0) & done:
        if of(connection, C_LAST) == 0:
            make_end(connection)
        done = at >= of(connection, C_LAST)
    return done


@triton.jit
def fill_parcel(world: World, connection: tl.int64) -> None:
    """Make the next parcel of the answer under way.

    It ends with the beginning of a GOT, and with a large object, so that what comes after it can be deciphered to where
    it is to lie.
    """
    used, right, goes_on = word(0), begin_parcel(connection), True
    while goes_on & right:
        piece, at = of(connection, C_PIECE), of(connection, C_AT)
        size, room = size_of_piece(connection, piece), IN_PARCEL - used
        some = select(size - at < room, size - at, room)
        right = put_in_parcel(connection, used, address_of_piece(world, connection, piece) + at, some)
        used += some
        goes_on = (not advance(world, connection, some)) & (used < IN_PARCEL)
        goes_on = goes_on & (piece > 0) & (size < IN_PARCEL // 2)
    right = right and close_parcel(connection, used)
    if not right:
        put_in(connection, C_STATE, word(GONE))
    if used > SMALL:
        put_in(connection, C_GROWN, word(1))


@triton.jit
def send_parcel(world: World, connection: tl.int64) -> Any:
    """Let the kernel take what it will of the parcel that goes, or of the next one: what `send` answers."""
    if of(connection, C_GOING) == 0:
        fill_parcel(world, connection)
    gone = of(connection, C_GONE)
    flags = word(DONT_WAIT | NO_SIGNAL)
    if (of(connection, C_PIECE) <= of(connection, C_COUNT)) & (of(connection, C_GOING) < IN_PARCEL // 2):
        flags = flags | MORE_COMES  # a large one is opened at the other end while the next is made
    sent = word(0)
    if of(connection, C_STATE) == SENDING:
        sent = send(of(connection, C_FD), of(connection, C_PARCEL) + gone, of(connection, C_GOING) - gone, flags)
    return sent


@triton.jit
def let_go(world: World, connection: tl.int64) -> Any:
    """Let the kernel take what it will of the answer under way: what `send` answers."""
    if is_sealed(connection):
        return send_parcel(world, connection)
    return send_some(world, connection)


@triton.jit
def have_gone(world: World, connection: tl.int64, moved: tl.int64) -> Any:
    """Count bytes that the kernel has taken. True: all of the answer has gone."""
    if not is_sealed(connection):
        return advance(world, connection, moved)
    gone, done = of(connection, C_GONE) + moved, False
    put_in(connection, C_GONE, gone)
    if (gone == of(connection, C_GOING)) & (of(connection, C_STATE) == SENDING):
        put_in(connection, C_GOING, word(0))
        done = advance(world, connection, word(0))
    return done


@triton.jit
def send_out(world: World, box: tl.int64, connection: tl.int64) -> None:
    """Send what the connection takes of the answer under way; the state says what comes next."""
    moved = word(0)
    done = False
    while (not done) & (of(connection, C_STATE) == SENDING):
        some = let_go(world, connection)
        if some < 0:
            why = error()
            if why == AGAIN:
                wait_until_it_takes(box, connection)
                return
            if why != INTERRUPTED:
                put_in(connection, C_STATE, word(GONE))
        else:
            put_in(connection, C_SINCE, monotonic_ns())
            done = have_gone(world, connection, some)
            moved += some
            if (moved > 2 * MOST_A_TURN) & (not done):
                wait_until_it_takes(box, connection)
                return
    if done:
        if of(connection, C_WAITS) != 0:
            watch_for(box, connection, word(CAN_READ))
            put_in(connection, C_WAITS, word(0))
        put_in(connection, C_HAVE, word(0))
        put_in(connection, C_NEED, word(0))
        put_in(connection, C_STATE, word(READING))
        if of(connection, C_OPEN) > 0:
            put_in(connection, C_PIECE, word(0))
            put_in(connection, C_AT, word(0))
            put_in(connection, C_STATE, word(STREAMING))


@triton.jit
def watch_for(box: tl.int64, connection: tl.int64, events: tl.int64) -> None:
    """Let the poll tell of these events of a connection; nothing if it is the host's."""
    event = box + S_EVENT
    store_word(event, events)
    store_word(event + EVENT_DATA, (connection - of(box, S_CONNECTIONS)) // CONNECTION_BYTES)
    epoll_control(of(box, S_EPOLL), word(MODIFY), of(connection, C_FD), event)


@triton.jit
def wait_until_it_takes(box: tl.int64, connection: tl.int64) -> None:
    """Go on when the connection takes more."""
    if of(connection, C_WAITS) == 0:
        watch_for(box, connection, word(CAN_WRITE))
        put_in(connection, C_WAITS, word(1))


@triton.jit
def ring(world: World, box: tl.int64) -> None:
    """Wake the pollers of S_RANKS that sleep, and who waits for an object: `nanokv.heap.futex.Doorbell.ring`."""
    ranks = of(box, S_RANKS)
    if ranks != 0:
        put_in(box, S_RANKS, word(0))
        rank = word(0)
        while rank < world.world_size:
            if ((ranks >> select(rank < LAST_RANK, rank, word(LAST_RANK))) & 1) != 0:
                flag = segment(world, rank) + ANN_ASLEEP
                clear_flag(flag)
                if clear_flag(of(box, S_BELL)) != 0:
                    wake_all(of(box, S_FUTEX), of(box, S_BELL))
                wake_all(of(box, S_FUTEX), flag)
            rank += 1


# --- what comes -------------------------------------------------------------------------------
@triton.jit
def malformed(box: tl.int64, connection: tl.int64) -> None:
    """The other end sends what is no frame: it is of no use."""
    add_to(box, S_BAD, word(1))
    put_in(connection, C_STATE, word(GONE))


@triton.jit
def has_come(box: tl.int64, connection: tl.int64, some: tl.int64) -> Any:
    """Whether `take` has brought bytes. If it never will again, the connection is GONE."""
    if some > 0:
        put_in(connection, C_SINCE, monotonic_ns())
    elif some == FORGED:
        malformed(box, connection)
    else:
        why = error()
        if (some == 0) | ((why != AGAIN) & (why != INTERRUPTED)):
            put_in(connection, C_STATE, word(GONE))
    return some > 0


@triton.jit
def take_question(world: World, box: tl.int64, connection: tl.int64) -> None:
    """Act on a frame that has come whole: an answer is made, or the connection is HOSTED or GONE."""
    frame, need = of(connection, C_INPUT), of(connection, C_NEED)
    kind, count, payload, end = kind_of(frame), count_of(frame), of(frame, PAYLOAD), need - MAC_BYTES
    first = covered(end - whole_words(payload), payload)
    if kind == CALL:
        first = end
    right = is_authentic(connection, frame, first, word(0), end)
    right = right & ((kind == END) == (of(connection, C_OPEN) > 0))
    right = right & ((kind == CALL) | (of(box, S_SERVES) != 0))
    if right & ((kind == PUT) | (kind == OFFER)):
        right = are_right(world, box, frame + HEAD_BYTES, count, select(kind == PUT, payload, word(-1)))
    elif right & (kind == GET):
        right = have_room(frame + HEAD_BYTES, count, of(box, S_MOST))
    if not right:
        malformed(box, connection)
    elif kind == END:
        count, pulls = of(connection, C_OPEN), of(connection, C_PULLS)
        put_in(connection, C_OPEN, word(0))
        end_all(world, box, pulls, count, word(1))
        answer_pulls(connection, word(PUT_DONE), pulls, count)
    elif kind == GET:
        add_to(box, S_GETS, count)
        find_all(world, connection, frame + HEAD_BYTES, count)
    elif (kind == EXISTS) | (kind == REMOVE):
        find_or_remove(world, box, connection, kind, count)
    elif kind == CALL or claim_all(world, box, frame + HEAD_BYTES, count):
        put_in(connection, C_STATE, word(HOSTED))
    else:
        take_claimed(world, box, connection)


@triton.jit
def have_room(wanted: tl.int64, count: tl.int64, most: tl.int64) -> Any:
    """Whether each WANTED has room for 0 to `most` bytes."""
    right = True
    i = word(0)
    while i < count:
        room = of(wanted + i * WANTED_BYTES, W_ROOM)
        right = right & (room >= 0) & (room <= most)
        i += 1
    return right


@triton.jit
def stream_in(world: World, box: tl.int64, connection: tl.int64) -> None:
    """Receive bytes of the open objects into their pages; after the last one the connection is READING.

    What is left of a parcel belongs to the turn: the poll does not tell of it.
    """
    pulls, count = of(connection, C_PULLS), of(connection, C_OPEN)
    piece, at, moved = of(connection, C_PIECE), of(connection, C_AT), word(0)
    goes_on = True
    while goes_on & (piece < count) & ((moved < MOST_A_TURN) | (of(connection, C_LEFT) > 0)):
        pull = pulls + piece * PULL_BYTES
        size = select(of(pull, P_STATUS) == OK, of(pull, P_NBYTES), word(0))
        if at < size:
            to = segment(world, of(pull, P_RANK)) + of(pull, P_PAYLOAD) + at
            most = select(size - at < MOST_A_TURN, size - at, word(MOST_A_TURN))
            some = take(connection, to, most, word(DONT_WAIT))
            goes_on = has_come(box, connection, some)
            if goes_on:
                at += some
                moved += some
        if at >= size:
            piece += 1
            at = word(0)
    put_in(connection, C_PIECE, piece)
    put_in(connection, C_AT, at)
    if is_sealed(connection) & (moved > SMALL):
        put_in(connection, C_GROWN, word(1))
    if (piece == count) & (of(connection, C_STATE) == STREAMING):
        put_in(connection, C_STATE, word(READING))


@triton.jit
def take_in(world: World, box: tl.int64, connection: tl.int64) -> None:
    """Receive some of a frame, and answer it if it is whole."""
    have, at = of(connection, C_HAVE), of(connection, C_INPUT)
    some = take(connection, at + have, ROOM - have, word(DONT_WAIT))
    if has_come(box, connection, some):
        have += some
        put_in(connection, C_HAVE, have)
        if have > SMALL:
            put_in(connection, C_GROWN, word(1))
        need = of(connection, C_NEED)
        if (need == 0) & (have >= HEAD_BYTES):
            need = size_of_question(at)
            put_in(connection, C_NEED, need)
        more = (have > need) | (of(connection, C_LEFT) > 0)
        if (need == NO_FRAME) | ((need > 0) & more):  # one question at a time
            malformed(box, connection)
        elif (need > 0) & (have == need):
            take_question(world, box, connection)


@triton.jit
def attend(world: World, box: tl.int64, connection: tl.int64) -> None:
    """Do what a connection is ready for."""
    if of(connection, C_STATE) == STREAMING:
        stream_in(world, box, connection)
    if of(connection, C_STATE) == READING:
        take_in(world, box, connection)
    if of(connection, C_STATE) == SENDING:
        send_out(world, box, connection)
    ring(world, box)


@triton.jit
def hand_over(box: tl.int64, number: tl.int64) -> None:
    """Let a connection that is HOSTED or GONE be the host's."""
    connection = of(box, S_CONNECTIONS) + number * CONNECTION_BYTES
    epoll_control(of(box, S_EPOLL), word(DELETE), of(connection, C_FD), box + S_EVENT)
    put_in(connection, C_HOSTED, word(1))
    put_in(connection, C_WAITS, word(0))
    queued = of(box, S_QUEUED)
    store64(of(box, S_QUEUE) + queued % MOST * WORD_BYTES, number, "relaxed")
    store64(box + S_QUEUED, queued + 1, "release")
    write(of(box, S_HOST), box + S_ONE, word(WORD_BYTES))


@triton.jit
def look_at_all(box: tl.int64, now: tl.int64) -> None:
    """End connections that are silent though something has begun, and give back memory that idle ones have used."""
    patience, number = of(box, S_PATIENCE), word(0)
    while number < of(box, S_USED):
        connection = of(box, S_CONNECTIONS) + number * CONNECTION_BYTES
        if (of(connection, C_FD) >= 0) & (of(connection, C_HOSTED) == 0):
            state, quiet = of(connection, C_STATE), now - of(connection, C_SINCE)
            rests = (state == READING) & (of(connection, C_HAVE) == 0) & (of(connection, C_OPEN) == 0)
            rests = rests & (of(connection, C_COME) == 0)
            rests = rests & (of(connection, C_SEEN) > 0)  # else its HELLO may be one that somebody has heard
            if (not rests) & (quiet > patience):
                add_to(box, S_SILENT, word(1))
                put_in(connection, C_STATE, word(GONE))
                hand_over(box, number)
            elif rests & (quiet > RESTS) & (of(connection, C_GROWN) != 0):
                put_in(connection, C_GROWN, word(0))
                rooms = select(is_sealed(connection), word(ALL_SEALED_ROOMS), word(ALL_ROOMS))
                give_back(of(connection, C_INPUT), rooms)
        number += 1


# --- the calls of the host --------------------------------------------------------------------
@triton.jit
def serve(world: World, box: tl.int64) -> Any:
    """Attend to connections until the host says that it is enough. Returns how often it has looked at all of them."""
    events, connections, spin = of(box, S_EVENTS), of(box, S_CONNECTIONS), of(box, S_SPIN)
    ms, since, looked, looks = word(TICK_MS), word(0), monotonic_ns(), word(0)
    while load64(box + S_STOP, "acquire") == 0:
        ready = epoll_wait(of(box, S_EPOLL), events, word(MOST_EVENTS), ms)
        now = monotonic_ns()
        if spin > 0:
            if ready > 0:
                since, ms = now, word(0)
            else:
                give_way()
                ms = select(now - since > spin, word(TICK_MS), word(0))
        i = word(0)
        while i < ready:
            number = word_at(events + i * EVENT_BYTES + EVENT_DATA)
            if number != BELL:
                connection = connections + number * CONNECTION_BYTES
                attend(world, box, connection)
                state = of(connection, C_STATE)
                if (state == HOSTED) | (state == GONE):
                    hand_over(box, number)
            i += 1
        if (now - looked > TICK_NS) & (ready < MOST_EVENTS):  # else some may have bytes that were not looked at yet
            look_at_all(box, now)
            looked = now
            looks += 1
    return looks


@triton.jit
def go_on(world: World, box: tl.int64, connection: tl.int64) -> None:
    """After the host has looked for room: the rest of a put."""
    put_in(connection, C_SINCE, monotonic_ns())
    take_claimed(world, box, connection)
    attend(world, box, connection)


@triton.jit
def answer(world: World, box: tl.int64, connection: tl.int64, at: tl.int64, nbytes: tl.int64, failed: tl.int64) -> None:
    """Answer a CALL with a body at an address, where it stays until the connection is the host's again.

    Args:
        at: of room for a HEAD, the body of so many bytes filled up to a whole word, and a MAC. failed: 1: an error.
    """
    put_in(connection, C_SINCE, monotonic_ns())
    begin_frame(connection, at, word(CALLED), count_of(of(connection, C_INPUT)), nbytes, failed)
    end = HEAD_BYTES + whole_words(nbytes)
    begin_sending(connection, at, close_frame(connection, at, end, word(0), end), word(0))
    attend(world, box, connection)


@triton.jit
def give_up(world: World, box: tl.int64, connection: tl.int64) -> Any:
    """Free what a connection had begun, of which no byte can come any more: how many objects.

    Of a put for which the host looks for room these are the objects of its question.
    """
    count, pulls = of(connection, C_OPEN), of(connection, C_PULLS)
    frame = of(connection, C_INPUT)
    if (of(connection, C_STATE) == HOSTED) & ((kind_of(frame) == PUT) | (kind_of(frame) == OFFER)):
        count, pulls = count_of(frame), frame + HEAD_BYTES
    begun = word(0)
    i = word(0)
    while i < count:
        begun += select(of(pulls + i * PULL_BYTES, P_STATUS) == OK, word(1), word(0))
        i += 1
    if begun > 0:
        end_all(world, box, pulls, count, word(0))
        ring(world, box)
        add_to(box, S_GIVEN_UP, begun)
    put_in(connection, C_OPEN, word(0))
    put_in(connection, C_STATE, word(GONE))
    return begun
