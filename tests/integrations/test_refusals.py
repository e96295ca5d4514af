"""What drop-ins refuse is counted by cause, and each cause is told once a minute."""

import logging

import pytest

from nanokv.errors import OutOfMemory, SegmentCorrupt
from nanokv.integrations.refusals import Refusals
from tests.support.faults import Clock


def test_each_is_counted_and_each_cause_told_once_a_minute(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    clock.stands()
    refusals = Refusals(logging.getLogger("a drop-in"))
    for _ in range(3):
        refusals.note("put", OutOfMemory("no room"), "a block is not stored", 2)
    refusals.note("get", SegmentCorrupt("its checksum is wrong"))
    refusals.note("get", "OtherShape", "a block is a miss: it has another shape")
    assert refusals.counts() == {"put: OutOfMemory": 6, "get: SegmentCorrupt": 1, "get: OtherShape": 1}
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert told == [
        ("WARNING", "NanoKV: a block is not stored: no room"),
        ("WARNING", "NanoKV: get: SegmentCorrupt: its checksum is wrong"),
        ("WARNING", "NanoKV: a block is a miss: it has another shape"),
    ]
    clock.passes(61)
    refusals.note("put", OutOfMemory("no room"), "a block is not stored")
    assert caplog.records[-1].getMessage() == ("NanoKV: a block is not stored: no room (2 more since it was told last)")
