"""A worker's side of `NanoKVOffloadingSpec`: copies between the engine's cache and NanoKV's pages, by torch.

A store takes pages in the segment, copies straight into them, and publishes the object: there is no buffer between. A
load copies straight from the pages, which the manager has pinned. Both run in background threads; the engine waits only
when it must (`wait`), before it uses a block again. The cache may lie on a CPU or a GPU, the pages in host memory.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext

import torch
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

from nanokv.allocation.terms import Hold
from nanokv.errors import DuplicateKey, InvalidArgument, KeyNotFound, NanoKVError, SegmentCorrupt
from nanokv.heap.mapped_tensor import tensor_at
from nanokv.integrations.joining import JoinedStore
from nanokv.integrations.vllm_offload.chunks import Chunk, ChunkSpec, Pages, object_name
from nanokv.integrations.vllm_offload.manager import GROUP
from nanokv.keys.hashing import shown_tag, tag_of
from nanokv.seldom import Seldom

logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is under its own name
_CPU = torch.device("cpu")


class NanoKVOffloadingWorker(OffloadingWorker):
    """The copies of one worker. Its methods are for one thread: the worker's.

    Args:
        joined: the world, which the worker closes.
        number: of the worker.
        threads: that copy at a time, in each direction.
    """

    def __init__(
        self,
        joined: JoinedStore,
        kv_caches: CanonicalKVCaches,
        blocks_per_chunk: int,
        number: int,
        threads: int,
    ) -> None:
        self._joined, self._world, self._number = joined, joined.world, number
        self._tag = tag_of(self._world.digest(b""))
        self._pages = Pages(kv_caches, blocks_per_chunk)
        self._stores = ThreadPoolExecutor(threads, "nanokv-offload-store")
        self._loads = ThreadPoolExecutor(threads, "nanokv-offload-load")
        self._running: dict[int, Future[TransferResult]] = {}
        self._seldom = Seldom(logger)

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """Begin to copy blocks to NanoKV. True.

        Raises:
            InvalidArgument: the specs do not fit each other, or are of another manager.
        """
        return self._submit(self._stores, job_id, src_spec, dst_spec, self._store)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Begin to copy blocks from NanoKV. True.

        Raises:
            InvalidArgument: as `submit_store`.
        """
        return self._submit(self._loads, job_id, dst_spec, src_spec, self._load)

    def _submit(
        self,
        pool: ThreadPoolExecutor,
        job_id: int,
        blocks: GPULoadStoreSpec,
        spec: LoadStoreSpec,
        copy: Callable[[bytes, Chunk, int], bool],
    ) -> bool:
        if not isinstance(spec, ChunkSpec):
            raise InvalidArgument(f"the manager must be NanoKVOffloadingManager: {spec!r} is no ChunkSpec")
        if spec.tag != self._tag:
            mine, theirs = shown_tag(self._tag), shown_tag(spec.tag)
            raise InvalidArgument(f"the scheduler's configuration is not this worker's: {theirs}, and not {mine}")
        chunks = list(zip(spec.names, list(self._pages.chunks(blocks, len(spec.names))), strict=True))
        stream = _in_order(self._pages.device)
        self._joined.check_process()
        self._running[job_id] = pool.submit(self._run, job_id, chunks, spec.segment, copy, stream)
        return True

    def get_finished(self) -> list[TransferResult]:
        """The jobs that have ended since the last call. A store has succeeded also if NanoKV had no room for blocks:
        they are not found afterwards. A load has, if all its blocks are there."""
        ended = [job_id for job_id, future in self._running.items() if future.done()]
        return [self._running.pop(job_id).result() for job_id in ended]

    def wait(self, job_ids: set[int]) -> None:
        """Wait until jobs have ended."""
        wait([self._running[job_id] for job_id in job_ids if job_id in self._running])

    def shutdown(self) -> None:
        """End all jobs, and leave the world. Idempotent."""
        for pool in (self._loads, self._stores):
            pool.shutdown(wait=True)
        self._joined.close()

    # --- in a background thread ---
    def _run(
        self,
        job_id: int,
        chunks: list[tuple[bytes, Chunk]],
        segment: int,
        copy: Callable[[bytes, Chunk, int], bool],
        stream: AbstractContextManager[object],
    ) -> TransferResult:
        started, success, copied = time.perf_counter(), True, 0
        with stream:
            for name, chunk in chunks:
                done = copy(object_name(name, self._number), chunk, segment)
                success &= done
                copied += self._pages.nbytes(chunk.group) if done else 0
        return TransferResult(job_id, success, copied, time.perf_counter() - started)

    def _store(self, name: bytes, chunk: Chunk, segment: int) -> bool:
        if not self._pages.is_whole(chunk):
            return True  # a request whose window begins elsewhere would load what was never written
        nbytes = self._pages.nbytes(chunk.group)
        try:
            plan = self._world.open_for_write(name, nbytes, preferred_segment=segment, hold=Hold(group=GROUP))
        except DuplicateKey:  # of another engine: the same bytes
            return True
        except NanoKVError as error:
            self._warn("blocks were not stored", error)
            return True
        try:
            self._pages.store(chunk, self._payload(plan.dst_rank, plan.payload_base, nbytes))
            self._finish_copies()
            self._world.commit(name)
        except Exception as error:
            self._warn("blocks were not stored", error)
            self._abort(name)
        return True

    def _abort(self, name: bytes) -> None:
        try:
            self._world.abort(name)
        except NanoKVError as error:
            logger.debug("NanoKV: %s", error)  # given up already

    def _load(self, name: bytes, chunk: Chunk, segment: int) -> bool:
        try:
            place = self._world.get_location(name)
            if place.bytes_total != self._pages.nbytes(chunk.group):
                raise SegmentCorrupt(f"a block has {place.bytes_total} bytes")
            self._pages.load(chunk, self._payload(place.owner_rank, place.payload_off, place.bytes_total))
            self._finish_copies()
            if self._world.get_location(name) != place:  # nobody held it
                raise KeyNotFound("a block went while it was copied")
        except Exception as error:
            self._warn("blocks were not loaded", error)
            return False
        return True

    def _payload(self, rank: int, offset: int, nbytes: int) -> torch.Tensor:
        """Bytes of a segment, int8, sharing memory, which this worker keeps mapped."""
        return tensor_at(self._world.remote_ptr(rank, offset), nbytes, _CPU, self._world).view(torch.int8)

    def _finish_copies(self) -> None:
        if self._pages.device.type == "cuda":
            torch.cuda.current_stream(self._pages.device).synchronize()

    def _warn(self, what: str, error: Exception) -> None:
        self._seldom.warn(f"{what}: {type(error).__name__}", f"NanoKV: {what}: {error}")


def _in_order(device: torch.device) -> AbstractContextManager[object]:
    """Where a job copies: on a GPU a stream of its own, after the kernels that this thread has launched so far."""
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)
