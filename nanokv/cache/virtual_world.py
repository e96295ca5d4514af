"""A world whose ranks are all virtual, in this process."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import torch

from nanokv.arguments import integer, listed
from nanokv.cache.cache import NanoKVCache
from nanokv.cache.engine import plan_geometry, world_spec
from nanokv.config import LocalOptions, make_options
from nanokv.errors import InvalidArgument
from nanokv.heap.local import LocalHeap, LocalWorld


def local_world(
    n: int,
    heap_bytes: int,
    *,
    master_rank: int = 0,
    page_bytes: int = 256 * 1024,
    device: str | torch.device | Sequence[str | torch.device] = "cpu",
    ranks: Sequence[int] | None = None,
    **options: Unpack[LocalOptions],
) -> list[NanoKVCache]:
    """A world of `n` virtual ranks in this process: one cache per rank. Arguments and errors: see `NanoKVCache`.

    Args:
        device: where the segments lie: "cpu"; or a GPU, which then runs the protocol's kernels; or several GPUs, which
            the ranks take in turn.
        ranks: of an elastic world, those that are there from the start, at least one; the others come by
            `join_local_world`. Default: all. The caches returned are theirs, in ascending order.
    """
    for name in options:
        if name not in LocalOptions.__annotations__:
            raise InvalidArgument(f"local_world has no option {name!r}")
    chosen = make_options(options)
    n = integer("n", n, 1)
    devices = [device] if isinstance(device, str | torch.device) else listed("device", device)
    geometry = plan_geometry(heap_bytes, page_bytes, n, replace(chosen, heap_options={"device": devices}))
    master_rank = integer("master_rank", master_rank, 0, n - 1)
    there = _there(ranks, n, chosen.elastic)  # the geometry has checked `n`
    world = LocalWorld(world_spec(geometry, chosen), device=devices, ranks=there)
    return [NanoKVCache.on_heap(world.heap(rank), master_rank, chosen) for rank in there]


def join_local_world(member: NanoKVCache, rank: int) -> NanoKVCache:
    """A further rank of an elastic world of `local_world`: one that was not there yet, or has left.

    Args:
        member: any open cache of that world; the new one has its options.

    Raises:
        InvalidArgument: `member` is no such cache, or there is no such rank.
        HeapUnavailable: the rank is there; or it has closed without leaving.
        CacheClosed: `member` is closed.
    """
    if not isinstance(member, NanoKVCache):
        raise InvalidArgument(f"member must be a NanoKVCache, not {member!r}")
    member.engine.check_open()
    if not isinstance(member.engine.heap, LocalHeap):
        raise InvalidArgument(f"join_local_world is for worlds of local_world, not of heap={member.engine.heap.kind!r}")
    rank = integer("rank", rank, 0, member.world_size - 1)
    heap = member.engine.heap.world.join(rank)
    return NanoKVCache.on_heap(heap, member.engine.master_rank, member.options)


def _there(ranks: Sequence[int] | None, n: int, elastic: bool) -> list[int]:
    """The ranks that are there from the start, ascending."""
    if ranks is None:
        return list(range(n))
    if not elastic:
        raise InvalidArgument("ranks is for worlds with elastic=True: all ranks of any other are there from the start")
    found = {integer("a rank of ranks", rank, 0, n - 1) for rank in listed("ranks", ranks)}
    if not found:
        raise InvalidArgument("ranks must name at least one rank")
    return sorted(found)
