"""Questions about owners, and about several processes: they run with tiny counts and yield what they promise."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from nanokv import local_world
from nanokv.bench.questions import ingest, memory, overlap, scaling
from nanokv.bench.suite.checked import random_bytes
from nanokv.bench.suite.crew import Crew
from nanokv.bench.suite.figure import Case
from nanokv.bench.suite.owner import OwnerHere
from nanokv.bench.suite.ring import Mismatch
from nanokv.bench.suite.worlds import MeasuredWorld, Worlds
from nanokv.cache.engine import plan_geometry
from nanokv.config import Options
from nanokv.device.segment.layout import HEAP_CTL, REGIONS
from tests.support.bench_questions import TINY, ask, cases, check_latency, opened_worlds
from tests.support.faults import Limits


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    with opened_worlds() as made:
        yield made


# --- scaling ------------------------------------------------------------------------------------
@pytest.mark.exhaustive
def test_scaling(worlds: Worlds) -> None:
    figures = ask(scaling.QUESTION, worlds, replace(TINY, topologies=((1, 1), (2, 1)), ring_bytes=1 << 20))
    wanted: list[Case] = []
    for size in scaling.SIZES:
        for producers in (1, 2):
            case: Case = {"producers": producers, "owners": 1, "size": size}
            wanted += [case | {"what": "all puts"}]
            wanted += [case | {"what": f"put of producer {producer}"} for producer in range(producers)]
    assert cases(figures) == wanted
    for figure in figures:
        processes = int(figure.case["producers"]) + 1
        assert figure.note == scaling.crowded(processes)
        if figure.case["what"] != "all puts":
            check_latency(figure, TINY.rounds)
        else:
            assert figure.unit == "M/s" and figure.median() > 0


def test_small_machines_measure_small_shapes_and_say_that_they_are_crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert scaling.shapes(TINY) == (*scaling.SMALL, (4, 1), (2, 4), (4, 4))
    assert scaling.crowded(8) == "" and "9 processes on 8 cores" in scaling.crowded(9)


@pytest.mark.exhaustive
def test_an_owner_that_reads_other_bytes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with Crew() as crew, crew.world(2, 1 << 20, page_bytes=4096) as peers:
        assert scaling.run_lap(peers, 0, 1024, 3, 1).wall_ns > 0
        monkeypatch.setattr(scaling, "random_bytes", lambda size, seed: random_bytes(size, seed + 1))
        with pytest.raises(Mismatch, match="producer 0"):
            scaling.run_lap(peers, 1, 1024, 3, 1)


# --- ingest -------------------------------------------------------------------------------------
def test_ingest(worlds: Worlds) -> None:
    figures = ask(ingest.QUESTION, worlds, replace(TINY, objects=500))
    rates, lag = figures[:-1], figures[-1]
    assert cases(rates) == [
        {"what": "announcements", "rounds": rounds, "of objects": what, "count": 500}
        for rounds in ("native", "numpy")
        for what in ("stored", "removed")
    ]
    assert all(rate.unit == "M/s" and rate.better == "higher" and rate.median() > 0 for rate in rates)
    assert lag.case == {"what": "lag of the index, poller busy", "of objects": "stored", "count": ingest.STREAM}
    assert lag.unit == "us" and sum(many for _, many in lag.buckets) == sum(one["n"] for one in lag.repetitions) > 0
    assert len(ask(ingest.QUESTION, worlds, replace(TINY, objects=50, heaps=("local",)))) == 4


def test_the_age_of_the_oldest_put_that_is_not_in_the_index() -> None:
    returned = [100, 200, 300]
    looks = [(50, 0), (150, 0), (250, 1), (290, 2), (300, 2), (300, 3), (400, 2)]
    assert ingest.ages(returned, looks).tolist() == [50, 50, 0, 0]


def test_announcements_that_were_missed_are_noticed() -> None:
    (cache,) = local_world(1, 1 << 20, page_bytes=4096)
    with cache, pytest.raises(RuntimeError, match=r"0 objects after 0 hints, not 1"):
        ingest._expect(cache, [cache.digest("k")], 1)


def test_a_wrong_row_is_noticed() -> None:
    (cache,) = local_world(1, 1 << 20, page_bytes=4096)
    with cache:
        cache.put("k", torch.zeros(16))
        cache.flush()
        ingest._expect(cache, [cache.digest("k")], 1)
        slots, _ = cache.engine.poller.index.rows()
        cache.engine.poller.index._records["bytes_total"][slots] += 1
        with pytest.raises(RuntimeError, match="not the headers of slots"):
            ingest._expect(cache, [cache.digest("k")], 1)


# --- memory -------------------------------------------------------------------------------------
@pytest.mark.exhaustive
def test_memory(worlds: Worlds) -> None:
    figures = ask(memory.QUESTION, worlds, replace(TINY, objects=500, repeats=1))
    wanted: list[Case] = [{"what": "control regions, of the segment", "GiB": gib} for gib in (1, 16, 64)]
    wanted += [{"what": "index, bytes per object", "objects": count} for count in (100, 500)]
    assert cases(figures) == wanted
    for figure in figures[:3]:
        assert (figure.unit, figure.better) == ("%", "lower") and 0 < figure.median() < 1
    for figure in figures[3:]:
        assert (figure.unit, figure.better) == ("bytes", "lower") and figure.median() >= 72  # a record and a word


def test_the_regions_are_all_that_is_not_payload() -> None:
    geometry = plan_geometry(1 << 24, 4096, 2, Options())
    named = sum(memory.region_bytes(geometry).values()) + HEAP_CTL.size
    assert 0 <= geometry.offsets["heap_base"] - named < 4096 + 64 * len(REGIONS)
    assert memory.private_bytes(None) > 1 << 20


# --- overlap ------------------------------------------------------------------------------------
@pytest.fixture
def small_prefill(limits: Limits) -> None:
    limits(overlap, LAYERS=2, BLOCKS=4)


@pytest.mark.usefixtures("small_prefill")
def test_overlap(worlds: Worlds) -> None:
    figures = ask(overlap.QUESTION, worlds, replace(TINY, rounds=100), overlap.HIDDEN)
    wanted: list[Case] = [
        {"what": "time of a pass", "how": how} for how in (overlap.COMPUTE, overlap.IO, *overlap.TOGETHER)
    ]
    assert cases(figures) == wanted + [{"what": overlap.HIDDEN, "how": how} for how in overlap.TOGETHER]
    assert [figure.unit for figure in figures] == ["us"] * 6 + ["%"] * 4
    assert all(figure.median() > 0 for figure in figures[:6])


def test_the_share_of_io_that_was_hidden() -> None:
    turn = {overlap.COMPUTE: 100, overlap.IO: 40, overlap.BESIDE: 110, overlap.SAME: 140, overlap.ASYNC: 160}
    slow = {way: 3 * ns for way, ns in turn.items()}
    assert overlap.hidden([turn, turn, slow], overlap.BESIDE) == 75
    assert overlap.hidden([turn], overlap.SAME) == 0 and overlap.hidden([slow], overlap.ASYNC) == -50


@pytest.mark.usefixtures("small_prefill")
def test_a_layer_that_was_stored_before_it_was_computed_is_noticed() -> None:
    here, there = local_world(2, 64 << 20, page_bytes=64 << 10)
    with here, there, ThreadPoolExecutor(1) as beside:
        prefill = overlap.Prefill.make()
        stores = overlap.Stores(MeasuredWorld(here, OwnerHere(there)), prefill, beside)
        keys = [f"block {block}" for block in stores.blocks]
        stores.ways[overlap.BESIDE](keys)
        stores.verify(overlap.BESIDE, keys)
        stores.forget(overlap.BESIDE, keys)
        for plane in prefill.kv:
            plane.zero_()
        stores.ways[overlap.IO](keys)
        stores.ways[overlap.COMPUTE](keys)
        with pytest.raises(Mismatch, match="thread beside it: layer 0"):
            stores.verify(overlap.BESIDE, keys)
