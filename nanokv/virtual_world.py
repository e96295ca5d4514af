"""A world whose ranks are all virtual, in this process."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from nanokv.cache import NanoKVCache
from nanokv.config import make_options
from nanokv.errors import InvalidArgument
from nanokv.heap.local import LocalWorld
from nanokv.wiring import plan_geometry, world_spec


def local_world(
    n: int,
    heap_bytes: int,
    *,
    master_rank: int = 0,
    page_bytes: int = 256 * 1024,
    device: str | torch.device | Sequence[str | torch.device] = "cpu",
    **options: Any,
) -> list[NanoKVCache]:
    """A world of `n` virtual ranks in this process: one cache per rank. Arguments and errors: see `NanoKVCache`.

    Args:
        device: where the segments lie: "cpu"; or a GPU, which then runs the protocol's kernels; or several GPUs, which
            the ranks take in turn.
    """
    chosen = make_options(options)
    geometry = plan_geometry(heap_bytes, page_bytes, n, replace(chosen, heap_options={"device": device}))
    if not 0 <= master_rank < n:
        raise InvalidArgument(f"master_rank must be 0 to {n - 1}, not {master_rank}")
    world = LocalWorld(world_spec(geometry, chosen), device=device)
    return [NanoKVCache._from_heap(world.heap(rank), master_rank, chosen) for rank in range(n)]
