"""`nanokv save` and `nanokv load`, on real worlds of shared memory: living, dead, and new."""

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import nanokv
from nanokv.config import Alloc
from nanokv.device.segment.layout import PIN_BITS
from nanokv.errors import InvalidArgument
from nanokv.fsck.inspect_world import InspectedWorld
from nanokv.heap.shm import list_worlds
from nanokv.heap.world_file import path_of
from nanokv.host_poller.poller import Poller
from nanokv.saved.layout import HEADER, padded
from nanokv.saved.load import _Loader
from nanokv.saved.mapped_segment import MappedSegment
from nanokv.saved.reading import open_saved
from tests.api.test_identity import MINE
from tests.api.test_save_load import content, same
from tests.support.faults import Calls
from tests.support.worlds import World, close_and_check, shm_world
from tests.tools.test_cli import run, run_json, run_python

PAGE = 4096
PAGES = 64
COUNT = 12
ALLOCS = pytest.mark.parametrize("alloc", ["device", pytest.param("host", marks=pytest.mark.exhaustive)])


def attach(name: str, alloc: Alloc = "device", n: int = 2, **options: Any) -> World:
    return shm_world(name, n, PAGES * PAGE, page_bytes=PAGE, alloc=alloc, identity=MINE, **options)


def fill(world: World) -> None:
    for number in range(COUNT):
        world[0].put(f"k{number}", content(number), preferred_segment=number % 2)


def check(world: World, numbers: range = range(COUNT)) -> None:
    """All objects are there, each in its segment; the layout too; and fsck has nothing to say."""
    for number in numbers:
        assert same(world[1].get(f"k{number}"), content(number))
        assert world[0].get_location(f"k{number}").owner_rank == number % 2
    assert {(row.rank, row.layout) for row in world[0].layouts()} >= {(0, MINE.layout), (1, MINE.layout)}
    close_and_check(world)


DIES = """
import os, signal, sys
from tests.tools.test_cli_saved import attach, fill
world = attach(sys.argv[1], sys.argv[2], checksum=sys.argv[3] == "sums")
fill(world)
os.kill(os.getpid(), signal.SIGKILL)
"""


def leave_dead(name: str, alloc: Alloc, sums: str = "") -> None:
    """A world with COUNT objects whose ranks were killed."""
    assert run_python(DIES, name, alloc, sums).returncode == -9


@pytest.fixture
def live(shm_name: str) -> Iterator[World]:
    world = attach(shm_name)
    fill(world)
    yield world
    close_and_check(world)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file"


# --- save -------------------------------------------------------------------------------------
def test_save_of_a_living_world(live: World, shm_name: str, file: Path) -> None:
    before = [live[0].engine.machine.headers(rank, 0, PAGES).tobytes() for rank in range(2)]
    total = sum(content(number).nbytes for number in range(COUNT))
    report = run_json("save", shm_name, str(file))
    assert report == {
        "name": shm_name,
        "path": str(file),
        "ranks": [0, 1],
        "objects": COUNT,
        "bytes": total,
        "left_out": 0,
        "damaged": 0,
    }
    assert [live[0].engine.machine.headers(rank, 0, PAGES).tobytes() for rank in range(2)] == before
    for cache in live:
        cache.clear()
    assert live[0].load(file).objects == COUNT


def test_save_of_one_rank(live: World, shm_name: str, file: Path) -> None:
    done = run("save", shm_name, str(file), "--rank", "1")
    assert done.exit_code == 0 and done.stdout.splitlines()[0] == f"objects     {COUNT // 2}"
    live[1].clear()
    assert live[0].load(file).objects == COUNT // 2
    assert run("save", shm_name, str(file), "--rank", "2").exit_code == 2


@ALLOCS
def test_save_of_a_dead_world_is_what_its_ranks_would_save(
    alloc: Alloc, shm_name: str, file: Path, tmp_path: Path
) -> None:
    leave_dead(shm_name, alloc)
    assert run_json("save", shm_name, str(file), "--rank", "0")["objects"] == COUNT // 2
    world = attach(shm_name, alloc, on_stale="recover")
    world[0].save(tmp_path / "own")
    assert without_moment(file) == without_moment(tmp_path / "own")
    check(world)


def without_moment(path: Path) -> tuple[Any, ...]:
    """What is in a file, without the times, which tell of the moment of the saving too."""
    with open_saved(path) as saved:
        rows = saved.rows.copy()
        rows["last_used"], rows["until"] = rows["last_used"].argsort(kind="stable").argsort(), rows["until"] > 0
        end = HEADER.size + int(padded(rows["bytes_total"]).sum())
        fields = [rows[name].tolist() for name in rows.dtype.names or ()]
        return fields, saved.layouts.tobytes(), saved.options, path.read_bytes()[HEADER.size : end]


def test_damaged_objects_are_left_out_and_the_exit_code_says_so(shm_name: str, file: Path) -> None:
    leave_dead(shm_name, "device", "sums")
    views = InspectedWorld(shm_name).views
    first = int(views[1].headers["payload_base"][0])
    world_file = path_of(shm_name)
    at = world_file.stat().st_size - views[1].geometry.segment_bytes + first
    with world_file.open("r+b") as raw:
        raw.seek(at + 3)
        raw.write(b"\xff")
    done = run("save", shm_name, str(file))
    assert done.exit_code == 1
    assert [line.split() for line in done.stdout.splitlines()[2:]] == [["left", "out", "0"], ["damaged", "1"]]
    assert run("save", shm_name, str(file), "--rank", "0").exit_code == 0


def test_a_pin_is_no_reason_to_leave_an_object_out(live: World, shm_name: str, file: Path) -> None:
    with live[1].pin("k1"):
        assert int(InspectedWorld(shm_name).views[1].states[0]) & PIN_BITS.value
        assert run_json("save", shm_name, str(file))["objects"] == COUNT


def test_an_object_that_goes_away_meanwhile_is_left_out(live: World, shm_name: str, file: Path, calls: Calls) -> None:
    def replace(*_: Any) -> None:
        if f"k{COUNT - 1}" in live[0]:
            live[0].remove(f"k{COUNT - 1}")  # the last one of its segment
            live[0].remove("k2")  # the first one that has bytes
            live[0].put("new", torch.zeros(400), preferred_segment=0)

    calls.after(MappedSegment, "read", replace)
    report = run_json("save", shm_name, str(file))
    assert (report["objects"], report["left_out"]) == (COUNT - 2, 2)


def test_every_byte_is_right_of_a_world_at_work(live: World, shm_name: str, file: Path) -> None:
    """From outside there are no read-modify-writes: only the second look tells."""
    ended = threading.Event()
    keys = {live[0].digest(f"k{number}"): number for number in range(3000)}

    def put() -> None:
        while not ended.is_set():
            for number in range(3000):
                live[0].put(f"k{number}", content(number), preferred_segment=0, exist_ok=True)
                if ended.is_set():
                    return

    thread = threading.Thread(target=put)
    thread.start()
    left_out = 0
    try:
        for _ in range(15):
            left_out += run_json("save", shm_name, str(file), "--rank", "0")["left_out"]
            (fresh,) = nanokv.local_world(1, 2 * PAGES * PAGE, page_bytes=PAGE, identity=MINE)
            with fresh:
                assert fresh.load(file).no_room == 0
                fresh.flush()
                assert all(same(fresh.get(digest), content(keys[digest])) for digest in fresh.segment_keys())
    finally:
        ended.set()
        thread.join()
    assert left_out, "nothing went away meanwhile: the test is too gentle"


def test_save_says_why_not(live: World, shm_name: str, tmp_path: Path) -> None:
    for name, path in ((shm_name, tmp_path), (shm_name, tmp_path / "no" / "file"), (shm_name + "x", tmp_path / "f")):
        done = run("save", name, str(path))
        assert done.exit_code == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_save_needs_no_torch(live: World, shm_name: str, file: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from nanokv.tools.cli import app;"
        f"done = CliRunner().invoke(app, ['save', {shm_name!r}, {str(file)!r}]); assert done.exit_code == 0;"
        "heavy = {'torch', 'numba'} & set(sys.modules); assert not heavy, heavy"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr


# --- load -------------------------------------------------------------------------------------
@ALLOCS
def test_load_makes_a_world_that_ranks_take_over(alloc: Alloc, shm_name: str, file: Path) -> None:
    leave_dead(shm_name, alloc)
    assert run("save", shm_name, str(file)).exit_code == 0
    assert run("rm", shm_name).exit_code == 0
    report = run_json("load", str(file), shm_name)
    assert (report["new"], report["objects"], report["duplicates"]) == (True, COUNT, 0)
    assert [row["state"] for row in run_json("ls") if row["name"] == shm_name] == ["dead"]
    assert run("fsck", shm_name).exit_code == 0, "nothing is left over"
    check(attach(shm_name, alloc, on_stale="recover"))
    assert shm_name not in list_worlds()


@ALLOCS
def test_load_refills_a_dead_world(alloc: Alloc, shm_name: str, file: Path) -> None:
    world = attach(shm_name + "-other", alloc)
    fill(world)
    assert run("save", shm_name + "-other", str(file)).exit_code == 0
    close_and_check(world)
    leave_dead(shm_name, alloc, "sums")
    done = run("load", str(file), shm_name)
    assert done.exit_code == 0
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["objects", "0"],
        ["bytes", "0", "B", "(0", "bytes)"],
        ["duplicates", str(COUNT)],
        ["no", "room", "0"],
        ["too", "large", "0"],
    ]
    world = attach(shm_name, alloc, on_stale="recover", checksum=True)
    world[1].clear()
    world[0].put("more", torch.ones(3))
    assert world[0].load(file).objects == COUNT // 2
    check(world)


def test_load_refuses_a_living_world_and_says_what_to_do(live: World, shm_name: str, file: Path) -> None:
    assert run("save", shm_name, str(file)).exit_code == 0
    live[0].remove("k3")
    done = run("load", str(file), shm_name)
    assert done.exit_code == 2 and f"cache.load('{file}')" in done.stderr and done.stderr.count("\n") == 1
    assert "k3" not in live[0]


def test_objects_without_room_are_told(live: World, shm_name: str, file: Path) -> None:
    assert run("save", shm_name, str(file)).exit_code == 0
    other = shm_name + "-small"
    code = "import os, sys, tests.support.worlds as w; made = w.shm_world(sys.argv[1], 2, 1024, page_bytes=512)"
    assert run_python(f"{code}; os._exit(0)", other).returncode == 0
    done = run("load", str(file), other, "--json")
    report = json.loads(done.stdout)
    assert done.exit_code == 1 and report["no_room"] and report["too_large"] and report["objects"], report
    assert report["objects"] + report["no_room"] + report["too_large"] == COUNT and not report["new"]


def test_a_wrong_file_makes_no_world(live: World, shm_name: str, file: Path) -> None:
    assert run("save", shm_name, str(file)).exit_code == 0
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    for path in (file, file.parent, file.parent / "none"):
        done = run("load", str(path), shm_name + "-new")
        assert done.exit_code == 2 and str(path) in done.stderr and done.stderr.count("\n") == 1
    assert shm_name + "-new" not in list_worlds()


@pytest.mark.parametrize("is_new", [True, False])
def test_an_error_removes_a_new_world_and_no_other(is_new: bool, live: World, shm_name: str, file: Path) -> None:
    """A payload is damaged, which is found when other objects are there already."""
    assert run("save", shm_name, str(file)).exit_code == 0
    data = bytearray(file.read_bytes())
    data[4096] ^= 1
    file.write_bytes(bytes(data))
    other = shm_name + "-other"
    if not is_new:
        code = "import os, sys; from tests.tools.test_cli_saved import attach; world = attach(sys.argv[1]); os._exit(0)"
        assert run_python(code, other).returncode == 0
    done = run("load", str(file), other)
    assert done.exit_code == 2 and f"1 of {COUNT} objects are damaged" in done.stderr
    assert (other in list_worlds()) == (not is_new)
    if not is_new:
        world = attach(other, on_stale="recover")
        there = [number for number in range(COUNT) if f"k{number}" in world[0]]
        assert len(there) == COUNT - 1 and all(same(world[0].get(f"k{each}"), content(each)) for each in there)
        close_and_check(world)


def test_a_dead_world_survives_a_rank_that_cannot_take_it_over(shm_name: str, file: Path, calls: Calls) -> None:
    leave_dead(shm_name, "device")
    assert run("save", shm_name, str(file)).exit_code == 0
    calls.fail(Poller, "start", InvalidArgument("stop"))
    assert run("load", str(file), shm_name).exit_code == 2
    calls.go_on()
    check(attach(shm_name, on_stale="recover"))


def test_an_interrupt_removes_a_new_world(live: World, shm_name: str, file: Path, calls: Calls) -> None:
    assert run("save", shm_name, str(file)).exit_code == 0
    calls.fail(_Loader, "_try_put", KeyboardInterrupt)
    assert run("load", str(file), shm_name + "-new").exit_code != 0
    assert shm_name + "-new" not in list_worlds()


# --- a terminal -------------------------------------------------------------------------------
def in_terminal(*arguments: str) -> str:
    """What a command prints into a terminal of 80 columns."""
    master, slave = pty.openpty()
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "COLUMNS": "80",
        "TERM": "xterm",
    }
    command = [sys.executable, "-m", "nanokv", *arguments]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    found = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:  # Linux' way to say that nobody writes any more
            break
        if not part:
            break
        found += part
    os.close(master)
    assert process.wait() == 0, found
    return found.decode()


def test_a_bar_in_a_terminal_and_none_in_a_pipe(live: World, shm_name: str, file: Path) -> None:
    shown = in_terminal("save", shm_name, str(file))
    assert "saving" in shown and "\x1b[" in shown and "objects" in shown
    piped = run_python("from nanokv.tools.cli import main; main()", "save", shm_name, str(file))
    assert piped.returncode == 0 and piped.stderr == "" and "\x1b" not in piped.stdout
    assert max(map(len, piped.stdout.splitlines())) <= 80
    assert "loading" in in_terminal("load", str(file), shm_name + "-new")
    assert run("rm", shm_name + "-new").exit_code == 0


@pytest.mark.parametrize("command", ["save", "load"])
def test_help_fits_80_columns_and_says_the_exit_codes(command: str) -> None:
    done = run(command, "--help")
    assert "Exit code: 0" in " ".join(done.output.replace("│", " ").split())
