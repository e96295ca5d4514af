"""What becomes of values: leases, removals, pins, eviction, replicas, sessions; and how clients come and go."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from nanokv.errors import InvalidArgument
from nanokv.integrations.mooncake import MooncakeDistributedStore, TaskStatus, TaskType
from nanokv.integrations.mooncake.async_store import MooncakeDistributedStoreAsync
from nanokv.integrations.mooncake.mooncake_config import MooncakeConfig
from nanokv.integrations.mooncake.shim import make
from tests.integrations.mooncake.conftest import Start
from tests.integrations.mooncake.test_values import NAME, Memory, config, surface

Store = MooncakeDistributedStore
MIB = 1 << 20


# --- leases and removals ---
@surface(NAME, "remove")
@surface(NAME, "batch_remove")
@pytest.mark.parametrize("reader", ["get", "is_exist", "get_size", "get_replica_desc", "get_buffer"])
def test_a_read_holds_removals_off(store: Store, reader: str) -> None:
    store.put("k", b"v")
    getattr(store, reader)("k")
    assert store.remove("k") == -706 and store.batch_remove(["k", "none"]) == [-706, -704]
    assert store.remove("k", True) == 0 and store.remove("k") == -704


def test_what_nobody_has_read_is_removed(store: Store) -> None:
    store.put("k", b"v")
    assert store.remove("k") == 0 and store.is_exist("k") == 0


def test_a_lease_ends(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOKV_MOONCAKE_LEASE_MS", "0")
    store = start()
    store.put("k", b"v")
    assert store.get("k") == b"v" and store.remove("k") == 0


@surface(NAME, "remove_by_regex", differs="expressions are Python's, with POSIX' classes; what they warn of is refused")
def test_removal_by_regular_expression(store: Store) -> None:
    for key in ("ns/a1", "ns/a2", "x1", "ü1"):
        store.put(key, b"v")
    store.get("ns/a2")
    assert store.remove_by_regex("a[12]") == 1 and store.batch_is_exist(["ns/a1", "ns/a2", "x1"]) == [0, 1, 1]
    assert store.remove_by_regex("^x[[:digit:]]$", True) == 1 and store.remove_by_regex("ü", True) == 1
    assert store.remove_by_regex("[") == -600 and store.remove_by_regex("zzz") == 0


@surface(NAME, "remove_all")
def test_removal_of_all(start: Start) -> None:
    one, two = start(), start()
    for number in range(50):
        assert (one, two)[number % 2].put(f"k{number}", b"v") == 0
    one.put("pinned", b"v", config(with_hard_pin=True))
    two.get("k0")
    assert one.remove_all() == 50 and one.is_exist("k0") == 1
    assert two.remove_all(True) == 1
    assert two.put("again", b"v") == 0 and one.get("again") == b"v"  # the segments are still known


@surface(NAME, "batch_replica_clear")
def test_replicas_are_cleared(start: Start) -> None:
    store, other = start(host="one:1"), start(host="two:2")
    store.put("k", b"v", config(replica_num=2))
    store.put("read", b"v")
    store.get("read")
    assert other.batch_replica_clear(["k", "none", "read"], "two:2") == ["k"]
    assert _endpoints(store, "k") == ["one:1"]
    assert store.batch_replica_clear(["read"], "nowhere:3") == []


# --- pins and eviction ---
def test_a_full_store_evicts_but_not_what_is_pinned(start: Start) -> None:
    store = start(segment=4 * MIB)
    assert store.put("pinned", bytes(300_000), config(with_hard_pin=True)) == 0
    for number in range(60):
        assert store.put(f"k{number}", bytes(300_000)) == 0
    assert store.is_exist("pinned") == 1 and store.is_exist("k0") == 0 and store.is_exist("k59") == 1


def test_pins_can_fill_a_store(start: Start) -> None:
    store = start(segment=4 * MIB)
    answers = [store.put(f"k{number}", bytes(300_000), config(with_hard_pin=True)) for number in range(30)]
    stored = answers.index(-200)
    assert set(answers[:stored]) == {0} and set(answers[stored:]) == {-200}
    assert all(store.get_size(f"k{number}") == 300_000 for number in range(stored))
    assert store.put("too large", bytes(5 * MIB)) == -200


# --- replicas ---
def _endpoints(store: Store, key: str) -> list[str]:
    found = [replica.get_memory_descriptor().buffer_descriptor for replica in store.get_replica_desc(key)]
    return sorted(each.transport_endpoint for each in found)


@surface(NAME, "get_replica_desc")
@surface(NAME, "batch_get_replica_desc")
def test_replicas_are_described(start: Start) -> None:
    store, other = start(host="one:1"), start(host="two:2")
    assert store.put("k", b"value", config(replica_num=5)) == 0
    assert _endpoints(other, "k") == ["one:1", "two:2"]
    replica = store.get_replica_desc("k")[0]
    assert replica.is_memory_replica() and not replica.is_disk_replica() and not replica.is_local_disk_replica()
    assert replica.get_memory_descriptor().buffer_descriptor.size == 5 and replica.status == 3
    with pytest.raises(RuntimeError):
        replica.get_disk_descriptor()
    assert store.get_replica_desc("none") == [] and list(store.batch_get_replica_desc(["none", "k"])) == ["k"]


def test_a_preferred_segment_gets_the_value(start: Start) -> None:
    stores = [start(host=f"host:{number}") for number in range(1, 4)]
    for store in stores:
        for number in range(1, 4):
            key = f"{store.get_hostname()}-{number}"
            assert store.put(key, b"v", config(preferred_segment=f"host:{number}")) == 0
            assert _endpoints(store, key) == [f"host:{number}"]
        assert store.put(f"own {store.get_hostname()}", b"v", config(prefer_alloc_in_same_node=True)) == 0
        assert _endpoints(store, f"own {store.get_hostname()}") == [store.get_hostname()]


@surface(NAME, "create_copy_task")
@surface(NAME, "create_move_task")
@surface(NAME, "query_task", differs="a task has ended when it is created; only the client that created it knows it")
def test_copies_and_moves(start: Start) -> None:
    store, _ = start(host="one:1"), start(host="two:2")
    store.put("k", b"v", config(preferred_segment="one:1"))
    task, code = store.create_copy_task("k", ["two:2"])
    answer, known = store.query_task(task)
    assert code == known == 0 and answer is not None
    assert (answer.status, answer.type) == (TaskStatus.SUCCESS, TaskType.REPLICA_COPY)
    assert _endpoints(store, "k") == ["one:1", "two:2"]
    store.put("m", b"moved", config(preferred_segment="one:1"))
    assert store.create_move_task("m", "one:1", "two:2")[1] == 0
    assert _endpoints(store, "m") == ["two:2"] and store.get("m") == b"moved"
    assert [store.create_copy_task("none", ["two:2"])[1], store.create_copy_task("k", ["no:9"])[1]] == [-704, -600]
    assert [store.create_move_task("k", "one:1", "one:1")[1], store.query_task((1, 2))] == [-600, (None, -1400)]


def test_pins_go_with_copies_and_moves(start: Start) -> None:
    store, _ = start(segment=4 * MIB, host="one:1"), start(segment=4 * MIB, host="two:2")
    pinned = config(with_hard_pin=True, preferred_segment="one:1")
    assert store.put("moved", bytes(3000), pinned) == store.put("copied", bytes(3000), pinned) == 0
    assert store.create_move_task("moved", "one:1", "two:2")[1] == store.create_copy_task("copied", ["two:2"])[1] == 0
    assert store.upsert("copied", bytes(5000)) == 0  # of which there is one again
    for number in range(60):
        assert store.put(f"k{number}", bytes(300_000)) == 0
    assert _endpoints(store, "moved") == ["two:2"] and store.get("copied") == bytes(5000)
    assert len(_endpoints(store, "copied")) == 1


# --- sessions ---
@surface(NAME, "batch_put_session_start")
@surface(NAME, "batch_put_from_multi_buffer_ranges")
@surface(NAME, "batch_put_session_end")
@surface(NAME, "batch_put_session_revoke")
def test_a_value_is_seen_when_its_session_ends(store: Store) -> None:
    memory = Memory()
    memory.array[:] = range(256) if memory.array.size == 256 else [number % 256 for number in range(4096)]
    assert store.batch_put_session_start(["s", "t", ""], [8, 4, 4]) == [0, 0, -600]
    assert (store.is_exist("s"), store.get("s"), store.get_size("s"), store.remove("s")) == (0, b"", -703, -703)
    pieces = ([[memory.ptr, memory.ptr + 100]], [[4, 4]], [[4, 0]])
    assert store.batch_put_from_multi_buffer_ranges(["s"], *pieces) == [8]
    assert store.batch_put_from_multi_buffer_ranges(["s"], [[memory.ptr]], [[4]], [[5]]) == [-600]
    assert store.batch_put_session_end(["s", "none"]) == [0, -600]
    assert store.get("s") == bytes([100, 101, 102, 103, 0, 1, 2, 3])
    assert store.batch_put_session_start(["s"], [4]) == [-705]
    assert store.batch_put_session_revoke(["t"]) == [0] and store.is_exist("t") == 0
    assert store.put("t", b"free again") == 0


@surface(
    NAME, "upsert", differs="after it a session that had begun writes nothing; the real one writes to freed memory"
)
def test_an_upsert_takes_the_place_of_a_session(store: Store) -> None:
    memory = Memory()
    assert store.batch_put_session_start(["s"], [4]) == [0]
    assert store.upsert("s", b"upserted") == 0
    assert store.batch_put_from_multi_buffer_ranges(["s"], [[memory.ptr]], [[4]], [[0]]) == [-600]
    assert store.batch_put_session_end(["s"]) == [0] and store.get("s") == b"upserted"


@surface(NAME, "batch_get_session_start")
@surface(NAME, "batch_get_into_multi_buffer_ranges")
@surface(NAME, "batch_get_session_end")
def test_a_value_that_is_read_in_pieces_stays(store: Store) -> None:
    memory = Memory()
    store.put("s", bytes(range(20)))
    assert store.batch_get_session_start(["s", "none", "s"]) == [0, -704, 0]
    assert store.remove("s", True) == -714
    pieces = ([[memory.ptr, memory.ptr + 50]], [[5, 3]], [[10, 0]])
    assert store.batch_get_into_multi_buffer_ranges(["s"], *pieces) == [8]
    assert memory[0:5] + memory[50:53] == bytes([10, 11, 12, 13, 14, 0, 1, 2])
    assert store.batch_get_into_multi_buffer_ranges(["s"], [[memory.ptr]], [[5]], [[16]]) == [-600]
    assert store.batch_get_session_end(["s"]) == 0 and store.remove("s", True) == 0


def test_a_value_of_a_session_is_stored_as_its_config_says(start: Start) -> None:
    store, other = start(segment=4 * MIB, host="one:1"), start(segment=4 * MIB, host="two:2")
    asked = config(with_hard_pin=True, preferred_segment="two:2")
    assert store.batch_put_session_start(["pinned"], [3000], asked) == [0]
    assert store.batch_put_session_start(["copied"], [3000], config(replica_num=2)) == [0]
    assert store.batch_put_session_start(["large"], [1 << 62]) == [-200]
    assert store.batch_put_session_end(["pinned", "copied"]) == [0, 0]
    assert _endpoints(other, "pinned") == ["two:2"] and _endpoints(other, "copied") == ["one:1", "two:2"]
    for number in range(60):
        assert store.put(f"k{number}", bytes(300_000)) == 0
    assert store.is_exist("pinned") == 1


def test_a_session_reads_and_writes_within_its_value_only(store: Store) -> None:
    memory = Memory()
    assert store.put("s", bytes(20)) == store.batch_get_session_start(["s"])[0] == 0
    assert store.batch_get_into_multi_buffer_ranges(["s"], [[0]], [[5]], [[0]]) == [-600]
    for sizes, offsets in (([[5]], [[-5]]), ([[-5]], [[5]])):
        with pytest.raises(TypeError):
            store.batch_get_into_multi_buffer_ranges(["s"], [[memory.ptr]], sizes, offsets)
    assert store.batch_get_session_end(["s"]) == 0


# --- tenants ---
@surface(NAME, "setup")
def test_tenants_share_memory_and_no_keys(start: Start) -> None:
    giver, same, other = start(tenant="a"), start(segment=0, tenant="a"), start(segment=0, tenant="b")
    assert same.put("k", b"of a") == other.put("k", b"of b") == 0
    assert (giver.get("k"), same.get("k"), other.get("k")) == (b"of a", b"of a", b"of b")
    assert _endpoints(other, "k") == [giver.get_hostname()]
    assert other.remove_all(True) == 1 and giver.get("k") == b"of a"
    assert other.put("again", b"v") == 0, "the segment is forgotten"
    assert other.create_copy_task("again", [giver.get_hostname()])[1] == 0


def test_a_tenant_that_takes_the_rank_of_another_tells_its_own_segment(start: Start) -> None:
    first, second = start(host="one:1", tenant="a"), start(host="two:2", tenant="b")
    first.client.world.close()  # as if it was killed: its segment is still told
    third = start(host="three:3", tenant="c")
    assert second.put("k", b"v", config(preferred_segment="three:3")) == 0
    assert _endpoints(second, "k") == ["three:3"]
    del third


def test_a_tenant_cannot_be_named_as_what_the_store_keeps_for_itself() -> None:
    assert MooncakeDistributedStore().setup("h", "P", MIB, MIB, "tcp", "", "nul:1", tenant_id="\0mooncake") == -600


# --- clients ---
@surface(NAME, "setup")
@surface(NAME, "close")
@surface(NAME, "health_check")
@surface(NAME, "get_hostname")
def test_a_client_comes_and_goes(start: Start) -> None:
    one, two = start(), start()
    host, port = one.get_hostname().split(":")
    assert host == "localhost" and 12300 <= int(port) < 14300 and one.get_hostname() != two.get_hostname()
    assert one.health_check() == 0
    for number in range(40):
        one.put(f"k{number}", b"v")
    mine = [number for number in range(40) if _endpoints(one, f"k{number}") == [two.get_hostname()]]
    assert 0 < len(mine) < 40
    assert one.close() == one.close() == 0 and one.health_check() == 1 and one.get("k0") == b""
    assert [number for number in range(40) if two.is_exist(f"k{number}")] == mine  # its segment went with it
    assert all(two.put(f"new{number}", b"v") == 0 for number in range(20))


@surface(NAME, "setup", differs="no master has to run, and all segments of a store are as large as its first client's")
def test_a_client_without_a_segment_stores_at_others(start: Start) -> None:
    alone = start(segment=0)
    assert alone.put("k", b"v") == -200
    other = start()
    while alone.put("k", b"v") == -200:  # until it has looked again
        pass
    assert other.get("k") == b"v" and _endpoints(alone, "k") == [other.get_hostname()]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"local_hostname": "h"}, -600),
        ({"local_hostname": "h", "metadata_server": "P2PHANDSHAKE", "global_segment_size": "50%"}, -600),
        ({"local_hostname": "h", "metadata_server": "P2PHANDSHAKE", "enable_ssd_offload": "true"}, -1012),
        ({"local_hostname": "h", "metadata_server": "P2PHANDSHAKE", "protocol": "pigeon"}, -1),
    ],
)
@surface(NAME, "setup: enable_ssd_offload, enable_client_http_server", refused="-1012")
def test_a_configuration_that_cannot_be_is_refused(given: dict[str, Any], code: int) -> None:
    assert MooncakeDistributedStore().setup(given) == code


@surface(NAME, "setup")
def test_a_segment_for_which_there_is_no_memory_is_refused(
    start: Start, master: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Segments take memory as they are written, and who writes beyond what there is dies of SIGBUS."""
    start(segment=16 * MIB)
    room = os.statvfs_result((4096, 4096, 0, 0, 12 * MIB // 4096, 0, 0, 0, 0, 255))
    monkeypatch.setattr("nanokv.integrations.mooncake.place.os.statvfs", lambda _: room)
    second = MooncakeDistributedStore()
    assert second.setup("localhost", "P2PHANDSHAKE", 16 * MIB, MIB, "tcp", "", master) == -1
    assert second.health_check() == 1 and "--shm-size" in caplog.text
    assert second.setup("localhost", "P2PHANDSHAKE", 0, MIB, "tcp", "", master) == 0  # it gives none
    assert second.put("k", b"v") == 0 and second.close() == 0


@surface(NAME, "setup_dummy", refused="-1012: every client reaches all memory by itself")
@surface(NAME, "mount_segment", refused="ret -1012: a client has the segment of its set-up")
@surface(NAME, "allocate_and_mount_segment", refused="ret -1012")
@surface(NAME, "unmount_segment", refused="-1012")
@surface(NAME, "unmount_and_free_segment", refused="-1012")
@surface(NAME, "unmount_local_disk_segment")
@surface(NAME, "alloc_from_mem_pool")
@surface(NAME, "get_offload_rpc_read_count")
def test_what_nanokv_has_not_is_answered(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    assert (
        store.setup_dummy(1, 1, "x:1") == store.unmount_segment(["x"]) == store.unmount_and_free_segment(["x"]) == -1012
    )
    assert "setup_dummy is refused: call setup(...) with the address of the master" in caplog.text
    assert store.mount_segment("/f", 5)["ret"] == store.allocate_and_mount_segment(5)["ret"] == -1012
    assert store.unmount_local_disk_segment() == store.alloc_from_mem_pool(5) == store.get_offload_rpc_read_count() == 0


def test_threads_share_a_client(store: Store) -> None:
    faults: list[object] = []

    def work(number: int) -> None:
        for step in range(200):
            key, value = f"{number}-{step % 7}", bytes([number]) * (step + 1)
            if store.upsert(key, value):
                faults.append((key, "upsert"))
            if store.get(key) != value:
                faults.append(key)
            store.put("shared", b"x" * 100)
            if store.get("shared") not in (b"", b"x" * 100):
                faults.append("shared")
            store.remove("shared", True)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not faults


@surface(NAME, "MooncakeDistributedStoreAsync")
def test_calls_as_coroutines(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async def both() -> list[Any]:
        store = MooncakeDistributedStoreAsync()
        assert await store.async_setup("localhost", "P2PHANDSHAKE", 16 * MIB, 8 * MIB, "tcp", "", "async:1") == 0
        await asyncio.gather(*(store.async_put(f"k{number}", b"%d" % number) for number in range(20)))
        values = await asyncio.gather(*(store.async_get(f"k{number}") for number in range(20)))
        store.close()
        with pytest.raises(AttributeError):
            store.async_nothing  # noqa: B018
        return values

    del start  # for its folder
    assert asyncio.run(both()) == [b"%d" % number for number in range(20)]


@surface(NAME, "MooncakeConfig")
def test_a_configuration_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MOONCAKE_CONFIG_PATH", raising=False)
    monkeypatch.delenv("MOONCAKE_MASTER", raising=False)
    with pytest.raises(ValueError, match="MOONCAKE_MASTER"):
        MooncakeConfig.load_from_env()
    monkeypatch.setenv("MOONCAKE_MASTER", "m:1")
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "1.5 GB")
    found = MooncakeConfig.load_from_env()
    assert (found.master_server_address, found.global_segment_size, found.protocol) == ("m:1", 3 << 29, "tcp")
    file = tmp_path / "config.json"
    file.write_text('{"local_hostname": "h", "metadata_server": "m", "master_server_address": "a:1"}')
    assert MooncakeConfig.from_file(str(file)).local_buffer_size == 1 << 30
    file.write_text('{"local_hostname": "h", "metadata_server": "m"}')
    with pytest.raises(ValueError, match="master_server_address"):
        MooncakeConfig.from_file(str(file))


def test_unchanged_programs_import_the_shim(tmp_path: Path) -> None:
    make(tmp_path)
    make(tmp_path)  # again: it replaces its own
    program = (
        "from mooncake.store import MooncakeDistributedStore, ReplicateConfig, SoftPinAction\n"
        "from mooncake.async_store import MooncakeDistributedStoreAsync\n"
        "from mooncake.mooncake_config import MooncakeConfig\n"
        "print(MooncakeDistributedStore.__module__)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", program], check=False, env=environment, capture_output=True, text=True, timeout=120
    )
    assert ran.stdout.strip() == "nanokv.integrations.mooncake.store", ran.stderr


def test_the_shim_replaces_no_other_package(tmp_path: Path) -> None:
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "__init__.py").write_text("# somebody else's")
    with pytest.raises(InvalidArgument, match="is there already"):
        make(tmp_path)
