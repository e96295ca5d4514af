"""Reads of a part of an object's bytes."""

from collections.abc import Callable

import pytest
import torch

import nanokv
from nanokv.errors import InvalidArgument, KeyNotFound, NotReady, SegmentCorrupt
from nanokv.transfer import single
from tests.support.faults import Calls

World = list[nanokv.NanoKVCache]
MakeWorld = Callable[..., World]
DATA = torch.arange(5000, dtype=torch.int32)
BYTES = DATA.view(torch.uint8)


@pytest.mark.parametrize("checksum", [False, True])
def test_any_part(make_world: MakeWorld, checksum: bool) -> None:
    world = make_world(n=2, checksum=checksum)
    world[0].put("k", DATA, preferred_segment=1)
    for offset, nbytes in ((0, 20000), (0, 1), (19999, 1), (20000, 0), (0, 0), (4097, 8193), (3, 5), (7, 19993)):
        for cache in world:
            found = cache.get_part("k", offset, nbytes)
            assert found.dtype is torch.uint8 and torch.equal(found, BYTES[offset : offset + nbytes])
    dst = torch.zeros(2, 3, dtype=torch.int32)
    assert world[0].get_part("k", 400, 24, dst=dst) is dst
    assert torch.equal(dst.view(-1), DATA[100:106])
    world[0].put("none", torch.empty(0))
    assert world[1].get_part("none", 0, 0).numel() == 0
    before = world[0].stats()
    world[0].get_part("k", 0, 100)
    after = world[0].stats()
    assert (after["gets"] - before["gets"], after["bytes_rx"] - before["bytes_rx"]) == (1, 100)


def test_what_is_refused(make_world: MakeWorld) -> None:
    world = make_world(n=2)
    world[0].put("k", DATA)
    plan = world[0].open_for_write("plan", 100)
    for offset, nbytes, why in (
        (0, 20001, "bytes 0 to 20001 are asked for, the object has 20000"),
        (20001, 0, "bytes 20001 to 20001"),
        (19999, 2, "bytes 19999 to 20001"),
        (-1, 2, "offset must be"),
        (0, -1, "nbytes must be"),
        (0, 1 << 62, "no object has"),
        (1 << 62, 1, "the object has 20000"),
        (True, 1, "offset must be"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            world[1].get_part("k", offset, nbytes)
    dst = torch.zeros(10, dtype=torch.uint8)
    for wrong, why in (
        (dst[:9], "dst has 9 bytes, 10 are asked for"),
        (torch.zeros(20, dtype=torch.uint8)[::2], "contig"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            world[1].get_part("k", 0, 10, dst=wrong)
    with pytest.raises(InvalidArgument):
        world[1].get_part("k", 19995, 10, dst=dst)
    assert not dst.any()
    with pytest.raises(KeyNotFound):
        world[1].get_part("none", 0, 1)
    with pytest.raises(NotReady):
        world[1].get_part(plan.digest, 0, 1)


def test_a_part_of_a_corrupt_object_is_refused(make_world: MakeWorld) -> None:
    """The checksum is of the whole object: a wrong byte outside of the part is found too."""
    world = make_world(n=2, checksum=True)
    world[0].put("k", DATA, preferred_segment=1)
    meta = world[0].get_location("k")
    byte = world[0].engine.heap.segment(1)[meta.payload_off + 15000 :]
    byte[0] ^= 1
    with pytest.raises(SegmentCorrupt):
        world[0].get_part("k", 0, 10)
    byte[0] ^= 1
    assert torch.equal(world[0].get_part("k", 0, 10), BYTES[:10])


def test_an_object_that_is_replaced_meanwhile_is_read_again(make_world: MakeWorld, calls: Calls) -> None:
    world = make_world(n=2)
    world[0].put("k", DATA, preferred_segment=1)

    def replace(_: torch.Tensor) -> None:
        world[0].remove("k")
        world[0].put("k", DATA + 1, preferred_segment=1)

    seen = calls.before(single, "flat_bytes", replace, at=(1,))
    dst = torch.zeros(10, dtype=torch.int32)
    world[1].get_part("k", 40, 40, dst=dst)
    assert torch.equal(dst, DATA[10:20] + 1) and len(seen) == 2


def test_a_lease_ends_with_the_first_part(make_world: MakeWorld) -> None:
    world = make_world(n=1, heap_bytes=64 * 4096, page_bytes=4096, size_classes=[1, 32])
    (cache,) = world
    cache.put("held", torch.zeros(32 * 4096, dtype=torch.uint8), hold=600)
    cache.put("other", torch.zeros(32 * 4096, dtype=torch.uint8))
    for i in range(20):
        cache.put(f"more{i}", torch.zeros(32 * 4096, dtype=torch.uint8))
    assert "held" in cache and "other" not in cache
    cache.get_part("held", 0, 1)
    for i in range(20):
        cache.put(f"again{i}", torch.zeros(32 * 4096, dtype=torch.uint8))
    assert "held" not in cache
