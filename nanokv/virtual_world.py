"""A world whose ranks are all virtual, in this process."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import torch

from nanokv.arguments import integer, listed
from nanokv.cache import NanoKVCache
from nanokv.config import LocalOptions, make_options
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
    **options: Unpack[LocalOptions],
) -> list[NanoKVCache]:
    """A world of `n` virtual ranks in this process: one cache per rank. Arguments and errors: see `NanoKVCache`.

    Args:
        device: where the segments lie: "cpu"; or a GPU, which then runs the protocol's kernels; or several GPUs, which
            the ranks take in turn.
    """
    for name in options:
        if name not in LocalOptions.__annotations__:
            raise InvalidArgument(f"local_world has no option {name!r}")
    chosen = make_options(options)
    n = integer("n", n, 1)
    devices = [device] if isinstance(device, str | torch.device) else listed("device", device)
    geometry = plan_geometry(heap_bytes, page_bytes, n, replace(chosen, heap_options={"device": devices}))
    master_rank = integer("master_rank", master_rank, 0, n - 1)
    world = LocalWorld(world_spec(geometry, chosen), device=devices)
    return [NanoKVCache._from_heap(world.heap(rank), master_rank, chosen) for rank in range(n)]
