"""Values by key: put, get, upsert, into and from memory, in batches, and what wrong calls are answered."""

import ctypes
import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest

from nanokv.allocation.terms import PRIORITIES
from nanokv.integrations.mooncake import MooncakeDistributedStore, ReplicateConfig, SoftPinAction
from tests.integrations.mooncake.conftest import Start
from tests.support.faults import Calls

NAME = "Mooncake Store"
surface = pytest.mark.surface
Store = MooncakeDistributedStore


def config(**fields: Any) -> ReplicateConfig:
    made = ReplicateConfig()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class Memory:
    """Memory of a caller, with its addresses."""

    def __init__(self, nbytes: int = 4096) -> None:
        self.array = np.zeros(nbytes, np.uint8)
        self.ptr = int(self.array.ctypes.data)

    def __getitem__(self, where: slice) -> bytes:
        return self.array[where].tobytes()


@surface(NAME, "put")
@surface(NAME, "get")
@surface(NAME, "get_size")
@surface(NAME, "is_exist")
def test_a_value_is_read_as_it_was_put(store: Store) -> None:
    assert store.is_exist("a") == 0 and store.get("a") == b"" and store.get_size("a") == -704
    assert store.put("a", b"hello") == 0
    assert (store.get("a"), store.get_size("a"), store.is_exist("a")) == (b"hello", 5, 1)
    assert store.put("a", b"another") == 0  # no error, and the value stays
    assert store.get("a") == b"hello"


@surface(NAME, "put", differs="a buffer of items of several bytes, or with gaps, is stored whole and in order")
def test_all_bytes_of_a_buffer_are_stored(store: Store) -> None:
    floats = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert store.put("floats", floats) == 0 and store.get("floats") == floats.tobytes()
    assert store.put("gaps", memoryview(b"xyzabc")[::2]) == 0 and store.get("gaps") == b"xzb"
    assert store.put("mutable", bytearray(b"123")) == 0 and store.get("mutable") == b"123"


@pytest.mark.parametrize("key", ["ключ", "nul\0inside", "k" * 10_000, b"bytes"])
def test_keys_may_be_any_text(store: Store, key: str) -> None:
    assert store.put(key, b"v") == 0 and store.get(key) == b"v"
    assert store.remove(key, True) == 0 and store.is_exist(key) == 0


@pytest.mark.parametrize(("key", "value"), [("", b"v"), ("k", b""), ("k", bytes(9 << 20))])
@surface(NAME, "put")
def test_what_cannot_be_put_is_invalid(store: Store, key: str, value: bytes) -> None:
    assert store.put(key, value) == -600 and store.upsert(key, value) == -600


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.put("k", "text"),
        lambda store: store.put("k", 5),
        lambda store: store.put("k", b"v", None),
        lambda store: store.get(5),
        lambda store: store.get_into("k", "x", 5),
        lambda store: store.put_batch("ab", [b"1"]),
        lambda store: store.put(key_name="k", value=b"v"),
        lambda store: store.put_from("k", -1, 4),
        lambda store: store.get_into("k", -1, 4),
        lambda store: store.get_into_ranges([1], [["k"]], [[[-1]]], [[[0]]], [[[1]]]),
        lambda store: store.get_into_ranges([1], [["k"]], [[[0]]], [[[-1]]], [[[1]]]),
        lambda store: store.batch_get_into_multi_buffers(["k"], [[1, 1]], [[5, -4]]),
        lambda store: store.batch_get_into_multi_buffers(["k"], [[None]], [[5]]),
        lambda store: store.batch_put_from_multi_buffers(["k"], [[1]], [["5"]]),
        lambda store: store.remove_by_regex(b"k"),
        lambda store: store.remove_by_regex(None),
        lambda store: store.query_task((1, 2, 3)),
    ],
)
def test_arguments_of_another_type_raise_type_error(store: Store, call: Any) -> None:
    with pytest.raises(TypeError):
        call(store)


def test_a_client_that_is_not_set_up_answers(store: Store) -> None:
    unset = MooncakeDistributedStore()
    assert (unset.get("a"), unset.get_batch(["a"]), unset.health_check(), unset.close()) == (b"", [b""], 1, 0)
    assert unset.put("a", b"1") == unset.upsert("a", b"1") == -600
    assert unset.is_exist("a") < 0 and unset.batch_is_exist(["a"]) == [unset.is_exist("a")]
    assert unset.get_replica_desc("a") == [] and unset.remove_all() == -600


@surface(NAME, "upsert")
def test_upsert_replaces_values_of_any_size(store: Store) -> None:
    for value in (b"1234", b"4321", b"longer than before", b"s", bytes(100_000), b"t"):
        assert store.upsert("u", value) == 0
        assert store.get("u") == value


@surface(NAME, "upsert")
def test_an_upsert_that_finds_no_room_leaves_the_old_value(start: Start) -> None:
    store = start(segment=1 << 20, local=8 << 20)
    assert store.put("kept", bytes(300_000), config(with_hard_pin=True)) == 0
    assert store.upsert("u", b"old") == 0
    assert store.upsert("u", bytes(900_000)) == -200
    assert store.get("u") == b"old"


@surface(NAME, "upsert")
@surface(NAME, "upsert_from")
@surface(NAME, "upsert_batch")
@surface(NAME, "batch_upsert_from")
@pytest.mark.parametrize("size", [100, 3000, 70_000, 400_000])
def test_an_upsert_keeps_the_pins(start: Start, size: int) -> None:
    """A hard pin is given when a value is made, and ends when it is removed; a soft one also if an upsert says so."""
    store, memory = start(segment=4 << 20), Memory(size)
    for key in "abcd":
        assert store.put(key, bytes(3000), config(with_hard_pin=True)) == 0
    assert store.upsert("a", bytes(size)) == store.upsert_batch(["b"], [bytes(size)]) == 0
    assert store.upsert_from("c", memory.ptr, size) == 0 and store.batch_upsert_from(["d"], [memory.ptr], [size]) == [0]
    assert store.upsert("a", bytes(size), config(soft_pin_action=SoftPinAction.DISABLE)) == 0
    assert store.put("soft", b"1", config(soft_pin_action=SoftPinAction.ENABLE)) == store.upsert("soft", b"22") == 0
    for number in range(60):
        assert store.put(f"k{number}", bytes(200_000)) == 0
    assert store.batch_is_exist([*"abcd", "k0"]) == [1, 1, 1, 1, 0] and store.get_size("a") == size
    assert store.remove("a", True) == 0 and store.put("a", bytes(size)) == 0  # made anew, without a pin
    for number in range((8 << 20) // max(size, 70_000)):
        assert store.put(f"more{number}", bytes(size)) == 0
    assert size < 70_000 or store.batch_is_exist(["a", "b"]) == [0, 1]


@surface(NAME, "upsert")
@pytest.mark.parametrize("size", [900_000, 2 << 20, 6 << 20])
def test_an_upsert_without_room_leaves_the_old_value_and_its_pin(start: Start, size: int) -> None:
    store = start(segment=1 << 20, local=8 << 20)
    assert store.put("kept", bytes(200_000), config(with_hard_pin=True)) == 0
    assert store.put("weights", b"old" * 1000, config(with_hard_pin=True)) == 0
    assert store.upsert("weights", bytes(size)) == -200 and store.get("weights") == b"old" * 1000
    for number in range(30):
        assert store.put(f"k{number}", bytes(100_000)) == 0
    assert store.get("weights") == b"old" * 1000 and store.is_exist("kept") == 1


def test_an_upsert_in_a_store_full_of_pins_takes_the_place_of_the_old_value(start: Start) -> None:
    store, pinned = start(segment=1 << 20), config(with_hard_pin=True)
    count = next(number for number in range(1000) if store.put(f"k{number}", bytes(30_000), pinned) == -200)
    for size in (30_000, 100, 20_000):
        assert store.upsert("k3", b"x" * size) == 0 and store.get("k3") == b"x" * size
    assert store.upsert("k4", bytes(300_000)) == -200 and store.get("k4") == bytes(30_000)
    assert store.batch_is_exist([f"k{number}" for number in range(count)]) == [1] * count


def test_an_upsert_that_loses_its_room_to_others_puts_the_old_value_back(start: Start, calls: Calls) -> None:
    store = start(segment=1 << 20, local=8 << 20)
    assert store.put("weights", b"old" * 1000, config(with_hard_pin=True)) == 0
    objects = store.client.objects
    assert objects is not None
    calls.answer(objects, "write", -200, at=(1,))
    assert store.upsert("weights", bytes(50_000)) == -200 and store.get("weights") == b"old" * 1000
    for number in range(30):
        assert store.put(f"k{number}", bytes(100_000)) == 0
    assert store.get("weights") == b"old" * 1000


@pytest.mark.parametrize("step", ["write", "remove_exactly"])
@pytest.mark.parametrize("other", [b"another", b"another" * 20_000])
def test_a_pin_outlives_upserts_that_meet(start: Start, calls: Calls, step: str, other: bytes) -> None:
    """Another client upserts the same key while this one has removed the old value, or has just found it."""
    store, second = start(), start(segment=0)
    assert store.put("weights", b"old" * 1000, config(with_hard_pin=True)) == 0
    objects = store.client.objects
    assert objects is not None

    def upsert_another(*_: Any) -> None:
        assert second.upsert("weights", other) == 0

    steps = calls.before(objects, step, upsert_another, at=(1,))
    assert store.upsert("weights", b"new" * 1000) == 0 and store.get("weights") == b"new" * 1000
    assert len(steps) >= 2 and hold_of_object(store, "weights") == "kept"


def hold_of_object(store: Store, key: str) -> str:
    """The priority of the object of a key."""
    objects = store.client.objects
    assert objects is not None
    found = store.client.world.engine.allocation.locate(objects.digest(key.encode()))
    priority = objects.priority(found.place)
    return next(name for name, value in PRIORITIES.items() if value == priority)


def test_an_upsert_waits_for_another_one_that_writes(start: Start) -> None:
    store, second = start(), start(segment=0)
    assert second.batch_put_session_start(["k"], [100]) == [0]
    timer = threading.Timer(0.1, lambda: second.batch_put_session_end(["k"]))
    timer.start()
    assert store.upsert("k", b"new") == 0 and second.get("k") == b"new"
    timer.join()


def test_threads_that_upsert_a_pinned_value_keep_it(store: Store) -> None:
    def upsert(key: str) -> None:
        for size in (10, 5000, 70_000):
            assert store.upsert(key, b"x" * size) == 0

    for number in range(40):
        key = f"weights{number}"
        assert store.put(key, b"old", config(with_hard_pin=True)) == 0
        with ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(upsert, key) for _ in range(3)]:
                done.result(60)
        assert hold_of_object(store, key) == "kept" and store.remove(key, True) == 0


@surface(NAME, "put_parts")
@surface(NAME, "upsert_parts")
def test_parts_become_one_value(store: Store) -> None:
    assert store.put_parts("p", b"ab", memoryview(b"cd"), b"", bytearray(b"e")) == 0
    assert store.get("p") == b"abcde"
    assert store.upsert_parts("p", b"x", b"y") == 0 and store.get("p") == b"xy"
    assert store.put_parts("none") == 0 and store.is_exist("none") == 0


@surface(NAME, "register_buffer")
@surface(NAME, "unregister_buffer")
def test_registered_buffers_do_not_overlap(store: Store) -> None:
    memory = Memory()
    assert store.register_buffer(memory.ptr, 4096) == 0
    assert store.register_buffer(memory.ptr, 4096) == store.register_buffer(memory.ptr + 100, 10) == -600
    assert store.register_buffer(memory.ptr - 10, 20) == store.register_buffer(0, 5) == -600
    assert store.register_buffer(memory.ptr + 4096, 0) == -600
    assert store.unregister_buffer(memory.ptr + 1) == -600
    assert store.unregister_buffer(memory.ptr) == 0 and store.unregister_buffer(memory.ptr) == -600


@surface(NAME, "put_from", differs="an empty value is refused with -600; the real one answers 0 and stores nothing")
@surface(NAME, "upsert_from", differs="an empty value is refused with -600; the real one answers 0 and stores nothing")
@surface(NAME, "get_into")
@surface(NAME, "put_from_with_metadata")
def test_values_from_and_into_memory(store: Store) -> None:
    memory = Memory()
    memory.array[:100] = np.arange(100)
    assert store.put_from("f", memory.ptr, 100) == 0
    assert store.get_into("f", memory.ptr + 200, 100) == 100 and memory[200:300] == bytes(range(100))
    assert store.get_into("f", memory.ptr + 400, 500) == 100
    assert store.get_into("f", memory.ptr + 1000, 50) == -600 and not any(memory[1000:1100])
    assert store.get_into("none", memory.ptr, 50) == -704 and store.get_into("f", 0, 100) == -600
    assert store.upsert_from("f", memory.ptr, 1 << 62) == -200 and store.get_size("f") == 100
    assert store.put_from("huge", memory.ptr, 1 << 62) == store.put_from("huge", memory.ptr, (1 << 64) - 1) == -200
    assert store.upsert_from("f", memory.ptr, 7) == 0 and store.get("f") == bytes(range(7))
    assert store.put_from("z", memory.ptr, 0) == store.upsert_from("z", memory.ptr, 0) == -600
    assert store.put_from_with_metadata("m", memory.ptr, memory.ptr + 50, 10, 4) == 0
    assert store.get("m") == bytes(range(50, 54)) + bytes(range(10))


@pytest.mark.parametrize("key", ["0", "\0nanokv:segment:0"])
def test_no_key_names_an_object_of_the_store_itself(store: Store, key: str) -> None:
    """Those of the segments, without which nobody could store."""
    assert store.get(key) == b"" and store.get_size(key) == -704 and store.get_buffer(key) is None
    assert store.remove(key, True) == -704 and store.upsert(key, b"v") == 0
    assert store.remove_all(True) == 1 and store.put("k", b"v") == 0


@surface(NAME, "remove_all")
@surface(NAME, "remove_by_regex")
@pytest.mark.parametrize("length", [(64 << 10) - 1, 64 << 10, (64 << 10) + 1, 1 << 20])
def test_keys_of_any_length_are_found_again(store: Store, length: int) -> None:
    by_regex: Callable[[], int] = lambda: store.remove_by_regex("^long k+$", True)  # noqa: E731
    for removal in (by_regex, lambda: store.remove_all(True)):
        key = "long " + "k" * (length - 5)
        assert store.put(key, b"v") == store.put("short", b"v") == 0 and store.get(key) == b"v"
        assert removal() in (1, 2) and store.is_exist(key) == 0


@pytest.mark.parametrize("nbytes", [1, 4080, 4096, 64 << 10, (64 << 10) + 1, 3 << 20])
def test_values_of_every_size(store: Store, nbytes: int) -> None:
    value = np.random.default_rng(nbytes).bytes(nbytes)
    assert store.put("v", value) == 0 and store.get("v") == value and store.get(cast(str, b"v")) == value
    memory = Memory(nbytes)
    assert store.get_into("v", memory.ptr, nbytes) == nbytes and memory[:] == value


@surface(NAME, "get_buffer")
@surface(NAME, "batch_get_buffer")
def test_a_buffer_is_a_writable_copy(store: Store) -> None:
    store.put("b", b"hello")
    handle = store.get_buffer("b")
    assert handle is not None and (len(handle), handle.size(), bytes(handle)) == (5, 5, b"hello")
    assert "BufferHandle object at" in repr(handle) == str(handle)
    view = memoryview(cast(Any, handle))
    assert not view.readonly and view.format == "b" and ctypes.string_at(handle.ptr(), 5) == b"hello"
    view[0] = ord("j")
    assert bytes(handle) == b"jello" and store.get("b") == b"hello"
    assert store.get_buffer("none") is None
    found = store.batch_get_buffer(["b", "none"])
    assert found[0] is not None and bytes(found[0]) == b"hello" and found[1] is None


@surface(NAME, "put_batch")
@surface(NAME, "upsert_batch")
@surface(NAME, "get_batch")
@surface(NAME, "batch_is_exist")
def test_batches_of_values(store: Store) -> None:
    assert store.put_batch(["1", "2"], [b"a", b"bb"]) == 0
    assert store.put_batch(["2", "3"], [b"x", b"ccc"]) == 0
    assert store.get_batch(["1", "2", "none", "3"]) == [b"a", b"bb", b"", b"ccc"]
    assert store.put_batch(["4", "4"], [b"first", b"second"]) == 0 and store.get("4") == b"first"
    assert store.put_batch(["5", "6"], [b"1"]) == store.put_batch(["5", "6"], [b"", b"x"]) == -600
    assert store.batch_is_exist(["1", "5", "6", ""]) == [1, 0, 0, 0] and store.batch_is_exist([]) == []
    assert store.get_batch([]) == [b""] and store.put_batch([], []) == 0
    assert store.upsert_batch(["1", "5"], [b"z", b"y"]) == 0 and store.get_batch(["1", "5"]) == [b"z", b"y"]


@surface(NAME, "batch_put_from")
@surface(NAME, "batch_upsert_from")
@surface(NAME, "batch_get_into")
def test_batches_from_and_into_memory(store: Store) -> None:
    memory = Memory()
    memory.array[:256] = np.arange(256)
    assert store.batch_put_from(["a", "b"], [memory.ptr, memory.ptr + 10], [10, 20]) == [0, 0]
    into = [memory.ptr + 1000, memory.ptr + 1100, memory.ptr + 1200]
    assert store.batch_get_into(["a", "none", "b"], into, [10, 10, 5]) == [10, -704, -600]
    assert memory[1000:1010] == bytes(range(10)) and not any(memory[1200:1220])
    assert store.batch_put_from(["c", "d"], [memory.ptr], [1]) == [-600, -600]
    assert store.batch_get_into(["a", "b"], [memory.ptr], [10]) == [-600, -600]
    assert store.batch_upsert_from(["a"], [memory.ptr + 100], [3]) == [0] and store.get("a") == bytes([100, 101, 102])


@surface(NAME, "batch_put_from_multi_buffers")
@surface(NAME, "batch_get_into_multi_buffers")
def test_values_of_several_pieces(store: Store) -> None:
    memory, p = Memory(), 0
    memory.array[:100], p = np.arange(100), memory.ptr
    assert store.batch_put_from_multi_buffers(["m", "n"], [[p, p + 50], [p + 20]], [[10, 10], [5]]) == [0, 0]
    assert store.get("m") == bytes(range(10)) + bytes(range(50, 60))
    pieces = [[p + 500, p + 600, p + 700]]
    assert store.batch_get_into_multi_buffers(["m"], pieces, [[5, 5, 10]]) == [20]
    assert memory[500:505] + memory[600:605] + memory[700:710] == store.get("m")
    assert store.batch_get_into_multi_buffers(["m"], [[p]], [[10]]) == [-600]
    assert store.batch_get_into_multi_buffers(["m"], [[p]], [[30]]) == [-800]
    assert store.batch_put_from_multi_buffers(["q"], [[p]], [[1, 2]]) == [-600]
    assert store.batch_get_into_multi_buffers(["m"], [[p, 0]], [[10, 10]]) == [-600]


@surface(NAME, "get_into_ranges")
def test_ranges_go_into_registered_buffers_only(store: Store) -> None:
    memory = Memory()
    store.put("r", bytes(range(50)))
    one = ([[[0, 100]]], [[[10, 40]]], [[[5, 10]]])
    assert store.get_into_ranges([memory.ptr], [["r"]], *one) == [[[-600, -600]]]
    store.register_buffer(memory.ptr, 200)
    assert store.get_into_ranges([memory.ptr], [["r"]], *one) == [[[5, 10]]]
    assert memory[0:5] == bytes(range(10, 15)) and memory[100:110] == bytes(range(40, 50))
    assert store.get_into_ranges([memory.ptr], [["r"]], [[[199]]], [[[0]]], [[[2]]]) == [[[-600]]]
    assert store.get_into_ranges([memory.ptr], [["r"]], [[[0]]], [[[49]]], [[[2]]]) == [[[-600]]]
    assert store.get_into_ranges([memory.ptr], [["none"]], [[[0]]], [[[0]]], [[[2]]]) == [[[-704]]]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"replica_num": 0}, -600),
        ({"soft_pin_ttl_ms": 5}, -600),
        ({"nof_replica_num": 1}, -600),
        ({"dfs_replica_num": 1}, -1601),
        ({"group_ids": ["a", "b"]}, -600),
        ({"group_ids": ["a"]}, 0),
        ({"preferred_segment": "nowhere:1"}, 0),
        ({"preferred_segments": ["nowhere:1", "there:2"], "replica_num": 2}, 0),
        ({"with_hard_pin": True}, 0),
        ({"soft_pin_action": SoftPinAction.ENABLE, "soft_pin_ttl_ms": 5}, 0),
    ],
)
@surface(NAME, "ReplicateConfig", differs="a soft pin has no end of its own; group_ids are taken, and change nothing")
@surface(NAME, "ReplicateConfig: dfs_replica_num, nof_replica_num", refused="-1601, -600, as the real one without them")
def test_what_a_config_asks_for(store: Store, fields: dict[str, Any], code: int) -> None:
    assert store.put("c", b"v", config(**fields)) == code
    assert store.is_exist("c") == (code == 0)


def test_a_config_checks_its_fields() -> None:
    made = ReplicateConfig()
    for name, value in [("replica_num", -1), ("replica_num", 1.0), ("soft_pin_ttl_ms", 1 << 64), ("data_type", 1)]:
        with pytest.raises(TypeError):
            setattr(made, name, value)
    with pytest.raises(AttributeError):
        made.with_soft_pin = True
    assert str(made).startswith("ReplicateConfig: { replica_num: 1, nof_replica_num: 0")


def _other_process(master: str, folder: str, answers: Any) -> None:
    store = MooncakeDistributedStore()
    store.setup("localhost", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", master)
    answers.put((store.get("here"), store.put("there", b"from another process")))
    store.close()


def test_two_processes_share_a_store(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    store = start()
    assert store.put("here", b"value") == 0
    master = next(f"test-{number}:1" for number in range(10_000) if _is_of(store, f"test-{number}:1"))
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    child = context.Process(target=_other_process, args=(master, str(tmp_path), answers))
    child.start()
    assert answers.get(timeout=120) == (b"value", 0)
    child.join(60)
    assert store.get("there") == b"from another process"


def _is_of(store: Store, master: str) -> bool:
    from nanokv.integrations.mooncake.place import world_name

    return store.client.world.engine.heap.name == world_name(master)
