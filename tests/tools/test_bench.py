"""The suite runs, checks the bytes it moves, and writes its results. Nothing here looks at a duration."""

import json
import re
import subprocess
import threading
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pytest
import torch

from nanokv import local_world
from nanokv.bench.__main__ import main
from nanokv.bench.questions import full, imports, load, pieces, wait
from nanokv.bench.suite import busy, catalogue
from nanokv.bench.suite.other_process import STARTUP, Peer
from nanokv.bench.suite.owner import OwnerHere, digest
from nanokv.bench.suite.record import Record, read
from nanokv.bench.suite.ring import (
    COPIED,
    OPERATIONS,
    PUT_GET,
    Calls,
    Mismatch,
    Plan,
    Prefixes,
    Ring,
    TakesTurns,
    UsualCalls,
    check_bytes,
    kinds,
    take_turns,
)
from nanokv.bench.suite.settings import Settings, parse_size, show_size
from nanokv.bench.suite.timing import Samples
from nanokv.bench.suite.worlds import MeasuredWorld
from nanokv.check.report import CheckFailure
from nanokv.errors import InvalidArgument, KeyNotFound
from nanokv.heap import futex, shm

ROOT = Path(__file__).parents[2]
SIZES = (1024, 2 << 20)
ROUNDS = 6
SMALL = f"--quick --rounds {ROUNDS} --sizes 1K,2M --ring 2M --pages 256 --objects 1500".split()
SLOW = {"imports": "starts ten processes; its programs are tested below"} | dict.fromkeys(
    ("burst", "throughput", "many", "pages", "steps", "plan", "alloc"), "test_bench_questions.py runs it"
)
SLOW |= dict.fromkeys(("scaling", "overlap", "ingest", "memory"), "test_bench_owners.py runs it")
SLOW |= {"peers": "starts some processes for each system; test_bench_peers.py runs it"}
SLOW |= dict.fromkeys(("cluster", "connections"), "starts nodes of a cluster; test_bench_cluster.py runs it")
HEAPS, SYSTEMS = ("local", "shm"), ("NanoKV v2", "NanoKV v1")


@pytest.fixture(autouse=True)
def _needs_shm() -> None:
    why = shm.why_not()
    if why:
        pytest.skip(f"no worlds of processes here: {why}")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with bench.json and bench.html of one run of all fast questions."""
    folder = tmp_path_factory.mktemp("bench")
    names = [name for name in catalogue.names() if name not in SLOW]
    output = ["--json", str(folder / "bench.json"), "--html", str(folder / "bench.html")]
    assert main([*names, *SMALL, *output]) == 0
    return folder


@pytest.fixture(scope="module")
def record(files: Path) -> Record:
    """What the run has written."""
    return read(files / "bench.json")


def cases(record: Record, name: str) -> list[tuple[str | int, ...]]:
    return [tuple(figure.case.values()) for figure in record.of(name)]


# --- one run of everything --------------------------------------------------------------------
def test_every_question_is_answered(record: Record) -> None:
    assert [outcome.name for outcome in record.outcomes] == [name for name in catalogue.names() if name not in SLOW]
    for outcome in record.outcomes:
        assert outcome.state in ("done", "left out"), outcome
        assert outcome.asks and outcome.how
        assert bool(record.of(outcome.name)) == (outcome.state == "done")


def test_every_figure_has_repetitions(record: Record) -> None:
    for figure in record.figures:
        assert len(figure.repetitions) >= 1 and figure.unit and figure.case
        if figure.headline == "p50":
            total = sum(count for _, count in figure.buckets)
            assert total == sum(one["n"] for one in figure.repetitions) > 0
            for one in figure.repetitions:
                values = [value for name, value in one.items() if name != "n"]
                assert values == sorted(values) and values[0] >= 0
    for name in ("latency", "load", "announce", "wait", "full", "crowd", "replicas", "pieces", "sweep"):
        assert {len(figure.repetitions) for figure in record.of(name)} == {2}, name


def test_the_json_says_where_and_what(record: Record) -> None:
    about = record.about
    assert about["machine"]["usable_cores"] >= 1 and about["machine"]["cpu"]
    assert {"nanokv", "python", "torch", "numba"} <= set(about["versions"])
    assert about["settings"]["rounds"] == ROUNDS and about["settings"]["repeats"] == 2
    assert all(cost["n"] > 0 and cost["p50"] > 0 for cost in about["timing_us"].values())


def test_latency_has_every_world_size_and_operation(record: Record) -> None:
    systems = {name: (*SYSTEMS, *(["copy_"] if name in COPIED else [])) for name in OPERATIONS}
    systems["get new"] += ("torch.empty",)
    others = [f"{name} {kind}" for kind in ("default", "bytes key", "float32", "two kinds") for name in PUT_GET]
    small: dict[str, tuple[str, ...]] = dict.fromkeys(others, ("NanoKV v2", "copy_"))
    small |= {"prefix_length": ("NanoKV v2",)} | {f"{name} busy": ("NanoKV v2", "copy_") for name in PUT_GET}
    assert cases(record, "latency") == [
        (heap, size, operation, system)
        for heap in HEAPS
        for size in SIZES
        for operation, shown in (systems | (small if size == 1024 else {})).items()
        for system in shown
    ]
    for figure in record.of("latency"):
        wanted = 1 if figure.case["operation"] == "prefix_length" else ROUNDS
        assert {one["n"] for one in figure.repetitions} == {wanted}, figure.case


def test_load_has_every_rate(record: Record) -> None:
    rates = [figure for figure in record.of("load") if "what" in figure.case]
    assert [figure.case["operation"] for figure in rates] == ["put", "get"]
    assert all(figure.median() > 0 for figure in rates)
    wanted = [(operation, load.SIZE, rate) for operation in ("put", "get") for rate in load.LOADS]
    assert [case for case in cases(record, "load") if case[-1] != "capacity"] == wanted


def test_announcements_and_waits(record: Record) -> None:
    for name, axis in (("announce", ("asleep", "busy")), ("wait", ("the waiting rank's", "the producer's"))):
        wanted = {(heap, middle, system) for heap in HEAPS for middle in axis for system in SYSTEMS}
        wanted |= {("shm", "none", wait.BARE)} if name == "wait" and futex.supported() else set()
        assert set(cases(record, name)) == wanted and len(cases(record, name)) == len(wanted)


def test_capacity_questions(record: Record) -> None:
    assert cases(record, "full") == [(full.SIZE, kind) for kind in full.KINDS]
    assert cases(record, "crowd") == [(name, count) for name in ("put", "get") for count in (1000, 1500)]
    shares = {figure.unit: figure.median() for figure in record.of("space") if figure.case.get("objects") == "1 page"}
    assert 0 <= shares["%"] <= 100
    assert all(figure.case["objects"] == 1500 for figure in record.of("sweep"))


def test_the_html_is_one_file(files: Path) -> None:
    text = (files / "bench.html").read_text(encoding="utf-8")
    assert "<script" not in text and "<link" not in text and "@import" not in text
    assert not re.findall(r"(?:src|href)=\"(?!#)", text)
    assert not re.findall(r"url\((?!#)", text)
    for name in ("latency", "load", "replicas"):
        section = text.split(f'<section id="{name}">')[1].split("</section>")[0]
        assert "<svg" in section and "<table" in section, name


def test_every_question_is_in_the_catalogue() -> None:
    there = {path.stem for path in (ROOT / "bench" / "questions").glob("*.py")} - {"__init__"}
    assert set(catalogue.names()) == there
    for name in catalogue.names():
        question = catalogue.question(name)
        assert question.name == name and question.asks.endswith("?") and len(question.how) > 40
        assert isinstance(question.why_not(Settings()), str | None)
    with pytest.raises(KeyError):
        catalogue.question("compare")


# --- bytes, and what is measured --------------------------------------------------------------
def test_other_bytes_are_noticed() -> None:
    class Liar(OwnerHere):
        def digest(self, key: str) -> str:
            return digest(torch.zeros(64, dtype=torch.uint8))

    here, there = local_world(2, 1 << 20, page_bytes=4096)
    with here, there:
        check_bytes(here, OwnerHere(there), 64)
        with pytest.raises(Mismatch, match="get by the owner"):
            check_bytes(here, Liar(there), 64)


def test_a_ring_notices_other_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(64, 1 << 20)
    here, there = local_world(2, plan.heap_bytes, evict=False)
    with here, there:
        ring = Ring(here, plan)
        calls = UsualCalls(ring, 8)
        calls.turn(8, 2)
        assert {len(samples) for samples in (*calls.operations.values(), *calls.copies.values(), calls.empty)} == {8}
        get = here.get
        monkeypatch.setattr(here, "get", lambda key, **how: get(key, **how).zero_())
        with pytest.raises(Mismatch, match="the last object"):
            calls.check_last()


def test_all_kinds_take_turns_in_one_ring() -> None:
    plan = Plan(64, 1 << 20)
    here, there = local_world(2, plan.heap_bytes, evict=False)
    with here, there:
        ring = Ring(here, plan)
        usual = UsualCalls(ring, 5)
        others = [Calls(ring, kind, 5) for kind in kinds(64)]
        prefixes = Prefixes(ring, usual.kind, 5)
        parts: list[TakesTurns] = [usual, prefixes, *others]
        take_turns([(part, 5) for part in parts], turns=3)
        for names in ("operations", "copies"):
            assert [len(getattr(each, names)["put"]) for each in (usual, *others)] == [5, *[10] * len(others)]
        assert len(prefixes.samples) == 5 and here.stats()["ready"] + there.stats()["ready"] == plan.slots
        for each in (usual, *others):
            each.turn(0)
            each.check_last()
        ring.fill(usual.kind)
        here.remove(usual.kind.key(ring.next - 1))
        with pytest.raises(Mismatch, match="found 0 of 250"):
            prefixes.turn(1)
    assert [kind.name for kind in kinds(65)] == ["default", "bytes key"]


def test_each_kind_is_called_as_its_row_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of two kinds has another tensor than the call before it; only the default names no segment."""
    plan = Plan(64, 1 << 20)
    here, there = local_world(2, plan.heap_bytes, evict=False)
    asked: list[tuple[Any, torch.dtype, bool]] = []
    put, get = here.put, here.get

    def noted_put(key: Any, tensor: torch.Tensor, **how: Any) -> None:
        asked.append((key, tensor.dtype, "preferred_segment" in how))
        put(key, tensor, **how)

    def noted_get(key: Any, dst: torch.Tensor) -> torch.Tensor:
        asked.append((key, dst.dtype, True))
        return get(key, dst=dst)

    with here, there:
        ring = Ring(here, plan)
        for kind in kinds(64):
            calls = Calls(ring, kind, 3)
            ring.fill(kind)
            with monkeypatch.context() as patch:
                patch.setattr(here, "put", noted_put)
                patch.setattr(here, "get", noted_get)
                calls.turn(3)
            apart = [one is not other for (_, one, _), (_, other, _) in pairwise(asked)]
            assert all(apart) if kind.name == "two kinds" else not any(apart)
            assert {type(key) for key, _, _ in asked} == {bytes if kind.name == "bytes key" else str}
            assert sum(not named for _, _, named in asked) == (len(asked) // 2 if kind.name == "default" else 0)
            assert {dtype for _, dtype, _ in asked} >= {torch.float32 if "float32" in kind.name else torch.uint8}
            asked.clear()


def test_a_thread_computes_beside_the_calls() -> None:
    before = threading.active_count()
    with busy.computing():
        thread = next(each for each in threading.enumerate() if each.name == "bench-computing")
        assert thread.is_alive() and threading.active_count() == before + 1
    assert not thread.is_alive()
    here, there = local_world(2, busy.HEAP_BYTES, page_bytes=busy.PAGE_BYTES)
    with here, there:
        beside = busy.Beside(20)
        beside.run(MeasuredWorld(here, OwnerHere(there)))
    assert [len(each[name]) for each in (beside.operations, beside.copies) for name in PUT_GET] == [20] * 4


def test_a_request_that_waits_counts_the_wait() -> None:
    """The first of two requests that are due at once takes long: the second one has waited for it."""
    samples, pause = Samples(2), 5_000_000

    def call(key: str) -> None:
        if key == "first":
            end = perf_counter_ns() + pause
            while perf_counter_ns() < end:
                pass

    took = load.serve(call, ["first", "second"], [0, 0], samples)
    assert samples.ns[1] >= samples.ns[0] >= pause and took >= pause


def test_arrivals_are_those_of_the_rate() -> None:
    times = load.arrivals(20_000, 1e6)
    assert times == sorted(times) == load.arrivals(20_000, 1e6)
    assert times[-1] == pytest.approx(20e6, rel=0.05)
    assert load.arrivals(100, 1e3)[-1] == pytest.approx(1000 * load.arrivals(100, 1e6)[-1], rel=1e-3)


@pytest.mark.exhaustive
def test_the_first_put_of_a_fresh_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    env = imports.environment(str(tmp_path))
    seconds, printed = imports.run_program(imports.PROGRAMS["first put"], env)
    assert list(tmp_path.rglob("cache.*.pyc"))
    steps = json.loads(printed)
    assert len(steps) == len(imports.INSIDE) and 0 < max(steps) < seconds
    with pytest.raises(subprocess.CalledProcessError):
        imports.run_program("raise SystemExit(1)", env)


def test_pieces() -> None:
    assert pieces.pieces_of(7) == (4, 2, 1) and pieces.pieces_of(12) == (8, 4)
    assert pieces.shown((4, 2, 1)) == "4 + 2 + 1" and pieces.shown((1,) * 5) == "5 x 1"


def test_the_other_process_answers_with_its_errors() -> None:
    with Peer() as peer:
        peer.answer(STARTUP)
        with pytest.raises(InvalidArgument, match="heap_bytes"):
            peer.ask("open", heap_bytes=-1)
        peer.ask("open", heap_bytes=1 << 20)
        with pytest.raises(KeyNotFound):
            peer.digest("k")
        peer.ask("close")
        peer.kill()
        with pytest.raises(CheckFailure, match="ended with -9 before it answered digest"):
            peer.digest("k")


@pytest.mark.parametrize(
    ("text", "nbytes", "shown"), [("64", 64, "64 B"), ("1K", 1024, "1 KiB"), ("8M", 8 << 20, "8 MiB")]
)
def test_sizes_of_the_command_line(text: str, nbytes: int, shown: str) -> None:
    assert parse_size(text) == nbytes and show_size(nbytes) == shown


def test_rounds_are_bounded_by_bytes_and_for_v1() -> None:
    settings = Settings()
    assert settings.rounds_of(64) == settings.rounds_of(1024) == 100_000
    assert settings.rounds_of(8 << 20) == 512 and settings.rounds_of(64, "host") == 2000


@pytest.mark.parametrize("size", [1, 256 << 10, (256 << 10) + 1, 5 << 20, 32 << 20])
def test_ring_and_twins_have_room_for_the_same_slots(size: int) -> None:
    plan = Plan(size, 64 << 20)
    assert plan.stride >= size and plan.slots >= 4
    assert plan.lanes * plan.lane_bytes >= plan.slots * plan.stride
    assert plan.lane_bytes % plan.stride == 0
