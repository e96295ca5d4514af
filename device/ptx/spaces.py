"""How blocks access memory: global by way of the machine's `Memory`, shared and local in arrays of the CTA and warp.

Generic addresses of shared and local memory lie in windows far above all others.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nanokv.device.ptx.access import Access, Late
from nanokv.device.ptx.host_memory import atomically
from nanokv.device.ptx.kinds import LANES, UNSIGNED, Array
from nanokv.device.ptx.writer import helper

if TYPE_CHECKING:
    from nanokv.device.ptx.warp import Warp

SHARED_WINDOW, LOCAL_WINDOW, END = 1 << 61, 1 << 62, 1 << 63
WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "global": 0, "const": 0, "param": 0}


def _aligned(w: "Warp", access: Access, addresses: Array, width: int) -> None:
    w.about = access.about
    if width > 1 and any(map((width - 1).__and__, addresses.tolist())):
        w.misaligned(addresses, width)


def _space(w: "Warp", addresses: Array) -> str:
    """The space of generic addresses: those of one instruction are all in one."""
    spaces = {
        "global" if at < SHARED_WINDOW else "shared" if at < LOCAL_WINDOW else "local" for at in addresses.tolist()
    }
    if len(spaces) > 1:
        w.faulted(f"lanes access different spaces: {sorted(spaces)}")
    return spaces.pop()


def _place(
    w: "Warp", space: str, addresses: Array, size: int, lanes: Array | None
) -> tuple[Array, Array | tuple[Array, Array]]:
    """The array of a space, as words, and the places in it."""
    memory: Array = w.cta.shared if space == "shared" else w.local
    limit = w.launch.shared_bytes if space == "shared" else w.launch.program.local_bytes
    last = max(addresses.tolist())
    if last + size > limit:
        w.faulted(f"{space} memory at {last}, of {limit} bytes")
    words, places = memory.view(UNSIGNED[size]), (addresses // np.uint64(size)).astype(np.int64)
    if space == "shared":
        return words, places
    numbers = np.arange(LANES) if lanes is None else np.flatnonzero(lanes)
    return words, (numbers, places)


@helper
def load(w: "Warp", access: Access, space: str, addresses: Array, lanes: Array | None) -> list[Array]:
    """The elements of an access for the lanes of a mask; 0 in the others."""
    size = access.size
    at = addresses if lanes is None else addresses[lanes]
    if not len(at):
        return [np.zeros(LANES, UNSIGNED[size])] * access.count
    _aligned(w, access, at, size * access.count)
    if space == "generic":
        space = _space(w, at)
        at = at - np.uint64(WINDOWS[space])
    made = []
    for n in range(access.count):
        here = at + np.uint64(n * size) if n else at
        if space == "global":
            values = w.launch.memory.load(w, access, lanes, here)
            if isinstance(values, Late):
                values = values.values()
        else:
            words, places = _place(w, space, here, size, lanes)
            values = words[places]
        made.append(values if lanes is None else spread(values, lanes))
    return made


def spread(values: Array, lanes: Array) -> Array:
    """Values of some lanes in their places; 0 in the others."""
    made = np.zeros(LANES, values.dtype)
    made[lanes] = values
    return made


@helper
def load_late(
    w: "Warp",
    access: Access,
    addresses: Array,
    lanes: Array | None,
    fill: Callable[[list[Array]], None],
    registers: tuple[int, ...],
) -> None:
    """A load of global memory that may be satisfied later: `fill` then writes its registers."""
    at = addresses if lanes is None else addresses[lanes]
    if not len(at):
        return
    _aligned(w, access, at, access.size * access.count)
    found = [w.launch.memory.load(w, access, lanes, at + np.uint64(n * access.size)) for n in range(access.count)]

    def finish() -> None:
        values = [each.values() if isinstance(each, Late) else each for each in found]
        fill(values if lanes is None else [spread(each, lanes) for each in values])

    if any(isinstance(each, Late) for each in found):
        w.defer(registers, finish)
    else:
        finish()


@helper
def store(
    w: "Warp", access: Access, space: str, addresses: Array, lanes: Array | None, values: Sequence[Array]
) -> None:
    """Store the elements of an access for the lanes of a mask."""
    size = access.size
    at = addresses if lanes is None else addresses[lanes]
    if not len(at):
        return
    _aligned(w, access, at, size * access.count)
    if space == "generic":
        space = _space(w, at)
        at = at - np.uint64(WINDOWS[space])
    for n, value in enumerate(values):
        here = at + np.uint64(n * size) if n else at
        of = value if lanes is None else value[lanes]
        if space != "local":
            _check_race(w, here, of)
        if space == "global":
            w.launch.memory.store(w, access, lanes, here, of)
        else:
            words, places = _place(w, space, here, size, lanes)
            words[places] = of


def _check_race(w: "Warp", addresses: Array, values: Array) -> None:
    """Lanes that store to one address must agree: of their values any may stay."""
    if len(addresses) > 1:
        where = addresses.tolist()
        different = len(set(where))
        pairs = values.tolist() if different == 1 else zip(where, values.tolist(), strict=True)
        if different < len(where) and len(set(pairs)) > different:
            w.found("lanes store different values to one address", w.about)


@helper
def atomic(
    w: "Warp", access: Access, space: str, addresses: Array, lanes: Array | None, operands: Sequence[Array]
) -> Array:
    """Read-modify-writes, one lane after the other. What was there; 0 in lanes that take no part."""
    numbers = range(LANES) if lanes is None else np.flatnonzero(lanes)
    at = addresses if lanes is None else addresses[lanes]
    old = np.zeros(LANES, UNSIGNED[access.size])
    if not len(at):
        return old
    _aligned(w, access, at, access.size)
    if space == "generic":
        space = _space(w, at)
        addresses = addresses - np.uint64(WINDOWS[space])
    if space == "global":
        w.check_atomic(access, len(at))
    for lane in numbers:
        words = [int(each[lane]) for each in operands]
        if space == "global":
            old[lane] = w.launch.memory.atomic(w, access, int(lane), int(addresses[lane]), words)
        else:
            memory, places = _place(w, space, addresses[lane : lane + 1], access.size, None)
            old[lane] = memory[places][0]
            memory[places] = atomically(access, int(old[lane]), words)
    return old


@helper
def fence(w: "Warp", access: Access, lanes: Array | None) -> None:
    """A fence."""
    w.about = access.about
    w.launch.memory.fence(w, access, lanes)


@helper
def copy_async(w: "Warp", access: Access, to: Array, of: Array, lanes: Array | None, present: Array, size: int) -> None:
    """cp.async: global memory is read now, shared memory is written when the warp waits for it."""
    mask = np.ones(LANES, bool) if lanes is None else lanes
    words = []
    for n in range(size // access.size):
        active = mask & (present > n * access.size)
        value = np.zeros(LANES, UNSIGNED[access.size])
        if active.any():
            at = of[active]
            _aligned(w, access, at, size)
            found = w.launch.memory.load(w, access, active, at + np.uint64(n * access.size))
            value[active] = found.values() if isinstance(found, Late) else found
        words.append(value)
    if mask.any():
        _aligned(w, access, to[mask], size)

        def land() -> None:
            for n, value in enumerate(words):
                memory, places = _place(w, "shared", to[mask] + np.uint64(n * access.size), access.size, None)
                memory[places] = value[mask]

        w.copies[-1].append(land)


@helper
def wait_copies(w: "Warp", groups: int) -> None:
    """cp.async.wait_group: all but the last so many groups are there; -1: all copies, committed or not."""
    last = len(w.copies) - 1 - groups if groups >= 0 else len(w.copies)
    for group in w.copies[: max(last, 0)]:
        for land in group:
            land()
        group.clear()
    done = max(min(last, len(w.copies) - 1), 0)
    del w.copies[:done]
