"""Transfers between the rows of a primary tier and NanoKV, in background threads.

What vLLM counts on: every job that was submitted ends, with one result, whatever happens to it; a job that has begun is
never given up midway; and no thread touches a row after the result of its job was handed out. A job runs as one task of
a thread pool and turns every error into a result, so the first holds; the second and third follow, because a task hands
out its result when it ends, and only tasks that have not begun are cancelled.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import torch
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import OffloadKey
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob

from nanokv.errors import DuplicateKey, NanoKVError, SegmentCorrupt
from nanokv.integrations.joining import Joined
from nanokv.seldom import Seldom

logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is under its own name


@dataclass(slots=True)
class Done:
    """A job that has ended.

    Attributes:
        stored, known, loaded, lost: the job's keys that were stored, had an object already, were loaded, and were not
            there (any more). What is in none of them was refused.
        damaged: of those lost, how many had an object with a wrong checksum, or wrong control words.
    """

    job: TransferJob
    seconds: float = 0.0
    stored: list[OffloadKey] = field(default_factory=list)
    known: list[OffloadKey] = field(default_factory=list)
    loaded: list[OffloadKey] = field(default_factory=list)
    lost: list[OffloadKey] = field(default_factory=list)
    damaged: int = 0

    @property
    def refused(self) -> int:
        """Keys that were not stored."""
        return 0 if self.job.is_promotion else len(self.job.keys) - len(self.stored) - len(self.known)

    def result(self, row_bytes: int) -> JobResult:
        """As vLLM takes it."""
        failed = bool(self.lost) or self.refused > 0
        return JobResult(
            self.job.job_id,
            success=not failed,
            successful_keys=tuple(self.loaded) if failed and self.loaded else None,
            transfer_time=self.seconds,
            transfer_bytes=row_bytes * (len(self.stored) + len(self.loaded)),
        )


class Jobs:
    """The transfers of one tier. Its methods are for one thread: the scheduler's.

    Args:
        rows: the primary tier, uint8 [chunks, bytes]: objects are copied straight from and into its rows.
        segment: the rank in whose segment rows are stored; None: that of a key's home.
        threads: per direction, so that no load waits for stores.
    """

    def __init__(self, joined: Joined, rows: torch.Tensor, segment: int | None, threads: int) -> None:
        self._joined = joined
        self._store, self._world, self._rows, self._segment = joined.cache, joined.world, rows, segment
        self._stores = ThreadPoolExecutor(threads, "nanokv-offload-store")
        self._loads = ThreadPoolExecutor(threads, "nanokv-offload-load")
        self._running: dict[int, tuple[TransferJob, Future[Done]]] = {}
        self._seldom = Seldom(logger)

    def submit_store(self, job: TransferJob) -> None:
        """Begin to store the rows of a job."""
        self._submit(self._stores, job, self._run_store)

    def submit_load(self, job: TransferJob) -> None:
        """Begin to load the rows of a job."""
        self._submit(self._loads, job, self._run_load)

    def _submit(self, pool: ThreadPoolExecutor, job: TransferJob, run: Callable[[Done], None]) -> None:
        self._joined.check_process()
        self._running[job.job_id] = job, pool.submit(self._run, job, run)

    def touch(self, keys: Collection[OffloadKey]) -> None:
        """Mark the objects of this host as used, in the background."""
        self._joined.check_process()
        self._stores.submit(self._touch_each, list(keys))

    def finished(self) -> list[Done]:
        """The jobs that have ended since the last call."""
        ended = [(number, *running) for number, running in self._running.items() if running[1].done()]
        for number, _, _ in ended:
            del self._running[number]
        return [_given_up(job) if future.cancelled() else future.result() for _, job, future in ended]

    def drain(self) -> None:
        """Wait until all jobs have ended."""
        wait([future for _, future in self._running.values()])

    def close(self) -> None:
        """Cancel the jobs that have not begun, wait for the others, and let go of the rows. Idempotent."""
        for pool in (self._loads, self._stores):
            pool.shutdown(wait=True, cancel_futures=True)
        self._rows = torch.empty(0, dtype=torch.uint8, device="cpu")

    # --- in a background thread ---
    def _run(self, job: TransferJob, run: Callable[[Done], None]) -> Done:
        done, started = Done(job), time.perf_counter()
        try:
            run(done)
        except Exception as error:
            self._warn("a job failed", error)
            done = _given_up(job)
        done.seconds = time.perf_counter() - started
        return done

    def _run_store(self, done: Done) -> None:
        keys, rows = list(done.job.keys), self._chosen([int(chunk) for chunk in done.job.chunk_ids])
        for key, error in zip(keys, self._store.put_many(keys, rows, preferred_segment=self._segment), strict=True):
            if error is None:
                done.stored.append(key)
            elif isinstance(error, DuplicateKey):  # its bytes are the same: the key says what they are of
                done.known.append(key)
            else:
                self._warn("blocks were not stored", error)

    def _run_load(self, done: Done) -> None:
        keys, rows = list(done.job.keys), self._chosen([int(chunk) for chunk in done.job.chunk_ids])
        for key, found in zip(keys, self._get_each(done, keys, rows), strict=True):
            (done.loaded if found else done.lost).append(key)
        if len(done.lost) > done.damaged:
            self._seldom.warn("lost", f"NanoKV: {len(done.lost)} of {len(keys)} blocks to be loaded were not there")

    def _get_each(self, done: Done, keys: list[OffloadKey], rows: Sequence[torch.Tensor] | torch.Tensor) -> list[bool]:
        try:
            return [found is not None and found is not False for found in self._store.get_many(keys, dsts=rows)]
        except NanoKVError:  # of one object: which, and what of the others, is found one by one
            return [self._get(done, key, row) for key, row in zip(keys, rows, strict=True)]

    def _get(self, done: Done, key: OffloadKey, row: torch.Tensor) -> bool:
        try:
            return self._store.get(key, None, dst=row) is not None
        except SegmentCorrupt as error:
            done.damaged += 1
            self._warn("a damaged block was dropped", error)
            with contextlib.suppress(NanoKVError):
                self._store.remove_many([key])  # else every look-up would find it again
        except NanoKVError as error:
            self._warn("a block was not loaded", error)
        return False

    def _chosen(self, chunks: list[int]) -> Sequence[torch.Tensor] | torch.Tensor:
        """Rows of the primary tier, sharing its memory: one tensor if they follow each other, which is the fastest."""
        if chunks and chunks == list(range(chunks[0], chunks[0] + len(chunks))):
            return self._rows[chunks[0] : chunks[0] + len(chunks)]
        return [self._rows[chunk] for chunk in chunks]

    def _touch_each(self, keys: list[OffloadKey]) -> None:
        for key in keys:
            with contextlib.suppress(NanoKVError):  # gone, or of another host
                self._world.pin(key).release()

    def _warn(self, what: str, error: Exception) -> None:
        self._seldom.warn(f"{what}: {type(error).__name__}", f"NanoKV: {what}: {error}")


def _given_up(job: TransferJob) -> Done:
    """A job of which nothing was done, or nothing is known."""
    return Done(job, lost=list(job.keys) if job.is_promotion else [])
