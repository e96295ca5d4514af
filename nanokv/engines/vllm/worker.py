"""A worker's side: it attaches to the world when vLLM has made its cache, and loads and stores blocks of it."""

from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.logger import init_logger

from nanokv.cache import NanoKVCache
from nanokv.engines.vllm.identity import identity_of
from nanokv.engines.vllm.loading import Loading
from nanokv.engines.vllm.lookup import LookupServer, place_of
from nanokv.engines.vllm.metadata import Step
from nanokv.engines.vllm.saving import Saving
from nanokv.engines.vllm.settings import Settings
from nanokv.engines.vllm.stats import Counts
from nanokv.heap import HeapKind

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is under its own name

_PAGE_ALIGNMENT = 64


class WorkerSide:
    """One worker of an engine: one rank of the world.

    Args:
        kv_caches: per layer, in the order of the model, [blocks, heads, tokens, elements of K and V], of any strides.

    Raises:
        InvalidArgument, HeapUnavailable, PeerLost: as `NanoKVCache`.
    """

    def __init__(self, config: "VllmConfig", settings: Settings, kv_caches: dict[str, torch.Tensor]) -> None:
        transfer = config.kv_transfer_config
        assert transfer is not None
        layers = _distinct(kv_caches)
        self._layer_numbers = {name: number for number, name in enumerate(layers)}
        tensors = list(layers.values())
        part = _part()
        world_size, _ = settings.ranks(config.parallel_config.world_size)
        self._settings, self._part, self._world_size = settings, part, world_size
        kind, options = _heap(settings, tensors[0].device, world_size)
        self.cache = NanoKVCache(
            heap_bytes=settings.size,
            page_bytes=settings.page_bytes or _page_bytes(tensors),
            name=settings.name or f"vllm-{transfer.engine_id}",
            rank=settings.rank + part,
            world_size=world_size,
            alloc=settings.alloc,
            heap=kind,
            heap_options=options,
            identity=identity_of(config, settings, layers, get_tp_group().rank_in_group),
            checksum=settings.checksum,
            attach_timeout=settings.attach_timeout,
            on_stale=settings.on_stale,
        )
        paged = self.cache.paged_kv(tensors, kv_dim=None)
        hold = settings.lease(transfer.kv_role)
        self.counts = Counts()
        self.loading = Loading(paged, len(tensors), self.counts, by_layer=settings.load == "layer")
        self.saving = Saving(self.cache, paged, self._segment, hold, self.counts)
        self._server = LookupServer(place_of(transfer.engine_id, settings.name, part), self.cache.prefix_length)
        logger.info("NanoKV: %r, %d layers of %s", self.cache, len(tensors), list(tensors[0].shape))

    def _segment(self, target: int) -> int:
        return min(target + self._part, self._world_size - 1)

    def start(self, step: Step) -> None:
        """Begin the loads of a step."""
        if step.clear:
            self.cache.clear()
        self.loading.start(step.loads)

    def finish(self) -> None:
        """The end of a step: what it stores is READY, and what it needed is loaded."""
        if self._settings.load == "layer":
            self.loading.wait(len(self._layer_numbers) - 1)
        self.saving.finish()

    def wait_for_layer(self, name: str) -> None:
        """The forward pass comes to a layer: its KV is loaded when this returns, if requests wait inside of steps."""
        number = self._layer_numbers.get(name)
        if number is not None and self._settings.load == "layer":
            self.loading.wait(number)

    def layer_done(self, name: str) -> None:
        """The forward pass has computed a layer."""
        number = self._layer_numbers.get(name)
        if number is not None:
            self.saving.layer_done(number)

    def close(self) -> None:
        """Leave the world."""
        self._server.close()
        self.saving.close()
        self.cache.close()


def _heap(settings: Settings, device: torch.device, world_size: int) -> tuple[HeapKind, dict[str, Any]]:
    """The provider whose segments lie where the engine's cache lies, and its options."""
    private = world_size == 1 and not settings.name  # leaves no file behind, however the engine ends
    if device.type == "cpu":
        return settings.heap or ("local" if private else "shm"), {}
    kind = settings.heap or ("local" if world_size == 1 else "torch_symm")
    return kind, {} if kind == "iris" else {"device": str(device)}


def _distinct(kv_caches: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The layers that have a cache of their own; those that share another layer's are left out."""
    first: dict[int, str] = {}
    for name, tensor in kv_caches.items():
        first.setdefault(tensor.data_ptr(), name)
    return {name: kv_caches[name] for name in first.values()}


def _page_bytes(tensors: list[torch.Tensor]) -> int:
    nbytes = sum(tensor[0].numel() * tensor.element_size() for tensor in tensors)
    return -(-nbytes // _PAGE_ALIGNMENT) * _PAGE_ALIGNMENT


def _part() -> int:
    """Which part of the KV this worker has: pipeline stages of tensor-parallel ranks."""
    tensor, pipeline = get_tp_group(), get_pp_group()
    return int(pipeline.rank_in_group * tensor.world_size + tensor.rank_in_group)
