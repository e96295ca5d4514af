"""Random segments, as a history of operations leaves them, then corrupted or not; and random arguments."""

import random
from typing import NamedTuple

import numpy as np

from nanokv.device.machines.native_code import compiled
from nanokv.device.segment.geometry import Geometry, producer_word
from nanokv.device.segment.host_records import COPY
from nanokv.device.segment.layout import (
    DEAD,
    ENTRY_EPOCH_MASK,
    ENTRY_EPOCH_SHIFT,
    ENTRY_HEADER_MASK,
    ENTRY_HEADER_SHIFT,
    ENTRY_RANK_MASK,
    ENTRY_RANK_SHIFT,
    ENTRY_TAG_MASK,
    ENTRY_TAG_SHIFT,
    EVICTED,
    HEAP_CTL,
    MARK_MASK,
    MARK_SHIFT,
    ONE_PIN,
    PIN_HEADER_MASK,
    PIN_HEADER_SHIFT,
    PIN_HELD,
    PIN_PRODUCER_SHIFT,
    READY,
    REMOVED,
    RESERVED,
    RING_EPOCH_SHIFT,
    RING_HEADER_SHIFT,
    SHARDS,
    STORED,
    WRITING,
    key_checks,
)
from nanokv.device.segment.views import SegmentView

GEOMETRY = Geometry.plan(24 * 64, 64, 2, size_classes=(1, 2, 4, 8), max_objects=10, ring_slots=8, pin_slots=4, shards=2)
PRIVATE_BYTES = 4096
KEYS = [(0x1234_5678_9ABC * k + k, -0x0FED_CBA9_8765 * k - 3) for k in range(1, 9)]


class Address(NamedTuple):
    """An address that differs in each copy. Regions: 0 and 1 the segments, 2 private memory, 3 the world table."""

    region: int
    offset: int


class Memory:
    """The memory of a world of two ranks: two segments, private memory, and the table that leads to them."""

    def __init__(self) -> None:
        sizes = (GEOMETRY.segment_bytes, GEOMETRY.segment_bytes, PRIVATE_BYTES)
        whole = np.zeros(sum(sizes) + 4096, np.uint8)
        start = -int(whole.ctypes.data) % 4096
        self.bytes = whole[start : start + sum(sizes)]
        at = int(self.bytes.ctypes.data)
        self.table = GEOMETRY.world_table(0, 1, [at, at + sizes[0]])
        self.bases = (at, at + sizes[0], at + sizes[0] + sizes[1], int(self.table.ctypes.data))
        self.ends = (*self.bases[1:3], self.bases[2] + PRIVATE_BYTES, self.bases[3] + self.table.nbytes)
        self.views = [SegmentView(self.bytes[i * sizes[0] : (i + 1) * sizes[0]], GEOMETRY) for i in range(2)]

    def resolved(self, value: int | Address) -> int:
        return self.bases[value.region] + value.offset if isinstance(value, Address) else value

    def named(self, value: int) -> int | Address:
        for region, (start, end) in enumerate(zip(self.bases, self.ends, strict=True)):
            if start <= value < end:
                return Address(region, value - start)
        return value


# the arguments of each function, by the methods of Draw
ARGUMENTS = {
    "pop": "head links count retries",
    "pop_linked": "head links count retries",
    "pop_nodes": "head links count few retries two",
    "pop_run": "head links count few retries",
    "push_chain": "head links node node retries",
    "push": "head links node retries",
    "push_marked": "head links node node any retries",
    "stamped": "any",
    "stamp": "links node few",
    "detach": "head",
    "class_of": "world n_pages",
    "class_within": "world n_pages",
    "pages_marked": "world mark_value",
    "sizes_of": "world maybe_class",
    "shard_of": "world any",
    "slot_list": "world seg any",
    "extent_list": "world seg size_class any",
    "next_filled": "world rows four key_hash list_place eight",
    "link_of": "world seg page",
    "mark": "world seg page mark_value slot",
    "hold": "world seg page size_class slot",
    "is_held": "world seg page size_class slot",
    "bump": "world seg size_class",
    "bump_rest": "world seg",
    "give": "world seg page size_class",
    "carve": "world seg page size_class smaller_class",
    "places_of": "world size_class",
    "hold_free": "world seg page free_link size_class slot",
    "pop_free": "world seg any_class any slot",
    "take_elsewhere": "world seg size_class key_hash slot",
    "marked": "any mark_value slot",
    "take": "world seg size_class key_hash slot",
    "state_word": "state epoch",
    "epoch_of": "state_word",
    "believed": "world seg slot",
    "take_slot": "world seg key_hash",
    "take_slot_elsewhere": "world seg key_hash",
    "take_slot_at_home": "world seg key_hash",
    "bump_slot": "world seg",
    "give_slot": "world seg slot",
    "next_epoch": "state_word",
    "reserve": "world seg slot epoch key_hash key_check flags",
    "describe": "world seg slot any any any any any any any any",
    "descriptor_of": "world seg slot",
    "load_descriptor": "source",
    "store_descriptor": "out any any any any any any any any",
    "unlike": "any any any any any any any any any any any any any any any any",
    "raw_bytes": "",
    "publish": "world seg slot epoch n_pages payload nbytes now",
    "commit_state": "header epoch",
    "kill": "header state epoch",
    "acknowledge": "header epoch",
    "still_ready": "header epoch",
    "pages_of": "header",
    "is_key": "header key_hash key_check epoch",
    "key_of": "header epoch",
    "check_word": "key_check epoch",
    "flags_epoch": "epoch",
    "phase_of": "state_word",
    "home_of": "world key_check",
    "first_bucket": "world key_hash",
    "candidate_at": "world seg key_hash candidate",
    "entry_word": "bit key_check owner slot epoch",
    "entry_owner": "entry",
    "entry_header": "entry",
    "has_tag": "entry key_check",
    "is_sure": "entry key_check",
    "is_copy": "entry",
    "turn_at": "world home key_hash",
    "copies_passed": "any",
    "nearest": "world key_hash key_check",
    "stop_copy": "world judged_entry state_word",
    "has_no_copy": "world home key_hash key_check candidate",
    "in_bounds": "world entry",
    "judge": "world entry key_hash key_check",
    "find_state": "world key_hash key_check",
    "find": "world key_hash key_check",
    "look": "world home key_hash key_check",
    "ones": "places",
    "first_place": "places",
    "roomiest": "places",
    "is_taken": "world home key_hash key_check places",
    "prevails": "world home key_hash key_check candidate places",
    "survey": "world home key_hash key_check places places",
    "place": "world home key_hash key_check candidate entry",
    "claim_at": "world home candidate owner slot epoch key_hash key_check",
    "settle": "world home key_hash key_check candidate candidate",
    "claim": "world owner slot epoch key_hash key_check",
    "erase": "world owner slot epoch key_hash key_check",
    "ring_slot": "world seg ticket",
    "announce": "world seg kind slot epoch",
    "announce_run": "world seg hints eight few two",
    "asleep": "seg",
    "drain": "world owner ticket out few",
    "enter": "world seg",
    "leave": "world seg bit",
    "in_flight": "world owner owner bit",
    "ledger_at": "world seg line",
    "ledger_word": "world bit slot",
    "note": "world seg slot",
    "add_pin": "header epoch one_pin",
    "pin": "world owner slot epoch",
    "unpin": "world owner slot epoch line",
    "take_out": "world seg slot",
    "retire": "world seg owner slot epoch kind",
    "place_of": "world seg key_hash few",
    "ghost_word": "key_hash bit any",
    "age_of": "any any any",
    "remember": "world seg key_hash bit",
    "recall": "world seg key_hash",
    "slots_in_use": "world seg",
    "use_of": "any",
    "used_again": "any now few",
    "factors": "seg bit",
    "ripeness": "any now eight eight",
    "is_ripe": "any few few bit",
    "next_place": "seg few few",
    "learn": "world seg key_hash any few bit",
    "welcome": "world seg key_hash",
    "lifetime": "seg",
    "new_access": "world seg key_hash now bit",
    "search": "world seg few maybe_class now",
    "goes": "few any few few bit",
    "spare": "few header any",
    "note_eviction": "few world seg key_hash any few bit",
    "evict_for": "world seg owner maybe_class slot now bit",
    "must_stay": "header now",
    "evict_slot": "world owner slot epoch now",
    "evict_pages": "world owner few few now",
    "host_evict_pages": "world owner few few now",
    "count_eviction": "world seg",
    "find_slot": "world seg key_hash",
    "evict_for_slot": "world seg owner key_hash now",
    "may_evict": "seg",
    "policy_of": "seg",
    "first_page": "world seg slot",
    "object_at": "world seg page",
    "may_go": "world seg slot page few now",
    "run_ripeness": "world seg page four now",
    "evict_at": "world seg owner page now",
    "give_pages": "world seg page page",
    "take_run": "world seg owner page size_class slot now",
    "evict_neighbours": "world seg owner size_class slot now",
    "take_pages_elsewhere": "world seg owner size_class key_hash slot now",
    "take_header_elsewhere": "world seg owner key_hash now",
    "find_pages": "world seg owner size_class key_hash slot now",
    "take_header": "world seg owner key_hash now",
    "take_pages": "world seg owner size_class key_hash slot now",
    "unused_from": "world seg",
    "free_from": "world seg page page n_pages",
    "listed_run": "world seg size_class page n_pages",
    "has_run": "world seg page n_pages",
    "outlook": "world seg size_class",
    "outlook_of": "world owner size_class",
    "undo": "world seg slot epoch",
    "extent_for": "world nbytes",
    "allocate": "world seg owner slot epoch size_class n_pages nbytes now key_hash key_check bit",
    "begin": "world owner key_hash key_check nbytes flags now",
    "begin_described": "world owner key_hash key_check nbytes flags now any any any any any any any any",
    "commit_in": "world seg slot epoch",
    "commit": "world owner slot epoch",
    "finish": "world owner slot epoch payload bit",
    "finish_in": "world seg slot epoch payload bit",
    "abort": "world owner slot epoch",
    "put": "world owner key_hash key_check source nbytes now any any any any any any any any",
    "lookup": "world key_hash key_check",
    "validate": "world owner slot epoch",
    "touch": "world owner slot epoch now",
    "lease": "world owner slot any",
    "write_layout": "world owner source",
    "label": "world owner slot any any",
    "set_quota": "world owner any",
    "raise_generation": "world owner two few two",
    "is_leased": "now now",
    "renew": "world owner slot epoch any any",
    "stays": "any now",
    "wanted": "world",
    "has_checksum": "header",
    "checksum": "key_hash key_check nbytes any any any any any any any any any",
    "stored_checksum": "key_hash key_check few source any any any any any any any any",
    "seal": "world seg slot key_hash key_check nbytes any any any any any any any any any",
    "is_right": "world seg slot key_hash key_check nbytes bit any",
    "is_inside": "world payload few",
    "is_extent": "world seg slot payload stored_bytes",
    "is_writing": "world owner slot epoch",
    "seal_payload": "world owner key_hash key_check slot epoch payload bit few any any any any any any any any",
    "judged": "world owner slot epoch payload few key_hash key_check bit any",
    "verify": "world owner slot epoch payload few key_hash key_check source",
    "read": "world owner slot epoch payload few key_hash key_check out now",
    "is_described": "world seg slot any any any any any any any any",
    "get": "world key_hash key_check out stored_bytes now",
    "get_described": "world key_hash key_check out stored_bytes now any any any any any any any any",
    "remove_slot": "world owner slot epoch removal",
    "remove": "world key_hash key_check",
    "remove_whole": "world key_hash key_check",
    "first_to_go": "world key_hash key_check",
    "end_copies": "world key_hash key_check",
    "is_held_by": "world home key_hash key_check places owner",
    "settle_copy": "world home key_hash key_check candidate candidate owner",
    "enter_copy": "world owner slot epoch key_hash key_check",
    "allocate_copy": "world owner key_hash key_check size_class n_pages nbytes now",
    "begin_copy": "world owner key_hash key_check nbytes now",
    "end_copy": "world owner slot epoch payload bit bit",
    "begin_replica": "world owner key_hash key_check now",
    "inherit_terms": "world owner slot owner slot",
    "end_replica": "world owner slot epoch payload bit owner slot epoch payload few bit",
    "replicate": "world owner key_hash key_check now",
    "begin_copies": "world key_hash key_check nbytes now any any any any any any any any copies two",
    "seal_copies": "world key_hash key_check nbytes any any any any any any any any any copies two",
    "end_copies_put": "world copies two bit",
    "put_copied": "world owner key_hash key_check source nbytes now any any any any any any any any copies two",
    "find_copies": "world key_hash key_check out",
    "snapshot": "world seg hint out",
    "snapshots": "world owner hints few out good",
    "give_up": "world owner slot epoch",
    "release": "world owner slot epoch",
    "adopt_slot": "world owner slot",
    "push_extents": "world owner pages classes two",
    "begin_join": "world owner join_mark",
    "end_join": "world owner join_mark",
    "joiner": "seg",
    "joiner_of": "world owner",
    "begin_split": "seg",
    "end_split": "seg",
    "ended_splits": "seg",
    "is_split_since": "seg splitting",
    "forget_splits": "world owner splitting",
    "detach_rest": "world owner",
    "detach_class": "world owner size_class out",
    "walk": "links head count any marks",
    "walk_class": "world seg size_class count_pages marks",
    "walk_pages": "world owner count_pages marks",
    "walk_slots": "world owner count_slots marks",
    "store_control": "world owner control few",
    "install": "world owner slot key_hash key_check payload nbytes flags now any any any any any any any any",
    "state_of": "world owner slot",
    "kill_slot": "world owner slot state epoch",
    "announce_slot": "world owner kind slot epoch",
    "store_payload": "world owner payload source few",
    "host_enter": "world owner",
    "host_leave": "world owner bit",
    "host_finish": "world owner slot epoch bit",
    "host_commit": "world owner slot epoch",
    "host_abort": "world owner slot epoch",
    "host_remove": "world key_hash key_check",
    "host_remove_slot": "world owner slot epoch",
    "host_evict_slot": "world owner slot epoch now",
    "host_begin": "world owner key_hash key_check nbytes flags now any any any any any any any any",
    "host_seal": "world owner key_hash key_check slot epoch payload few any any any any any any any any",
    "host_install": "world owner slot key_hash key_check payload nbytes flags now any any any any any any any any",
    "host_put": "world owner key_hash key_check source nbytes now any any any any any any any any",
    "host_put_copied": "world owner key_hash key_check source nbytes now any any any any any any any any copies two",
    "host_get": "world key_hash key_check out stored_bytes now any any any any any any any any",
    "host_find": "world key_hash key_check",
    "host_lookup": "world key_hash key_check",
    "host_read": "world owner slot epoch key_hash key_check payload few out now",
    "host_verify": "world owner slot epoch key_hash key_check source few",
    "host_replicate": "world owner key_hash key_check now",
    "host_begin_replica": "world owner key_hash key_check now",
    "host_end_replica": "world owner slot epoch bit owner slot epoch bit",
    "host_find_copies": "world key_hash key_check out",
    "drop_pin": "world owner line ledger_word epoch",
    "clear_intent": "world owner line ledger_word",
    "count_lines": "world seg slot",
    "recount": "world owner slot one",
}


# the state in which a function mostly finds the header that it is called with
WANTED = {
    RESERVED.value: ("publish", "undo", "allocate", "claim", "claim_at"),
    WRITING.value: (
        "is_writing",
        "seal_payload",
        "commit_state",
        "commit",
        "host_commit",
        "finish",
        "finish_in",
        "host_finish",
        "host_seal",
        "abort",
        "host_abort",
        "give_up",
        "kill",
        "kill_slot",
        "settle",
        "judge",
    ),
    READY.value: (
        "verify",
        "judged",
        "still_ready",
        "remove_slot",
        "evict_slot",
        "host_evict_slot",
        "touch",
        "validate",
        "pin",
        "add_pin",
        "snapshot",
        "read",
        "get",
        "get_described",
        "remove",
        "host_read",
        "host_verify",
        "host_get",
        "host_remove",
        "host_remove_slot",
    ),
    DEAD.value: ("acknowledge", "release"),
}
# functions that need entries of the key
PLANTED = (
    "settle",
    "place",
    "claim",
    "claim_at",
    "judge",
    "nearest",
    "find_state",
    "has_no_copy",
    "settle_copy",
    "enter_copy",
    "is_held_by",
    "find_copies",
    "first_to_go",
    "end_copies",
    "remove",
    "remove_whole",
    "host_find_copies",
    "host_remove",
)
# functions that need a ledger line that is held
LEDGER = ("unpin", "drop_pin", "clear_intent", "recount", "count_lines")


def signed(word: int) -> int:
    """A 64-bit word as a signed integer."""
    return ((int(word) & (1 << 64) - 1) ^ (1 << 63)) - (1 << 63)


class Draw:
    """Random arguments for a state, mostly ones that belong together. One method per kind of argument."""

    def __init__(self, name: str, rng: random.Random, state: Memory) -> None:
        self.rng = rng
        self.views = state.views
        self.private = state.bytes[-PRIVATE_BYTES:].view(np.int64)
        self.drawn_owner = rng.randrange(2)
        self.view = self.views[self.drawn_owner]
        used = max(min(int(self.view.ctl[0]["hdr_head"]), GEOMETRY.hdr_count), 1)
        self.drawn_slot = rng.randrange(used if rng.random() < 0.8 else GEOMETRY.hdr_count)
        self.drawn_line = rng.randrange(GEOMETRY.pin_slots)
        if name in LEDGER:
            self._aim_at_a_held_line()
        self.row = self.view.headers[self.drawn_slot]
        self.drawn_class = rng.randrange(4)
        self.list = rng.choice(("pages", "slots"))
        own = (int(self.row["key_hash"]), int(key_checks(self.row)))
        key = own if rng.random() < 0.7 else rng.choice(KEYS)
        self.key = [signed(half) for half in key]
        self._aim_at_a_state(name)
        if name in PLANTED:
            self._plant_entries()

    def _aim_at_a_held_line(self) -> None:
        """Mostly: let the drawn header be READY and pinned once, by the calling rank."""
        if self.rng.random() < 0.7:
            producer = producer_word(0, 1) << PIN_PRODUCER_SHIFT.value
            self.view.pins[self.drawn_line] = PIN_HELD.value | self.drawn_slot << PIN_HEADER_SHIFT.value | producer
            self.view.headers[self.drawn_slot]["state"] = READY.value | ONE_PIN.value

    def _aim_at_a_state(self, name: str) -> None:
        for state, names in WANTED.items():
            if name in names and self.rng.random() < 0.6:
                self.row["state"] = state

    def _plant_entries(self) -> None:
        """Entries of the drawn header, TENTATIVE, FINAL or REPLICA, in a few of the places that its key may use."""
        tag = (self.key[1] & ENTRY_TAG_MASK.value) << ENTRY_TAG_SHIFT.value
        low = (int(self.row["epoch"]) & ENTRY_EPOCH_MASK.value) << ENTRY_EPOCH_SHIFT.value
        place = self.drawn_owner << ENTRY_RANK_SHIFT.value | self.drawn_slot << ENTRY_HEADER_SHIFT.value
        directory = self.views[self.key[1] & (2**63 - 1) & 1].directory
        for _ in range(self.rng.choice((1, 6, 40))):
            directory[self.rng.randrange(len(directory))] = tag | low | place | self.rng.randrange(1, 4)

    def world(self) -> Address:
        return Address(3, 0)

    def off(self, true: int, *, often: float = 0.15) -> int:
        """Mostly the right word, else one near it, or any."""
        if self.rng.random() > often:
            return true
        return self.rng.choice((true + 1, max(true - 1, 0), self.any() & 0xFFFFFFFF))

    def any(self) -> int:
        word = self.rng.getrandbits(64)
        return self.rng.choice((0, 1, 2, 7, -1, word - 2**63, word >> 33))

    def owner(self) -> int:
        return self.drawn_owner

    def seg(self) -> Address:
        return Address(self.drawn_owner, 0)

    def home(self) -> Address:
        return Address((self.key[1] & (2**63 - 1)) % 2, 0)

    def slot(self) -> int:
        return self.drawn_slot

    def header(self) -> Address:
        return Address(self.drawn_owner, GEOMETRY.offsets["hdr_base"] + self.drawn_slot * 64)

    def epoch(self) -> int:
        return self.off(int(self.row["epoch"])) & 0xFFFFFFFF

    def producer(self) -> int:
        return self.off(int(self.row["producer"])) & 0xFFFFFFFF

    def state(self) -> int:
        return self.off(int(self.row["state"]) & 0xFF) & 3

    def state_word(self) -> int:
        return self.rng.choice((signed(self.view.states[self.drawn_slot]), self.any()))

    def key_hash(self) -> int:
        return self.key[0]

    def key_check(self) -> int:
        return self.key[1]

    def flags(self) -> int:
        return self.rng.randrange(8)

    def mark_value(self) -> int:
        return self.rng.randrange(MARK_MASK.value + 1)

    def free_link(self) -> int:
        """A link with the mark of a free extent of a class that exists, or of a held one."""
        return self.rng.randrange(8) << MARK_SHIFT.value | self.rng.randrange(GEOMETRY.n_pages)

    def bit(self) -> int:
        return self.rng.randrange(2)

    def kind(self) -> int:
        return self.rng.randrange(1, 5)

    def removal(self) -> int:
        return self.rng.choice((REMOVED.value, EVICTED.value))

    def retries(self) -> Address:
        return self.out()

    def join_mark(self) -> int:
        return self.rng.choice((signed(self.views[0].ctl["joining"][0]), self.rng.randrange(1 << 40)))

    def splitting(self) -> int:
        return self.rng.choice((signed(self.views[0].ctl["splitting"][0]), self.rng.randrange(1 << 40)))

    def one(self) -> int:
        return self.rng.choice((1, -1, 0))

    def one_pin(self) -> int:
        return int(ONE_PIN.value) * self.rng.choice((1, -1))

    def places(self) -> int:
        return self.rng.choice((0, 1 << self.rng.randrange(16), self.rng.getrandbits(16)))

    def now(self) -> int:
        return self.rng.randrange(1 << 40)

    def few(self) -> int:
        return self.rng.randrange(0, 9)

    def two(self) -> int:
        return 2

    def four(self) -> int:
        return self.rng.randrange(1, 5)

    def eight(self) -> int:
        return 8

    def rows(self) -> Address:
        return Address(self.drawn_owner, HEAP_CTL.offsets["free_head0"])

    def list_place(self) -> int:
        return self.rng.randrange(-1, 4) * SHARDS + self.rng.randrange(GEOMETRY.shards)

    def n_pages(self) -> int:
        return self.rng.randrange(0, 10)

    def nbytes(self) -> int:
        return self.rng.choice((0, 1, 63, 64, 65, 200, 512, 513, -1, self.rng.randrange(513)))

    def stored_bytes(self) -> int:
        return self.rng.choice((int(self.row["bytes_total"]) % 1024, 64, 0))

    def payload(self) -> int:
        return GEOMETRY.offsets["heap_base"] + 64 * self.rng.randrange(GEOMETRY.n_pages)

    def size_class(self) -> int:
        return self.drawn_class

    def any_class(self) -> int:
        return self.rng.randrange(8)

    def maybe_class(self) -> int:
        return self.rng.choice((-1, self.drawn_class))

    def smaller_class(self) -> int:
        return self.rng.randint(0, self.drawn_class)

    def page(self) -> int:
        return self.rng.randrange(GEOMETRY.n_pages - GEOMETRY.class_pages[self.drawn_class] + 1)

    def head(self) -> Address:
        word = f"free_head{self.drawn_class}" if self.list == "pages" else "hdr_free"
        return Address(self.drawn_owner, HEAP_CTL.offsets[word] + 8 * self.rng.randrange(GEOMETRY.shards))

    def links(self) -> Address:
        skip = 0 if self.list == "pages" else GEOMETRY.n_pages * 8
        return Address(self.drawn_owner, GEOMETRY.offsets["links_base"] + skip)

    def count(self) -> int:
        return GEOMETRY.n_pages if self.list == "pages" else GEOMETRY.hdr_count

    def count_pages(self) -> int:
        return GEOMETRY.n_pages

    def count_slots(self) -> int:
        return GEOMETRY.hdr_count

    def node(self) -> int:
        return self.rng.randrange(GEOMETRY.hdr_count)

    def candidate(self) -> int:
        return self.rng.randrange(16)

    def entry(self) -> int:
        words = [*self.views[0].directory, *self.views[1].directory]
        used = [w for w in words if w] or [0]
        return signed(self.rng.choice(used)) if self.rng.random() < 0.7 else self.any()

    def judged_entry(self) -> int:
        """An entry that `judge` has looked at: it leads to a header."""
        word, rank, slot = self.entry(), self.rng.randrange(2), self.rng.randrange(GEOMETRY.hdr_count)
        if (word >> ENTRY_RANK_SHIFT.value) & ENTRY_RANK_MASK.value >= 2:
            word = word & ~(ENTRY_RANK_MASK.value << ENTRY_RANK_SHIFT.value) | rank << ENTRY_RANK_SHIFT.value
        if (word >> ENTRY_HEADER_SHIFT.value) & ENTRY_HEADER_MASK.value >= GEOMETRY.hdr_count:
            word = word & ~(ENTRY_HEADER_MASK.value << ENTRY_HEADER_SHIFT.value) | slot << ENTRY_HEADER_SHIFT.value
        return word

    def ticket(self) -> int:
        return max(signed(self.view.ctl[0]["ann_head"]) - self.rng.randrange(12), 0)

    def control(self) -> int:
        return HEAP_CTL.offsets["ann_tail"]

    def line(self) -> int:
        return self.drawn_line

    def ledger_word(self) -> int:
        word = signed(self.view.pins[self.drawn_line]) if self.rng.random() < 0.8 else self.any()
        # the host has checked that the header is in bounds
        inside = (word >> PIN_HEADER_SHIFT.value) & PIN_HEADER_MASK.value < GEOMETRY.hdr_count
        return word if inside else word & ~(PIN_HEADER_MASK.value << PIN_HEADER_SHIFT.value)

    def hint(self) -> int:
        slot, epoch = self.drawn_slot << RING_HEADER_SHIFT.value, int(self.row["epoch"]) << RING_EPOCH_SHIFT.value
        exact = signed(STORED.value | slot | epoch)
        return self.rng.choice((exact, signed(self.rng.choice(self.view.ring)), self.any()))

    # private memory, in words: 0..127 out, 128..191 good and marks, 192..255 in, 256.. bytes to put
    def out(self) -> Address:
        return Address(2, 0)

    def good(self) -> Address:
        return Address(2, 128 * 8)

    def marks(self) -> Address:
        return Address(2, 128 * 8)

    def hints(self) -> Address:
        self.private[192:208] = [self.hint() for _ in range(16)]
        return Address(2, 192 * 8)

    def pages(self) -> Address:
        self.private[192:194] = [self.page(), self.page()]
        return Address(2, 192 * 8)

    def classes(self) -> Address:
        self.private[208:210] = self.drawn_class
        return Address(2, 208 * 8)

    def copies(self) -> Address:
        """Two records of COPY, of which the first mostly names the drawn header."""
        rows = self.private[224:238].view(COPY.dtype)
        for row, slot in zip(rows, (self.drawn_slot, self.rng.randrange(GEOMETRY.hdr_count)), strict=True):
            row["rank"], row["status"], row["slot"] = self.rng.randrange(2), self.rng.randrange(2), slot
            row["epoch"], row["phase"] = int(self.row["epoch"]), self.rng.randrange(2)
            row["payload"] = GEOMETRY.offsets["heap_base"]
        rows[0]["rank"] = self.drawn_owner
        return Address(2, 224 * 8)

    def source(self) -> Address:
        return Address(2, 256 * 8 + self.rng.choice((0, 0, 1, 8)))


def begin_one(rng: random.Random, state: Memory, owner: int, key: tuple[int, int], size: int, now: int) -> None:
    """Begin an object natively, perhaps lease it, and perhaps end it in one of three ways."""
    code, world = compiled(), state.bases[3]
    status, slot, epoch, *_ = code["begin"](world, owner, *key, size, rng.randrange(2), now, *[rng.randrange(9)] * 8)
    if status == 0 and rng.random() < 0.3:
        code["lease"](world, owner, slot, rng.randrange(1 << 40))
    if status == 0 and rng.random() < 0.5:
        end = rng.choice((code["abort"], code["give_up"], code["commit"]))
        end(world, owner, slot, epoch)


def history(rng: random.Random, state: Memory) -> None:
    """Fill fresh segments by a random history of native operations."""
    state.bytes[:] = 0
    state.bytes[-PRIVATE_BYTES:] = np.frombuffer(rng.randbytes(PRIVATE_BYTES), np.uint8)
    for rank, view in enumerate(state.views):
        view.ctl[:] = GEOMETRY.control_block(rank, 5, "device", may_evict=rng.random() < 0.7, water=(80, 90))
    code, world, source = compiled(), state.bases[3], state.bases[2] + 256 * 8
    pins: list[tuple[int, ...]] = []
    for now in range(rng.randrange(40)):
        owner, key, step = rng.randrange(2), rng.choice(KEYS), rng.randrange(10)
        size = rng.choice((0, 10, 64, 100, 300, 512))
        if step < 4:
            code["put"](world, owner, *key, source, size, now, rng.randrange(300), *[rng.randrange(9)] * 7)
        elif step == 4:
            begin_one(rng, state, owner, key, size, now)
        elif step == 5:
            code["remove"](world, *key)
        elif step == 6:
            found = code["lookup"](world, *key)
            if found[0] == 0:
                pins.append((found[1], *found[2:4], code["pin"](world, *found[1:4])[1]))
        elif step == 7 and pins:
            held = pins.pop()
            code["unpin"](world, *held)
        elif step == 8:
            code["drain"](world, owner, rng.randrange(20), state.bases[2], rng.randrange(8))
        elif step == 9:
            state.views[owner].ctl[0]["grace_phase"] ^= 1
            if rng.random() < 0.3:
                code["begin_join"](world, owner, 0)


def corrupt(rng: random.Random, state: Memory) -> None:
    """Change a few words of the control regions: to any value, by a bit, or to another word's value."""
    first, end = HEAP_CTL.offsets["bump_ptr"] // 8, GEOMETRY.offsets["heap_base"] // 8
    for _ in range(rng.randrange(1, 5)):
        words = rng.choice(state.views).raw.view(np.uint64)
        at = rng.choice([i for i in range(first, end) if words[i] or rng.random() < 0.1] or [first])
        other = int(words[rng.randrange(first, end)])
        words[at] = rng.choice((rng.getrandbits(64), int(words[at]) ^ 1 << rng.randrange(64), other, rng.randrange(40)))
