"""v1 without messages: the allocator, the master on real segments, and a local world. fsck follows each master test."""

import dataclasses
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanokv.allocation.routing import Routing
from nanokv.compat_v1.allocator import Runs, Space
from nanokv.compat_v1.eviction import Policy, goal
from nanokv.compat_v1.host_allocation import HostAllocation
from nanokv.compat_v1.master import Master
from nanokv.compat_v1.messages import WORDS, Op, Reply, Request, new_message, pack, unpack_reply, unpack_request
from nanokv.device.machines.native import NativeMachine
from nanokv.device.machines.records import Begun, Found, Place
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import (
    DEAD,
    FLAG_ACK,
    READY,
    REMOVED,
    RESERVED,
    STORED,
    WRITING,
    names_producer,
    unpack,
)
from nanokv.device.segment.views import SegmentView
from nanokv.errors import PeerLost, SegmentCorrupt
from nanokv.heap.local import LocalWorld
from nanokv.heap.world_spec import WorldSpec
from nanokv.types import KeyDigest
from tests.support.fsck_fixture import PAGE, RAW, Pin, World, digest

SHAPE = (2 << 8, 5, 7, 0, 0, 0, 0, 0)  #: a descriptor of raw bytes, with words to compare


# --- the allocator ---
@given(
    st.integers(0, 40),
    st.lists(st.one_of(st.tuples(st.just("take"), st.integers(0, 12)), st.tuples(st.just("give"), st.integers(0, 99)))),
)
def test_runs_do_not_overlap_and_all_come_back(count: int, steps: list[tuple[str, int]]) -> None:
    runs = Runs(count)
    model = [False] * count
    held: list[tuple[int, int]] = []
    for step, number in steps:
        if step == "take":
            first = runs.take(number)
            longest = max(map(len, "".join(".#"[used] for used in model).split("#")))
            assert (first is None) == (number > longest)
            if first is not None and number:
                assert not any(model[first : first + number]) and first + number <= count
                model[first : first + number] = [True] * number
                held.append((first, number))
        elif held:
            first, pages = held.pop(number % len(held))
            runs.give(first, pages)
            model[first : first + pages] = [False] * pages
        assert (runs.used, runs.free) == (sum(model), count - sum(model))
        assert _pages_of(runs.runs()) == [page for page, used in enumerate(model) if not used]
        assert all(at + n < start for (at, n), (start, _) in pairwise(runs.runs())), "neighbours are not joined"
    for first, number in held:
        runs.give(first, number)
    assert runs.runs() == ([(0, count)] if count else [])


def _pages_of(runs: list[tuple[int, int]]) -> list[int]:
    return [page for first, pages in runs for page in range(first, first + pages)]


@given(st.lists(st.integers(1, 5), max_size=8), st.data())
def test_runs_begin_with_what_is_taken(sizes: list[int], data: st.DataObject) -> None:
    taken, at = [], 0
    for size in sizes:
        at += data.draw(st.integers(0, 3))
        taken.append((at, size))
        at += size
    runs = Runs(at + 4, data.draw(st.permutations(taken)))
    assert runs.used == sum(sizes)
    assert sorted(_pages_of(runs.runs()) + _pages_of(taken)) == list(range(at + 4))
    for first, size in taken:
        runs.give(first, size)
    assert runs.runs() == [(0, at + 4)]


@pytest.mark.parametrize("taken", [[(0, 3), (2, 2)], [(8, 3)], [(-1, 2)], [(4, 1), (4, 1)]])
def test_runs_refuse_what_cannot_be_taken(taken: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="pages"):
        Runs(10, taken)


def test_a_hole_of_the_size_is_taken_before_a_larger_one() -> None:
    runs = Runs(10, [(1, 3), (6, 1)])  # free: 0, 4 and 5, 7 to 9
    assert [runs.take(2), runs.take(1), runs.take(3), runs.take(1)] == [4, 0, 7, None]


def test_space_takes_slot_and_pages_or_neither() -> None:
    space = Space(4, 2)
    assert space.take(3) == (0, 0)
    assert space.take(2) is None
    assert (space.pages.used, space.slots.used) == (3, 1)
    assert space.take(0) == (1, 0)
    assert space.take(1) is None, "no slot is left"
    assert (space.pages.used, space.slots.used) == (3, 2)
    space.give(1, 0, 0)
    assert space.take(1) == (1, 3)


# --- messages ---
_WORD = st.integers(-(2**63), 2**63 - 1)
_PLACE = st.builds(Place, *[_WORD] * 5)
_DESCRIPTOR = st.tuples(*[_WORD] * 8)


@given(
    st.builds(
        Request, st.sampled_from(Op).map(int), *[_WORD] * 5, _PLACE, plan=_WORD, limit=_WORD, descriptor=_DESCRIPTOR
    )
)
def test_a_request_arrives_as_it_was(request: Request) -> None:
    message = new_message()
    pack(request, message)
    assert unpack_request(message) == request and len(message) == WORDS


@given(st.builds(Reply, _WORD, st.sampled_from(Status).map(int), _PLACE, gone=_WORD, descriptor=_DESCRIPTOR))
def test_a_reply_arrives_as_it_was(reply: Reply) -> None:
    message = new_message()
    pack(reply, message)
    assert unpack_reply(message) == reply


def test_what_is_no_message_is_refused() -> None:
    message = new_message()
    assert unpack_request(message) is None
    message.fill_(99)
    assert unpack_request(message) is None and unpack_reply(message) is None


TICK = 4  # ns: times are stored without their two lowest bits


# --- the master ---
class Site:
    """A master on two segments in plain memory, with a clock that stands still."""

    def __init__(self, n_pages: int = 64, **options: Any) -> None:
        self.world = World("host", n_pages=n_pages)
        self.now = 0.0
        self.options: dict[str, Any] = {"may_evict": False, "write_timeout": 10.0} | options
        self.master = self.new_master()

    def new_master(self) -> Master:
        def alive(rank: int, incarnation: int) -> bool:
            return rank not in self.world.dead

        routing = Routing(2, 0, lambda rank: rank in self.world.dead)
        return Master(self.world.machines[0], alive, routing, clock=lambda: self.now, **self.options)

    def recovered(self) -> Master:
        """A master that knows only the headers."""
        self.master = self.new_master()
        self.master.recover(lambda rank: self.world.views[rank].descriptors.copy())
        return self.master

    def open(self, key: int, nbytes: int = PAGE, owner: int | None = 0, by: int = 1, plan: bool = False) -> Begun:
        return self.master.open_for_write(key_of(key), nbytes, owner, SHAPE, plan=plan, producer=(by, 1))

    def put(self, key: int, nbytes: int = PAGE, owner: int | None = 0, by: int = 1) -> int:
        """A put as by `HostAllocation`, without bytes. The last use of objects is in the order of their keys."""
        write = self.open(key, nbytes, owner, by)
        if write.status != Status.OK:
            return write.status
        assert self.world.machines[by].commit(write.place) == Status.OK
        self.world.machines[by].touch(write.place, TICK * key)
        return self.commit(key, write)

    def commit(self, key: int, write: Begun) -> int:
        return self.master.commit(key_of(key), write.place)

    def abort(self, key: int, write: Begun) -> int:
        return self.master.abort(key_of(key), write.place)

    def late_commit(self, write: Begun, by: int = 1) -> int:
        """The producer's own commit, without a message to the master."""
        return self.world.machines[by].commit(write.place)

    def tick(self, now: float) -> None:
        self.now = now
        self.master.tick(now)

    def held(self, keys: range) -> list[int]:
        return [key for key in keys if self.master.exists(key_of(key)) == Status.OK]

    def header(self, write: Begun | Found) -> Any:
        return self.world.views[write.place.owner].headers[write.place.slot]

    def pin(self, key: int, by: int = 1) -> Pin:
        found = self.master.get_location(key_of(key))
        status, line = self.world.machines[by].pin(found.place)
        assert status == Status.OK
        return Pin(found.place, line)

    def hints(self, owner: int) -> list[int]:
        """The kinds of the hints in a ring."""
        return [int(unpack("RING", "kind", word)) for word in self.world.machines[owner].drain(owner, 0, 64).hints]


def key_of(key: int) -> KeyDigest:
    return KeyDigest(*digest(key))


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    report = made.world.check()
    assert not report.breaches, str(report)


def test_the_life_of_an_object(site: Site) -> None:
    write = site.open(1, 2 * PAGE + 1, owner=1)
    assert (write.status, write.place.owner, write.place.nbytes, write.phase) == (Status.OK, 1, 2 * PAGE + 1, -1)
    assert site.master.get_location(key_of(1)).status == site.master.exists(key_of(1)) == Status.NOT_READY
    assert site.master.remove(key_of(1)) == Status.NOT_READY
    assert site.late_commit(write) == Status.OK
    assert site.commit(1, write) == Status.OK
    found = site.master.get_location(key_of(1))
    assert found == Found(Status.OK, write.place, SHAPE)
    assert int(site.header(write)["n_pages"]) == 3 == site.master.counts().used_pages[1]
    assert site.master.remove(key_of(1)) == Status.OK
    assert site.master.exists(key_of(1)) == site.master.remove(key_of(1)) == Status.MISS
    assert (site.header(write)["n_pages"], site.header(write)["state"]) == (0, DEAD.value)
    assert site.master.counts() == (0, 0, 0, [0, 0])
    assert site.hints(1) == [STORED.value, REMOVED.value]


def test_the_header_names_the_producer(site: Site) -> None:
    write = site.open(1, by=1, plan=True)
    header = site.header(write)
    assert unpack("PRODUCER", "rank", int(header["producer"])) == 1
    assert unpack("PRODUCER", "incarnation", int(header["producer"])) == 1
    assert header["flags"] & 0xFF == 1 and names_producer(header)
    far = site.master.open_for_write(key_of(2), 0, 0, RAW, plan=False, producer=(1, 2**22 - 1))
    assert unpack("PRODUCER", "incarnation", int(site.header(far)["producer"])) == 2**22 - 1


@pytest.mark.parametrize("key", range(6))
def test_without_a_wish_the_key_chooses_as_in_v2(site: Site, key: int) -> None:
    assert site.open(key, owner=None).place.owner == site.world.geometry.home_rank(key_of(key).key_check)


def test_a_key_is_opened_once(site: Site) -> None:
    write = site.open(1)
    assert site.open(1, owner=1).status == Status.DUPLICATE
    site.commit(1, write)
    assert site.open(1).status == Status.DUPLICATE
    site.master.remove(key_of(1))
    again = site.open(1)
    assert (again.status, again.place.slot, again.place.epoch) == (Status.OK, write.place.slot, write.place.epoch + 1)


def test_of_many_threads_one_opens_a_key(site: Site) -> None:
    threads, rounds = 8, 40
    gate = threading.Barrier(threads)
    won: list[int] = []

    def race() -> None:
        for key in range(rounds):
            gate.wait(30)
            write = site.open(key, owner=key % 2)
            if write.status == Status.OK:
                won.append(key)

    racers = [threading.Thread(target=race) for _ in range(threads)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
    assert sorted(won) == list(range(rounds))
    assert site.master.counts().used_pages == [rounds // 2] * 2


def test_threads_that_open_and_remove_leave_nothing(site: Site) -> None:
    def churn(by: int) -> None:
        for step in range(150):
            key = step % 7
            write = site.open(key, (step % 4) * PAGE, owner=step % 2, by=by)
            if write.status == Status.OK:
                site.commit(key, write)
            site.master.remove(key_of(key))

    threads = [threading.Thread(target=churn, args=(by % 2,)) for by in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for key in range(7):
        site.master.remove(key_of(key))
    assert site.master.counts() == (0, 0, 0, [0, 0])


def test_a_kernels_own_ready_is_seen(site: Site) -> None:
    write = site.open(1, plan=True)
    site.late_commit(write)
    assert site.master.exists(key_of(1)) == Status.OK
    assert site.master.counts().unfinished == 0


def test_commit_makes_ready_what_is_not(site: Site) -> None:
    write = site.open(1)
    assert site.commit(1, write) == Status.OK
    assert site.world.machines[1].validate(write.place) == Status.OK
    assert site.commit(1, write) == Status.OK
    assert site.hints(0) == [STORED.value]
    assert site.commit(2, write) == Status.LOST, "another key"


def test_objects_without_bytes(site: Site) -> None:
    assert site.put(1, 0) == Status.OK
    found = site.master.get_location(key_of(1))
    assert (found.status, found.place.nbytes) == (Status.OK, 0)
    assert site.master.counts().used_pages == [0, 0]
    assert site.master.remove(key_of(1)) == Status.OK


def test_abort_frees_at_once(site: Site) -> None:
    write = site.open(1, 3 * PAGE)
    assert site.abort(1, write) == Status.OK
    assert site.master.counts() == (0, 0, 0, [0, 0])
    assert site.abort(1, write) == Status.LOST
    site.put(1)
    assert site.abort(1, write) == Status.LOST, "an earlier epoch"
    assert site.master.exists(key_of(1)) == Status.OK


def test_a_producer_that_gave_up_without_a_master(site: Site) -> None:
    write = site.open(1, 3 * PAGE)
    site.world.machines[1].kill(write.place.owner, write.place.slot, WRITING.value, write.place.epoch)
    assert site.late_commit(write) == Status.LOST
    assert site.master.exists(key_of(1)) == Status.MISS
    assert site.open(1).status == Status.OK
    site.tick(0.0)
    assert site.master.counts() == (1, 1, 0, [1, 0])


# --- full ---
def test_full_is_an_answer(site: Site) -> None:
    assert [site.put(key, 8 * PAGE) for key in range(9)] == [Status.OK] * 8 + [Status.FULL]
    assert site.world.views[0].ctl["refused"][0] == 1
    assert site.held(range(9)) == list(range(8))
    for key in (2, 3):
        site.master.remove(key_of(key))
    assert site.put(9, 16 * PAGE) == Status.OK, "neighbours are joined"
    assert site.open(10, 65 * PAGE, owner=1).status == Status.TOO_LARGE
    assert site.put(11, 64 * PAGE, owner=1) == Status.OK


def test_header_slots_run_out(site: Site) -> None:
    slots = site.world.geometry.hdr_count
    assert [site.put(key, 0) for key in range(slots + 1)] == [Status.OK] * slots + [Status.NO_HEADER]
    site.master.remove(key_of(0))
    assert site.put(slots, PAGE) == Status.OK


def test_header_slots_are_evicted_too() -> None:
    site = Site(may_evict=True, policy="fifo")
    slots = site.world.geometry.hdr_count
    assert {site.put(key, 0) for key in range(2 * slots)} == {Status.OK}
    assert site.held(range(2 * slots)) == list(range(slots, 2 * slots))
    assert site.world.views[0].ctl["evicted"][0] == slots


# --- eviction ---
@pytest.mark.parametrize(("policy", "gone"), [("fifo", [0, 1, 2, 3]), ("last_access", [1, 2, 3, 4])])
def test_the_policy_chooses(policy: Policy, gone: list[int]) -> None:
    site = Site(n_pages=20, may_evict=True, water=(80, 95), policy=policy)
    for key in range(19):
        assert site.put(key) == Status.OK
    first = site.master.get_location(key_of(0))
    site.world.machines[1].touch(first.place, 1000)
    assert site.put(19) == Status.OK
    assert [key for key in range(20) if key not in site.held(range(20))] == gone
    assert site.master.counts().used_pages == [16, 0]
    assert site.world.views[0].ctl["evicted"][0] == 4
    assert not site.world.check().breaches


def test_exists_and_get_location_do_not_make_an_object_look_used() -> None:
    site = Site(may_evict=True)
    site.put(5)
    site.master.exists(key_of(5))
    assert int(site.header(site.master.get_location(key_of(5)))["last_access"]) == 5 * TICK


@given(st.integers(1, 200), st.integers(0, 200), st.integers(0, 200), st.integers(1, 100), st.integers(1, 100))
def test_the_goal_makes_room(total: int, wanted: int, used: int, one: int, other: int) -> None:
    wanted, used = min(wanted, total), min(used, total)
    low, high = sorted((one, other))
    limit = goal(total, wanted, used, (low, high))
    assert (limit >= 0 and limit + wanted <= total) or limit == used
    if used + wanted <= total * high // 100:
        assert limit == used
    elif wanted <= total * low // 100:
        assert limit + wanted == total * low // 100


def test_usage_stays_below_the_high_mark() -> None:
    site = Site(may_evict=True, water=(50, 75))
    for key in range(200):
        assert site.put(key, (1 + key % 5) * PAGE) == Status.OK
        assert site.master.counts().used_pages[0] <= 48
    assert site.master.exists(key_of(199)) == Status.OK
    assert site.master.counts().used_pages[1] == 0
    assert not site.world.check().breaches


def test_an_object_larger_than_the_marks_goes_in() -> None:
    site = Site(may_evict=True, water=(50, 75))
    for key in range(30):
        assert site.put(key) == Status.OK
    for key, pages in ((100, 40), (101, 60), (102, 64)):
        assert site.put(key, pages * PAGE) == Status.OK
    assert site.master.counts() == (1, 0, 0, [64, 0])


def test_scattered_free_pages_are_not_the_end() -> None:
    site = Site(n_pages=16, may_evict=True, water=(100, 100), policy="fifo")
    for key in range(16):
        assert site.put(key) == Status.OK
    for key in range(0, 16, 2):
        site.master.remove(key_of(key))
    assert site.put(99, 8 * PAGE) == Status.OK
    assert not site.world.check().breaches


def test_pinned_and_unfinished_objects_stay() -> None:
    site = Site(n_pages=8, may_evict=True, water=(40, 90), policy="fifo")
    site.put(0, 2 * PAGE)
    unfinished = site.open(1, 2 * PAGE)
    site.put(2, 2 * PAGE)
    pin = site.pin(0)
    assert site.put(3, 4 * PAGE) == Status.OK, "2 went"
    assert site.put(4, 5 * PAGE) == Status.FULL, "and now 3: it does not help, but for that it had to go"
    assert site.held(range(5)) == [0]
    assert site.master.remove(key_of(0)) == Status.PINNED
    assert site.master.remove_slot(*pin.place[:3]) == Status.PINNED
    site.world.machines[1].unpin(*pin)
    assert site.master.remove(key_of(0)) == Status.OK
    assert site.commit(1, unfinished) == Status.OK
    assert not site.world.check().breaches


def test_evict_on_demand(site: Site) -> None:
    for key in range(10):
        site.put(key, 2 * PAGE)
    assert site.master.evict(0, 20) == 0
    assert site.master.evict(0, 13) == 4
    assert site.held(range(10)) == list(range(4, 10))
    assert site.master.evict(0, 0) == 6
    assert site.master.evict(1, 0) == 0
    assert site.world.views[0].ctl["evicted"][0] == 10


def test_remove_slot_wants_the_epoch(site: Site) -> None:
    site.put(1)
    found = site.master.get_location(key_of(1))
    assert site.master.remove_slot(found.place.owner, found.place.slot, found.place.epoch + 1) == Status.MISS
    assert site.master.remove_slot(found.place.owner, found.place.slot + 1, found.place.epoch) == Status.MISS
    assert site.master.remove_slot(7, found.place.slot, found.place.epoch) == Status.MISS
    assert site.master.remove_slot(found.place.owner, found.place.slot, found.place.epoch) == Status.OK
    assert site.master.exists(key_of(1)) == Status.MISS


# --- unfinished objects ---
def give_up(site: Site, **options: Any) -> Begun:
    """Open an object of three pages that is then given up."""
    write = site.open(1, 3 * PAGE, **options)
    site.tick(10.0)
    assert site.master.exists(key_of(1)) == Status.NOT_READY, "not before its time"
    site.tick(10.1)
    assert site.master.exists(key_of(1)) == Status.MISS
    assert site.header(write)["state"] == DEAD.value
    assert site.master.counts() == (0, 0, 1, [3, 0])
    return write


@pytest.mark.parametrize("plan", [False, True])
def test_time_alone_does_not_free(site: Site, plan: bool) -> None:
    give_up(site, plan=plan)
    site.tick(1e9)
    assert site.master.counts() == (0, 0, 1, [3, 0])
    again = site.open(1, 62 * PAGE)
    assert again.status == Status.FULL, "its pages are not given to others"
    assert site.put(1) == Status.OK, "its key is free"


def test_a_late_commit_is_lost_and_frees(site: Site) -> None:
    write = give_up(site)
    assert site.late_commit(write) == Status.LOST
    assert site.header(write)["flags"] & FLAG_ACK.value
    site.tick(10.2)
    assert site.master.counts() == (0, 0, 0, [0, 0])
    assert site.header(write)["n_pages"] == 0


def test_a_late_commit_that_the_master_hears_of_frees_at_once(site: Site) -> None:
    write = give_up(site)
    assert site.commit(1, write) == Status.LOST
    assert site.master.counts() == (0, 0, 0, [0, 0])


def test_a_late_abort_frees_at_once(site: Site) -> None:
    write = give_up(site)
    assert site.abort(1, write) == Status.LOST
    assert site.master.counts() == (0, 0, 0, [0, 0])
    site.put(2)
    assert site.abort(1, write) == Status.LOST
    assert site.master.exists(key_of(2)) == Status.OK, "the slot has another object now"


def test_the_death_of_the_producer_frees(site: Site) -> None:
    give_up(site)
    site.world.dead.add(1)
    site.tick(10.2)
    assert site.master.counts() == (0, 0, 0, [0, 0])


def test_a_dead_producer_is_not_waited_for(site: Site) -> None:
    site.open(1, 3 * PAGE)
    kept = site.open(2, by=0)
    site.put(3, by=1)
    site.world.dead.add(1)
    site.tick(0.1)
    assert site.master.counts() == (2, 1, 0, [2, 0])
    assert site.commit(2, kept) == Status.OK
    assert site.master.exists(key_of(3)) == Status.OK, "what it had finished stays"


def test_what_became_ready_in_time_is_not_given_up(site: Site) -> None:
    write = site.open(1)
    site.late_commit(write)
    site.tick(1e9)
    assert site.master.exists(key_of(1)) == Status.OK


def test_pins_of_the_dead_go(site: Site) -> None:
    site.put(1, by=0)
    site.pin(1, by=1)
    mine = site.pin(1, by=0)
    site.world.dead.add(1)
    assert site.master.remove(key_of(1)) == Status.PINNED
    site.tick(0.1)
    assert np.count_nonzero(site.world.views[0].pins) == 1
    site.world.machines[0].unpin(*mine)
    assert site.master.remove(key_of(1)) == Status.OK


# --- starting over ---
def test_recover_keeps_what_is_ready(site: Site) -> None:
    for key in range(12):
        site.put(key, (key % 4) * PAGE + key % 2, owner=key % 2)
    for key in (3, 8):
        site.master.remove(key_of(key))
    before = [site.master.get_location(key_of(key)) for key in range(12)]
    counts = site.master.counts()
    after = site.recovered()
    assert [after.get_location(key_of(key)) for key in range(12)] == before
    assert after.counts() == counts
    assert before[5].descriptor == SHAPE
    assert site.put(3, 20 * PAGE, owner=1) == Status.OK
    assert site.put(5) == Status.DUPLICATE
    for key in range(12):
        after.remove(key_of(key))
    assert after.counts() == (0, 0, 0, [0, 0])


def test_recover_finishes_what_was_under_way(site: Site) -> None:
    living, dead = site.open(1, 2 * PAGE, by=0), site.open(2, 3 * PAGE, by=1)
    site.world.dead.add(1)
    after = site.recovered()
    assert after.counts() == (1, 1, 0, [2, 0])
    assert site.header(dead)["n_pages"] == 0
    assert site.put(1) == Status.DUPLICATE
    assert site.commit(1, living) == Status.OK
    assert after.get_location(key_of(1)).place.payload == living.place.payload


def test_recover_gives_up_again_after_the_timeout(site: Site) -> None:
    site.open(1)
    site.now = 100.0
    site.recovered()
    site.tick(109.0)
    assert site.master.counts().unfinished == 1
    site.tick(111.0)
    assert site.master.counts() == (0, 0, 1, [1, 0])


def test_recover_keeps_the_quarantine(site: Site) -> None:
    write = give_up(site)
    assert site.recovered().counts() == (0, 0, 1, [3, 0])
    assert site.recovered().counts() == (0, 0, 1, [3, 0])
    site.late_commit(write)
    assert site.recovered().counts() == (0, 0, 0, [0, 0])
    assert site.put(1, 64 * PAGE) == Status.OK


def test_recover_takes_back_what_a_master_left_half_made(site: Site) -> None:
    write = site.open(1, 2 * PAGE)
    at = site.header(write)
    at["state"] = RESERVED.value  # its producer died between reserving and publishing
    assert site.recovered().counts() == (0, 0, 0, [0, 0])
    assert site.header(write)["state"] == DEAD.value
    assert site.put(1) == Status.OK


def test_recover_keeps_the_order_of_use_for_fifo() -> None:
    site = Site(may_evict=True, policy="fifo")
    for key in (3, 1, 2, 0):
        site.put(key)
    site.recovered()
    assert site.master.evict(0, 2) == 2
    assert site.held(range(4)) == [2, 3]


@pytest.mark.parametrize(
    ("field", "change"), [("payload_base", 8), ("payload_base", 64 * PAGE), ("payload_base", -PAGE), ("n_pages", 3)]
)
def test_recover_refuses_headers_that_cannot_be(field: str, change: int) -> None:
    site = Site()
    for key in range(3):
        site.put(key, 2 * PAGE)
    header = site.header(site.master.get_location(key_of(1)))
    header[field] = int(header[field]) + change
    with pytest.raises(SegmentCorrupt, match="segment 0"):
        site.recovered()


def test_recover_refuses_a_key_with_two_objects() -> None:
    site = Site()
    site.put(1)
    site.put(2)
    one, two = (site.header(site.master.get_location(key_of(key))) for key in (1, 2))
    for field in ("key_hash", "key_check"):
        two[field] = one[field]
    with pytest.raises(SegmentCorrupt, match="slot"):
        site.recovered()


# --- a local world ---
@dataclasses.dataclass
class Rank:
    allocation: HostAllocation
    machine: NativeMachine


@pytest.fixture
def local() -> Iterator[list[Rank]]:
    geometry = Geometry.plan(16 * PAGE, PAGE, 2)
    world = LocalWorld(WorldSpec(geometry, mode="host", may_evict=False, water=(85, 95)))
    heaps = [world.heap(rank) for rank in range(2)]
    views = [SegmentView(heap.host_view(heap.rank), geometry) for heap in heaps]  # type: ignore[arg-type]
    ranks = []
    for heap in heaps:
        machine = NativeMachine(geometry, geometry.world_table(heap.rank, 1, heap.bases), views, heap.wake)
        ranks.append(Rank(HostAllocation(heap, machine, 1, may_evict=False), machine))
    yield ranks
    for rank, heap in zip(ranks, heaps, strict=True):
        rank.allocation.close()
        heap.close()


def test_virtual_ranks_share_the_master(local: list[Rank]) -> None:
    write = local[0].allocation.begin(key_of(1), 5, 0, SHAPE, plan=False)
    assert local[1].allocation.exists(key_of(1)) == Status.NOT_READY
    assert local[0].allocation.finish(key_of(1), write) == Status.OK
    found = local[1].allocation.locate(key_of(1))
    assert (found.place.owner, found.place.slot, found.place.epoch, found.descriptor) == (
        0,
        write.place.slot,
        write.place.epoch,
        SHAPE,
    )
    assert local[1].allocation.evict(0, 0) == 1
    assert local[0].allocation.remove(key_of(1)) == Status.MISS
    assert local[0].allocation.begin(key_of(1), 2**70, 0, SHAPE, plan=False).status == Status.TOO_LARGE


def test_a_master_that_has_closed_is_lost(local: list[Rank]) -> None:
    open_plan = local[0].allocation.begin(key_of(1), 5, 0, SHAPE, plan=True)
    other = local[0].allocation.begin(key_of(2), 5, 0, SHAPE, plan=True)
    local[1].allocation.close()
    with pytest.raises(PeerLost, match="rank 1, the master"):
        local[0].allocation.locate(key_of(1))
    assert local[0].allocation.finish(key_of(1), open_plan) == Status.OK, "the header decides"
    assert local[0].allocation.abort(key_of(2), other) == Status.OK
    assert local[0].allocation.abort(key_of(2), other) == Status.LOST
    assert local[0].allocation.abort(key_of(1), open_plan) == Status.LOST, "it is READY"
    states = [unpack("STATE", "state", local[0].machine.state(0, w.place.slot)) for w in (open_plan, other)]
    assert states == [READY.value, DEAD.value]
    assert int(local[0].machine.headers(0, other.place.slot, 1)[0]["flags"]) & FLAG_ACK.value
