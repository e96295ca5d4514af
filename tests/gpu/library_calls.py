"""The device library, called function by function: what a call answers, and what it refuses; see `bodies`.

`WRONG` has the wrong values of an argument by its name. So a new function of the library is covered at once, and an
argument with a new name is refused by `wrong_values` until it is in one of the two tables.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime import KernelInterface
from triton.runtime.driver import driver
from triton.runtime.interpreter import InterpretedFunction

from nanokv.device import library
from nanokv.device.kernels.frame import FIRST_ANSWER, FRAME_WORDS, answer, arguments
from nanokv.device.library import NOT_LAST, begin_put_part, copy_tile, finish_put_part
from nanokv.device.machines.batch import Batch
from nanokv.device.machines.lane import launches_on
from nanokv.device.machines.records import Request, Terms
from nanokv.device.memory.triton import store64
from nanokv.device.protocol.request import REQUEST
from nanokv.device.protocol.status import Status
from nanokv.device.protocol.ticket import T_ANSWER, TICKET
from nanokv.device.segment.layout import FLAG_ACK, FLAG_CHECKSUM, H_ACCESS, HEADER_BYTES, LEASED, WORD, WORD_BYTES
from nanokv.fsck import check_segments
from tests.gpu.bodies import PAGE, WARPS, World, flat, key

OK, INVALID, DUPLICATE = Status.OK, Status.INVALID, Status.DUPLICATE
FRAME_BYTES = tl.constexpr(FRAME_WORDS * WORD)
SIZE = 3 * PAGE + 5  #: bytes of an object
FAR = 1 << 40
FIRST_WITH_CLUSTERS = 90  #: the compute capability
SENTENCE = "do not run in clusters: launch with num_ctas=1"

BARE = ("table64", "store64", "word", "copy_bytes", "copy_tile")  #: functions of addresses that nobody can check
ANY_LAUNCH = (*BARE, "segment")  #: functions that do not look at the launch
ANSWERS = {"begin": 5, "lookup": 6, "lookup_described": 14}  #: words that a function returns, if not 1
ANSWERS |= dict.fromkeys(("put", "remove", "pin", "begin_put_part", "begin_get_part"), 2)
REFUSAL = {"segment": 0, "wanted": 0}  #: the first answer to a wrong call, if not INVALID

WRONG: dict[str, Callable[[World], tuple[int, ...]]] = {
    "world": lambda w: (0, w.machine.table_address + 4),
    **dict.fromkeys(("owner", "rank"), lambda w: (-1, 2, 7, FAR, -FAR)),
    "slot": lambda w: (-1, w.geometry.hdr_count, FAR, -FAR),
    "line": lambda w: (-1, w.geometry.pin_slots, FAR, -FAR),
    "phase": lambda w: (-1, 2, FAR),
    "flags": lambda w: (FLAG_ACK.value, FLAG_CHECKSUM.value, FAR, -1),
    **dict.fromkeys(("nbytes", "room"), lambda w: (-1, -FAR)),
    "payload": lambda w: (0, -8, w.geometry.segment_bytes, FAR, -FAR),
    **dict.fromkeys(("request", "ticket"), lambda w: (0, 4, w.machine.table_address + 4)),
    "parts": lambda w: (0, -1, -FAR),
    **dict.fromkeys(("src", "dst", "copy"), lambda w: (0,)),
    **dict.fromkeys(("first", "now", "terms"), lambda w: (-1, -FAR)),
}
ANY_VALUE = ("key_hash", "key_check", "epoch", "kind", *(f"d{i}" for i in range(7)))  #: a wrong one finds nothing
BOUNDED = ("seal_payload", "verify", "sum_put_part")  #: functions whose `nbytes` are at most those of a segment's arena
SHARED = ("begin_put_part", "now")  #: its refusal is shared with the other CTAs: see `wrong_requests_are_refused`


def functions() -> dict[str, Any]:
    """The device functions of the library."""
    found = {name: getattr(library, name) for name in library.__all__}
    return {name: value for name, value in found.items() if isinstance(value, KernelInterface)}


def wrong_values(w: World, name: str, argument: str) -> tuple[int, ...]:
    """What the function `name` must refuse as this argument."""
    if argument in ANY_VALUE or (name, argument) == SHARED:
        return ()
    too_many = (w.geometry.segment_bytes, FAR) if argument == "nbytes" and name in BOUNDED else ()
    return WRONG[argument](w) + too_many


@triton.jit
def call_rows_kernel(
    frames: tl.int64, function: tl.constexpr, n_arguments: tl.constexpr, n_answers: tl.constexpr
) -> None:
    """CTA n calls a function with the arguments of the n-th frame; the world is the address of its table."""
    frame = frames + tl.program_id(0).to(tl.int64) * FRAME_BYTES
    answers = function(*arguments(frame, n_arguments))
    if n_answers == 1:
        answer(frame, 0, answers)
    else:
        for i in tl.static_range(n_answers):
            answer(frame, i, answers[i])


class Calls:
    """Calls of the library on a world with checksums, by CTAs of some warps: object 1 is READY in segment 1."""

    def __init__(self, device: torch.device, warps: int = 1) -> None:
        self.warps = warps
        self.world = w = World(device, 64, may_evict=False, checksum=True)
        self.data = w.bytes(SIZE, 1)
        self.room = torch.zeros(SIZE + 16, dtype=torch.uint8, device=device)
        assert w.put(1, self.data) == OK
        self.request = torch.zeros(REQUEST.size // WORD, dtype=torch.int64, device=device)
        self.ticket = torch.zeros(TICKET.size // WORD, dtype=torch.int64, device=device)

    def rows(self, name: str, *rows: tuple[int, ...], **launch: int) -> list[tuple[int, ...]]:
        """Call a function once per row of arguments, by a CTA each; the answers of each."""
        frames = torch.zeros(len(rows), FRAME_WORDS, dtype=torch.int64)
        for frame, row in zip(frames, rows, strict=True):
            frame[1 : 1 + len(row)] = torch.tensor(row, dtype=torch.int64)
        frames = frames.to(self.world.device)
        function, count = functions()[name], ANSWERS.get(name, 1)
        call_rows_kernel[(len(rows),)](
            *(frames.data_ptr(), function, len(rows[0]), count), **({"num_warps": self.warps} | launch)
        )
        return [tuple(row) for row in frames[:, FIRST_ANSWER : FIRST_ANSWER + count].tolist()]

    def call(self, name: str, *row: int) -> Any:
        """Call a function by one CTA; its answer, or a tuple of them."""
        ((*answers,),) = self.rows(name, row)
        return answers[0] if len(answers) == 1 else tuple(answers)

    def right(self) -> dict[str, int]:
        """A right value of each argument that `WRONG` has."""
        place = self.world.machine.lookup(key(1)).place
        values = {"world": self.world.machine.table_address, "owner": 1, "rank": 1, "slot": place.slot}
        values |= {"nbytes": SIZE, "room": SIZE, "payload": place.payload, "src": self.data.data_ptr()}
        values |= dict.fromkeys(("dst", "copy"), self.room.data_ptr()) | {"parts": 1}
        values |= {"request": self.request.data_ptr(), "ticket": self.ticket.data_ptr()}
        values |= dict.fromkeys(("line", "phase", "flags", "first", "now", "terms"), 0)
        values |= dict.fromkeys(ANY_VALUE, 1) | {"epoch": place.epoch}
        return values | dict(zip(("key_hash", "key_check"), key(1), strict=True))


@contextmanager
def untouched(w: World) -> Iterator[None]:
    """No byte of a segment changes."""
    before = [segment.clone() for segment in w.segments]
    yield
    assert all(torch.equal(old, new) for old, new in zip(before, w.segments, strict=True))


# --- the bodies -------------------------------------------------------------------------------
def wrong_calls_are_refused(device: torch.device) -> None:
    """Each function, with each wrong value of each of its arguments: it answers INVALID, and touches no segment."""
    calls = Calls(device)
    right = calls.right()
    for name, function in functions().items():
        if name in BARE:
            continue
        names = function.arg_names
        rows = [
            tuple((right | {argument: value})[each] for each in names)
            for argument in names
            for value in wrong_values(calls.world, name, argument)
        ]
        assert rows, name
        with untouched(calls.world):
            answers = calls.rows(name, *rows)
        refused = REFUSAL.get(name, INVALID)
        assert [row for row, answer in zip(rows, answers, strict=True) if answer[0] != refused] == [], (name, names)
        assert not calls.ticket.any(), name
    for n in range(2):
        assert calls.call("segment", right["world"], n) == calls.world.segments[n].data_ptr()


def launches_of_clusters_are_refused(device: torch.device) -> None:
    """Each function says how it must be launched."""
    if not has_clusters():
        return
    calls = Calls(device)
    right = calls.right()
    for name, function in functions().items():
        if name in (ANY_LAUNCH if launches_on(torch.device("cpu")) else BARE):
            continue  # the PTX machine runs no clusters at all
        with untouched(calls.world):
            try:
                calls.rows(name, tuple(right.get(each, 1) for each in function.arg_names), num_ctas=2)
            except Exception as error:
                assert name not in ANY_LAUNCH and SENTENCE in whole_message(error), (name, error)
            else:
                assert name in ANY_LAUNCH, f"{name} was launched in a cluster"


def has_clusters() -> bool:
    """Whether kernels can be launched in clusters: in the interpreter, and on NVIDIA from sm_90 on."""
    if isinstance(library.put, InterpretedFunction):
        return True
    target = driver.active.get_current_target()
    return bool(target.backend == "cuda" and target.arch >= FIRST_WITH_CLUSTERS)


def whole_message(error: BaseException | None) -> str:
    """The messages of an error and of its causes."""
    return "" if error is None else f"{error}\n{whole_message(error.__cause__)}"


def every_step_is_answered(device: torch.device) -> None:
    """All functions with right arguments: an object is written by its steps, by parts and as a whole, and read."""
    for warps in WARPS:
        every_step_by(Calls(device, warps))


def every_step_by(calls: Calls) -> None:
    """The steps, by CTAs of so many warps."""
    w, call, called = calls.world, calls.call, set()
    table, what, src, room = w.machine.table_address, flat(SIZE), calls.data.data_ptr(), calls.room.data_ptr()

    def ok(name: str, *row: int) -> tuple[int, ...]:
        """Call a function that must answer OK; its other answers."""
        called.add(name)
        answer = call(name, *row)
        first, *others = answer if isinstance(answer, tuple) else (answer,)
        assert first == OK, (name, Status(first).name)
        return tuple(others)

    slot, epoch, payload, phase = ok("begin", table, 1, *key(2), SIZE, 0, 5)
    ok("describe", table, 1, slot, *what)
    ok("lease", table, 1, slot, FAR)
    header = w.geometry.offsets["hdr_base"] + slot * HEADER_BYTES.value + H_ACCESS.value
    assert int(w.segments[1][header : header + WORD].view(torch.int64)[0]) == FAR + signed(LEASED.value)
    w.segments[1][payload : payload + SIZE] = calls.data
    assert call("wanted", table) == 1
    ok("seal_payload", table, 1, *key(2), slot, epoch, payload, SIZE, *what)
    ok("finish", table, 1, slot, epoch, phase)
    assert ok("lookup", table, *key(2)) == (1, slot, epoch, payload, SIZE)
    found = ok("lookup_described", table, *key(2))
    assert found[:5] == (1, slot, epoch, payload, SIZE) and found[6:] == what[1:]
    ok("get", table, *key(2), room, SIZE, 9)  # ends the lease
    assert torch.equal(calls.room[:SIZE], calls.data)
    for name, row in (("validate", ()), ("verify", (*key(2), room, SIZE)), ("touch", (10,))):
        ok(name, table, 1, slot, epoch, *row)
    (line,) = ok("pin", table, 1, slot, epoch)
    assert call("remove", table, *key(2)) == (Status.PINNED, 1)
    ok("unpin", table, 1, slot, epoch, line)
    assert ok("remove", table, *key(2)) == (1,)
    ok("put", table, 0, *key(2), src, SIZE, 11, *what)

    slot, epoch, payload, phase = ok("begin", table, 1, *key(3), SIZE, 0, 12)
    ok("abort", table, 1, slot, epoch)
    ok("leave", table, 1, phase)

    calls.request.copy_(torch.tensor([1, *key(4), SIZE, *[0] * 7, *what]))
    of_all = table, calls.request.data_ptr(), calls.ticket.data_ptr()
    (address,) = ok("begin_put_part", *of_all, 13)
    offset = address - call("segment", table, 1)
    w.segments[1][offset : offset + SIZE] = calls.data
    ok("sum_put_part", table, of_all[2], address, SIZE, 0)
    ok("finish_put_part", *of_all, 1)
    assert ok("begin_get_part", *of_all) == (address,)
    ok("sum_get_part", of_all[2], src, SIZE, 0)
    ok("finish_get_part", *of_all, 1, 14)
    assert {*functions()} - called == {*BARE, "segment", "wanted"}
    report = check_segments(w.views(), mode="device")
    assert report.clean, [str(finding) for finding in report.findings]


def signed(value: int) -> int:
    """A word as the signed integer that has its bits."""
    return value - (1 << 64) if value >> 63 else value


@triton.jit
def put_parts_kernel(world: tl.int64, request: tl.int64, ticket: tl.int64, out: tl.int64, now: tl.int64) -> None:
    """The CTAs of one object, that store nothing. CTA n leaves the status and address of begin, and that of finish."""
    status, payload = begin_put_part(world, request, ticket, now)
    at = out + tl.program_id(0).to(tl.int64) * (3 * WORD_BYTES)
    store64(at, status, "relaxed")
    store64(at + WORD_BYTES, payload, "relaxed")
    status = finish_put_part(world, request, ticket, tl.num_programs(0))
    store64(at + 2 * WORD_BYTES, status, "relaxed")


def wrong_requests_are_refused(device: torch.device) -> None:
    """A row of a table that names no rank, or no possible size, flag, lease or time: all CTAs of its object agree."""
    for warps in WARPS:
        wrong_requests_by(Calls(device, warps))


def wrong_requests_by(calls: Calls) -> None:
    """The requests, by CTAs of so many warps."""
    device, ctas = calls.world.device, 3
    out = torch.zeros(ctas, 3, dtype=torch.int64, device=device)
    good = Request(key(5), calls.data.data_ptr(), SIZE, 1, flat(SIZE))
    wrong = [(good._replace(owner=owner), 1) for owner in WRONG["owner"](calls.world)]
    wrong += [(good._replace(flags=flags), 1) for flags in WRONG["flags"](calls.world)]
    wrong += [(good._replace(nbytes=-1), 1), (good._replace(terms=Terms(-1)), 1), (good, -1)]
    batch = Batch(calls.world.machine.table_address, 2, device)

    def put_in_parts(now: int) -> None:
        tables = calls.world.machine.table_address, batch.requests.data_ptr(), batch.tickets.data_ptr()
        put_parts_kernel[(ctas,)](*tables, out.data_ptr(), now, num_warps=calls.warps)

    for request, now in wrong:
        batch.fill([request], now)
        with untouched(calls.world):
            put_in_parts(now)
            ends = sorted(out[:, 2].tolist())
            assert out[:, :2].tolist() == [[INVALID, 0]] * ctas, (request, now, out)
            assert ends == [NOT_LAST.value] * (ctas - 1) + [INVALID], (request, now, ends)
            batch.put()  # NanoKV's own kernel
            assert batch.answers() == [INVALID], (request, now)
        assert not batch.tickets[:, : T_ANSWER.value // WORD].any()
    batch.fill([wrong[0][0], good])
    batch.put()
    assert batch.answers() == [INVALID, OK]
    assert torch.equal(calls.world.get(5, SIZE)[1], calls.data)
    batch.fill([good], 1)  # a possible request that is refused: there is no address either
    put_in_parts(1)
    assert out[:, :2].tolist() == [[DUPLICATE, 0]] * ctas


@triton.jit
def copy_tile_kernel(dst: tl.int64, src: tl.int64, WORDS: tl.constexpr) -> None:
    """One call."""
    copy_tile(dst, src, WORDS)


def tiles_are_copied_between_any_addresses(device: torch.device) -> None:
    """Between multiples of 16, and slower between others; nothing before or after the tile changes."""
    words = 512
    src = torch.arange(words * WORD + 64, device=device).to(torch.uint8)
    for dst_shift in (0, 8, 1, 3):
        for src_shift in (0, 16, 8, 5):
            dst = torch.zeros_like(src)
            copy_tile_kernel[(1,)](dst.data_ptr() + dst_shift, src.data_ptr() + src_shift, WORDS=words, num_warps=4)
            want = torch.zeros_like(src)
            want[dst_shift : dst_shift + words * WORD] = src[src_shift : src_shift + words * WORD]
            assert torch.equal(dst, want), (dst_shift, src_shift)


BODIES: tuple[Callable[[torch.device], None], ...] = (
    wrong_calls_are_refused,
    launches_of_clusters_are_refused,
    every_step_is_answered,
    wrong_requests_are_refused,
    tiles_are_copied_between_any_addresses,
)
