"""The benchmarks run, check the bytes they move, and write their results. Nothing here looks at a duration."""

import json
import subprocess
from typing import Any

import pytest
import torch

from nanokv import local_world
from nanokv.bench.__main__ import main
from nanokv.bench.questions import imports
from nanokv.bench.questions.freelist import NODES, FreeList, time_threads
from nanokv.bench.questions.objects import COPY_OF, OPERATIONS, Mismatch, Plan, check_bytes
from nanokv.bench.suite.other_process import Peer, PeerFailed
from nanokv.bench.suite.owner import OwnerHere, digest
from nanokv.bench.suite.settings import parse_size, show_size
from nanokv.bench.suite.timing import PERCENTILES, Samples, Summary, summarise
from nanokv.bench.targets import Target, targets
from nanokv.heap import shm

SIZES = (64, 1024, 2 << 20)
ROUNDS = 6
COMBINATIONS = [(heap, alloc) for heap in ("local", "shm") for alloc in ("device", "host")]


def check_summary(us: Summary, count: int | None = None) -> None:
    values = [us[name] for name in PERCENTILES]
    assert us["n"] == (count or us["n"]) > 0
    assert values[0] >= 0 and values == sorted(values)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The JSON of one run of the fast benchmarks. `imports` starts ten processes, and has a test of its own."""
    file = tmp_path_factory.mktemp("bench") / "bench.json"
    sizes = ",".join(map(str, SIZES))
    arguments = ["--quick", "--rounds", str(ROUNDS), "--sizes", sizes, "--ring", "2M", "--json", str(file)]
    assert main(["objects", "freelist", "announce", "wait", *arguments]) == 0
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(autouse=True)
def _needs_shm() -> None:
    why = shm.why_not()
    if why:
        pytest.skip(f"no worlds of processes here: {why}")


def test_the_json_says_where_and_what(done: dict[str, Any]) -> None:
    assert done["machine"]["usable_cores"] >= 1 and done["machine"]["cpu"]
    assert {"nanokv", "python", "torch", "numba"} <= set(done["versions"])
    assert "commit" in done
    assert done["settings"]["rounds"] == ROUNDS
    check_summary(done["timer_overhead_us"])


def test_every_operation_of_every_world_and_size(done: dict[str, Any]) -> None:
    rows = done["results"]["objects"]["rows"]
    wanted = [(heap, alloc, size) for heap in ("local", "shm") for size in SIZES for alloc in ("device", "host")]
    assert [(row["heap"], row["alloc"], row["size"]) for row in rows] == wanted
    for row in rows:
        assert row["bytes_verified"] is True
        assert set(row["us"]) == {*OPERATIONS, *COPY_OF.values()}
        for us in row["us"].values():
            check_summary(us, ROUNDS)
        for operation, copy in COPY_OF.items():
            assert row["ratio_p50"][f"{operation}/{copy}"] == row["us"][operation]["p50"] / row["us"][copy]["p50"]


def test_free_list_and_announcements(done: dict[str, Any]) -> None:
    assert [row["threads"] for row in done["results"]["freelist"]["rows"]] == [1, 2]
    rows = done["results"]["announce"]["rows"]
    wanted = [(heap, alloc, poller) for heap, alloc in COMBINATIONS for poller in ("asleep", "busy")]
    assert [(row["heap"], row["alloc"], row["poller"]) for row in rows] == wanted
    for row in rows:
        check_summary(row["us"])


def test_waits(done: dict[str, Any]) -> None:
    rows = done["results"]["wait"]["rows"]
    assert [(row["heap"], row["alloc"]) for row in rows] == [each for each in COMBINATIONS for _ in range(2)]
    for row in rows:
        check_summary(row["us"])


def test_targets_are_judged(done: dict[str, Any]) -> None:
    what = [target["what"] for target in done["targets"]]
    assert "put, 1 KiB, two processes, v1/v2, p50" in what
    assert "free list, pop + push, two threads" in what
    assert all(target["reached"] in (True, False, None) for target in done["targets"])
    assert Target("t", 10.0, 10.0, "µs").reached and not Target("t", 10.0, 10.1, "µs").reached
    assert Target("t", 10.0, 10.0, "x", at_least=True).reached
    assert not Target("t", 10.0, 9.9, "x", at_least=True).reached
    assert Target("t", 10.0, 1.0, "µs", sound=False).reached is None
    assert targets({}) == []


def test_other_bytes_are_noticed() -> None:
    class Liar(OwnerHere):
        def digest(self, key: str) -> str:
            return digest(torch.zeros(64, dtype=torch.uint8))

    here, there = local_world(2, 1 << 20, page_bytes=4096)
    with here, there:
        check_bytes(here, OwnerHere(there), 64)
        with pytest.raises(Mismatch, match="get by the owner"):
            check_bytes(here, Liar(there), 64)


def test_a_free_list_that_lost_its_nodes_is_noticed() -> None:
    shared = FreeList()
    assert sorted(shared.nodes()) == list(range(NODES))
    assert shared.turn(10) == 0
    shared._head[0] = 0
    assert shared.nodes() == []
    assert shared.turn(10) == 10
    ns, share = time_threads(2, 1000)
    assert ns > 0 and share > 0


def test_the_first_put_of_a_fresh_process() -> None:
    assert imports.seconds(imports.PROGRAMS["first put"]) > 0
    with pytest.raises(subprocess.CalledProcessError):
        imports.seconds("raise SystemExit(1)")


def test_the_other_process_answers_with_its_errors() -> None:
    with Peer() as peer:
        assert peer.answer() == "ready"
        with pytest.raises(PeerFailed, match=r"InvalidArgument.*heap_bytes"):
            peer.ask("open", heap_bytes=-1)
        peer.ask("open", heap_bytes=1 << 20)
        with pytest.raises(PeerFailed, match="KeyNotFound"):
            peer.digest("k")
        peer.ask("close")
    with pytest.raises(PeerFailed, match="has ended"):
        peer.answer(timeout=30.0)


def test_percentiles_are_samples() -> None:
    us = summarise(range(1000, 1_001_000, 1000))
    assert us == {"n": 1000.0, "p50": 500.0, "p99": 990.0, "p99_9": 999.0, "max": 1000.0}
    samples = Samples()
    seen: list[int] = []
    samples.time(seen.append, 7)
    samples.clear()
    samples.time(seen.append, 8)
    assert seen == [7, 8] and samples.summary()["n"] == 1


@pytest.mark.parametrize(
    ("text", "nbytes", "shown"), [("64", 64, "64 B"), ("1K", 1024, "1 KiB"), ("8M", 8 << 20, "8 MiB")]
)
def test_sizes_of_the_command_line(text: str, nbytes: int, shown: str) -> None:
    assert parse_size(text) == nbytes and show_size(nbytes) == shown


@pytest.mark.parametrize(
    "arguments",
    [["nothing"], ["--sizes", "0"], ["--sizes", "1G"], ["--sizes", "33M"], ["--rounds", "0"], ["--ring", "x"]],
    ids=" ".join,
)
def test_wrong_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("size", [1, 256 << 10, (256 << 10) + 1, 5 << 20, 32 << 20])
def test_ring_and_twins_have_room_for_the_same_slots(size: int) -> None:
    plan = Plan(size, 64 << 20)
    assert plan.stride >= size and plan.slots >= 4
    assert plan.lanes * plan.lane_bytes >= plan.slots * plan.stride
    assert plan.lane_bytes % plan.stride == 0
