"""A worker's side: it attaches to the world when vLLM has made its cache, and loads and stores blocks of it.

In a cluster it joins that too, as the member of its rank: all workers of a world are one node.
"""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.logger import init_logger
from vllm.model_executor.models.utils import extract_layer_index

from nanokv.background import Handle
from nanokv.cache.cache import NanoKVCache
from nanokv.device.machines.gpu_threads import aside
from nanokv.device.machines.native_code import compiled
from nanokv.errors import CacheClosed, HeapUnavailable, InvalidArgument, NanoKVError, PeerLost, SegmentCorrupt
from nanokv.heap import HeapKind
from nanokv.heap.shm_tools import list_worlds, remove_world
from nanokv.integrations.vllm.cluster import ClusterLoads, ClusterLookups, join
from nanokv.integrations.vllm.engine_write import EngineWrite
from nanokv.integrations.vllm.facts import FactsFiles, Mismatches, packed
from nanokv.integrations.vllm.identity import identity_of, told_facts
from nanokv.integrations.vllm.lookup import LookupServer, place_of, private_folder
from nanokv.integrations.vllm.metadata import TARGET_PARAMETER, BlockLoad, Step
from nanokv.integrations.vllm.saving import Saves
from nanokv.integrations.vllm.settings import Ranks, Settings
from nanokv.integrations.vllm.stats import NanoKVStats, WorkerCounts
from nanokv.keys.kv_layout import KVLayout
from nanokv.seldom import Seldom
from nanokv.transfer.paged import PagedKV
from nanokv.types import Key

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from nanokv.cluster import NanoKVCluster

# --- which stored blocks a worker can read: its own layout's, or slices of those of another tensor-parallel degree
# The segments say which layouts they hold (`NanoKVCache.layouts`). So a prefill engine of two workers and a decode
# engine of one exchange KV: the reader takes its heads from the objects of all writers that have them.
#
# In a cluster blocks of this worker's own layout are read from all nodes, those of other layouts from this node only.
LOOK_SECONDS = 1.0  #: how often a worker looks for new layouts, at most


class Sources:
    """The sources of one worker.

    Args:
        mine: the layout of this worker's own objects.
        cluster: whose nodes may have blocks too.
    """

    def __init__(
        self, cache: NanoKVCache, paged: PagedKV, mine: KVLayout, cluster: "NanoKVCluster | None" = None
    ) -> None:
        self._cache, self._paged, self._mine = cache, paged, mine
        self._all_nodes = ClusterLookups(cluster) if cluster is not None else None
        self._others: list[KVLayout] = []
        self._looked = -LOOK_SECONDS

    def prefix_length(self, hashes: Sequence[bytes]) -> int:
        """How many of the first blocks this worker can read its part of."""
        return self._best(hashes)[0]

    def source(self, hashes: Sequence[bytes]) -> KVLayout | None:
        """Where these blocks are to be read from: the `source` of `PagedKV.get`."""
        if self._all_nodes is not None and not self._other_layouts():
            return None  # without another question to other nodes
        return self._best(hashes)[1]

    def _mine_of(self, hashes: Sequence[bytes]) -> int:
        return self._cache.prefix_length(hashes) if self._all_nodes is None else self._all_nodes(hashes)

    def _best(self, hashes: Sequence[bytes]) -> tuple[int, KVLayout | None]:
        best: tuple[int, KVLayout | None] = self._mine_of(hashes), None
        if best[0] < len(hashes):
            for source in self._other_layouts():
                length = self._paged.prefix_length(hashes, source=source)
                if length > best[0]:
                    best = length, source
        return best

    def _other_layouts(self) -> list[KVLayout]:
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            writers = {replace(row.layout, tp_rank=0) for row in self._cache.layouts() if row.is_mine}
            self._others = [source for source in writers if self._is_readable(source)]
        return self._others

    def _is_readable(self, source: KVLayout) -> bool:
        if source == replace(self._mine, tp_rank=0) or source.block_size != self._mine.block_size:
            return False  # read without a source; or the engine's hashes of its blocks are others
        try:
            self._paged.prefix_length([], source=source)
        except InvalidArgument:
            return False
        return source.layers == self._mine.layers and source.first_layer == self._mine.first_layer


# --- A worker's loads: blocks of objects into blocks of the engine's cache, in a background thread ---
# A block that is no longer there, or is damaged, is reported, and vLLM computes it (with
# `kv_load_failure_policy="recompute"`). Nothing that was not verified is ever reported as loaded.

REST_SECONDS = 0.005


class Blocks(Protocol):
    """Where blocks come from: `PagedKV`; in a cluster `ClusterLoads`."""

    def get_async(
        self,
        keys: Sequence[Key],
        blocks: Sequence[int],
        *,
        layers: range | None = None,
        held: range | None = None,
        source: KVLayout | None = None,
    ) -> Handle[list[NanoKVError | None]]:
        """See `PagedKV.get_async`."""
        ...


@dataclass(slots=True)
class _Load:
    work: BlockLoad
    parts: list[tuple[range, Handle[list[NanoKVError | None]]]]  #: layers, and their errors per block

    def done(self) -> bool:
        return all(handle.done() for _, handle in self.parts)


class Loads:
    """The loads of one worker.

    Args:
        layers: of the model that this worker has.
        by_layer: whether a forward pass begins before its last layers are loaded.
    """

    def __init__(self, paged: Blocks, reading: Sources, layers: int, counts: WorkerCounts, *, by_layer: bool) -> None:
        self._paged = paged
        self._reading = reading
        self._all = range(layers)
        self._parts = list(growing_parts(layers)) if by_layer else [self._all]
        self._counts = counts
        self._under_way: list[_Load] = []
        self._seldom = Seldom(logger)
        self._failed: set[int] = set()
        self._failed_whole: set[str] = set()

    def start(self, loads: list[BlockLoad]) -> None:
        """Begin to load, the first layers of all requests first."""
        begun = [(_Load(work, []), self._reading.source(work.hashes)) for work in loads]
        for part in self._parts:
            for load, source in begun:
                load.parts.append((part, self._get(load.work, part, source)))
        self._under_way += [load for load, _ in begun]

    def _get(self, work: BlockLoad, part: range, source: KVLayout | None) -> Handle[list[NanoKVError | None]]:
        held = None if part == self._all or source is not None else self._all
        return self._paged.get_async(work.hashes, work.blocks, layers=part, held=held, source=source)

    def wait(self, layer: int) -> None:
        """Wait until this layer of all that was begun is loaded, or is not there."""
        for load in self._under_way:
            for part, handle in load.parts:
                if layer in part:
                    with suppress(Exception):  # `finished` reports it
                        handle.wait()

    def rest(self) -> None:
        """Wait for the oldest load, a moment at most: a step without work would only take the interpreter from it."""
        for _, handle in self._under_way[0].parts if self._under_way else ():
            with suppress(Exception):  # `finished` reports it
                handle.result(REST_SECONDS)

    def finished(self) -> set[str]:
        """The requests whose loads have ended since the last call, well or not."""
        ended = [load for load in self._under_way if load.done()]
        self._under_way = [load for load in self._under_way if load not in ended]
        for load in ended:
            self._judge(load)
        return {load.work.request for load in ended}

    def _judge(self, load: _Load) -> None:
        work, errors = load.work, self._errors(load)
        if work.whole and errors:
            self._failed_whole.add(work.request)
        else:
            self._failed.update(work.blocks[i] for i in errors)
        self._counts.loaded += len(work.blocks) - len(errors)
        self._counts.lost += len(errors)
        for damaged in (True, False):
            some = [error for _, error in sorted(errors.items()) if isinstance(error, SegmentCorrupt) is damaged]
            if some:
                what, count = "damaged" if damaged else "gone", f"{len(some)} of {len(work.blocks)}"
                line = f"NanoKV: {count} blocks of {work.request} are {what}, and are computed: {some[0]}"
                self._seldom.warn(type(some[0]).__name__, line)
            self._counts.damaged += len(some) if damaged else 0

    def _errors(self, load: _Load) -> dict[int, Exception]:
        """Per place of a block in the load that has failed, why."""
        found: dict[int, Exception] = {}
        for _, handle in load.parts:
            try:
                answers = handle.result()
            except Exception as error:
                return dict.fromkeys(range(len(load.work.blocks)), error)
            found |= {i: error for i, error in enumerate(answers) if error is not None}
        return found

    def take_failed(self) -> set[int]:
        """The blocks of the cache that could not be filled, since the last call."""
        failed, self._failed = self._failed, set()
        return failed

    def take_failed_whole(self) -> set[str]:
        """The requests that must be computed from their beginning, since the last call."""
        failed, self._failed_whole = self._failed_whole, set()
        return failed


def growing_parts(layers: int) -> Iterator[range]:
    """The layers in parts of 1, 2, 4, ...: the first one is soon there, and the number of parts stays small."""
    first, count = 0, 1
    while first < layers:
        yield range(first, min(first + count, layers))
        first, count = first + count, 2 * count


# --- the engine's cache as `PagedKV` takes it, and the layout of the objects that come of it ---
# vLLM gives every layer as [blocks, heads, tokens, packed], of any strides, where `packed` holds K and V of a token.
# On a GPU these are K, then V, and an object is [layers, K and V, tokens, heads, head_size], which engines of other
# layouts can read. On a CPU the kernels arrange the tokens of a head in their own way (K is transposed), and latents
# are no K and V: then each head of a block is moved as it is, as if it were one token, and only heads can be told
# apart.
DIMENSIONS = 4


class Layers(NamedTuple):
    """The layers of one worker that have a cache of their own, in the order of the model."""

    names: list[str]
    planes: list[torch.Tensor]  #: as `PagedKV` takes them
    kv_dim: int | None  #: of the planes
    layout: KVLayout  #: of the objects

    @property
    def nbytes(self) -> int:
        """Bytes of an object."""
        return sum(plane[0].numel() * plane.element_size() for plane in self.planes)


def layers_of(config: "VllmConfig", kv_caches: dict[str, torch.Tensor], rank: int) -> Layers:
    """The layers that vLLM registers.

    Args:
        rank: of tensor parallelism.

    Raises:
        InvalidArgument: they are not as above.
    """
    own = _distinct(kv_caches)
    tensors = list(own.values())
    first = tensors[0]
    if any(tensor.dim() != DIMENSIONS for tensor in tensors):
        raise InvalidArgument(f"a layer's cache must have four dimensions, not {[list(t.shape) for t in tensors]}")
    head_size, packed = config.model_config.get_head_size(), first.shape[3]
    apart = first.device.type != "cpu" and packed == 2 * head_size and not config.model_config.use_mla
    planes = [_halves(tensor, head_size) if apart else _heads(tensor) for tensor in tensors]
    return Layers(list(own), planes, 1 if apart else None, _layout(config, planes[0], own, rank, apart=apart))


def _halves(tensor: torch.Tensor, head_size: int) -> torch.Tensor:
    """[blocks, K and V, tokens, heads, head_size], sharing memory."""
    return tensor.view(*tensor.shape[:3], 2, head_size).permute(0, 3, 2, 1, 4)


def _heads(tensor: torch.Tensor) -> torch.Tensor:
    """[blocks, 1, heads, all tokens of a head], sharing memory."""
    return tensor.view(*tensor.shape[:2], 1, -1).transpose(1, 2)


def _distinct(kv_caches: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The layers without those that share the cache of another one."""
    first: dict[int, str] = {}
    for name, tensor in kv_caches.items():
        first.setdefault(tensor.data_ptr(), name)
    return {name: kv_caches[name] for name in first.values()}


def _layout(
    config: "VllmConfig", plane: torch.Tensor, layers: dict[str, torch.Tensor], rank: int, *, apart: bool
) -> KVLayout:
    *_, tokens, heads, size = plane.shape
    parallel = config.parallel_config.tensor_parallel_size
    all_heads = config.model_config.get_total_num_kv_heads()
    divided = max(all_heads // parallel, 1) == heads  # latents are not: each rank holds all of them
    return KVLayout(
        layers=len(layers),
        kv_heads=all_heads if divided else heads,
        head_size=size,
        block_size=tokens,
        dtype=str(plane.dtype).removeprefix("torch."),
        order="L2NHD" if apart else "LNHD",
        tp_rank=rank if divided else 0,
        tp_size=parallel if divided else 1,
        first_layer=min(extract_layer_index(name) for name in layers),
    )


# --- the worker -------------------------------------------------------------------------------
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
        kv_caches: per layer, in the order of the model, as vLLM registers them (`layers_of`).

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
        self.counts = WorkerCounts()
        self._reading = Sources(self.cache, paged, layers.layout, self.cluster)
        by_layer = settings.load == "layer"
        self.loading = Loads(self._remote or paged, self._reading, len(layers.names), self.counts, by_layer=by_layer)
        saving = Saves(self.cache, paged, self._segment, hold, self.counts)
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
        guests=settings.guests,
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


def _by_kernel(config: "VllmConfig", saving: Saves, layers: Layers) -> EngineWrite:
    if layers.kv_dim is None:
        raise InvalidArgument("nanokv.write=kernel needs a cache on a GPU that holds K and V")
    return EngineWrite(config, saving, layers.planes)


def _part() -> int:
    """Which part of the KV this worker has: pipeline stages of tensor-parallel ranks."""
    tensor, pipeline = get_tp_group(), get_pp_group()
    return int(pipeline.rank_in_group * tensor.world_size + tensor.rank_in_group)
