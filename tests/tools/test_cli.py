"""The command line, on real worlds of shared memory, living and dead."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner, Result

import nanokv
from nanokv.device.machines.code_cache import cache_directory, code_digest
from nanokv.device.machines.native import NativeMachine
from nanokv.device.machines.native_code import compiled, fabric_code, gpu_code, wire_code
from nanokv.device.machines.native_entries import FABRIC_ENTRIES, GPU_ENTRIES, NATIVE_ENTRIES, WIRE_ENTRIES
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.views import SegmentView
from nanokv.fsck.find_key import _object
from nanokv.fsck.inspect_world import InspectedWorld
from nanokv.heap.shm import ShmHeap, list_worlds
from nanokv.heap.shm_tools import inspect
from nanokv.heap.world_file import path_of
from nanokv.heap.world_spec import WorldSpec
from nanokv.keys.hashing import tag_of
from nanokv.tools import doctor
from nanokv.tools.cli import app, worlds
from nanokv.tools.cli.output import blocks, columns, size
from tests.support.faults import Limits

PAGE = 4096
RAW = (0,) * 8
GEOMETRY = Geometry.plan(32 * PAGE, PAGE, 2)


def attach(name: str) -> list[ShmHeap]:
    """Both ranks of a world, in this process."""
    spec = WorldSpec(GEOMETRY, mode="device", may_evict=False, water=(85, 95), name=name)

    def one(rank: int) -> ShmHeap:
        return ShmHeap.attach(spec, rank)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


class LiveWorld:
    """A world of two ranks that live in this process, without pollers, with three objects in segment 1."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heaps = attach(name)
        self.views = [SegmentView(self.heaps[0].host_view(rank), GEOMETRY) for rank in range(2)]
        table = GEOMETRY.world_table(0, self.heaps[0].incarnation, self.heaps[0].bases)
        self.machine = NativeMachine(GEOMETRY, table, self.views, lambda rank: None)
        for key in range(3):
            assert self.put(key) == Status.OK

    def put(self, key: int) -> int:
        data = np.full(5000, key, np.uint8)
        return self.machine.put(1, (key, key), int(data.ctypes.data), data.nbytes, RAW, key)

    def close(self) -> None:
        for heap in self.heaps:
            heap.close()


DIES = """
import os, signal, sys
from tests.tools.test_cli import LiveWorld, RAW
world = LiveWorld(sys.argv[1])
world.machine.begin(1, (100, 100), 5000, 0, RAW, 0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=500)


def leave_a_dead_world(name: str) -> None:
    """Leave a world whose process was killed while it wrote an object."""
    done = run_python(DIES, name)
    assert done.returncode == -9, done.stderr


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def run_json(*arguments: str) -> Any:
    done = run(*arguments, "--json")
    return json.loads(done.stdout)


@pytest.fixture
def live(shm_name: str) -> Iterator[LiveWorld]:
    world = LiveWorld(shm_name)
    yield world
    world.close()


@pytest.fixture
def dead(shm_name: str) -> str:
    leave_a_dead_world(shm_name)
    return shm_name


# --- without a world --------------------------------------------------------------------------
def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from nanokv.tools.cli import app;"
        "done = CliRunner().invoke(app, ['--help']); assert done.exit_code == 0, done.output;"
        "heavy = {'torch', 'triton', 'numba', 'numpy'} & set(sys.modules); assert not heavy, heavy;"
        "print(done.output)"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in ("demo", "doctor", "ls", "stats", "fsck", "rm"))


@pytest.mark.parametrize(
    "command",
    [
        ["ls"],
        ["rm", "NAME"],
        *(
            pytest.param(command, marks=pytest.mark.exhaustive)
            for command in (["stats", "NAME"], ["key", "NAME", "k"], ["fsck", "NAME"])
        ),
    ],
)
def test_commands_about_worlds_import_no_torch(command: list[str], dead: str) -> None:
    arguments = [dead if word == "NAME" else word for word in command]
    code = (
        "import sys; from typer.testing import CliRunner; from nanokv.tools.cli import app;"
        f"done = CliRunner().invoke(app, {arguments!r}); assert done.exit_code in (0, 1, 3), done.output;"
        "heavy = {'torch', 'numba'} & set(sys.modules); assert not heavy, heavy"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_minus_h_is_help() -> None:
    assert run("-h").output == run("--help").output
    assert "the name of a world" in run("stats", "-h").output.lower()


def test_the_shell_can_complete_the_names_of_worlds(live: LiveWorld) -> None:
    environment = os.environ | {
        "_NANOKV_COMPLETE": "complete_bash",
        "COMP_WORDS": f"nanokv stats {live.name[:-2]}",
        "COMP_CWORD": "2",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    code = "from nanokv.tools.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], check=False, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [live.name], done.stderr


def test_a_folder_of_worlds_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOKV_SHM_DIR", "/there/is/no/such/directory")
    for command in (["ls"], ["stats", "x"], ["rm", "x"]):
        done = run(*command)
        assert done.exit_code == 2 and "/there/is/no/such/directory" in done.stderr


def test_warmup_says_what_it_did() -> None:
    """It compiles what each kind of process runs, also a member of a cluster, and the owner of a segment on a GPU."""
    for code in (compiled(rare=True), fabric_code(), wire_code(), gpu_code()):
        code.require_all()
    report = run_json("warmup")
    functions = len(NATIVE_ENTRIES) + len(FABRIC_ENTRIES) + len(WIRE_ENTRIES) + len(GPU_ENTRIES)
    assert (report["functions"], report["compiled"]) == (functions, 0)
    assert Path(report["folder"]).is_dir()
    assert run("warmup").stdout.startswith("0 functions compiled")


# --- tables -----------------------------------------------------------------------------------
def table(width: int | None, names: list[str], rows: list[list[str]]) -> list[str]:
    """As printed in a terminal of this width, or in a pipe."""
    screen = Console(force_terminal=width is not None, width=width or 10, color_system=None)
    return [line.plain for line in columns(screen, names, rows)]


def test_columns_that_do_not_fit_stand_below_the_others() -> None:
    names, rows = ["rank", "used", "stored", "evicted"], [["0", "24.0 KiB", "1 B", "0"], ["10", "0 B", "0 B", "7"]]
    assert table(22, names, rows) == [
        "rank  used      stored",
        "0     24.0 KiB  1 B",
        "10    0 B       0 B",
        "",
        "rank  evicted",
        "0     0",
        "10    7",
    ]
    assert table(None, names, rows)[0] == "rank  used      stored  evicted"
    assert table(31, names, rows)[0] == "rank  used      stored  evicted"
    assert len(table(30, names, rows)) == 7


def test_a_column_wider_than_the_terminal_stands_by_itself() -> None:
    assert blocks([4, 90, 3], 80) == [[0, 1], [0, 2]]
    assert blocks([4], 80) == [[0]]


def test_stats_fit_a_terminal_of_80_columns(live: LiveWorld) -> None:
    look = next(worlds._looks(live.name, 0, 1))
    wide = Console(force_terminal=True, width=80, color_system=None)
    lines = worlds._stats_text(wide, look).plain.splitlines()
    assert max(map(len, lines)) <= 80
    words = " ".join(lines).split()
    assert {"quarantined", "evicted", "corrupt"} <= set(words) and words.count("rank") == 3


def test_stats_in_a_pipe_are_one_line_per_rank(live: LiveWorld) -> None:
    title, names, *rows = run("stats", live.name).stdout.splitlines()
    assert title == f"{live.name}: alloc=device, pages of 4.0 KiB"
    assert names.startswith("rank  process  used") and names.endswith("cas fails")
    assert [row.split()[:2] for row in rows] == [["0", "alive"], ["1", "alive"]]


def test_the_version() -> None:
    assert run("--version").output.strip() == f"nanokv {nanokv.__version__}"


@pytest.mark.parametrize("command", ["stats", "fsck", "rm"])
def test_a_world_that_is_not_there_is_one_line_and_exit_code_2(command: str, shm_name: str) -> None:
    done = run(command, shm_name)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1 and shm_name in done.stderr and done.stderr.startswith("nanokv: ")


def test_a_wrong_name_is_one_line_too() -> None:
    done = run("fsck", "a/b")
    assert done.exit_code == 2 and "'a/b'" in done.stderr and done.stderr.count("\n") == 1


def test_the_demo_says_what_it_cannot_do() -> None:
    done = run("demo", "--prompts", "1")
    assert done.exit_code == 2
    assert "prompts must be 2 to" in done.output


def test_fsck_says_its_exit_codes() -> None:
    text = " ".join(run("fsck", "--help").output.replace("│", " ").split())
    assert "0 clean; 1 a breach" in text and "2 it could not look; 3 no breach" in text


@pytest.mark.parametrize(("nbytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")])
def test_sizes_for_people(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


# --- a living world ---------------------------------------------------------------------------
def test_ls_shows_a_living_world(live: LiveWorld) -> None:
    (row,) = [row for row in run_json("ls") if row["name"] == live.name]
    assert row == {
        "name": live.name,
        "state": "alive",
        "world_size": 2,
        "living": 2,
        "absent": 0,
        "alloc": "device",
        "bytes": 2 * GEOMETRY.segment_bytes,
        "taken": path_of(live.name).stat().st_blocks * 512,
    }
    assert 2 * GEOMETRY.segment_bytes <= row["taken"] <= 2 * GEOMETRY.segment_bytes + (64 << 10)
    lines = run("ls").stdout.splitlines()
    (line,) = [line for line in lines if live.name in line]  # and no line says that it could be removed
    assert "alive" in line and "2 of 2" in line and size(row["taken"]) in line
    assert {"memory", "taken", "state"} <= set(lines[0].split())


def test_an_elastic_world_with_ranks_that_are_not_there(shm_name: str) -> None:
    options: dict[str, Any] = {"page_bytes": PAGE, "world_size": 4, "elastic": True, "name": shm_name}
    with (
        nanokv.NanoKVCache(32 * PAGE, rank=1, **options) as one,
        nanokv.NanoKVCache(32 * PAGE, rank=2, **options) as two,
    ):
        one.put("k", torch.ones(PAGE, dtype=torch.uint8))
        two.leave()
        (row,) = [row for row in run_json("ls") if row["name"] == shm_name]
        assert (row["state"], row["world_size"], row["living"], row["absent"]) == ("alive", 4, 1, 3)
        geometry = one.engine.geometry
        assert row["bytes"] == geometry.segment_bytes + 3 * geometry.offsets["heap_base"]
        assert row["bytes"] <= row["taken"] < row["bytes"] + (64 << 10)
        (line,) = [line for line in run("ls").stdout.splitlines() if shm_name in line]
        assert "alive" in line and "1 of 4, 3 absent" in line
        ranks = run_json("stats", shm_name)["ranks"]
        assert [rank["absent"] for rank in ranks] == [True, False, True, True]
        assert [rank["incarnation"] for rank in ranks] == [0, 1, 1, 0]
        assert [rank["free_pages"] for rank in ranks] == [0, 31, 0, 0]
        _, _, *rows = run("stats", shm_name).stdout.splitlines()
        assert [row.split()[1] for row in rows[:4]] == ["absent", "alive", "absent", "absent"]
        done = run("fsck", shm_name)
        assert done.exit_code == 0 and "1 of 4 ranks alive (3 absent), 1 objects" in done.stdout
        assert run_json("fsck", shm_name)["absent"] == [True, False, True, True]
        found = inspect(shm_name, writable=True)
        absent, there = (SegmentView(found.segments[rank], found.geometry).headers for rank in (0, 1))
        absent[:1] = there[:1]  # an object in a segment whose pages are nobody's
        assert "I1" in [each.invariant for each in InspectedWorld(shm_name).check().breaches]
        absent[:1] = 0


def test_stats_of_a_living_world(live: LiveWorld) -> None:
    report = run_json("stats", live.name)
    assert (report["name"], report["alloc"], report["world_size"], report["page_bytes"]) == (
        live.name,
        "device",
        2,
        PAGE,
    )
    assert [rank["ready"] for rank in report["ranks"]] == [0, 3]
    assert report["ranks"][1]["heap_used"] == 6 * PAGE
    assert report["ranks"][1]["bytes_stored"] == 15000
    assert (report["ranks"][1]["free_pages"], report["ranks"][1]["quarantined_pages"]) == (26, 0)
    assert report["ranks"][1]["largest_free_extent"] == 24 * PAGE
    assert report["ranks"][1]["internal_fragmentation"] == 1 - 15000 / (6 * PAGE)
    assert report["ranks"][1]["external_fragmentation"] == 1 - 24 / 26
    assert [rank["alive"] for rank in report["ranks"]] == [True, True]
    lines = run("stats", live.name).stdout.splitlines()
    assert any("24.0 KiB" in line and "14.6 KiB" in line and "alive" in line for line in lines)
    assert any("104.0 KiB" in line and "96.0 KiB" in line and line.split()[-13:-11] == ["39", "8"] for line in lines)


def test_stats_show_layouts(shm_name: str) -> None:
    layout = nanokv.KVLayout(layers=2, kv_heads=4, head_size=8, block_size=16, dtype="bfloat16", tp_rank=1, tp_size=2)
    whose = nanokv.Identity("m", layout=layout)
    with nanokv.NanoKVCache(1 << 20, name=shm_name, rank=0, world_size=1, page_bytes=PAGE, identity=whose) as cache:
        assert run_json("stats", shm_name)["ranks"][0]["layouts"] == []
        cache.put("k", torch.zeros(3))
        tag = f"{tag_of(cache.digest('k')):08x}"
        (row,) = run_json("stats", shm_name)["ranks"][0]["layouts"]
        assert row == {"identity": tag} | asdict(layout)
        last = run("stats", shm_name).stdout.splitlines()[-1]
        shown = "L2NHD [2, 2, 16, 2, 8] bfloat16, rank 1 of 2 of 4 KV heads"
        assert last == f"identity {tag} in segment 0: {shown}"


def test_stats_can_watch(live: LiveWorld) -> None:
    done = run("stats", live.name, "--watch", "0.01", "--count", "3", "--json")
    assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == [live.name] * 3
    assert done.exit_code == 0


def test_stats_stop_when_the_world_is_gone(shm_name: str) -> None:
    world = LiveWorld(shm_name)
    looks = worlds._looks(shm_name, 0.001, 5)
    assert next(looks)["name"] == shm_name
    world.close()
    with pytest.raises(nanokv.NanoKVError):
        next(looks)


def test_fsck_of_a_world_at_rest_is_clean(live: LiveWorld) -> None:
    done = run("fsck", live.name)
    assert done.exit_code == 0, done.output
    assert "at rest" in done.stdout and "3 objects" in done.stdout and "clean" in done.stdout
    report = run_json("fsck", live.name)
    assert report["quiescent"] and report["findings"] == [] and report["alive"] == [True, True]


def test_fsck_says_that_a_world_is_at_work(live: LiveWorld) -> None:
    live.machine.enter(1)
    done = run("fsck", live.name)
    assert done.exit_code == 0 and "at work" in done.stdout and "what must hold only at rest" in done.stdout


def test_fsck_changes_nothing(live: LiveWorld) -> None:
    before = [view.raw.copy() for view in live.views]
    run("fsck", live.name)
    run("stats", live.name)
    assert all(np.array_equal(view.raw, was) for view, was in zip(live.views, before, strict=True))


def test_fsck_finds_a_breach(live: LiveWorld) -> None:
    live.views[1].headers["payload_base"][1] = live.views[1].headers["payload_base"][0]
    done = run("fsck", live.name)
    assert done.exit_code == 1
    assert "I1 breach, rank 1: pages are in more than one place" in done.stdout
    report = run_json("fsck", live.name)
    assert {(f["invariant"], f["rank"]) for f in report["findings"]} >= {("I1", 1)}
    assert report["breaches"] == len(report["findings"]) and report["leftovers"] == 0


def test_fsck_refuses_a_foreign_segment(live: LiveWorld) -> None:
    live.views[1].ctl["world_id"] += np.uint64(1)
    done = run("fsck", live.name)
    assert done.exit_code == 1 and "I10 breach, rank 1: world_id" in done.stdout


def test_rm_refuses_a_living_world(live: LiveWorld) -> None:
    done = run("rm", live.name)
    assert done.exit_code == 2 and "alive" in done.stderr
    assert live.name in list_worlds()
    assert run("rm", live.name, "--force").exit_code == 0
    assert live.name not in list_worlds()
    assert live.put(50) == Status.OK  # its ranks go on


@pytest.fixture
def cached(shm_name: str) -> Iterator[nanokv.NanoKVCache]:
    """A world of one rank with an object "k" in namespace "llama"."""
    with nanokv.NanoKVCache(1 << 20, name=shm_name, rank=0, world_size=1, page_bytes=PAGE, namespace="llama") as cache:
        cache.put("k", torch.zeros(3, 700, dtype=torch.bfloat16))
        yield cache


def test_key_shows_where_an_object_lies(cached: nanokv.NanoKVCache, shm_name: str) -> None:
    with cached.pin("k"):
        (found,) = run_json("key", shm_name, "k", "--namespace", "llama")
    meta = cached.get_location("k")
    assert (found["rank"], found["state"], found["pins"], found["epoch"]) == (0, "READY", 1, meta.epoch)
    assert (found["bytes"], found["pages"], found["payload_off"]) == (4200, 2, meta.payload_off)
    assert (found["dtype"], found["shape"]) == ("bfloat16", [3, 700])
    assert 0 <= found["idle_seconds"] < 600
    text = run("key", shm_name, "k", "--namespace", "llama").stdout
    assert "READY, pins: 0" in text and "bfloat16 [3, 700]" in text and "4.1 KiB (4200 bytes), pages: 2" in text


def test_how_long_an_object_is_idle_does_not_depend_on_how_often_it_was_used(
    cached: nanokv.NanoKVCache, shm_name: str
) -> None:
    for _ in range(3):
        cached.get("k")
        time.sleep(0.1)
        (found,) = run_json("key", shm_name, "k", "--namespace", "llama")
        assert 0.1 <= found["idle_seconds"] < 600


def test_key_finds_objects_of_an_identity(shm_name: str) -> None:
    whose = nanokv.Identity("m", layout=nanokv.KVLayout(layers=1, kv_heads=1, head_size=1, block_size=1, dtype="bool"))
    given = json.dumps(asdict(whose))
    with nanokv.NanoKVCache(1 << 20, name=shm_name, rank=0, world_size=1, page_bytes=PAGE, identity=whose) as cache:
        cache.put("k", torch.zeros(3))
        (found,) = run_json("key", shm_name, "k", "--identity", given)
        assert found["identity"] == f"{tag_of(cache.digest('k')):08x}" != "00000000"
        assert f"identity {found['identity']}" in run("key", shm_name, "k", "--identity", given).stdout
        for other in ([], ["--identity", '{"model": "m"}'], ["--namespace", "m", "--identity", given]):
            done = run("key", shm_name, "k", *other)
            assert done.exit_code == 1 and "holds no object 'k'" in done.stdout
        for wrong in ("m", "[]", '{"model": 3}', '{"modell": "m"}', '{"model": "m", "layout": {"layers": 1}}'):
            done = run("key", shm_name, "k", "--identity", wrong)
            assert done.exit_code == 2
            assert "is no identity" in done.stderr or "must be a str" in done.stderr


def test_key_says_that_there_is_none(cached: nanokv.NanoKVCache, shm_name: str) -> None:
    done = run("key", shm_name, "k")
    assert done.exit_code == 1 and done.stdout == f"{shm_name} holds no object 'k'\n"
    assert run("key", shm_name, "other", "--namespace", "llama", "--json").stdout == "[]\n"
    cached.remove("k")
    assert run("key", shm_name, "k", "--namespace", "llama").exit_code == 1


def test_key_shows_an_object_that_is_being_written(dead: str) -> None:
    views = InspectedWorld(dead).views
    slot = int(np.flatnonzero(views[1].headers["key_hash"] == 100)[0])
    found = _object(views[1], 1, slot)
    assert (found.state, found.bytes, found.dtype) == ("WRITING", 5000, None)


# --- a dead world -----------------------------------------------------------------------------
def test_a_dead_world(dead: str) -> None:
    (row,) = [row for row in run_json("ls") if row["name"] == dead]
    assert (row["state"], row["living"]) == ("dead", 0)

    report = run_json("stats", dead)
    assert [rank["alive"] for rank in report["ranks"]] == [False, False]
    assert (report["ranks"][1]["ready"], report["ranks"][1]["unfinished"]) == (3, 1)

    done = run("fsck", dead)
    assert done.exit_code == 3, done.output
    assert "0 of 2 ranks alive" in done.stdout and "at rest" in done.stdout
    report = run_json("fsck", dead)
    assert report["breaches"] == 0
    whats = [finding["what"] for finding in report["findings"]]
    assert any("unfinished" in what for what in whats) and any("in flight" in what for what in whats)
    assert all("on_stale='recover'" in finding["remedy"] for finding in report["findings"])

    assert run_json("rm", dead) == {"name": dead, "removed": True}
    assert dead not in list_worlds()


def test_ls_says_what_dead_worlds_take_and_how_it_comes_back(dead: str) -> None:
    dead_worlds = [row for row in run_json("ls") if row["state"] == "dead"]
    *_, last = run("ls").stdout.splitlines()
    names = [row["name"] for row in dead_worlds]
    taken = size(sum(row["taken"] for row in dead_worlds))
    assert dead in names
    more = " ..." if len(names) > 3 else ""
    assert last == f"{taken} are taken by {len(names)} that nobody uses: nanokv rm {' '.join(names[:3])}{more}"
    assert run("rm", dead).exit_code == 0
    assert dead not in run("ls").stdout


def test_ls_names_three_of_many_dead_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    def summary(name: str) -> dict[str, Any]:
        known = {"world_size": 1, "living": 0, "absent": 0, "alloc": "device", "bytes": 1 << 20, "taken": 1 << 20}
        return {"name": name, "state": "dead"} | known

    monkeypatch.setattr("nanokv.heap.shm_tools.list_worlds", lambda: list("abcd"))
    monkeypatch.setattr(worlds, "_summary", summary)
    *_, last = run("ls").stdout.splitlines()
    assert last == f"{size(4 << 20)} are taken by 4 that nobody uses: nanokv rm a b c ..."


def test_a_world_that_goes_while_it_is_listed_takes_nothing() -> None:
    assert worlds._taken("no-such-world") == 0


def test_a_dead_world_with_a_breach(dead: str) -> None:
    at = GEOMETRY.segment_bytes  # segment 1 ends at the end of the file
    with path_of(dead).open("r+b") as file:
        file.seek(-at + GEOMETRY.offsets["dir_base"], os.SEEK_END)
        file.write(b"\0" * (GEOMETRY.offsets["turn_base"] - GEOMETRY.offsets["dir_base"]))
    done = run("fsck", dead)
    assert done.exit_code == 1
    assert "no directory entry finds them" in done.stdout


def test_a_damaged_file_is_listed_and_can_be_removed(dead: str) -> None:
    with path_of(dead).open("r+b") as file:
        file.write(b"\1" * 64)
    (row,) = [row for row in run_json("ls") if row["name"] == dead]
    assert row["state"].startswith("unusable: ") and row["world_size"] == 0
    assert dead in run("ls").stdout
    done = run("fsck", dead)
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert run("rm", dead).exit_code == 0


# --- doctor -----------------------------------------------------------------------------------
def test_doctor_says_what_is_here() -> None:
    rows = {row.name: row for row in doctor.examine(smoke=False)}
    assert set(doctor.PACKAGES) <= rows.keys()
    assert rows["numpy"].detail == np.__version__
    for name in ("python", "cpus", "shared memory", "compiled code", "heap local", "heap shm"):
        assert rows[name].detail
    assert rows["heap local"].state == "ok"
    assert rows["heap shm"].detail == "works: a world of one rank was made"
    assert rows["heap iris"].state == "missing" and rows["heap iris"].detail
    assert {row.state for row in rows.values()} <= {"ok", "warn", "missing"}
    assert "smoke test" not in rows


def test_doctor_names_variables_that_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOKV_NAME", "somewhere")
    rows = {row.name: row for row in doctor.examine(smoke=False)}
    assert rows["$NANOKV_NAME"].detail == "somewhere"
    assert "$RANK" not in rows


def test_doctor_ends_with_1_when_a_package_is_missing(limits: Limits) -> None:
    limits(doctor, PACKAGES=("numpy", "there-is-no-such-package"))
    done = run("doctor")
    assert done.exit_code == 1
    (line,) = [line for line in done.stdout.splitlines() if "there-is-no-such-package" in line]
    assert "missing" in line and "pip install" in line


def test_doctor_warns_when_shared_memory_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOKV_SHM_DIR", "/there/is/no/such/directory")
    rows = {row.name: row for row in doctor.examine(smoke=False)}
    assert rows["shared memory"].state == "warn" and "/there/is/no" in rows["shared memory"].detail
    assert rows["heap shm"].state == "missing"


def test_doctor_warns_that_nothing_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(rare=True)
    assert {row.name: row for row in doctor.examine(smoke=False)}["compiled code"].state == "ok"
    monkeypatch.setenv("NANOKV_CACHE_DIR", str(tmp_path))
    row = {row.name: row for row in doctor.examine(smoke=False)}["compiled code"]
    assert row.state == "warn" and row.detail.startswith("0 of ") and str(tmp_path) in row.detail


def test_doctor_is_not_fooled_by_the_names_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(rare=True)
    shutil.copytree(cache_directory(), tmp_path / "nanokv" / code_digest())
    monkeypatch.setenv("NANOKV_CACHE_DIR", str(tmp_path))
    assert {row.name: row for row in doctor.examine(smoke=False)}["compiled code"].state == "ok"
    for path in (tmp_path / "nanokv" / code_digest()).glob("put_copied.code"):
        path.write_bytes(b"")
    row = {row.name: row for row in doctor.examine(smoke=False)}["compiled code"]
    assert row.state == "warn" and not row.detail.startswith((f"{len(NATIVE_ENTRIES)} ", "0 "))


def test_doctor_puts_and_gets() -> None:
    report = {row["name"]: row for row in run_json("doctor")}
    assert report["smoke test"]["state"] == "ok", report["smoke test"]["detail"]
    assert "put" in report["smoke test"]["detail"] and report["compiled code"]["detail"]


def test_doctor_says_when_the_smoke_test_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOKV_ALLOC", "nobody")
    done = run("doctor")
    assert done.exit_code == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("smoke test")]
    assert "missing" in line and "NANOKV_ALLOC" in line
