"""fsck finds and names every planted corruption: one case per check."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import (
    DEAD,
    ENTRIES_PER_BUCKET,
    ENTRY_EPOCH_SHIFT,
    ENTRY_FINAL,
    ENTRY_HEADER_SHIFT,
    ENTRY_PHASE_MASK,
    ENTRY_RANK_SHIFT,
    ENTRY_REPLICA,
    ENTRY_TAG_SHIFT,
    ENTRY_TENTATIVE,
    NDIM_SHIFT,
    NEAR_BUCKETS,
    ONE_PIN,
    PIN_HEADER_SHIFT,
    PIN_HELD,
    PIN_INTENT,
    PIN_PRODUCER_SHIFT,
    READY,
    RING_EPOCH_SHIFT,
    RING_HEADER_SHIFT,
    SIZE_CLASSES,
    STORED,
    WANTED,
)
from nanokv.fsck import check_segments
from tests.support.fsck_fixture import PAGE, RANKS, WORLD_ID, World, digest, home_of, ten_objects


@pytest.fixture
def world() -> World:
    return ten_objects()


class Case(NamedTuple):
    """A corruption of a world with the objects 0 to 9, and how it must be reported."""

    plant: Callable[[World], int]  #: returns the rank of the segment that must be named
    invariant: str
    says: str
    always: bool  #: True: found in a busy world too


CASES: dict[str, Case] = {}


def case(invariant: str, says: str, *, always: bool = False) -> Callable[[Callable[[World], int]], None]:
    def note(plant: Callable[[World], int]) -> None:
        CASES[plant.__name__] = Case(plant, invariant, says, always)

    return note


def identity(field: str, value: int) -> Callable[[World], int]:
    def plant(world: World) -> int:
        world.views[1].ctl[field] = value
        return 1

    return plant


for name, value in (
    ("magic", 1),
    ("version", 99),
    ("layout_hash", 1),
    ("page_bytes", 64),
    ("hdr_base", 0),
    ("heap_limit", 1 << 60),
    ("rank", 0),
    ("world_id", WORLD_ID + 1),
    ("mode", 1),
):
    CASES[f"identity_{name}"] = Case(identity(name, value), "I10", name.removesuffix("_hash"), True)


def control_word(field: str, value: Callable[[World], int]) -> Callable[[World], int]:
    def plant(world: World) -> int:
        world.views[1].ctl[field] = value(world)
        return 1

    return plant


CASES |= {
    "bump_below_the_arena": Case(control_word("bump_ptr", lambda w: 0), "I9", "bump_ptr is 0", True),
    "bump_past_the_arena": Case(
        control_word("bump_ptr", lambda w: w.geometry.offsets["heap_limit"] + (PAGE << 21)), "I9", "bump_ptr", True
    ),
    "bump_off_a_page": Case(
        control_word("bump_ptr", lambda w: int(w.views[1].ctl["bump_ptr"][0]) + 8), "I9", "not on a page", True
    ),
    "hdr_head_past_the_end": Case(control_word("hdr_head", lambda w: 1 << 21), "I9", "hdr_head is 2097152", True),
    "ring_tail_past_its_head": Case(control_word("ann_tail", lambda w: 1 << 40), "I5", "past ann_head", True),
    "grace_phase": Case(control_word("grace_phase", lambda w: 2), "I6", "grace_phase is 2", True),
    "joining": Case(control_word("joining", lambda w: 1), "I6", "join free extents", False),
    "splitting": Case(control_word("splitting", lambda w: 3), "I6", "3 splits of free extents", False),
}


@case("I6", "1 + 0 operations of rank 0 are counted in flight at rest")
def an_operation_was_never_counted_out(world: World) -> int:
    world.machines[0].enter(1)
    return 1


@case("I6", "0 + -1 operations of rank 1")
def an_operation_was_counted_out_twice(world: World) -> int:
    world.views[0].activity["in_flight1"][1] = (1 << 64) - 1
    return 0


@case("I10", "invalid hints", always=True)
def a_hint_of_no_kind(world: World) -> int:
    world.views[0].ring[60] = 7 | 1 << RING_HEADER_SHIFT.value
    return 0


@case("I10", "invalid hints", always=True)
def a_hint_of_no_size_class(world: World) -> int:
    world.views[0].ring[60] = WANTED.value | SIZE_CLASSES << RING_HEADER_SHIFT.value
    return 0


@case("I4", "descriptors contradict", always=True)
def a_descriptor_of_other_bytes(world: World) -> int:
    rank, index = world.slot(0)
    world.views[rank].descriptors[index] = (1 | 1 << NDIM_SHIFT.value, [4999, 0, 0, 0, 0, 0, 0])
    return rank


@case("I4", "descriptors contradict", always=True)
def a_dtype_that_does_not_exist(world: World) -> int:
    rank, index = world.slot(0)
    world.views[rank].descriptors["format"][index] = 200
    return rank


@case("I4", "their checksum was made of", always=True)
def a_byte_that_changed(world: World) -> int:
    place = world.put_summed(owner=1, key=11)
    world.views[1].raw[place.payload + 17] ^= 1
    return 1


@case("I10", "invalid hints", always=True)
def a_hint_of_no_slot(world: World) -> int:
    world.views[0].ring[60] = STORED.value | 48 << RING_HEADER_SHIFT.value
    return 0


@case("I7", "an epoch went back", always=True)
def an_epoch_went_back(world: World) -> int:
    rank, index = world.slot(0)
    epoch = int(world.views[rank].headers["epoch"][index])
    world.views[rank].ring[60] = STORED.value | index << RING_HEADER_SHIFT.value | (epoch + 1) << RING_EPOCH_SHIFT.value
    return rank


@case("I10", "states that do not exist", always=True)
def a_state_that_does_not_exist(world: World) -> int:
    world.header(0)["state"] = 4
    return 0


@case("I8", "pinned and not READY", always=True)
def a_pin_on_a_dead_object(world: World) -> int:
    rank, index = world.slot(0)
    world.views[rank].headers["state"][index] = DEAD.value | ONE_PIN.value
    return rank


@case("I10", "pages that cannot be", always=True)
def a_payload_outside_of_the_arena(world: World) -> int:
    world.header(0)["payload_base"] = 1 << 50
    return 0


@case("I10", "pages that cannot be", always=True)
def a_payload_off_a_page(world: World) -> int:
    world.header(0)["payload_base"] += 64
    return 0


@case("I10", "pages that cannot be", always=True)
def more_pages_than_the_largest_extent(world: World) -> int:
    world.header(0)["n_pages"] = 65
    return 0


@case("I10", "another page size", always=True)
def another_page_size(world: World) -> int:
    world.header(0)["page_size"] = 64
    return 0


@case("I3", "bytes are not those of their pages", always=True)
def more_bytes_than_the_pages_hold(world: World) -> int:
    world.header(0)["bytes_total"] = 2 * PAGE + 1
    return 0


@case("I1", "pages are in more than one place: READY object", always=True)
def two_objects_share_pages(world: World) -> int:
    assert world.slot(0)[0] == world.slot(2)[0] == 0
    world.header(2)["payload_base"] = world.header(0)["payload_base"]
    return 0


@case("I1", "READY object of page 0, free 2-page extent of page 0")
def pages_are_free_and_in_use(world: World) -> int:
    assert world.header(0)["payload_base"] == world.geometry.offsets["heap_base"]
    world.machines[0].push_extents(0, np.array([0]), np.array([1]))
    return 0


@case("I1", "never allocated")
def pages_are_beyond_the_bump_pointer_and_in_use(world: World) -> int:
    world.views[0].ctl["bump_ptr"] -= np.uint64(PAGE)
    return 0


@case("I1", "free 1-page extent of page 10, free 2-page extent of page 10")
def an_extent_is_on_two_lists(world: World) -> int:
    pages, classes = np.array([10, 10]), np.array([0, 1])
    world.views[0].ctl["bump_ptr"] += np.uint64(2 * PAGE)
    world.machines[0].push_extents(0, pages, classes)
    return 0


@case("I2", "2 pages of 4096 bytes are in no place")
def an_extent_leaks(world: World) -> int:
    world.views[0].ctl["bump_ptr"] += np.uint64(2 * PAGE)
    return 0


@case("I2", "a cycle")
def a_list_is_a_cycle(world: World) -> int:
    world.machines[0].remove(digest(0))
    page = int(world.views[0].ctl["free_head1"][0, 0]) & 0xFFFFFFFF
    assert page
    world.views[0].page_links[page - 1] = page
    return 0


@case("I2", "links lead out of the arena", always=True)
def a_page_link_out_of_bounds(world: World) -> int:
    world.machines[0].remove(digest(0))
    world.views[0].page_links[int(world.views[0].ctl["free_head1"][0, 0] & 0xFFFFFFFF) - 1] = 65
    return 0


@case("I2", "the free list of 2-page extents is broken: a link leads to node 99 of 64")
def a_list_head_out_of_bounds(world: World) -> int:
    world.views[0].ctl["free_head1"][0, 0] = 100
    return 0


@case("I2", "ends outside of the arena")
def a_free_extent_leaves_the_arena(world: World) -> int:
    world.machines[0].push_extents(0, np.array([62]), np.array([0]))
    world.views[0].ctl["free_head2"][0, 0] = world.views[0].ctl["free_head0"][0, 0]
    world.views[0].ctl["free_head0"][0, 0] = 0
    return 0


@case("I2", "no such size class")
def a_list_of_a_class_that_does_not_exist(world: World) -> int:
    world.views[0].ctl["free_head23"][0, 0] = 1
    return 0


@case("I1", "header slots are free and in use")
def a_slot_is_free_and_in_use(world: World) -> int:
    rank, index = world.slot(0)
    world.views[rank].header_links[index] = 0
    world.views[rank].ctl["hdr_free"][0, 0] = index + 1
    return rank


@case("I2", "free and still name pages")
def a_free_slot_names_pages(world: World) -> int:
    rank, index = world.slot(0)
    world.machines[0].remove(digest(0))
    header = world.views[rank].headers[index]
    header["n_pages"] = 2
    return rank


@case("I1", "slots beyond hdr_head were taken")
def a_slot_beyond_the_head(world: World) -> int:
    world.views[0].ctl["hdr_head"] -= np.uint64(1)
    return 0


@case("I2", "1 header slots are in no place")
def a_slot_that_was_taken_and_never_marked(world: World) -> int:
    world.views[0].ctl["hdr_head"] += np.uint64(1)
    return 0


@case("I2", "1 header slots are in no place")
def a_dead_slot_that_was_never_pushed(world: World) -> int:
    world.machines[0].remove(digest(0))
    world.views[0].ctl["hdr_free"][0, 0] = 0
    return 0


@case("I2", "the free list of header slots is broken")
def a_cycle_of_slots(world: World) -> int:
    world.machines[0].remove(digest(0))
    slot = int(world.views[0].ctl["hdr_free"][0, 0] & 0xFFFFFFFF)
    world.views[0].header_links[slot - 1] = slot
    return 0


@case("I10", "invalid directory entries", always=True)
def an_entry_of_no_rank(world: World) -> int:
    world.views[0].directory[0] = 2 | RANKS << ENTRY_RANK_SHIFT.value
    return 0


@case("I10", "invalid directory entries", always=True)
def an_entry_of_no_slot(world: World) -> int:
    world.views[0].directory[0] = 2 | 48 << ENTRY_HEADER_SHIFT.value
    return 0


@case("I10", "invalid directory entries", always=True)
def an_entry_of_no_phase(world: World) -> int:
    world.views[0].directory[0] = 1 << ENTRY_TAG_SHIFT.value
    return 0


@case("I4", "with another key's tag", always=True)
def an_entry_of_another_tag(world: World) -> int:
    home, place = world.entry(0)
    home.directory[place] ^= np.uint64(1 << ENTRY_TAG_SHIFT.value)
    return home_of(0)


@case("I4", "where their key is not looked for", always=True)
def an_entry_in_a_wrong_bucket(world: World) -> int:
    home, place = world.entry(0)
    key_hash, size = digest(0)[0], ENTRIES_PER_BUCKET.value
    buckets = world.geometry.dir_buckets
    one = key_hash & (buckets - 1)
    two = one ^ (((key_hash >> 32) & (buckets - 1) & (NEAR_BUCKETS.value - 1)) | 1)
    wrong = next(bucket for bucket in range(buckets) if bucket not in (one, two))
    free = next(i for i in range(wrong * size, (wrong + 1) * size) if not home.directory[i])
    home.directory[free], home.directory[place] = home.directory[place], 0
    return home_of(0)


@case("I4", "where their key is not looked for", always=True)
def an_entry_at_a_wrong_home(world: World) -> int:
    home, place = world.entry(0)
    other = 1 - home_of(0)
    world.views[other].directory[place] = home.directory[place]
    return other


@case("I5", "no directory entry finds them", always=True)
def an_object_that_cannot_be_found(world: World) -> int:
    home, place = world.entry(0)
    home.directory[place] = 0
    return 0


@case("I4", "several directory entries", always=True)
def an_object_that_is_found_twice(world: World) -> int:
    home, place = world.entry(0)
    bucket = place // ENTRIES_PER_BUCKET.value * ENTRIES_PER_BUCKET.value
    free = next(i for i in range(bucket, bucket + ENTRIES_PER_BUCKET.value) if not home.directory[i])
    home.directory[free] = home.directory[place]
    return 0


@case("I5", "left of objects that are gone")
def an_entry_of_an_earlier_epoch(world: World) -> int:
    home, place = world.entry(0)
    bucket = place // ENTRIES_PER_BUCKET.value * ENTRIES_PER_BUCKET.value
    free = next(i for i in range(bucket, bucket + ENTRIES_PER_BUCKET.value) if not home.directory[i])
    home.directory[free] = home.directory[place] ^ np.uint64(1 << ENTRY_EPOCH_SHIFT.value)
    return home_of(0)


@case("I5", "left of objects that are gone")
def an_entry_of_an_object_that_was_removed(world: World) -> int:
    home, place = world.entry(0)
    word = home.directory[place]
    world.machines[0].remove(digest(0))
    home.directory[place] = word
    return home_of(0)


@case("I6", "TENTATIVE at rest")
def an_entry_that_stays_tentative(world: World) -> int:
    home, place = world.entry(0)
    home.directory[place] = home.directory[place] & ~np.uint64(ENTRY_PHASE_MASK.value) | np.uint64(
        ENTRY_TENTATIVE.value
    )
    return home_of(0)


def copied(world: World) -> None:
    """The object 0 has a copy in the other segment."""
    owner, _ = world.slot(0)
    assert world.machines[owner].replicate(1 - owner, digest(0), 1) == Status.OK
    assert world.check().clean and world.check(False).clean


@case("I4", "copies that differ", always=True)
def a_copy_of_another_size(world: World) -> int:
    copied(world)
    at = np.flatnonzero(world.views[1].headers["key_hash"] == world.header(0)["key_hash"])[0]
    world.views[1].descriptors[at]["dims"][0] += 1
    return 1


@case("I4", "more than one READY object", always=True)
def a_copy_that_calls_itself_primary(world: World) -> int:
    copied(world)
    words = world.views[home_of(0)].directory
    (at,) = np.flatnonzero((words & np.uint64(ENTRY_PHASE_MASK.value)) == ENTRY_REPLICA.value)
    words[at] ^= np.uint64(ENTRY_REPLICA.value ^ ENTRY_FINAL.value)
    return 0


@case("I4", "more than one READY object", always=True)
def a_key_with_two_objects(world: World) -> int:
    one, other = world.header(0), world.header(1)
    for half in ("key_hash", "key_check"):
        other[half] = one[half]
    return 0


@case("I10", "invalid lines of the pin ledger", always=True)
def a_line_of_no_slot(world: World) -> int:
    world.views[0].pins[3] = PIN_HELD.value | 48 << PIN_HEADER_SHIFT.value
    return 0


@case("I10", "invalid lines of the pin ledger", always=True)
def a_line_of_no_rank(world: World) -> int:
    world.views[0].pins[3] = PIN_HELD.value | RANKS << PIN_PRODUCER_SHIFT.value
    return 0


@case("I8", "fewer pins than HELD ledger lines")
def a_pin_that_the_object_does_not_count(world: World) -> int:
    pin = world.pin(0)
    world.views[pin.place.owner].headers["state"][pin.place.slot] = READY.value
    return pin.place.owner


@case("I8", "more pins than HELD ledger lines")
def a_pin_that_no_line_holds(world: World) -> int:
    pin = world.pin(0)
    world.views[pin.place.owner].pins[pin.line] = 0
    return pin.place.owner


@case("I8", "INTENT at rest")
def a_line_that_stays_an_intent(world: World) -> int:
    world.views[0].pins[3] = PIN_INTENT.value
    return 0


@pytest.mark.parametrize("name", CASES)
def test_a_corruption_is_found_and_named(name: str, world: World) -> None:
    planted = CASES[name]
    rank = planted.plant(world)
    report = world.check()
    hits = [f for f in report.breaches if (f.invariant, f.rank) == (planted.invariant, rank) and planted.says in f.what]
    assert hits, f"looked for {planted.invariant} in rank {rank}: {planted.says}; found: {report}"
    assert all(finding.where and finding.remedy for finding in report.findings)


@pytest.mark.parametrize("name", [name for name, planted in CASES.items() if planted.always])
def test_what_must_always_hold_is_found_in_a_busy_world(name: str, world: World) -> None:
    planted = CASES[name]
    rank = planted.plant(world)
    report = world.check(False)
    assert (planted.invariant, rank) in {(f.invariant, f.rank) for f in report.breaches}, str(report)


@pytest.mark.parametrize("name", [name for name, planted in CASES.items() if not planted.always])
def test_what_may_be_in_motion_is_no_breach_in_a_busy_world(name: str, world: World) -> None:
    planted = CASES[name]
    planted.plant(world)
    busy = {(f.invariant, f.what) for f in world.check(False).findings}
    assert not any(planted.says in what for _, what in busy)


def test_every_invariant_that_words_can_show_has_a_case() -> None:
    assert {planted.invariant for planted in CASES.values()} == {f"I{n}" for n in range(1, 11)}


def test_a_foreign_segment_is_refused_before_anything_is_read_through_it(world: World) -> None:
    world.views[1].ctl["n_pages"] = 1
    world.header(0)["payload_base"] = 1
    report = world.check()
    assert [f.invariant for f in report.findings] == ["I10"]
    assert "n_pages is 1, not 64" in report.findings[0].what


def test_a_world_needs_all_its_segments(world: World) -> None:
    with pytest.raises(ValueError, match="one per rank, not 1"):
        check_segments(world.views[:1], mode="device")
