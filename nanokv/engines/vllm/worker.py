"""A worker's side: it attaches to the world when vLLM has made its cache, and loads and stores blocks of it.

In a cluster it joins that too, as the member of its rank: all workers of a world are one node.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.logger import init_logger

from nanokv.cache import NanoKVCache
from nanokv.device.machines.gpu_threads import aside
from nanokv.device.machines.native_code import compiled
from nanokv.engines.vllm.cluster import ClusterLoads, join
from nanokv.engines.vllm.engine_write import EngineWrite
from nanokv.engines.vllm.facts import FactsFiles, Mismatches, packed
from nanokv.engines.vllm.identity import identity_of, told_facts
from nanokv.engines.vllm.layers import Layers, layers_of
from nanokv.engines.vllm.loading import Loading
from nanokv.engines.vllm.lookup import LookupServer, place_of, private_folder
from nanokv.engines.vllm.metadata import TARGET_PARAMETER, Step
from nanokv.engines.vllm.reading import Reading
from nanokv.engines.vllm.saving import Saving
from nanokv.engines.vllm.settings import Ranks, Settings
from nanokv.engines.vllm.stats import Counts, NanoKVStats
from nanokv.errors import CacheClosed, HeapUnavailable, InvalidArgument, NanoKVError, PeerLost
from nanokv.heap import HeapKind
from nanokv.heap.shm_tools import list_worlds, remove_world

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is under its own name

_PAGE_ALIGNMENT = 64
UNNAMED = "vllm-"  #: begins the name of the world of an engine without nanokv.name; vLLM's random id of it follows
_RANDOM_ID = re.compile(UNNAMED + r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(_dp[0-9]+)?")
GENERATION_BYTES = 8  #: behind a block's hash, in the keys of generations after the first
ANNOUNCE_SECONDS = 0.05  #: at most, of a step that stores
MOST_PAGES = 64  #: of an object; the largest extent of a world has 128


class WorkerSide:
    """One worker of an engine: one rank of the world, and one member of the cluster, if there is one.

    Args:
        kv_caches: per layer, in the order of the model, as vLLM registers them (`layers.py`).

    Raises:
        InvalidArgument, HeapUnavailable, PeerLost: as `NanoKVCache`.
        LinkUnavailable, ClusterUnavailable: as `NanoKVCluster`.
    """

    def __init__(self, config: "VllmConfig", settings: Settings, kv_caches: dict[str, torch.Tensor]) -> None:
        transfer = config.kv_transfer_config
        assert transfer is not None
        layers = layers_of(config, kv_caches, get_tp_group().rank_in_group)
        self._layer_numbers = {name: number for number, name in enumerate(layers.names)}
        part = _part()
        ranks = ranks_of(config, settings)
        self._settings, self._part, self._world_size = settings, part, ranks.world_size
        self._announces = bool(settings.cluster) and transfer.kv_role == "kv_producer"
        facts = told_facts(config, settings, layers.layout)
        self._files = FactsFiles(private_folder(), settings.name, ranks.world_size) if settings.name else None
        if self._files is not None:
            self._files.write(ranks.first + part, facts)
        try:
            self.cache = _cache(config, settings, layers, ranks, part)
        except (InvalidArgument, HeapUnavailable) as error:
            others = self._files.differences(facts) if self._files is not None else []
            raise type(error)("; ".join([str(error), *others])) from error
        replica = config.parallel_config.data_parallel_index
        engine, about = transfer.engine_id or "", packed(facts)
        self.cluster = join(self.cache, settings, engine, replica, about) if settings.cluster else None
        self._mismatches = Mismatches(facts, self._files, self.cluster)
        self._generations = self.cluster or self.cache
        self._generations.generation()  # the first call looks at those of others
        self._resets = 0
        paged = self.cache.paged_kv(layers.planes, kv_dim=layers.kv_dim)
        self._remote = ClusterLoads(self.cluster, layers.planes, layers.kv_dim) if self.cluster is not None else None
        hold = settings.lease(transfer.kv_role)
        self.counts = Counts()
        self._reading = Reading(self.cache, paged, layers.layout, self.cluster)
        by_layer = settings.load == "layer"
        self.loading = Loading(self._remote or paged, self._reading, len(layers.names), self.counts, by_layer=by_layer)
        saving = Saving(self.cache, paged, self._segment, hold, self.counts)
        self.saving = saving if settings.write == "engine" else _by_kernel(config, saving, layers)
        self._refused = saving.refused
        self._server = LookupServer(place_of(transfer.engine_id, settings.name, part), self)
        shared = self.cluster or self.cache
        logger.info("NanoKV: %r, one object of %d bytes per block: %s", shared, layers.nbytes, layers.layout)

    def _segment(self, target: int) -> int:
        return min(target + self._part, self._world_size - 1)

    # --- what the scheduler asks, in a thread of its own ---
    def prefix_length(self, hashes: Sequence[bytes]) -> int:
        """How many of the first blocks this worker can read its part of."""
        self._mismatches.look()
        with aside(self.cache.device):
            return self._reading.prefix_length(self._keys(hashes))

    def reset(self, number: int) -> bool:
        """Let nothing be found any more that engines of this identity stored before, in any segment of any node.

        False: a node was not told, and goes on to find what it and others stored before; this engine does not.
        """
        self._resets = number
        try:
            self._generations.advance_generation()
        except PeerLost as error:
            logger.error("NanoKV: %s", error)
            return False
        self.cache.clear()  # for the room; nobody finds it any more
        return True

    def _keys(self, hashes: Sequence[bytes]) -> list[bytes]:
        """The keys of blocks, as they are stored since the last reset."""
        generation = self._generations.generation()
        mark = generation.to_bytes(GENERATION_BYTES, "little") if generation else b""
        return [each + mark for each in hashes]

    # --- steps ---
    def bind(self, step: Step) -> None:
        """Take what a step stores."""
        saves = [replace(save, hashes=self._keys(save.hashes)) for save in step.saves if save.resets == self._resets]
        if old := sum(len(save.blocks) for save in step.saves if save.resets != self._resets):
            self._refused(old, CacheClosed("the cache was reset after their request had begun"))
        for reader, blocks in step.misdirected:
            why = f"{TARGET_PARAMETER}={reader} of a request is none of {self._world_size} ranks"
            self._refused(blocks, InvalidArgument(why))
        self.saving.bind(saves)

    def start(self, step: Step) -> None:
        """Begin the loads of a step."""
        self.loading.start([replace(load, hashes=self._keys(load.hashes)) for load in step.loads])
        if step.idle:
            self.loading.rest()

    def finish(self) -> None:
        """The end of a step: what it stores is READY, and what it needed is loaded."""
        if self._settings.load == "layer":
            self.loading.wait(len(self._layer_numbers) - 1)
        before = self.counts.stored
        self.saving.finish()
        if self._announces and self.counts.stored > before:
            self._announce()

    def _announce(self) -> None:
        """Tell other nodes what was stored before the engine answers: one is asked to decode the same prompt next.

        Else they would hear of it some milliseconds later. This takes milliseconds, so only prefill engines do it.
        """
        try:
            self.cache.flush(timeout=ANNOUNCE_SECONDS)
        except NanoKVError as error:
            logger.debug("NanoKV: other nodes will hear later of what was stored: %s", error)

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

    def take_counts(self) -> NanoKVStats | None:
        """What this worker did since the last call."""
        if self._remote is not None:
            self.counts.remote += self._remote.take_remote()
        return self.counts.take()

    def close(self) -> None:
        """Leave the cluster, then the world."""
        self._server.close()
        self.saving.close()
        if self._remote is not None:
            self._remote.close()
        if self.cluster is not None:
            self.cluster.close()
        if self._files is not None:
            self._files.remove(self.cache.rank)
        self.cache.close()


def _cache(config: "VllmConfig", settings: Settings, layers: Layers, ranks: Ranks, part: int) -> NanoKVCache:
    """The rank of a worker. Raises as `NanoKVCache`."""
    transfer = config.kv_transfer_config
    assert transfer is not None
    kind, options = _heap(settings, layers.planes[0].device, ranks.world_size)
    if kind != "local" and not settings.name and not part:
        remove_dead_worlds()
    if layers.planes[0].device.type == "cpu":
        compiled(rare=True)  # else a step waits for what is called for the first time
        # vLLM's attention for bfloat16 uses AMX, which the kernel allows a process that has asked. vLLM's libraries ask
        # in their first larger product, which a prompt has of which nothing is computed but its last token
        torch.cpu._init_amx()
    return NanoKVCache(
        heap_bytes=settings.size,
        page_bytes=settings.page_bytes or page_bytes(layers.nbytes, len(layers.layout.heads)),
        name=settings.name or f"{UNNAMED}{transfer.engine_id}",
        rank=ranks.first + part,
        world_size=ranks.world_size,
        alloc=settings.alloc,
        heap=kind,
        heap_options=options,
        identity=identity_of(config, settings, layers.layout),
        checksum=settings.checksum,
        attach_timeout=settings.attach_timeout,
        on_stale=settings.on_stale,
    )


def remove_dead_worlds() -> None:
    """Remove what engines without a name left in shared memory: vLLM kills its workers, and its engines have another id
    at each start, so nobody would ever find it."""
    for name in list_worlds():
        if _RANDOM_ID.fullmatch(name):
            try:
                remove_world(name)
            except NanoKVError:
                continue  # it lives; or another engine was faster
            logger.info("NanoKV: removed world %r, whose engine has died", name)


def ranks_of(config: "VllmConfig", settings: Settings) -> Ranks:
    """The ranks of this engine."""
    return settings.ranks(config.parallel_config.world_size, config.parallel_config.data_parallel_index)


def _heap(settings: Settings, device: torch.device, world_size: int) -> tuple[HeapKind, dict[str, Any]]:
    """The provider whose segments lie where the engine's cache lies, and its options."""
    private = world_size == 1 and not settings.name  # leaves no file behind, however the engine ends
    if device.type == "cpu":
        kind = settings.heap or ("local" if private else "shm")
        return kind, {"prefault": True} if kind == "local" else {}  # a world with a name does it by itself
    kind = settings.heap or ("local" if world_size == 1 else "torch_symm")
    return kind, {} if kind == "iris" else {"device": str(device)}


def page_bytes(nbytes: int, heads: int) -> int:
    """The default: objects take a power of two of pages, without a rest, at every tensor-parallel degree.

    Args:
        nbytes, heads: of an object of this worker.
    """
    each = nbytes // min(heads & -heads, MOST_PAGES)
    return -(-each // _PAGE_ALIGNMENT) * _PAGE_ALIGNMENT


def _by_kernel(config: "VllmConfig", saving: Saving, layers: Layers) -> EngineWrite:
    if layers.kv_dim is None:
        raise InvalidArgument("nanokv.write=kernel needs a cache on a GPU that holds K and V")
    return EngineWrite(config, saving, layers.planes)


def _part() -> int:
    """Which part of the KV this worker has: pipeline stages of tensor-parallel ranks."""
    tensor, pipeline = get_tp_group(), get_pp_group()
    return int(pipeline.rank_in_group * tensor.world_size + tensor.rank_in_group)
