"""vLLM's `TieringOffloadingSpec` on a CPU, for tests: only its worker, which asks for a GPU, is another one.

The region, the primary tier, the managers and the scheduler's side are vLLM's own. The worker copies between the
engine's cache and the rows of the region at once, when a job is submitted.
"""

from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from nanokv.integrations.vllm_offload.chunks import Pages


class CopyingWorker(OffloadingWorker):  # type: ignore[misc]  # vLLM is not there where types are checked
    """Copies to and from the rows of a region."""

    def __init__(self, region: SharedOffloadRegion, pages: Pages, row_bytes: int, start: int) -> None:
        self._region, self._pages, self._start = region, pages, start
        self._rows = region.base_tensor.view(-1, row_bytes)
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        return self._copy(job_id, src_spec, dst_spec, load=False)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return self._copy(job_id, dst_spec, src_spec, load=True)

    def _copy(self, job_id: int, blocks: GPULoadStoreSpec, rows: LoadStoreSpec, *, load: bool) -> bool:
        assert isinstance(rows, CPULoadStoreSpec)
        copy = self._pages.load if load else self._pages.store
        for row, chunk in zip(rows.chunk_ids, self._pages.chunks(blocks, len(rows.chunk_ids)), strict=True):
            copy(chunk, self._rows[row][self._start : self._start + self._pages.nbytes(chunk.group)])
        self._done.append(TransferResult(job_id, True))
        return True

    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        pass

    def shutdown(self) -> None:
        del self._rows
        self._region.cleanup()


class CPUTieringSpec(TieringOffloadingSpec):  # type: ignore[misc]
    """Tiers on a CPU."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        page, rank = self.cpu_page_size_per_worker, self.config.parallel.rank
        region = SharedOffloadRegion(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=page,
        )
        pages = Pages(kv_caches, self.blocks_per_chunk)
        return CopyingWorker(region, pages, self.kv_bytes_per_chunk, rank * page)
