"""Each question runs with tiny counts and yields the figures that it promises. Nothing here looks at a duration."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from nanokv import local_world
from nanokv.bench.questions import alloc, burst, ingest, many, memory, overlap, pages, plan, scaling, steps, throughput
from nanokv.bench.suite.checked import check_object, random_bytes
from nanokv.bench.suite.crew import Crew
from nanokv.bench.suite.figure import Case, Figure
from nanokv.bench.suite.owner import OwnerHere
from nanokv.bench.suite.parallel import Counted, run_together
from nanokv.bench.suite.question import Question, Run
from nanokv.bench.suite.ring import Mismatch
from nanokv.bench.suite.settings import Settings, quick
from nanokv.bench.suite.worlds import MeasuredWorld, Worlds
from nanokv.config import Options
from nanokv.device.segment.layout import HEAP_CTL, REGIONS
from nanokv.heap import shm
from nanokv.wiring import plan_geometry

TINY = replace(quick(Settings()), rounds=6, repeats=2, pairs=2000, idle_puts=2)


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    why = shm.why_not()
    if why:
        pytest.skip(f"no worlds of processes here: {why}")
    with Worlds() as made:
        yield made


def ask(question: Question, worlds: Worlds, settings: Settings = TINY) -> list[Figure]:
    """The figures of a question, each of them well-formed."""
    figures = list(question.measure(Run(settings, worlds, lambda _: None)))
    cases = [tuple(sorted(figure.case.items())) for figure in figures]
    assert len(set(cases)) == len(cases)
    for figure in figures:
        assert figure.question == question.name and question.asks.endswith("?") and question.how.endswith(".")
        assert figure.repetitions and all(set(one) == set(figure.repetitions[0]) for one in figure.repetitions)
        signed = figure.case.get("what") in (many.ABOVE, overlap.HIDDEN)  # differences
        assert signed or all(value >= 0 for one in figure.repetitions for value in one.values())
    return figures


def cases(figures: list[Figure]) -> list[Case]:
    return [figure.case for figure in figures]


def check_latency(figure: Figure, count: int) -> None:
    """A latency of `count` samples in each repetition, and as many in its buckets."""
    assert (figure.unit, figure.better, figure.headline) == ("us", "lower", "p50")
    assert len(figure.repetitions) == TINY.repeats and {one["n"] for one in figure.repetitions} == {count}
    assert sum(many for _, many in figure.buckets) == count * TINY.repeats


def test_bytes_that_differ_are_noticed() -> None:
    here, there = local_world(2, 1 << 20, page_bytes=4096)
    with here, there:
        here.put("k", random_bytes(64), preferred_segment=1)
        check_object(here, OwnerHere(there), "k", random_bytes(64))
        with pytest.raises(Mismatch, match="get of 'k' into a tensor"):
            check_object(here, OwnerHere(there), "k", random_bytes(64, seed=1))


# --- alloc --------------------------------------------------------------------------------------
def test_alloc(worlds: Worlds) -> None:
    figures = ask(alloc.QUESTION, worlds)
    assert cases(figures) == [{"what": what, "threads": n} for what in ("free list", "extent") for n in (1, 2)]
    assert {(figure.unit, figure.better) for figure in figures} == {("M/s", "higher")}


@pytest.mark.parametrize("what", alloc.KINDS)
def test_what_was_lost_is_noticed(what: str) -> None:
    shared = alloc.KINDS[what]()
    assert sorted(shared.free()) == list(range(alloc.NODES))
    rate, share = alloc.time_pairs(shared, 2, 500)
    assert rate > 0 and share > 0
    if isinstance(shared, alloc.FreeList):
        shared._head[0] = 0
    else:
        assert isinstance(shared, alloc.Extents)
        at = HEAP_CTL.offsets["free_head0"]
        shared._control[at : at + 8] = 0
    assert shared.free() == []
    with pytest.raises(alloc.Lost, match=r"0 of 1024|nothing was found \[10\]"):
        alloc.time_pairs(shared, 1, 10)


def test_runs_of_threads_that_took_turns_do_not_count() -> None:
    counted = Counted(2, [(1.0, 0.5), (2.0, 0.95)])
    assert not counted.over and counted.values == [2.0] and counted.note.startswith("1 of 2 runs")
    counted.runs.append((3.0, 0.99))
    assert counted.over and counted.values == [2.0, 3.0]
    busy = Counted(1, [(1.0, 0.5)] * 20)
    assert busy.over and busy.values == [1.0] * 20 and busy.note.startswith("not sound")
    assert Counted(1, [(1.0, 1.0)]).note == ""


def test_threads_begin_together_and_failures_are_told() -> None:
    met = threading.Barrier(2)
    together = run_together(2, lambda _: met.wait(30.0))
    assert together.slowest_ns > 0

    def fail(me: int) -> None:
        if me == 1:
            raise KeyError("me")

    with pytest.raises(KeyError):
        run_together(2, fail)


# --- burst --------------------------------------------------------------------------------------
def test_burst(worlds: Worlds) -> None:
    figures = ask(burst.QUESTION, worlds)
    assert cases(figures) == [
        {"operation": operation, "size": 1024, "poller": poller}
        for poller in ("same process", "other process")
        for operation in ("put", "get")
    ]
    for figure in figures:
        check_latency(figure, burst.CALLS)
    assert len(ask(burst.QUESTION, worlds, replace(TINY, heaps=("local",)))) == 2


# --- plan ---------------------------------------------------------------------------------------
def test_plan(worlds: Worlds) -> None:
    figures = ask(plan.QUESTION, worlds)
    assert cases(figures) == [{"alloc": alloc, "what": "t_plan"} for alloc in ("device", "host")]
    for figure in figures:
        check_latency(figure, TINY.rounds)
    assert plan.QUESTION.why_not(replace(TINY, heaps=("local",))) == "it needs --heap shm"


# --- throughput ---------------------------------------------------------------------------------
def test_throughput(worlds: Worlds) -> None:
    size = 64 << 10
    settings = replace(TINY, sizes=(1024, size), ring_bytes=1 << 20)
    figures = ask(throughput.QUESTION, worlds, settings)
    assert cases(figures) == [
        {"operation": operation, "size": size, "threads": threads, "system": system, "what": what}
        for threads in (1, 2)
        for operation in ("put", "get")
        for system in ("NanoKV v2", "copy_")
        for what in ("throughput", "time per MB")
    ]
    for rate, time in zip(figures[::2], figures[1::2], strict=True):
        assert (rate.unit, rate.better, time.unit, time.better) == ("GB/s", "higher", "us", "lower")
        assert rate.median() > 0 and len(rate.repetitions) == settings.repeats
        products = [a["value"] * b["value"] for a, b in zip(rate.repetitions, time.repetitions, strict=True)]
        assert products == pytest.approx([1e3] * settings.repeats)
    assert throughput.QUESTION.why_not(replace(TINY, sizes=(1024,))) == "none of --sizes is 64 KiB or more"


# --- many ---------------------------------------------------------------------------------------
def test_many(worlds: Worlds) -> None:
    figures = ask(many.QUESTION, worlds, replace(TINY, rounds=200, ring_bytes=1 << 20))
    wanted: list[Case] = []
    for keys in ("str", "digest"):
        for operation, objects in (("put_many", 256), ("get_many", 256), ("exists_many", 1000), ("remove_many", 256)):
            what = (many.EACH, many.ABOVE, many.COPY) if operation in ("put_many", "get_many") else (many.EACH,)
            case: Case = {"operation": operation, "keys": keys, "objects": objects, "size": 4096}
            wanted += [case | {"what": each} for each in what]
    assert cases(figures) == wanted
    by = {tuple(figure.case.values()): figure for figure in figures}
    for case in wanted:
        if case["what"] == many.ABOVE:
            call, above, copy = (by[(*list(case.values())[:-1], what)] for what in (many.EACH, many.ABOVE, many.COPY))
            for i in range(TINY.repeats):
                assert above.repetitions[i]["value"] == call.repetitions[i]["p50"] - copy.repetitions[i]["p50"]
                assert call.repetitions[i]["n"] == copy.repetitions[i]["n"] == 2


def test_a_call_about_many_that_fails_for_one_is_noticed() -> None:
    (cache,) = local_world(1, 16 << 20, page_bytes=4096)
    with cache, pytest.raises(Mismatch, match="answered"):
        many.check_answers(cache.exists_many(["nothing"]), True)


# --- scaling ------------------------------------------------------------------------------------
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
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert scaling.shapes(TINY) == (*scaling.SMALL, (4, 1), (2, 4), (4, 4))
    assert scaling.crowded(8) == "" and "9 processes on 8 cores" in scaling.crowded(9)


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
        {"what": "announcements", "of objects": what, "count": 500} for what in ("stored", "removed")
    ]
    assert all(rate.unit == "M/s" and rate.better == "higher" and rate.median() > 0 for rate in rates)
    assert lag.case == {"what": "lag of the index, poller busy", "of objects": "stored", "count": ingest.STREAM}
    assert lag.unit == "us" and sum(many for _, many in lag.buckets) == sum(one["n"] for one in lag.repetitions) > 0
    assert len(ask(ingest.QUESTION, worlds, replace(TINY, objects=50, heaps=("local",)))) == 2


def test_the_age_of_the_oldest_put_that_is_not_in_the_index() -> None:
    returned = [100, 200, 300]
    looks = [(50, 0), (150, 0), (250, 1), (290, 2), (300, 2), (300, 3), (400, 2)]
    assert ingest.ages(returned, looks).tolist() == [50, 50, 0, 0]


def test_announcements_that_were_missed_are_noticed() -> None:
    (cache,) = local_world(1, 1 << 20, page_bytes=4096)
    with cache, pytest.raises(RuntimeError, match=r"0 objects after 0 hints, not 3"):
        ingest._expect(cache, 3, 3)


# --- memory -------------------------------------------------------------------------------------
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


# --- pages --------------------------------------------------------------------------------------
def test_pages(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGES", (64 << 10, 1 << 20))
    monkeypatch.setattr(pages, "SIZES", (512 << 10, 1 << 20))
    figures = ask(pages.QUESTION, worlds, replace(TINY, ring_bytes=4 << 20))
    computed, called = figures[:-8], figures[-8:]
    assert [figure.case for figure in called] == [
        {"page size": page, "what": operation, "size": size}
        for page in pages.PAGES
        for size in pages.SIZES
        for operation in ("put", "get")
    ]
    for figure in called:
        check_latency(figure, TINY.rounds)
    assert {figure.unit for figure in computed} == {"%"} and len(computed) == 2 * (1 + 3 * len(pages.MODELS))
    small, large = (
        [figure.median() for figure in computed if figure.case["page size"] == page and "model" in figure.case]
        for page in pages.PAGES
    )
    assert all(a <= b < 100 for a, b in zip(small, large, strict=True)) and small != large


def test_blocks_of_models_and_what_rounding_loses() -> None:
    assert pages.part_bytes(pages.MODELS["Llama-3-8B"], "all layers") == 2 << 20
    assert pages.part_bytes(pages.MODELS["Llama-3-70B"], "all layers, a rank of 4") == 80 * 2 * 2 * 128 * 2 * 16
    assert pages.part_bytes(pages.MODELS["Qwen2.5-7B"], "one layer") == 32 << 10
    geometry = plan_geometry(1 << 30, 256 << 10, 2, Options())
    assert pages.lost(geometry, 896 << 10) == 12.5 and pages.lost(geometry, 2 << 20) == 0
    assert pages.lost(geometry, 9 * 256 << 10) == pytest.approx(10)  # no class of 9 pages: 10


# --- steps --------------------------------------------------------------------------------------
def test_steps(worlds: Worlds) -> None:
    figures = ask(steps.QUESTION, worlds)
    layers = (steps.STR, steps.DIGEST, steps.TENSOR, steps.BYTES, steps.CODE, steps.ALONE, steps.COPY)
    assert cases(figures)[:14] == [
        {"operation": operation, "step": step, "size": 1024} for operation in ("put", "get") for step in layers
    ]
    assert {figure.case["operation"] for figure in figures[14:]} == {"both"} and len(figures) == 20
    assert all(figure.unit == "us" and figure.better == "lower" and figure.median() > 0 for figure in figures)


def test_a_loop_of_compiled_calls_that_fail_is_noticed() -> None:
    here, there = local_world(2, steps.HEAP_BYTES, page_bytes=steps.PAGE_BYTES)
    with here, there:
        alone = steps.Steps(here)
        with pytest.raises(RuntimeError, match="200 of 200 compiled calls failed"):
            alone.get_loops()[steps.ALONE]()  # nothing was put
        alone.put_loops()[steps.ALONE]()
        with pytest.raises(RuntimeError, match="200 of 200"):
            alone.put_loops()[steps.ALONE]()  # all are there
        alone.forget()
        with pytest.raises(RuntimeError, match="not stored all"):
            alone.forget()


# --- overlap ------------------------------------------------------------------------------------
@pytest.fixture
def small_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "LAYERS", 2)
    monkeypatch.setattr(overlap, "BLOCKS", 4)


@pytest.mark.usefixtures("small_prefill")
def test_overlap(worlds: Worlds) -> None:
    figures = ask(overlap.QUESTION, worlds, replace(TINY, rounds=100))
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
