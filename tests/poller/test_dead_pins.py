"""The pins of dead readers, wherever in the ledger they stand."""

import numpy as np
import pytest

from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import PIN_COUNT
from nanokv.heap.local import LocalWorld
from nanokv.heap.world_spec import WorldSpec
from nanokv.host_poller import dead_pins
from tests.poller.test_sweeper import PAGE, Rank
from tests.support.faults import Limits

LINES = 64


@pytest.mark.parametrize("part", [1, 7, LINES, 2 * LINES])
def test_a_look_in_parts_finds_every_line(part: int, limits: Limits) -> None:
    limits(dead_pins, SLICE=part)
    geometry = Geometry.plan(8 * PAGE, PAGE, 2, pin_slots=LINES)
    world = LocalWorld(WorldSpec(geometry, mode="device", may_evict=False, water=(85, 95)))
    reader, owner = (Rank(world.heap(rank)) for rank in range(2))
    assert reader.put(1, 3) == Status.OK
    place = reader.machine.lookup((3, 3 * 7919)).place
    assert {reader.machine.pin(place)[0] for _ in range(LINES)} == {Status.OK}
    ledger = owner.machine.pin_ledger(1)
    assert np.count_nonzero(ledger) == LINES
    assert np.array_equal(owner.machine.pin_ledger(1, LINES - 3, part), ledger[LINES - 3 :][:part])
    assert dead_pins.drop_dead_pins(owner.machine, 1, lambda rank, incarnation: rank != 0) == LINES
    assert not owner.machine.pin_ledger(1).any()
    assert owner.machine.state(1, place.slot) & PIN_COUNT.value == 0
    for rank in (reader, owner):
        rank.heap.close()
