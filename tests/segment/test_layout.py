"""The bytes of a segment: the order and sizes of the specification, and hot words on lines of their own."""

from pathlib import Path

import numpy as np
import pytest

from nanokv.device.segment import layout
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import (
    BITS,
    FLAGS_EPOCH_MASK,
    FLAGS_EPOCH_SHIFT,
    HEAP_CTL,
    OBJ_HEADER,
    RECORDS,
    key_checks,
    layout_hash,
    names_producer,
    unpack,
)
from nanokv.device.segment.layout_table import table
from nanokv.device.segment.record import LINE, Field, Record

PAGE = 4096

# the specification's ObjHeader; `producer` stands where it has padding, `key_check` follows
HEADER = {
    "key_hash": 8,
    "n_pages": 4,
    "page_size": 4,
    "payload_base": 8,
    "bytes_total": 8,
    "state": 4,
    "epoch": 4,
    "last_access": 8,
    "flags": 4,
    "producer": 4,
    "key_check": 8,
}

ANNOUNCE = ["key_hash", "owner_rank", "epoch", "header_off", "payload_off", "n_pages", "page_size", "bytes_total"]

HOT = ["bump_ptr", "hdr_head", "hdr_free", *[f"free_head{k}" for k in range(8)], "ann_head", "ann_tail", "grace_phase"]
HOT += ["clock_hand", "may_evict", "joining", "splitting", "missed"]


def test_the_header_is_the_specifications() -> None:
    assert list(OBJ_HEADER.offsets) == list(HEADER)
    assert list(OBJ_HEADER.offsets.values()) == np.cumsum([0, *HEADER.values()]).tolist()[:-1]
    assert OBJ_HEADER.size == OBJ_HEADER.dtype.itemsize == 64


def test_state_and_epoch_share_one_word_at_32() -> None:
    header = np.zeros(1, OBJ_HEADER.dtype)
    header["state"], header["epoch"] = 2 | 5 << 8, 7
    word = header.view(np.uint64)[32 // 8]
    assert [int(unpack("STATE", name, word)) for name in ("state", "pins", "epoch")] == [2, 5, 7]


@pytest.mark.parametrize("name, value", [("RESERVED", 0), ("WRITING", 1), ("READY", 2), ("DEAD", 3)])
def test_the_states_are_the_specifications(name: str, value: int) -> None:
    assert getattr(layout, name).value == value


def test_the_announce_record_is_the_specifications() -> None:
    assert list(layout.ANNOUNCE.offsets)[: len(ANNOUNCE)] == ANNOUNCE


def test_hot_words_have_lines_of_their_own() -> None:
    lines = {name: HEAP_CTL.offsets[name] // LINE for name in HEAP_CTL.offsets}
    for name in HOT:
        assert HEAP_CTL.offsets[name] % LINE == 0, name
    for name in HOT[:-1]:  # the last line holds all counters of rare events
        assert [other for other in lines if lines[other] == lines[name] and other not in (name, "_pad0")] in (
            [],
            ["ann_asleep"],
        ), name
    assert LINE == 128


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_fields_are_aligned_and_do_not_overlap(record: Record) -> None:
    end = 0
    for field in record.fields:
        at, size = record.offsets[field.name], np.dtype(field.kind).itemsize
        assert at % size == 0 and at >= end, field.name
        assert np.dtype(field.kind).byteorder in "<=|" and size in (4, 8), field.name
        assert record.dtype.fields is not None and record.dtype.fields[field.name][1] == at
        end = at + size * field.repeat
    assert end <= record.size


def test_the_bits_of_a_word_do_not_overlap() -> None:
    for word in {bits.word for bits in BITS}:
        taken = 0
        for bits in (b for b in BITS if b.word == word):
            mask = ((1 << bits.width) - 1) << bits.shift
            assert not taken & mask, bits
            assert bits.shift + bits.width <= 64, bits
            taken |= mask


@pytest.mark.parametrize("bits", BITS, ids=lambda bits: f"{bits.word}-{bits.name}")
def test_bits_come_back(bits: layout.Bits) -> None:
    largest = (1 << bits.width) - 1
    for word in (np.uint64(largest << bits.shift), np.uint64(largest << bits.shift).astype(np.int64)):
        assert int(unpack(bits.word, bits.name, word)) == largest
        assert all(int(unpack(b.word, b.name, word)) == 0 for b in BITS if b.word == bits.word and b != bits)


def test_a_producer_fits_wherever_it_is_named() -> None:
    widths = {(bits.word, bits.name): bits.width for bits in BITS}
    assert widths["PRODUCER", "rank"] + widths["PRODUCER", "incarnation"] == 32 == widths["PIN", "producer"]
    assert widths["PRODUCER", "rank"] == widths["ENTRY", "rank"]
    assert min(widths[word, "header"] for word in ("RING", "PIN")) >= widths["ENTRY", "header"]


def test_no_device_constant_repeats_a_number() -> None:
    for name, record, field in (
        ("BUMP_PTR", HEAP_CTL, "bump_ptr"),
        ("ANN_HEAD", HEAP_CTL, "ann_head"),
        ("H_STATE", OBJ_HEADER, "state"),
        ("H_KEY_CHECK", OBJ_HEADER, "key_check"),
    ):
        assert getattr(layout, name).value == record.offsets[field]


def test_the_hash_changes_with_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {layout_hash()}
    wider = Record("ObjHeader", 64, [*OBJ_HEADER.fields, Field("more", "<u8", "")])
    swapped = Record("ObjHeader", 64, [OBJ_HEADER.fields[0], *OBJ_HEADER.fields[2:], OBJ_HEADER.fields[1]])
    for records in (RECORDS[:-1], (*RECORDS[:2], wider, *RECORDS[3:]), (*RECORDS[:2], swapped, *RECORDS[3:])):
        with monkeypatch.context() as patch:
            patch.setattr(layout, "RECORDS", records)
            seen.add(layout_hash())
    for bits in (BITS[:-1], (BITS[0]._replace(width=9), *BITS[1:])):
        with monkeypatch.context() as patch:
            patch.setattr(layout, "BITS", bits)
            seen.add(layout_hash())
    assert len(seen) == 6
    assert 0 < layout_hash() < 1 << 64


def test_the_hash_does_not_cover_descriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    before = layout_hash()
    reworded = [
        Record(r.name, LINE if r.size % LINE == 0 else min(r.size, 64), [f._replace(doc="reworded") for f in r.fields])
        for r in RECORDS
    ]
    monkeypatch.setattr(layout, "RECORDS", tuple(reworded))
    monkeypatch.setattr(layout, "BITS", tuple(b._replace(doc="reworded") for b in BITS))
    assert layout_hash() == before


def test_the_hash_is_in_the_control_block() -> None:
    geometry = Geometry.plan(PAGE, PAGE, 1)
    block = geometry.control_block(0, 1, "device", may_evict=True, water=(85, 95))
    assert block["layout_hash"][0] == layout_hash()
    block["layout_hash"] += 1
    assert "layout" in (geometry.mismatch(block) or "")


def test_the_page_in_docs_is_made_from_the_tables() -> None:
    page = (Path(__file__).parents[2] / "docs" / "layout.md").read_text()
    assert page == table(), "run: python -m nanokv.device.segment.layout_table > docs/layout.md"


def test_words_of_a_header_name_their_epoch() -> None:
    headers = np.zeros(3, OBJ_HEADER.dtype)
    headers["epoch"] = [1, FLAGS_EPOCH_MASK.value + 2, 1 << 31]
    headers["key_check"] = np.uint64(7) ^ headers["epoch"].astype(np.uint64) << np.uint64(32)
    headers["flags"] = 5 | np.uint32(1) << FLAGS_EPOCH_SHIFT.value
    assert key_checks(headers).tolist() == [7, 7, 7]
    assert [int(key_checks(header)) for header in headers] == [7, 7, 7]
    assert names_producer(headers).tolist() == [bool(names_producer(header)) for header in headers]
    assert names_producer(headers).tolist() == [True, True, False]
