"""vLLM's scheduler side, played by a test: it fills the primary tier as a GPU would, and takes the steps."""

import itertools
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingManager,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

MODULE = "nanokv.integrations.vllm_offload"
BLOCK_BYTES = 5000  #: of one worker: no multiple of anything
PATIENCE = 60.0  #: seconds, far above the usual
Row = npt.NDArray[np.uint8]
_numbers = itertools.count()


def config(extra: dict[str, Any] | None = None, *, workers: int = 1, events: bool = False) -> OffloadingConfig:
    """What vLLM hands to a spec."""
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(16, ("layers.0", "layers.1"), 0),),
        worker_kv_bytes_per_block=BLOCK_BYTES,
        enable_kv_cache_events=events,
        extra_config=extra or {},
        engine_id=f"nanokv-test-{os.getpid()}-{next(_numbers)}",
        model=OffloadingModelConfig("a-model", "bfloat16"),
        cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=OffloadingParallelConfig(
            rank=0,
            world_size=workers,
            tp_size=workers,
            pp_size=1,
            pcp_size=1,
            dcp_size=1,
            data_parallel_index=0,
            data_parallel_size=1,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=False,
        ),
        kv_cache_layout="LBHNC",
    )


def keys_of(numbers: Iterable[int], group: int = 0) -> list[OffloadKey]:
    """Keys of vLLM's kind."""
    return [make_offload_key(number.to_bytes(32, "big"), group) for number in numbers]


def content(key: OffloadKey, nbytes: int) -> Row:
    """The bytes that the block of a key has in all tests."""
    return np.random.default_rng(list(key)).integers(0, 256, nbytes, np.uint8)


class Tiered:
    """A `TieringOffloadingManager` with NanoKV below, made by vLLM's own factories from an `extra_config`."""

    def __init__(
        self,
        chunks: int = 4,
        workers: int = 1,
        events: bool = False,
        change: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        given = {"name": "tier", "size": "8MiB", "page_bytes": 4096, "ranks": 4} | settings
        tier = {"type": "NanoKVTier", "module_path": MODULE} | given
        row = -(-BLOCK_BYTES * workers // 4096) * 4096
        extra = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": chunks * row, "secondary_tiers": [tier]}
        made = replace(config(extra, workers=workers, events=events), **(change or {}))
        self.manager: Any = OffloadingSpecFactory.create_spec(made).get_manager()
        self.tier: Any = self.manager.secondary_tiers[0]
        self.primary: Any = self.manager.primary_tier
        self.rows: Row = np.asarray(self.primary.get_kv_memoryview()).view(np.uint8)
        self.row_bytes = self.rows.shape[1]
        self._open = True

    # --- what an engine does ---
    def request(self) -> ReqContext:
        """A new request."""
        context = ReqContext(f"request-{next(_numbers)}")
        self.manager.on_new_request(context)
        return context

    def step(self) -> None:
        """The end of a scheduler's step."""
        self.manager.on_schedule_end(ScheduleEndContext([], ()))

    def compute(self, keys: Sequence[OffloadKey], request: ReqContext | None = None) -> list[OffloadKey]:
        """The GPU has computed blocks, which go to the primary tier, and from there to NanoKV; returns the new ones."""
        context = request or self.request()
        output = self.manager.prepare_store(keys, context)
        assert output is not None, "the primary tier is full"
        for key, chunk in zip(output.keys_to_store, output.store_spec.chunk_ids, strict=True):
            self.rows[chunk] = content(key, self.row_bytes)
        if output.keys_to_store:
            self.manager.complete_store(output.keys_to_store, context)
        if request is None:
            self.manager.on_request_finished(context)
        self.settle()
        return list(output.keys_to_store)

    def settle(self) -> None:
        """Until no transfer is under way."""
        self.step()
        self.tier.drain_jobs()
        self.step()
        assert not self.manager.has_pending_work()

    def find(self, keys: Sequence[OffloadKey], context: ReqContext) -> list[LookupResult]:
        """What the look-ups say in the end: steps are taken as long as one of them says "later"."""
        end = time.monotonic() + PATIENCE
        while True:
            found = [self.manager.lookup(key, context) for key in keys]
            if not {LookupResult.RETRY, LookupResult.HIT_PENDING} & set(found):
                return found
            assert time.monotonic() < end, "it stays pending"
            self.step()
            self.tier.drain_jobs()

    def load(self, keys: Sequence[OffloadKey], request: ReqContext | None = None) -> list[Row | None]:
        """The bytes of blocks as the GPU would get them; None for a miss."""
        context = request or self.request()
        hits = [key for key, found in zip(keys, self.find(keys, context), strict=True) if found is LookupResult.HIT]
        spec = self.manager.prepare_load(hits, context)
        got = {key: self.rows[chunk].copy() for key, chunk in zip(hits, spec.chunk_ids, strict=True)}
        self.manager.complete_load(hits, context)
        if request is None:
            self.manager.on_request_finished(context)
            self.settle()
        return [got.get(key) for key in keys]

    def forget(self) -> None:
        """Empty the primary tier; NanoKV keeps what it has."""
        self.manager.reset_cache()

    def close(self) -> None:
        """Shut down. Idempotent."""
        if self._open:
            self._open = False
            self.rows = np.empty((0, 0), np.uint8)  # else the memoryview could not be released
            self.manager.shutdown()


def right(tiered: Tiered, keys: Sequence[OffloadKey], rows: Sequence[Row | None]) -> list[bool]:
    """Which blocks were there. Those that were must have the right bytes."""
    for key, row in zip(keys, rows, strict=True):
        assert row is None or np.array_equal(row, content(key, tiered.row_bytes)), "wrong bytes"
    return [row is not None for row in rows]


def step_of(manager: OffloadingManager) -> None:
    """The end of a step of any manager."""
    manager.on_schedule_end(ScheduleEndContext([], ()))
