"""A world whose ranks were all killed: taken over after fsck's quick look, or refused and left as it is."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nanokv.cache.cache import NanoKVCache
from nanokv.device.segment.layout import ONE_PIN
from nanokv.device.segment.views import SegmentView
from nanokv.errors import SegmentCorrupt
from nanokv.fsck.inspect_world import InspectedWorld
from nanokv.heap.shm_tools import inspect
from tests.support.worlds import shm_world

PAGE = 4096
HEAP = 256 * PAGE
DYING = """
import os, signal, sys, torch
from tests.support.worlds import shm_world
world = shm_world(sys.argv[1], 2, int(sys.argv[2]), page_bytes=int(sys.argv[3]))
world[0].put("k", torch.arange(10), preferred_segment=1)
world[1].open_for_write("plan", 5000, preferred_segment=1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def dead(shm_name: str) -> str:
    """The name of a world of two ranks: an object and an unfinished plan in segment 1."""
    done = subprocess.run(
        [sys.executable, "-c", DYING, shm_name, str(HEAP), str(PAGE)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=300,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    return shm_name


def test_leftovers_are_named_and_taken_back(dead: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "nanokv.recovery"):
        world = shm_world(dead, 2, HEAP, page_bytes=PAGE, on_stale="recover")
    try:
        (message,) = [record.getMessage() for record in caplog.records if record.name == "nanokv.recovery"]
        assert f"world {dead!r} is taken over" in message and "rank 1: 1 objects are unfinished" in message
        assert torch.equal(world[0].get("k"), torch.arange(10))
    finally:
        for cache in world:
            cache.close()


def test_a_corrupt_world_is_refused_and_stays(dead: str) -> None:
    found = inspect(dead, writable=True)
    SegmentView(found.segments[1], found.geometry).headers["state"] |= ONE_PIN.value  # of slots that are not READY too
    with pytest.raises(SegmentCorrupt, match=f"is not taken over: fsck finds .*`nanokv fsck {dead}` shows all"):
        NanoKVCache(HEAP, page_bytes=PAGE, name=dead, rank=0, world_size=2, on_stale="recover")
    assert InspectedWorld(dead).check().breaches
    (cache,) = [NanoKVCache(HEAP, page_bytes=PAGE, name=dead, rank=0, world_size=1, on_stale="replace")]
    with cache:
        assert not cache.exists("k")
