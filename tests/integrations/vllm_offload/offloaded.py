"""An engine's two sides over `NanoKVOffloadingSpec`, played by a test: a scheduler, and workers with two groups.

What a chunk holds on a worker follows from its key, so that every load can be checked. The pages are written and read
here by the definition of vLLM's `CanonicalKVCaches`, not by the code under test.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
    LookupResult,
    OffloadKey,
    ReqContext,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.config import OffloadingGroupConfig
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

from tests.integrations.vllm_offload.parts import MODULE, Row, config, content, step_of

BLOCKS = 48  #: of each engine's cache
PADDED = (128, 64, 48)  #: bytes of a page of each tensor
GROUPS = (((0, 100), (1, 60)), ((2, 48),))  #: per group of layers: the tensor, and the bytes of a page that are used
BLOCK_BYTES = 208  #: of all pages of a block, without padding
_numbers = itertools.count()


def caches() -> CanonicalKVCaches:
    """An engine's cache on a CPU, of random bytes."""
    tensors = [torch.randint(-128, 128, (BLOCKS, size), dtype=torch.int8) for size in PADDED]
    return CanonicalKVCaches(
        [CanonicalKVCacheTensor(tensor, size) for tensor, size in zip(tensors, PADDED, strict=True)],
        [[CanonicalKVCacheRef(tensor, size) for tensor, size in group] for group in GROUPS],
    )


class Offloaded:
    """One engine.

    Args:
        settings: of the spec, without their prefix.
    """

    def __init__(
        self,
        workers: int = 1,
        per_chunk: int = 1,
        events: bool = False,
        change: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        given = {"name": "spec", "size": "4MiB", "page_bytes": 1024, "ranks": 8} | settings
        extra: dict[str, Any] = {"spec_name": "NanoKVOffloadingSpec", "spec_module_path": MODULE}
        extra |= {f"nanokv.{name}": value for name, value in given.items()}
        groups = (OffloadingGroupConfig(16, ("a", "b"), 0), OffloadingGroupConfig(16, ("c",), 1))
        made = replace(config(extra, workers=workers, events=events), groups=groups)
        made = replace(
            made, worker_kv_bytes_per_block=BLOCK_BYTES, cache=replace(made.cache, blocks_per_chunk=per_chunk)
        )
        made = replace(made, **(change or {}))
        self.per_chunk, self.caches = per_chunk, [caches() for _ in range(workers)]
        self.manager: Any = OffloadingSpecFactory.create_spec(made).get_manager()
        self.workers: list[Any] = []
        for rank, cache in enumerate(self.caches):
            mine = replace(made, parallel=replace(made.parallel, rank=rank))
            self.workers.append(OffloadingSpecFactory.create_spec(mine).get_worker(cache))
        self._next = 0
        self._open = True

    # --- the engine's cache ---
    def blocks(self, count: int) -> list[int]:
        """Blocks of the cache for the next chunk, in turn."""
        found = [(self._next + i) % BLOCKS for i in range(count)]
        self._next += count
        return found

    def fill(self, key: OffloadKey, blocks: Sequence[int]) -> None:
        """Every worker computes a chunk."""
        for worker, cache in enumerate(self.caches):
            data, at = self.expected(key, worker), 0
            for block in blocks:
                for tensor, size in GROUPS[get_offload_group_idx(key)]:
                    page = torch.from_numpy(data[at : at + size].view(np.int8).copy())
                    cache.tensors[tensor].tensor[block, :size] = page
                    at += size

    def expected(self, key: OffloadKey, worker: int) -> Row:
        """What a chunk holds on a worker."""
        size = sum(size for _, size in GROUPS[get_offload_group_idx(key)]) * self.per_chunk
        return content(OffloadKey(key + bytes([worker])), size)

    def check(self, key: OffloadKey, blocks: Sequence[int], first: int = 0) -> None:
        """The blocks hold a chunk, from its block `first` on, on every worker."""
        for worker, cache in enumerate(self.caches):
            got = b""
            for block in blocks:
                for tensor, size in GROUPS[get_offload_group_idx(key)]:
                    got += cache.tensors[tensor].tensor[block, :size].numpy().tobytes()
            whole = self.expected(key, worker).tobytes()
            start = len(whole) // self.per_chunk * first
            assert got == whole[start : start + len(got)], "wrong bytes"

    # --- what the scheduler and the workers do ---
    def request(self) -> ReqContext:
        """A new request."""
        context = ReqContext(f"request-{next(_numbers)}")
        self.manager.on_new_request(context)
        return context

    def begin_store(self, keys: Sequence[OffloadKey], context: ReqContext) -> tuple[list[OffloadKey], int]:
        """Submit the stores of the new chunks among some, group 0 before group 1; returns these, and the job."""
        output = self.manager.prepare_store(keys, context)
        assert output.evicted_keys == []
        new = list(output.keys_to_store)
        blocks: list[list[int]] = [[], []]
        for key in new:
            mine = self.blocks(self.per_chunk)
            self.fill(key, mine)
            blocks[get_offload_group_idx(key)] += mine
        job, spec = next(_numbers), GPULoadStoreSpec(list(chain(*blocks)), [len(each) for each in blocks], [0, 0])
        for worker in self.workers:
            assert worker.submit_store(job, spec, output.store_spec)
        return new, job

    def compute(self, keys: Sequence[OffloadKey], success: bool = True) -> list[OffloadKey]:
        """Chunks are computed and offloaded; returns the new ones."""
        context = self.request()
        new, job = self.begin_store(keys, context)
        self.end([job])
        self.manager.complete_store(new, context, success)
        self.manager.on_request_finished(context)
        step_of(self.manager)
        return new

    def end(self, jobs: Sequence[int]) -> list[bool]:
        """Wait for jobs on all workers; returns the success of each."""
        found = []
        for worker in self.workers:
            worker.wait(set(jobs))
            found += [result.success for result in worker.get_finished() if result.job_id in jobs]
        assert len(found) == len(jobs) * len(self.workers)
        return found

    def find(self, keys: Sequence[OffloadKey], context: ReqContext | None = None) -> list[LookupResult]:
        """What look-ups say."""
        mine = context or self.request()
        found = [self.manager.lookup(key, mine) for key in keys]
        if context is None:
            self.manager.on_request_finished(mine)
        return found

    def begin_load(self, keys: Sequence[OffloadKey], context: ReqContext) -> tuple[dict[OffloadKey, list[int]], int]:
        """Submit the load of chunks that were found, of group 0 before group 1; returns their blocks, and the job."""
        return self.submit_load(keys, self.manager.prepare_load(keys, context))

    def submit_load(self, keys: Sequence[OffloadKey], spec: Any) -> tuple[dict[OffloadKey, list[int]], int]:
        """The same, of what `prepare_load` said."""
        into = {key: self.blocks(self.per_chunk) for key in keys}
        sizes = [sum(get_offload_group_idx(key) == group for key in keys) * self.per_chunk for group in (0, 1)]
        job, blocks = next(_numbers), GPULoadStoreSpec(list(chain(*into.values())), sizes, [0, 0])
        for worker in self.workers:
            assert worker.submit_load(job, spec, blocks)
        return into, job

    def load(self, keys: Sequence[OffloadKey]) -> list[bool]:
        """Which chunks were found. Those that were are loaded, and have the right bytes."""
        context = self.request()
        found = self.find(keys, context)
        hits = [key for key, result in zip(keys, found, strict=True) if result is LookupResult.HIT]
        if hits:
            into, job = self.begin_load(hits, context)
            assert all(self.end([job]))
            for key, blocks in into.items():
                self.check(key, blocks)
            self.manager.complete_load(set(hits), context)
        self.manager.on_request_finished(context)
        return [result is LookupResult.HIT for result in found]

    def close(self) -> None:
        """Shut down. Idempotent."""
        if self._open:
            self._open = False
            for worker in self.workers:
                worker.shutdown()
            self.manager.shutdown()
