"""The simulation waits as often as the compiled code, and meets other ranks at the same words in the same order."""

from collections.abc import Iterator

import pytest

from nanokv.bench.gpu.budget import MeteredSegment
from nanokv.bench.simulate.assumptions import Assumptions, changed
from nanokv.bench.simulate.cases import GET_WAITS, PUT_WAITS, Steps
from nanokv.bench.simulate.queues import Operation
from nanokv.device import ptx
from nanokv.device.ptx.operands import Instruction
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import ACTIVITY, HEAP_CTL, OBJ_HEADER

pytestmark = [pytest.mark.proved, pytest.mark.exhaustive, pytest.mark.timeout(600)]
OWNER, HOME, READER = 1, 2, 0
Accesses = list[tuple[Instruction, int]]


def name_of(geometry: Geometry, i: Instruction, offset: int) -> str:
    """The simulation's name of a word at which ranks meet, "home" for the directory, "" for any other access."""
    control, places = HEAP_CTL.dtype.fields, geometry.offsets
    assert control is not None and OBJ_HEADER.dtype.fields is not None
    atomic = i.opcode in ("atom", "red")
    if places["dir_base"] <= offset < places["ann_base"]:
        return "home"
    if places["activity_base"] <= offset < places["activity_base"] + ACTIVITY.dtype.itemsize:
        return "activity"
    for field, name in (("hdr_free", "slots"), ("free_head0", "extents"), ("ann_head", "ticket")):
        first = control[field][1]
        if first <= offset < first + control[field][0].itemsize:
            return name
    if atomic and places["hdr_base"] <= offset < places["desc_base"] and i.opcode == "atom":
        within = (offset - places["hdr_base"]) % OBJ_HEADER.dtype.itemsize
        return {OBJ_HEADER.dtype.fields["state"][1]: "state", OBJ_HEADER.dtype.fields["last_access"][1]: "access"}[
            within
        ]
    return ""


@pytest.fixture(scope="module")
def seen() -> Iterator[dict[str, tuple[float, list[str]]]]:
    """Operation -> (how often it waits for the segment, the words that it accesses, in order)."""
    accesses: Accesses = []
    ends = [0, 0]

    def price(i: Instruction, address: int | None) -> float:
        if address is None or not ends[0] <= address < ends[1] or i.opcode == "st":
            return 0
        accesses.append((i, address - ends[0]))
        return 1

    found = {}
    with ptx.machine(memory=ptx.HostMemory(), count=True, price=price) as machine:
        counted = MeteredSegment(machine)
        counted.fill_lists()
        raw = counted.segment.raw
        ends[:] = raw.data_ptr(), raw.data_ptr() + raw.nbytes
        one = counted.new_keys(1)
        for name, do in (("put", counted.single.put), ("get", counted.single.get)):
            accesses.clear()
            waits = counted.done(counted.single, one, do).most.chain
            found[name] = waits, [name_of(counted.segment.geometry, *each) for each in accesses]
    yield found


def simulated(operation: Operation) -> list[str]:
    """The stations of an operation, in order; "home" for each access to the directory."""
    names = []
    for step in operation:
        station = step[1]
        assert station is not None
        if station[0] != "NIC messages" and not station[0].startswith("NIC "):
            names.append(station[0])
        elif station[0] == "NIC messages" and station[1] == HOME:
            names.append("home")
        elif station[0] == "NIC messages":
            names.append("")
    return names


def far() -> Steps:
    """Steps of a world in which all accesses cross the NIC: each is a message."""
    return Steps(changed(Assumptions(), ["node=1"]))


def test_a_put_waits_and_meets_as_the_compiled_one(seen: dict[str, tuple[float, list[str]]]) -> None:
    waits, words = seen["put"]
    names = simulated(far().put(READER, OWNER, HOME, 0, 100))
    messages = sum(name in ("", "home") for name in names)
    assert waits == messages == PUT_WAITS
    # the header's words are stations of readers only: nobody else changes a header that is being written
    assert [name for name in names if name] == [name for name in words if name not in ("", "state")]


def test_a_get_waits_and_meets_as_the_compiled_one(seen: dict[str, tuple[float, list[str]]]) -> None:
    waits, words = seen["get"]
    names = simulated(far().get(READER, OWNER, HOME, 0, 100))
    messages = sum(name in ("", "home") for name in names)
    assert waits == messages == GET_WAITS
    assert [name for name in names if name] == [name for name in words if name]
