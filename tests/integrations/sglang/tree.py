"""An engine of SGLang without its model: the real UnifiedRadixCache and cache controller over a device pool on a CPU.

SGLang copies between the pools of device and host by CUDA kernels, and registers host memory with CUDA. Of that torch
takes the place here (`without_cuda`); everything else is SGLang's own, its threads for backups and prefetches included.
"""

import atexit
import itertools
import json
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import sglang.srt.mem_cache.pool_host.common as sglang_common
import sglang.srt.mem_cache.pool_host.mha as sglang_mha
import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    InitLoadBackParams,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_parallel
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from tests.integrations.sglang.parts import PAGE, extra, mha_device

PATIENCE = 60.0  #: seconds, far above the usual
_numbers = itertools.count()


def _to_host(src_ptrs: Any, dst_ptrs: Any, src_indices: Any, dst_indices: Any, page_size: int) -> None:
    layers = len(src_ptrs) // len(dst_ptrs)
    for number, host in enumerate(dst_ptrs):
        for layer in range(layers):
            for source, target in zip(src_indices.view(-1, page_size), dst_indices.view(-1, page_size), strict=True):
                host[int(target[0]) // page_size, layer] = src_ptrs[number * layers + layer][source]


def _to_device(src_ptrs: Any, dst_ptrs: Any, src_indices: Any, dst_indices: Any, layer_id: int, page_size: int) -> None:
    for host, device in zip(src_ptrs, dst_ptrs, strict=True):
        for source, target in zip(src_indices.view(-1, page_size), dst_indices.view(-1, page_size), strict=True):
            device[target] = host[int(source[0]) // page_size, layer_id]


@contextmanager
def without_cuda(monkeypatch: Any, rank: int = 0, ranks: int = 1) -> Iterator[None]:
    """Torch in the place of what SGLang has for CUDA only."""
    monkeypatch.setattr(sglang_common, "_cuda_host_register", lambda *args, **kwargs: None)
    monkeypatch.setattr(sglang_mha, "transfer_kv_all_layer_direct_lf_pf", _to_host, raising=False)
    monkeypatch.setattr(sglang_mha, "transfer_kv_per_layer_direct_pf_lf", _to_device, raising=False)
    sizes = {"tp_size": ranks, "attn_tp_size": ranks, "moe_tp_size": ranks, "pp_size": 1, "attn_dcp_size": 1}
    with get_parallel().override(tp_rank=rank, pp_rank=0, attn_dcp_rank=0, **sizes):
        yield


class Engine:
    """A tree, its pools and its storage.

    Args:
        backend: of storage; None: none yet.
        settings: of NanoKV. more: of the extra config.
        policy: whether a request waits for its prefetch.
        group, rank: of tensor parallelism.
    """

    def __init__(
        self,
        backend: str | None = "dynamic",
        settings: dict[str, Any] | None = None,
        pages: int = 32,
        metrics: bool = False,
        policy: str = "wait_complete",
        group: Any = None,
        rank: int = 0,
        **more: Any,
    ) -> None:
        self._rank = rank
        self.extra = json.dumps(extra(settings, prefetch_threshold=PAGE) | more)
        args = ServerArgs(
            model_path="dummy",
            served_model_name="a-model",
            page_size=PAGE,
            hicache_io_backend="direct",
            hicache_mem_layout="page_first_direct",
            hicache_write_policy="write_through",
            hicache_storage_backend=backend,
            hicache_storage_backend_extra_config=self.extra if backend else None,
            hicache_storage_prefetch_policy=policy,
        )
        set_global_server_args_for_scheduler(args)
        self.pool = mha_device(pages)
        self.allocator = PagedTokenToKVPoolAllocator(
            pages * PAGE, page_size=PAGE, dtype=torch.bfloat16, device="cpu", kvcache=self.pool, need_sort=False
        )
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=ReqToTokenPool(size=4, max_context_len=512, device="cpu", enable_memory_saver=False),
            token_to_kv_pool_allocator=self.allocator,
            page_size=PAGE,
            tree_components=(ComponentType.FULL,),
            tree_core_backend="python",
            enable_metrics=metrics,
            tp_cache_group=group,
        )
        self.tree = UnifiedRadixCache(params=params)
        self.tree.init_hicache(args, params)
        atexit.unregister(self.tree.shutdown)
        self.control.storage_host_pool.pin_memory = False  # of flat pages: torch has pinned memory only with a GPU
        self.allow_prefetches()

    def allow_prefetches(self) -> None:
        """SGLang prefetches into half of its host pool at most."""
        if self.tree.enable_storage:
            self.control.prefetch_capacity_limit = self.control.mem_pool_host.size

    @property
    def control(self) -> Any:
        """The cache controller."""
        return self.tree.cache_controller

    @property
    def storage(self) -> Any:
        """The backend, in the failure injector if there is one."""
        return self.control.storage_backend

    def compute(self, tokens: Sequence[int]) -> None:
        """A request whose prompt was computed: its KV depends on its tokens, and comes into the tree."""
        slots = self.allocator.alloc(len(tokens)).to(torch.int64)
        for layer, buffer in enumerate(self._buffers()):
            buffer[slots] = kv_of(tokens, layer + 100 * self._rank, buffer)
        self.tree.insert(InsertParams(key=RadixKey(array("q", tokens)), value=slots, prev_prefix_len=0))

    def back_up(self, stored: Callable[[], bool]) -> None:
        """The scheduler's steps, until something is stored."""
        self._step_until(stored, self.tree.flush_pending_backups)

    def prefetch(self, tokens: Sequence[int]) -> int:
        """A request comes: prefetch it to the end. Tokens that are in the host pool now."""
        request = CacheRequestHandle(f"request-{next(_numbers)}", 0)
        self.begin_prefetch(request, tokens)
        self._step_until(lambda: self.tree.check_prefetch_progress(request))
        return self.hit(tokens)

    def begin_prefetch(self, request: CacheRequestHandle, tokens: Sequence[int]) -> None:
        """A request comes."""
        self.tree.prefetch_from_storage(request, self.tree.root_node_handle(), array("q", tokens), None, None)

    def hit(self, tokens: Sequence[int]) -> int:
        """Tokens that the host pool has."""
        return int(self._match(tokens).host_hit_length)

    def until(self, done: Callable[[], bool]) -> None:
        """The scheduler's steps, until something is so."""
        self._step_until(done)

    def load(self, tokens: Sequence[int]) -> bool:
        """Load what the host pool has into the device's pool: whether each byte is as it was computed."""
        found = self._match(tokens)
        request = SimpleNamespace(
            rid="load",
            kv=SimpleNamespace(mamba_pool_idx=None),
            last_node=found.last_device_node,
            swa_host_hit_length=0,
            mamba_host_hit_length=0,
        )
        node = found.best_match_node
        self.tree.init_load_back(InitLoadBackParams(node, found.host_hit_length, req=request))
        self.tree.ready_to_load_host_cache()
        slots = self.tree.path_device_indices(node)
        return len(slots) == len(tokens) and all(
            torch.equal(
                buffer[slots].view(torch.uint8), kv_of(tokens, layer + 100 * self._rank, buffer).view(torch.uint8)
            )
            for layer, buffer in enumerate(self._buffers())
        )

    def close(self) -> None:
        """Detach the storage."""
        self.tree.shutdown()
        self.tree.release_host_resources()

    def _match(self, tokens: Sequence[int]) -> Any:
        return self.tree.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens))))

    def _buffers(self) -> list[torch.Tensor]:
        return [*self.pool.k_buffer, *self.pool.v_buffer]

    def _step_until(self, done: Callable[[], bool], step: Callable[[], Any] = lambda: None) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, "it takes too long"
            step()
            self.tree.check_hicache_events()
            time.sleep(0.002)


def kv_of(tokens: Sequence[int], layer: int, like: torch.Tensor) -> torch.Tensor:
    """The KV that tokens have in all tests: of each one alone, which is enough to tell them apart."""
    shape = like.shape[1:]
    base = torch.tensor(tokens, dtype=torch.float32) + layer / 16
    steps = torch.arange(shape.numel(), dtype=torch.float32) / 7
    return (base[:, None] * 3 + steps).view(len(tokens), *shape).to(like.dtype)
