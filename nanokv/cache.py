"""NanoKVCache: the public API, one object per rank. Its calls are in `nanokv/api/`, a file per kind.

Objects are immutable and named by keys. Any rank puts into any rank's segment and reads from any; the same calls work
whether the producer allocates (`alloc="device"`, v2) or the master does (`alloc="host"`, v1).
"""

from __future__ import annotations

from typing import Unpack

from nanokv.api.held import Held
from nanokv.api.kernels import Kernels
from nanokv.api.owner import Owner
from nanokv.arguments import integer
from nanokv.config import CacheOptions, Options, given_name, make_options, rank_from_env, world_size_from_env
from nanokv.errors import InvalidArgument
from nanokv.heap.base import Heap
from nanokv.wiring import attach, plan_geometry, wire


class NanoKVCache(Kernels, Held, Owner):
    """One rank of a distributed KV cache.

    Args:
        heap_bytes: payload bytes of each rank's segment, the same on all ranks.
        master_rank: the rank that allocates in v1.
        page_bytes: bytes of a page; every object takes whole pages.
        name: the name of the world on this host; ranks meet by it. Default: NANOKV_NAME, else one that the ranks of a
            torchrun job share. Without a name and with one rank the heap is private to this process.
        rank, world_size: default: RANK and WORLD_SIZE, as torchrun sets them.
        options: fields of `nanokv.config.Options`.

    Raises:
        InvalidArgument: an argument is wrong.
        HeapUnavailable: this machine does not have that kind of heap, or the name cannot be used; or a rank of that
            name asks for other options.
        SegmentCorrupt: the memory under that name is not a valid world.
        PeerLost: the other ranks did not attach within `attach_timeout`.

    A cache may be used from any thread. `close` it, or use it in a `with` block. Once it is closed it still tells
    `rank`, `world_size`, `alloc`, `device`, `closed` and digests; every other use raises CacheClosed. It is true in a
    condition, empty or not. `key in cache` asks for the object in any segment; `segment_keys` and `segment_count` are
    about this rank's own.
    """

    def __init__(
        self,
        heap_bytes: int,
        master_rank: int = 0,
        page_bytes: int = 256 * 1024,
        *,
        name: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Unpack[CacheOptions],
    ) -> None:
        chosen = make_options(options)
        world_size = integer("world_size", world_size_from_env() if world_size is None else world_size, 1)
        rank = integer("rank", rank_from_env() if rank is None else rank, 0, world_size - 1)
        master_rank = integer("master_rank", master_rank, 0, world_size - 1)
        if name is not None and not (isinstance(name, str) and name):
            raise InvalidArgument(f"name must be a non-empty str, not {name!r}")
        geometry = plan_geometry(heap_bytes, page_bytes, world_size, chosen)
        heap = attach(given_name() if name is None else name, geometry, rank, chosen, master_rank)
        self._setup(wire(heap, master_rank, chosen), chosen, master_rank)

    @classmethod
    def _from_heap(cls, heap: Heap, master_rank: int, options: Options) -> NanoKVCache:
        cache = cls.__new__(cls)
        cache._setup(wire(heap, master_rank, options), options, master_rank)
        return cache
