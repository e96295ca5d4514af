"""What goes wrong below the manager and its workers: blocks are missing then, and never wrong."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from vllm.v1.kv_offload.base import GPULoadStoreSpec, LookupResult

from nanokv.integrations.vllm_offload.counts import PREFIX
from tests.integrations.vllm_offload.offloaded import Offloaded
from tests.integrations.vllm_offload.other_node import OtherNode
from tests.integrations.vllm_offload.parts import keys_of
from tests.support.faults import Calls
from tests.support.until import until

Start = Callable[..., Offloaded]
MANAGER = "vLLM OffloadingManager"
HIT, MISS = LookupResult.HIT, LookupResult.MISS


@pytest.mark.surface(MANAGER, "complete_store")
def test_no_room_refuses_blocks_and_harms_none(start_spec: Start) -> None:
    engine = start_spec(size=4 * 1024)
    keys = keys_of(range(8))
    engine.compute(keys[:4])
    world = engine.manager.world
    with ExitStack() as pins:
        for key in keys[:4]:
            pins.enter_context(world.pin(engine.manager.objects(key)[0]))
        engine.manager.get_stats()
        assert engine.compute(keys[4:]) == keys[4:]
        assert engine.manager.get_stats().data["data"] == {f"{PREFIX}refused": {("NanoKV",): 4}}
        assert engine.load(keys) == [True] * 4 + [False] * 4

    def are_stored() -> bool:
        """A poller that joins free pages, because blocks were refused, has them all for a moment: again, then."""
        engine.compute(keys[4:])
        return engine.load(keys) == [False] * 4 + [True] * 4

    until(are_stored)


@pytest.mark.surface(MANAGER, "lookup")
def test_a_damaged_block_is_missed_and_dropped(start_spec: Start) -> None:
    engine = start_spec(workers=2, checksum=True)
    keys = keys_of(range(3))
    engine.compute(keys)
    world = engine.manager.world
    place = world.get_location(engine.manager.objects(keys[1])[1])
    world.engine.heap.segment(place.owner_rank)[place.payload_off + 7] ^= 1
    engine.manager.get_stats()
    assert engine.load(keys) == [True, False, True]
    told = engine.manager.get_stats().data["data"]
    assert told == {f"{PREFIX}{name}": {("NanoKV",): n} for name, n in (("loaded", 2), ("lost", 1), ("damaged", 1))}
    assert engine.compute(keys) == [keys[1]]
    assert engine.load(keys) == [True] * 3


@pytest.mark.surface(MANAGER, "worker: submit_load of a block that is gone", differs="success is False; vLLM 0.32 ends")
def test_a_load_of_a_block_that_nobody_held_fails(start_spec: Start) -> None:
    engine = start_spec()
    engine.compute(keys_of([1]))
    context = engine.request()
    engine.find(keys_of([1]), context)
    spec = engine.manager.prepare_load(keys_of([1]), context)
    engine.manager.complete_load(keys_of([1]), context)  # too early
    engine.manager.world.remove_many(engine.manager.objects(keys_of([1])[0]))
    assert engine.workers[0].submit_load(1, spec, GPULoadStoreSpec([5], [1, 0], [0, 0]))
    assert engine.end([1]) == [False]


@pytest.mark.surface(MANAGER, "lookup")
def test_a_process_that_dies_while_it_writes_holds_nobody_up(start_spec: Start) -> None:
    engine = start_spec()
    keys, world = keys_of(range(3)), engine.manager.world
    settings = {"name": "spec", "size": "4MiB", "page_bytes": 1024, "ranks": 8}
    blocks = {engine.manager.objects(key)[0]: engine.expected(key, 0).tobytes() for key in keys}
    names = list(blocks)
    whole, half = {names[0]: blocks[names[0]]}, {names[1]: blocks[names[1]]}
    with (
        OtherNode(settings, world.options.identity, whole) as writer,
        OtherNode(settings, world.options.identity, half, unfinished=True) as dying,
    ):
        assert engine.find(keys) == [HIT, MISS, MISS]
        context = engine.request()
        assert engine.find(keys[:1], context) == [HIT]
        writer.kill()
        dying.kill()
        into, job = engine.begin_load(keys[:1], context)  # the bytes outlive their process
        assert engine.end([job]) == [True]
        engine.check(keys[0], into[keys[0]])
    until(lambda: bool(engine.compute(keys)) and engine.load(keys) == [True] * 3)  # also what the dead had begun


def test_an_error_while_a_block_is_copied_leaves_nothing_half_written(start_spec: Start, calls: Calls) -> None:
    engine = start_spec()
    pages = engine.workers[0]._pages
    calls.fail(pages, "store", RuntimeError("a bug"))
    engine.compute(keys_of([1, 2]))
    calls.go_on()
    assert engine.find(keys_of([1, 2])) == [MISS, MISS]
    assert engine.compute(keys_of([1, 2])) == keys_of([1, 2])
    assert engine.load(keys_of([1, 2])) == [True, True]
    context = engine.request()
    engine.find(keys_of([1]), context)
    calls.fail(pages, "load", RuntimeError("a bug"))
    _, job = engine.begin_load(keys_of([1]), context)
    assert engine.end([job]) == [False]


def test_a_block_that_goes_while_it_is_copied_is_not_taken_for_loaded(start_spec: Start, calls: Calls) -> None:
    engine = start_spec()
    engine.compute(keys_of([1]))
    context, pages, names = engine.request(), engine.workers[0]._pages, engine.manager.objects(keys_of([1])[0])
    engine.find(keys_of([1]), context)
    spec = engine.manager.prepare_load(keys_of([1]), context)

    def replace(*_: Any) -> None:
        engine.manager.complete_load(keys_of([1]), context)  # too early: nobody holds it any more
        engine.manager.world.remove_many(names)
        engine.compute(keys_of([1]))

    calls.after(pages, "load", replace)
    assert engine.workers[0].submit_load(1, spec, GPULoadStoreSpec([5], [1, 0], [0, 0]))
    assert engine.end([1]) == [False]
