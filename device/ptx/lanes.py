"""What lanes of a warp do together (PTX ISA, shfl.sync, vote.sync, redux.sync, match.sync, elect.sync, activemask)."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from nanokv.device.emulation.errors import Unsupported
from nanokv.device.ptx.kinds import LANES, Array
from nanokv.device.ptx.numbers import least_or_most
from nanokv.device.ptx.operands import Immediate, Instruction, Operand, Pair
from nanokv.device.ptx.writer import Writer, helper, known, opcode

if TYPE_CHECKING:
    from nanokv.device.ptx.warp import Warp

LANE = np.arange(LANES)
ALL = np.ones(LANES, bool)
FULL = 0xFFFFFFFF  #: all lanes, as a mask of members


def bits_of(lanes: Array) -> int:
    """A mask of lanes as an integer."""
    return int(np.packbits(lanes, bitorder="little").view(np.uint32)[0])


def lanes_of(bits: int) -> Array:
    """The reverse of `bits_of`."""
    return (np.uint32(bits) >> LANE.astype(np.uint32)) & np.uint32(1) != 0


@helper
def together(w: "Warp", about: str, members: Array, lanes: Array | None) -> None:
    """All lanes that the members' mask names must execute this now, and only those.

    Raises:
        Divergence: they do not.
    """
    w.about = about
    if lanes is None and min(members.tolist()) == FULL:
        return
    here = FULL if lanes is None else bits_of(lanes)
    for lane in np.flatnonzero(ALL if lanes is None else lanes):
        named = int(members[lane])
        if named & ~here or not named >> int(lane) & 1:
            w.diverged(f"lanes {here:#010x} are here, and lane {lane} names {named:#010x}")


def all_together(w: Writer, i: Instruction, operand: Operand) -> str:
    """Write `together`; the mask of members. Nothing is to be checked where all lanes are here, and all are named."""
    members, lanes = w.read(operand, "u32"), w.lanes()
    if lanes != "None" or not isinstance(operand, Immediate) or operand.value not in (-1, FULL):
        w.line(f"together(W, {i.about!r}, {members}, {lanes})")
    return members


def _groups(members: Array, lanes: Array | None) -> Iterator[Array]:
    """The lanes that take part together."""
    active = ALL if lanes is None else lanes
    return (active & (members == named) for named in set(members[active].tolist()))


def by_group(of: Callable[[Array], Any], members: Array, lanes: Array | None, dtype: Any) -> Array:
    """What `of` makes, for each lane, of the lanes with which it takes part."""
    if lanes is None and min(members.tolist()) == FULL:
        return np.full(LANES, of(ALL), dtype)
    made = np.zeros(LANES, dtype)
    for own in _groups(members, lanes):
        made[own] = of(own)
    return made


def sources(mode: str, by: Array, clamp: Array) -> tuple[Array, Array]:
    """From which lane each lane gets its value, and whether that lane is in range."""
    by, clamp = by.astype(np.int64) & 31, clamp.astype(np.int64)
    segment, most = (clamp >> 8) & 31, clamp & 31
    least = LANE & segment
    most = least | (most & ~segment)
    source = {"up": LANE - by, "down": LANE + by, "bfly": LANE ^ by, "idx": least | (by & ~segment)}[mode]
    good = source >= most if mode == "up" else source <= most
    return np.where(good, source, LANE), good


@helper
def sources_of(mode: str, by: Array, clamp: Array) -> tuple[Array, Array]:
    """`sources`, by registers."""
    return sources(mode, by, clamp)


@opcode("shfl")
def _shfl(w: Writer, i: Instruction) -> None:
    known(i, "sync", "up", "down", "bfly", "idx", "b32")
    if "sync" not in i.modifiers:
        raise Unsupported("shfl without .sync")
    mode = i.modifiers[1]
    to, (by, clamp) = i.operands[0], i.operands[2:4]
    all_together(w, i, i.operands[4])
    value = w.read(i.operands[1], "u32")
    if isinstance(by, Immediate) and isinstance(clamp, Immediate):
        found = sources(mode, np.full(LANES, by.value), np.full(LANES, clamp.value))
        source, good = f"source_{mode}_{by.value}_{clamp.value}", f"good_{mode}_{by.value}_{clamp.value}"
        w.names[source], w.names[good] = found
    else:
        pair = w.let(f"sources_of({mode!r}, {w.read(by, 'u32')}, {w.read(clamp, 'u32')})")
        source, good = f"{pair}[0]", f"{pair}[1]"
    moved = w.let(f"{value}[{source}]")
    if isinstance(to, Pair):
        w.write(to.second, good, "pred")
        to = to.first
    w.write(to, moved, "u32")


_REDUCTIONS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@helper
def reduced(value: Array, members: Array, lanes: Array | None, how: str) -> Array:
    """redux of integers."""
    return by_group(lambda own: _REDUCTIONS[how].reduce(value[own], dtype=value.dtype), members, lanes, value.dtype)


@helper
def reduced_float(value: Array, members: Array, lanes: Array | None, how: str, nan: bool, absolute: bool) -> Array:
    """redux of float32 (sm_100a)."""
    value = np.abs(value) if absolute else value
    of: Callable[[Array], Any] = lambda own: least_or_most(list(value[own][:, None]), how == "min", nan, False)[0]  # noqa: E731
    return by_group(of, members, lanes, value.dtype)


@opcode("redux")
def _redux(w: Writer, i: Instruction) -> None:
    how, kind = i.modifiers[1], i.modifiers[-1]
    known(i, "sync", *_REDUCTIONS, "NaN", "abs", "u32", "s32", "b32", "f32")
    members, value = all_together(w, i, i.operands[2]), w.read(i.operands[1], kind)
    if kind == "f32":
        flags = f"{'NaN' in i.modifiers}, {'abs' in i.modifiers}"
        made = f"reduced_float({value}, {members}, {w.lanes()}, {how!r}, {flags})"
    else:
        made = f"reduced({value}, {members}, {w.lanes()}, {how!r})"
    w.write(i.operands[0], made, kind)


@helper
def voted(value: Array, members: Array, lanes: Array | None, how: str) -> Array:
    """vote."""
    if how == "ballot":
        return by_group(lambda own: bits_of(value & own), members, lanes, np.uint32)
    of: dict[str, Callable[[Array], Any]] = {
        "any": lambda own: value[own].any(),
        "all": lambda own: value[own].all(),
        "uni": lambda own: value[own].all() or not value[own].any(),
    }
    return by_group(of[how], members, lanes, bool)


@opcode("vote")
def _vote(w: Writer, i: Instruction) -> None:
    known(i, "sync", "any", "all", "uni", "ballot", "pred", "b32")
    if "sync" not in i.modifiers:
        raise Unsupported("vote without .sync")
    members = all_together(w, i, i.operands[2])
    made = f"voted({w.read(i.operands[1], 'pred')}, {members}, {w.lanes()}, {i.modifiers[1]!r})"
    w.write(i.operands[0], made, "u32" if i.modifiers[1] == "ballot" else "pred")


@helper
def matched(value: Array, members: Array, lanes: Array | None, all_of: bool) -> tuple[Array, Array]:
    """match: the lanes that hold the same value; .all: all of them, or none."""
    made, good = np.zeros(LANES, np.uint32), np.zeros(LANES, bool)
    for own in _groups(members, lanes):
        for lane in np.flatnonzero(own):
            same = own & (value == value[lane])
            good[lane] = (same == own).all()
            made[lane] = bits_of(same) if good[lane] or not all_of else 0
    return made, good


@opcode("match")
def _match(w: Writer, i: Instruction) -> None:
    known(i, "sync", "any", "all", "b32", "b64")
    to, kind = i.operands[0], i.modifiers[-1]
    members = all_together(w, i, i.operands[2])
    all_of = "all" in i.modifiers
    pair = w.let(f"matched({w.read(i.operands[1], kind)}, {members}, {w.lanes()}, {all_of})")
    if isinstance(to, Pair):
        w.write(to.second, f"{pair}[1]", "pred")
        to = to.first
    w.write(to, f"{pair}[0]", "u32")


@helper
def first_of(members: Array, lanes: Array | None) -> Array:
    """The lowest lane that takes part, for each."""
    return by_group(lambda own: np.flatnonzero(own)[0], members, lanes, np.uint32)


@opcode("elect")
def _elect(w: Writer, i: Instruction) -> None:
    known(i, "sync")
    to = i.operands[0]
    if not isinstance(to, Pair):
        raise Unsupported("elect without a predicate")
    members = all_together(w, i, i.operands[1])
    leader = w.let(f"first_of({members}, {w.lanes()})")
    w.write(to.first, leader, "u32")
    w.write(to.second, f"{leader} == {w.keep(LANE)}", "pred")


@helper
def active_bits(lanes: Array | None) -> Array:
    """activemask."""
    return np.full(LANES, FULL if lanes is None else bits_of(lanes), np.uint32)


@opcode("activemask")
def _activemask(w: Writer, i: Instruction) -> None:
    known(i, "b32")
    w.write(i.operands[0], f"active_bits({w.lanes()})", "u32")
