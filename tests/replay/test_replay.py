"""A trace through the real cache: what is counted, what is verified, and what a wrong call is told."""

import json
import multiprocessing
import os
import re
import secrets
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

import nanokv
from nanokv.errors import InvalidArgument, PeerLost, SegmentCorrupt
from nanokv.heap.shm import list_worlds
from nanokv.tools.cli import app
from nanokv.tools.replay.chart import draw
from nanokv.tools.replay.limits import lru_rates
from nanokv.tools.replay.run import PAGE_BYTES, CapacityRow, OperationTimes, Tickets, _Producer, replay
from nanokv.tools.replay.trace import Trace, make_trace, read_trace

ROOT = Path(__file__).resolve().parents[2]


def requests(count: int, seed: int) -> list[list[int]]:
    """A common beginning, one of ten conversations, and a block of its own."""
    draw = np.random.default_rng(seed)
    return [[0, 1 + (turn := int(draw.integers(10))), 100 + turn, 1000 + number] for number in range(count)]


@pytest.fixture(scope="module")
def trace() -> Trace:
    return make_trace("chats", requests(200, 0))


def test_with_room_for_all_every_repetition_is_a_hit(trace: Trace) -> None:
    told: list[int] = []
    found = replay(trace, trace.different, 1, told.append)
    assert found.hits / len(trace.blocks) == lru_rates(trace)[-1]
    assert (found.evicted, found.refused) == (0, 0)
    assert (len(found.put_ns), len(found.get_ns)) == (trace.different, len(trace.blocks) - trace.different)
    assert min(found.put_ns.min(), found.get_ns.min()) > 0
    assert told[-1] == len(trace.ends)
    assert told == sorted(told)


def test_a_full_cache_evicts_one_for_one(trace: Trace) -> None:
    found = replay(trace, 30, 1, lambda taken: None)
    assert found.evicted == len(found.put_ns) - 30
    assert found.refused == 0
    assert len(found.put_ns) + len(found.get_ns) == len(trace.blocks)
    assert 0 < found.hits < lru_rates(trace)[-1] * len(trace.blocks)


def test_several_producers_do_each_request_once(trace: Trace) -> None:
    found = replay(trace, trace.different, 3, lambda taken: None)
    assert len(found.put_ns) + len(found.get_ns) == len(trace.blocks)
    assert len(found.put_ns) >= trace.different  # two may put one block at a time; one of them is told so
    assert found.evicted == 0


def test_bytes_that_are_not_those_of_the_block_are_noticed() -> None:
    with nanokv.NanoKVCache(1 << 16, page_bytes=PAGE_BYTES) as cache:
        producer = _Producer(cache, 100)
        producer.request([1, 2, 3])
        producer.request([1, 2, 3])
        assert producer.outcome().hits == 3
        cache.remove(b"2")
        cache.put(b"2", torch.zeros(PAGE_BYTES // 8, dtype=torch.int64))
        with pytest.raises(SegmentCorrupt, match="block 2 has the bytes of block 0"):
            producer.request([1, 2, 3])


def test_a_producer_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = f"killed-{os.getpid()}"  # other tests may replay at the same time
    monkeypatch.setattr(secrets, "token_hex", lambda nbytes: mine)
    long = make_trace("long", requests(20_000, 1))
    seen: set[str] = set()

    def kill_one(taken: int) -> None:
        seen.update(list_worlds())
        if taken:
            multiprocessing.active_children()[0].kill()

    with pytest.raises(PeerLost, match="has ended"):
        replay(long, 1000, 2, kill_one)
    assert f"replay-{mine}" in seen
    assert f"replay-{mine}" not in list_worlds()


def hold_the_lock_and_be_killed(tickets: Tickets) -> None:
    numbers = tickets.take()
    assert next(numbers) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tickets, "taken", property(lambda tickets: os.kill(os.getpid(), signal.SIGKILL)))
        next(numbers)


def test_a_process_killed_while_it_takes_a_number_stops_nobody(tmp_path: Path) -> None:
    tickets = Tickets(4, tmp_path / "lock")
    process = multiprocessing.get_context("spawn").Process(target=hold_the_lock_and_be_killed, args=(tickets,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (tickets.taken, list(tickets.take()), tickets.taken) == (1, [1, 2, 3], 4)


def test_no_number_is_taken_after_the_end(tmp_path: Path) -> None:
    tickets = Tickets(4, tmp_path / "lock")
    numbers = tickets.take()
    assert next(numbers) == 0
    tickets.end()
    assert list(numbers) == []


# --- the file ---------------------------------------------------------------------------------
def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_blocks_are_numbered_as_they_come(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t", '{"hash_ids": [46, "a", 9]}', "", '{"timestamp": 3, "hash_ids": [9, 1]}', '{"hash_ids": []}'
    )
    trace = read_trace(path)
    assert list(trace.requests()) == [[0, 1, 2], [2, 3], []]
    assert trace.different == 4


@pytest.mark.parametrize(
    "lines, message",
    [
        (['{"hash_ids": [1]}', "{"], "line 2: "),
        (["[1, 2]"], 'line 1: "hash_ids" must be'),
        (['{"hash_id": [1]}'], 'line 1: "hash_ids" must be'),
        (['{"hash_ids": [1, null]}'], 'line 1: "hash_ids" must be'),
        (['{"hash_ids": [true]}'], 'line 1: "hash_ids" must be'),
        ([], "has no blocks"),
        (['{"hash_ids": []}'], "has no blocks"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        read_trace(write(tmp_path / "t", *lines))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name in ("bytes", "nothing", "."):
        with pytest.raises(InvalidArgument, match="cannot be read"):
            read_trace(tmp_path / name)


# --- the command ------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = [json.dumps({"timestamp": 0, "hash_ids": blocks}) for blocks in requests(100, 2)]
    return write(tmp_path_factory.mktemp("trace") / "chats.jsonl", *lines)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["replay", *arguments])


def test_the_command_shows_the_hit_rate_of_each_capacity(path: Path) -> None:
    done = run(str(path), "--capacity-blocks", "20,1_000", "--producers", "1")
    assert done.exit_code == 0, done.output
    rates = re.findall(r"^hit rate (\d\.\d{4})$", done.stdout, re.MULTILINE)
    assert len(rates) == 2
    assert float(rates[1]) == pytest.approx(lru_rates(read_trace(path))[-1], abs=5e-5)
    assert float(rates[0]) < float(rates[1])
    assert "S3-FIFO" in done.stdout or "best of five" in done.stdout
    assert done.stdout.count("·") > 10


def test_as_json(path: Path) -> None:
    done = run(str(path), "--capacity-blocks", "20", "--json")
    told = json.loads(done.stdout)
    (row,) = told["rows"]
    assert (told["requests"], told["blocks"], row["capacity"]) == (100, 400, 20)
    assert row["rate"] <= row["possible"]
    assert set(row["policies"]) == {"FIFO", "CLOCK", "LRU", "SIEVE", "S3-FIFO"}
    assert row["put_us"]["p50"] <= row["put_us"]["p99"]


@pytest.mark.parametrize("capacities", ["0", "-1", "x", "10,", "1.5", "²"])
def test_wrong_capacities(path: Path, capacities: str) -> None:
    done = run(str(path), f"--capacity-blocks={capacities}")
    assert done.exit_code == 2
    assert "takes positive numbers such as 1000,3000" in done.output


def test_a_file_that_is_not_there() -> None:
    done = run("no such file")
    assert done.exit_code == 2
    assert "cannot be read" in done.output


# --- the chart --------------------------------------------------------------------------------
@pytest.mark.parametrize("width", [30, 80, 200])
@pytest.mark.parametrize("capacity", [1, 20, 100_000])
def test_a_chart_fits_its_width_and_shows_each_point(trace: Trace, width: int, capacity: int) -> None:
    rates = lru_rates(trace)
    row = CapacityRow(capacity, 0.2, {"LRU": 0.1}, 0.7, 0, 0, OperationTimes(None, None), OperationTimes(None, None))
    lines = list(draw([row], rates, width))
    drawn = lines[:-2]
    assert max(map(len, lines[:-1])) <= width
    assert sum(line[7:].count("o") for line in drawn) == 1
    assert sum(line.count("^") for line in drawn) == 1
    assert sum(line.count("·") for line in drawn) > 10
