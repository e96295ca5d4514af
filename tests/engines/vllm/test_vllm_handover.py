"""Real vLLM engines, prefill in one process and decode in another: every token as by one engine alone."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from nanokv.bench.vllm.model import make_model
from nanokv.bench.vllm.process import EngineFailed, EngineProcess, connector
from nanokv.heap.shm_tools import list_worlds
from nanokv.integrations.vllm.worker import UNNAMED
from tests.engines.vllm.conftest import PROMPTS, TOKENS, Pair, Start, blocks_of, but_one, total, whole_blocks

StartPair = Callable[..., Pair]
FEW = PROMPTS[:12]


def test_every_token_is_as_by_one_engine_alone(start_pair: StartPair, expected: list[list[int]]) -> None:
    pair = start_pair()
    pair.hand_over(PROMPTS)
    found = pair.generate(PROMPTS)
    assert found["tokens"] == expected
    assert found["cached"] == but_one(PROMPTS)
    assert total(pair.decode, "gets") == blocks_of(PROMPTS)  # every block came from the world
    # the control: what is loaded is what was stored
    assert pair.decode.ask("alter") > 0
    altered = pair.generate(FEW)["tokens"]
    assert all(mine != theirs for mine, theirs in zip(altered, expected, strict=False))


def test_a_small_segment_evicts_and_tokens_stay_right(start_pair: StartPair, expected: list[list[int]]) -> None:
    pair = start_pair({"size": "2MiB", "hold": 0})
    pair.hand_over(PROMPTS)
    found = pair.generate(PROMPTS)
    assert found["tokens"] == expected
    assert total(pair.prefill, "evictions") > 0
    assert 0 < sum(found["cached"]) < sum(but_one(PROMPTS))


def test_what_is_held_waits_for_its_reader(start_pair: StartPair, expected: list[list[int]]) -> None:
    pair = start_pair({"size": "3MiB", "hold": 600})
    pair.hand_over(FEW)
    pair.hand_over(PROMPTS)  # more than fits: the first ones stay until they are read
    found = pair.generate(FEW)
    assert found["tokens"] == expected[: len(FEW)]
    assert found["cached"] == but_one(FEW)
    assert total(pair.prefill, "evictions") == 0


def test_a_block_that_vanishes_before_its_load_is_computed(start_pair: StartPair, expected: list[list[int]]) -> None:
    for load in ("async", "layer"):
        pair = start_pair({"load": load})
        pair.hand_over(FEW)
        pair.decode.ask("drop", after_lookup=True)
        found = pair.generate(FEW)
        assert found["tokens"] == expected[: len(FEW)], load
        assert "blocks of request-" in pair.decode.log()
        pair.close()


@pytest.mark.parametrize("load", ["async", "layer"])
def test_what_is_computed_beside_a_lost_block_is_not_stored(start: Start, expected: list[list[int]], load: str) -> None:
    """An engine that also stores: with layer-by-layer loads it computes before it knows that blocks are lost."""
    engine = start("kv_both", load=load)
    engine.ask("generate", prompts=FEW, tokens=TOKENS)
    assert engine.ask("forget")
    engine.ask("drop", after_lookup=True)
    assert engine.ask("generate", prompts=FEW, tokens=TOKENS)["tokens"] == expected[: len(FEW)]
    assert "are gone, and are computed" in engine.log()
    for _ in range(2):  # with what was stored meanwhile, and with what these requests store
        assert engine.ask("forget")
        assert engine.ask("generate", prompts=PROMPTS, tokens=TOKENS)["tokens"] == expected


def test_a_prefill_engine_is_killed_midway(start_pair: StartPair, expected: list[list[int]]) -> None:
    pair = start_pair()
    pair.prefill.begin("generate", prompts=PROMPTS, tokens=64)
    deadline = time.monotonic() + 60
    while not total(pair.decode, "ready") and time.monotonic() < deadline:
        time.sleep(0.01)
    pair.prefill.kill()
    found = pair.generate(PROMPTS)
    assert found["tokens"] == expected
    assert sum(found["cached"]) > 0
    pair.start_prefill().wait()
    pair.hand_over(PROMPTS)
    again = pair.generate(PROMPTS)
    assert (again["tokens"], again["cached"]) == (expected, but_one(PROMPTS))


def test_a_decode_engine_is_killed_and_started_again(start_pair: StartPair, expected: list[list[int]]) -> None:
    pair = start_pair()
    pair.hand_over(FEW)
    pair.decode.begin("generate", prompts=FEW, tokens=200)
    pair.decode.kill()
    pair.hand_over(PROMPTS)  # nobody reads: what cannot be stored is no error
    pair.start_decode().wait()
    pair.hand_over(PROMPTS)
    found = pair.generate(PROMPTS)
    assert found["tokens"] == expected
    assert found["cached"] == but_one(PROMPTS)


@pytest.mark.parametrize("other", ["weights", "dtype"])
def test_another_model_shares_nothing(
    start_pair: StartPair, tmp_path: Path, model: Path, expected: list[list[int]], other: str
) -> None:
    """The same architecture and the same prompts, with other weights or another dtype, under one name of a world."""
    of_decode: dict[str, Any] = (
        {"model": str(make_model(tmp_path / "other", seed=7))} if other == "weights" else {"dtype": "bfloat16"}
    )
    pair = start_pair({"page_bytes": "32KiB"}, of_decode=of_decode)
    pair.hand_over(FEW)
    found = pair.generate(FEW)
    assert total(pair.decode, "gets") == 0
    assert total(pair.decode, "ready") > 0
    with EngineProcess(model, **of_decode) as alone:
        assert found["tokens"] == alone.ask("generate", prompts=FEW, tokens=TOKENS)["tokens"]
    assert found["tokens"] != expected[: len(FEW)]


def test_requests_with_other_salts_share_nothing(start_pair: StartPair, expected: list[list[int]]) -> None:
    pair = start_pair()
    pair.prefill.ask("generate", prompts=FEW, tokens=1, salt="tenant a")
    for salt, cached in (("tenant b", [0] * len(FEW)), (None, [0] * len(FEW)), ("tenant a", but_one(FEW))):
        assert pair.decode.ask("forget")
        found = pair.decode.ask("generate", prompts=FEW, tokens=TOKENS, salt=salt)
        assert found["tokens"] == expected[: len(FEW)]
        if cached[0]:
            assert found["cached"] == cached
        else:
            assert total(pair.decode, "gets") == 0


def test_aborted_and_preempted_requests(start: Start, alone: EngineProcess, expected: list[list[int]]) -> None:
    """An engine that stores and loads, with room for few requests at a time."""
    engine = start("kv_both", {"num_gpu_blocks_override": 40, "max_model_len": 640})
    prompts = PROMPTS[:16]
    long = alone.ask("generate", prompts=prompts, tokens=120)["tokens"]
    for _ in range(2):
        assert engine.ask("generate", prompts=prompts, tokens=120)["tokens"] == long
        assert engine.ask("forget")
    for steps in (1, 2, 3, 5):  # while requests load, and while they are computed
        found = engine.ask("generate", prompts=prompts, tokens=120, abort_after=steps)
        assert found["tokens"][1::2] == long[1::2]
        assert engine.ask("forget")
    assert engine.ask("generate", prompts=PROMPTS, tokens=TOKENS)["tokens"] == expected
    assert engine.ask("preemptions") > 0


def test_beside_another_connector(model: Path, tmp_path: Path, expected: list[list[int]]) -> None:
    """In a MultiConnector, first and second."""
    example = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
    }
    mine = {
        "kv_connector": "NanoKVConnector",
        "kv_connector_module_path": "nanokv.integrations.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"nanokv.size": "64MiB"},
    }
    both = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": [mine, example]},
    }
    with EngineProcess(model, both) as engine:
        for cached in (None, whole_blocks(FEW)):
            found = engine.ask("generate", prompts=FEW, tokens=TOKENS)
            assert found["tokens"] == expected[: len(FEW)]
            if cached:
                assert found["cached"] == cached
            assert engine.ask("forget")
        assert total(engine, "gets") > 0


def test_tensor_parallel_workers(model: Path) -> None:
    """Two workers in processes of their own: each stores and loads its heads, the scheduler asks both."""
    environment = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    with EngineProcess(model, connector("kv_both", size="64MiB"), environment, tensor_parallel_size=2) as engine:
        computed = engine.ask("generate", prompts=FEW, tokens=TOKENS)["tokens"]
        assert engine.ask("forget")
        loaded = engine.ask("generate", prompts=FEW, tokens=TOKENS)
        assert (loaded["tokens"], loaded["cached"]) == (computed, whole_blocks(FEW))
        gets = [stats["gets"] for stats in engine.ask("stats")]
        assert len(gets) == 2
        assert gets[0] == gets[1] > 0
        assert engine.ask("alter") > 0
        assert engine.ask("forget")
        altered = engine.ask("generate", prompts=FEW, tokens=TOKENS)["tokens"]
        assert all(mine != theirs for mine, theirs in zip(altered, computed, strict=True))


def test_a_killed_engine_of_several_workers_leaves_no_memory_to_the_next_one(model: Path) -> None:
    """It has no name, so no engine would ever look for its world: the next such engine removes it."""

    def unnamed() -> set[str]:
        return {name for name in list_worlds() if name.startswith(UNNAMED)}  # other tests have worlds beside these

    before = unnamed()

    def started() -> EngineProcess:
        environment = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
        return EngineProcess(model, connector("kv_both", size="64MiB"), environment, tensor_parallel_size=2).wait()

    with started() as killed:
        assert killed.ask("generate", prompts=FEW, tokens=TOKENS)
        (left,) = unnamed() - before
        killed.kill()
    with started() as engine:
        assert engine.ask("generate", prompts=FEW, tokens=TOKENS)
        (mine,) = unnamed() - before
        assert mine != left


@pytest.mark.parametrize(("writers", "readers"), [(2, 1), (1, 2)])
def test_engines_of_other_tensor_parallel_degrees(model: Path, writers: int, readers: int) -> None:
    """The reader takes its heads from the objects of all writers that have them."""
    name, ranks = f"test-vllm-tp-{os.getpid()}-{writers}", writers + readers
    flags = {"name": name, "world_size": ranks, "size": "64MiB"}
    parallel: list[dict[str, Any]] = [
        {"tensor_parallel_size": count} if count > 1 else {} for count in (writers, readers)
    ]
    binds = [{"VLLM_CPU_OMP_THREADS_BIND": "0|1"} if count > 1 else {} for count in (writers, readers)]
    producer = connector("kv_producer", rank=0, target=writers, **flags)
    consumer = connector("kv_consumer", rank=writers, **flags)
    with (
        EngineProcess(model, producer, binds[0], **parallel[0]) as prefill,
        EngineProcess(model, consumer, binds[1], **parallel[1]) as decode,
    ):
        computed = prefill.ask("generate", prompts=FEW, tokens=TOKENS)["tokens"]
        found = decode.ask("generate", prompts=FEW, tokens=TOKENS)
        assert (found["tokens"], found["cached"]) == (computed, but_one(FEW))
        assert total(decode, "gets") == readers * blocks_of(FEW)
        assert decode.ask("alter") + prefill.ask("alter") > 0
        assert decode.ask("forget")
        altered = decode.ask("generate", prompts=FEW, tokens=TOKENS)["tokens"]
        assert all(mine != theirs for mine, theirs in zip(altered, computed, strict=True))


def test_a_target_that_is_no_rank_is_told_and_nothing_is_stored_there(start: Start, expected: list[list[int]]) -> None:
    engine = start("kv_both")
    for wrong in (99, -1, "1", True):
        found = engine.ask("generate", prompts=FEW, tokens=TOKENS, parameters={"nanokv.target": wrong})
        assert found["tokens"] == expected[: len(FEW)]
        assert engine.ask("forget")
    assert total(engine, "puts") == 0
    assert "nanokv.target=99 of a request is none of 1 ranks" in engine.log()


def test_engines_whose_blocks_differ_in_size_are_told_so(model: Path) -> None:
    """In the words of vLLM's settings: the world itself knows pages only. The one that comes second is refused."""
    flags = {"name": f"test-vllm-sizes-{os.getpid()}", "world_size": 2, "size": "64MiB", "attach_timeout": 30}
    engines = [
        EngineProcess(model, connector("kv_both", rank=rank, target=rank, **flags), block_size=size)
        for rank, size in enumerate((32, 64))
    ]
    said = []
    for engine in engines:
        with pytest.raises(EngineFailed) as refused:  # the first one waits for the other in vain
            engine.wait()
        said.append(str(refused.value))
        engine.close()
    assert any(re.search(r"cache.block_size (32, here 64|64, here 32)", each) for each in said), said
