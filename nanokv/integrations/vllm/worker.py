"""A worker's side: it attaches to the world when vLLM has made its cache, and loads and stores blocks of it.

In a cluster it joins that too, as the member of its rank: all workers of a world are one node.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.logger import init_logger

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
from nanokv.integrations.vllm.groups import Group
from nanokv.integrations.vllm.identity import identity_of, told_facts
from nanokv.integrations.vllm.layers import Layers, layers_of
from nanokv.integrations.vllm.lookup import LookupServer, place_of, private_folder
from nanokv.integrations.vllm.metadata import TARGET_PARAMETER, Asked, BlockLoad, GroupBlocks, Step
from nanokv.integrations.vllm.saving import Saves
from nanokv.integrations.vllm.settings import Ranks, Settings
from nanokv.integrations.vllm.stats import NanoKVStats, WorkerCounts
from nanokv.keys.kv_layout import KVLayout
from nanokv.seldom import Seldom
from nanokv.transfer.paged import PagedKV
from nanokv.types import Key

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

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
        mine: the layout of this worker's own objects; None: others have none that could be read.
        cluster: whose nodes may have blocks too.
    """

    def __init__(
        self, cache: NanoKVCache, paged: PagedKV, mine: KVLayout | None, cluster: "NanoKVCluster | None" = None
    ) -> None:
        self._cache, self._paged, self._mine = cache, paged, mine
        self._all_nodes = ClusterLookups(cluster) if cluster is not None else None
        self._others: list[KVLayout] = []
        self._looked = -LOOK_SECONDS

    def prefix_length(self, hashes: Sequence[bytes]) -> int:
        """How many of the first blocks this worker can read its part of."""
        return self._best(hashes)[0]

    def each(self, hashes: Sequence[bytes]) -> bytes:
        """Which blocks of this worker's own layout there are: a byte for each, 1 if it is."""
        return bytes(self._cache.exists_many(hashes) if self._all_nodes is None else self._all_nodes.each(hashes))

    def source(self, hashes: Sequence[bytes]) -> KVLayout | None:
        """Where these blocks are to be read from: the `source` of `PagedKV.get`."""
        if self._mine is None:
            return None
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
        mine = self._mine
        if mine is None:
            return []
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            writers = {replace(row.layout, tp_rank=0) for row in self._cache.layouts() if row.is_mine}
            self._others = [source for source in writers if self._is_readable(source, mine)]
        return self._others

    def _is_readable(self, source: KVLayout, mine: KVLayout) -> bool:
        if source == replace(mine, tp_rank=0) or source.block_size != mine.block_size:
            return False  # read without a source; or the engine's hashes of its blocks are others
        try:
            self._paged.prefix_length([], source=source)
        except InvalidArgument:
            return False
        return source.layers == mine.layers and source.first_layer == mine.first_layer


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


class _Part(NamedTuple):
    """Blocks of one group, of some layers, that are being loaded: with an error or None for each."""

    blocks: list[int]
    layers: range
    errors: Handle[list[NanoKVError | None]]


@dataclass(slots=True)
class _Load:
    work: BlockLoad
    parts: list[_Part]

    def done(self) -> bool:
        return all(part.errors.done() for part in self.parts)


class Loads:
    """The loads of one worker.

    Args:
        paged: by group, where its blocks come from.
        layers: of the model that this worker has.
        by_layer: whether a forward pass begins before its last layers are loaded; then there is one group.
    """

    def __init__(
        self, paged: Mapping[int, Blocks], reading: Sources, layers: int, counts: WorkerCounts, *, by_layer: bool
    ) -> None:
        self._paged = paged
        self._reading = reading
        self._all = range(layers)
        self._parts = list(growing_parts(layers)) if by_layer else [self._all]
        self._counts = counts
        self._under_way: list[_Load] = []
        self._seldom = Seldom(logger)
        self._failed: set[int] = set()
        self._failed_whole: set[str] = set()

    def start(self, loads: Sequence[BlockLoad]) -> None:
        """Begin to load, the first layers of all requests first."""
        begun = [(_Load(work, []), [self._reading.source(part.hashes) for part in work.parts]) for work in loads]
        for layers in self._parts:
            for load, sources in begun:
                for part, source in zip(load.work.parts, sources, strict=True):
                    load.parts.append(_Part(part.blocks, layers, self._get(part, layers, source)))
        self._under_way += [load for load, _ in begun]

    def _get(self, part: GroupBlocks, layers: range, source: KVLayout | None) -> Handle[list[NanoKVError | None]]:
        paged = self._paged[part.group]
        if layers == self._all:
            return paged.get_async(part.hashes, part.blocks, source=source)
        held = None if source is not None else self._all
        return paged.get_async(part.hashes, part.blocks, layers=layers, held=held, source=source)

    def wait(self, layer: int) -> None:
        """Wait until this layer of all that was begun is loaded, or is not there."""
        for load in self._under_way:
            for part in load.parts:
                if layer in part.layers:
                    with suppress(Exception):  # `finished` reports it
                        part.errors.wait()

    def rest(self) -> None:
        """Wait for the oldest load, a moment at most: a step without work would only take the interpreter from it."""
        end = time.monotonic() + REST_SECONDS
        for part in self._under_way[0].parts if self._under_way else ():
            with suppress(Exception):  # `finished` reports it
                part.errors.result(max(end - time.monotonic(), 0.0))

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
            self._failed.update(errors)
        count = sum(len(part.blocks) for part in work.parts)
        self._counts.loaded += count - len(errors)
        self._counts.lost += len(errors)
        for damaged in (True, False):
            some = [error for _, error in sorted(errors.items()) if isinstance(error, SegmentCorrupt) is damaged]
            if some:
                what, share = "damaged" if damaged else "gone", f"{len(some)} of {count}"
                line = f"NanoKV: {share} blocks of {work.request} are {what}, and are computed: {some[0]}"
                self._seldom.warn(type(some[0]).__name__, line)
            self._counts.damaged += len(some) if damaged else 0

    def _errors(self, load: _Load) -> dict[int, Exception]:
        """Per block of the cache that could not be filled, why."""
        found: dict[int, Exception] = {}
        for part in load.parts:
            try:
                answers: Sequence[Exception | None] = part.errors.result()
            except Exception as error:
                answers = [error] * len(part.blocks)
            found |= {block: error for block, error in zip(part.blocks, answers, strict=True) if error is not None}
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


# --- the worker -------------------------------------------------------------------------------
logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is under its own name

_PAGE_ALIGNMENT = 64
UNNAMED = "vllm-"  #: begins the name of the world of an engine without nanokv.name; vLLM's random id of it follows
_RANDOM_ID = re.compile(UNNAMED + r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(_dp[0-9]+)?")
GENERATION_BYTES = 8  #: behind a block's hash, in the keys of generations after the first
ANNOUNCE_SECONDS = 0.05  #: at most, of a step that stores
_PARTS = 16  #: pages of the largest object of several groups: what smaller ones leave of a page is little then
MOST_PAGES = 64  #: of an object; the largest extent of a world has 128


class WorkerSide:
    """One worker of an engine: one rank of the world, and one member of the cluster, if there is one.

    Args:
        cache: how vLLM has planned it. groups: of its layers.
        kv_caches: per layer, in the order of the model, as vLLM registers them (`layers_of`).

    Raises:
        InvalidArgument, HeapUnavailable, PeerLost: as `NanoKVCache`.
        LinkUnavailable, ClusterUnavailable: as `NanoKVCluster`.
    """

    def __init__(
        self,
        config: "VllmConfig",
        settings: Settings,
        cache: "KVCacheConfig",
        groups: Sequence[Group],
        kv_caches: dict[str, torch.Tensor],
    ) -> None:
        transfer = config.kv_transfer_config
        assert transfer is not None
        layers = layers_of(config, cache, groups, kv_caches, get_tp_group().rank_in_group)
        if settings.load == "layer" and layers.layout is None:
            raise InvalidArgument(
                "nanokv.load=layer needs layers of one shape, whose blocks are not divided by kernels; take "
                "nanokv.load=async"
            )
        first = layers.groups[0]
        self._layer_numbers = {name: number for number, name in enumerate(first.names)} if layers.layout else {}
        self._marks = {each.group.number: each.mark for each in layers.groups}
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
        paged = {each.group.number: self.cache.paged_kv(each.planes, kv_dim=each.kv_dim) for each in layers.groups}
        self._remote = (
            ClusterLoads(self.cluster, {each.group.number: (each.planes, each.kv_dim) for each in layers.groups})
            if self.cluster is not None
            else None
        )
        hold = settings.lease(transfer.kv_role)
        self.counts = WorkerCounts()
        self._reading = Sources(self.cache, paged[first.group.number], layers.layout, self.cluster)
        by_layer = settings.load == "layer"
        sources = self._remote.groups if self._remote is not None else paged
        self.loading = Loads(sources, self._reading, len(first.names), self.counts, by_layer=by_layer)
        saving = Saves(self.cache, paged, self._segment, hold, self.counts)
        self.saving = saving if settings.write == "engine" else _by_kernel(config, saving, layers)
        self._refused = saving.refused
        self._server = LookupServer(place_of(transfer.engine_id, settings.name, part), self)
        shared = self.cluster or self.cache
        for each in layers.groups:
            what = (
                layers.layout or f"{len(each.names)} layers, {each.group.reach.value} of {each.group.block_size} tokens"
            )
            logger.info("NanoKV: %r, one object of %d bytes per block: %s", shared, each.nbytes, what)

    def _segment(self, target: int) -> int:
        return min(target + self._part, self._world_size - 1)

    # --- what the scheduler asks, in a thread of its own ---
    def found(self, asked: Sequence[Asked]) -> list[bytes]:
        """Which blocks this worker can read its part of: see `lookup.Answers`."""
        self._mismatches.look()
        with aside(self.cache.device):
            return [self._found(each) for each in asked]

    def _found(self, asked: Asked) -> bytes:
        if asked.group not in self._marks or not asked.hashes:  # this stage has no part of them
            return b"\1" * len(asked.hashes)
        keys = self._keys(asked.group, asked.hashes)
        return b"\1" * self._reading.prefix_length(keys) if asked.is_prefix else self._reading.each(keys)

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

    def _keys(self, group: int, hashes: Sequence[bytes]) -> list[bytes]:
        """The keys of blocks of a group, as they are stored since the last reset."""
        generation = self._generations.generation()
        mark = self._marks[group] + (generation.to_bytes(GENERATION_BYTES, "little") if generation else b"")
        return [each + mark for each in hashes]

    # --- steps ---
    def bind(self, step: Step) -> None:
        """Take what a step stores, and begin its loads, if requests wait for them outside of steps."""
        saves = [
            replace(save, hashes=self._keys(save.group, save.hashes))
            for save in step.saves
            if save.resets == self._resets and save.group in self._marks
        ]
        if old := sum(len(save.blocks) for save in step.saves if save.resets != self._resets):
            self._refused(old, CacheClosed("the cache was reset after their request had begun"))
        for reader, blocks in step.misdirected:
            why = f"{TARGET_PARAMETER}={reader} of a request is none of {self._world_size} ranks"
            self._refused(blocks, InvalidArgument(why))
        self.saving.bind(saves)
        if self._settings.load == "async":  # vLLM starts them after the forward pass: too late by a step
            self._load(step)

    def start(self, step: Step) -> None:
        """Begin the loads of a step, if that was not done; of a step that computes nothing, rest."""
        if self._settings.load == "layer":
            self._load(step)
        if step.idle:
            self.loading.rest()

    def _load(self, step: Step) -> None:
        self.loading.start(
            [
                replace(
                    load,
                    parts=[
                        part._replace(hashes=self._keys(part.group, part.hashes))
                        for part in load.parts
                        if part.group in self._marks
                    ],
                )
                for load in step.loads
            ]
        )

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
    kind, options = _heap(settings, layers.device, ranks.world_size)
    if kind != "local" and not settings.name and not part:
        remove_dead_worlds()
    if layers.device.type == "cpu":
        compiled(rare=True)  # else a step waits for what is called for the first time
        # vLLM's attention for bfloat16 uses AMX, which the kernel allows a process that has asked. vLLM's libraries ask
        # in their first larger product, which a prompt has of which nothing is computed but its last token
        torch.cpu._init_amx()
    return NanoKVCache(
        heap_bytes=settings.size,
        page_bytes=settings.page_bytes or _pages_of(layers),
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


def _pages_of(layers: Layers) -> int:
    """Bytes of a page, unless the settings say it."""
    largest = max(each.nbytes for each in layers.groups)
    return page_bytes(largest, len(layers.layout.heads) if layers.layout is not None else _PARTS)


def page_bytes(nbytes: int, heads: int) -> int:
    """The default: objects take a power of two of pages, without a rest, at every tensor-parallel degree.

    Args:
        nbytes, heads: of an object of this worker.
    """
    each = nbytes // min(heads & -heads, MOST_PAGES)
    return -(-each // _PAGE_ALIGNMENT) * _PAGE_ALIGNMENT


def _by_kernel(config: "VllmConfig", saving: Saves, layers: Layers) -> EngineWrite:
    if layers.groups[0].kv_dim is None:
        raise InvalidArgument(
            "nanokv.write=kernel needs a cache on a GPU that holds K and V, of layers that are all of one kind"
        )
    return EngineWrite(config, saving, layers.groups[0].planes)


def _part() -> int:
    """Which part of the KV this worker has: pipeline stages of tensor-parallel ranks."""
    tensor, pipeline = get_tp_group(), get_pp_group()
    return int(pipeline.rank_in_group * tensor.world_size + tensor.rank_in_group)
