"""The same objects, gathered from an engine's paged cache and scattered into one: put_many and get_many of blocks.

An object is one block of all planes (K and V of each layer); a plane's block has 16 tokens of 8 heads, 32 KiB if the
object is large enough.
"""

import math

import torch

from nanokv.bench.gpu.objects import Objects, Way
from nanokv.bench.gpu.one_segment import Unsound
from nanokv.bench.suite.settings import KIB
from nanokv.device.machines.batch import Batch
from nanokv.device.machines.engine_cache import Pages

TOKENS, HEADS = 16, 8
PLANE_BYTES = 32 * KIB


def blocks(objects: Objects) -> Way:
    """Planes [blocks, tokens, heads, dim]: a plane's block is one run of bytes, the longest of any layout."""
    return _way(objects, " paged", heads_first=False)


def heads(objects: Objects) -> Way:
    """Planes [blocks, heads, tokens, dim] in memory: rows that are neighbours in an object lie apart."""
    return _way(objects, " paged by heads", heads_first=True)


def _way(objects: Objects, name: str, *, heads_first: bool) -> Way:
    there, back = (_planes(objects, tensor, heads_first=heads_first) for tensor in (objects.source, objects.target))
    world, count, device = objects.segment.world, objects.count, objects.segment.device
    putter, getter = (Batch(world, count, device, Pages(list(planes))) for planes in (there, back))

    def check() -> None:
        if not torch.equal(there, back):
            raise Unsound(f"other bytes were got than were put,{name}, at {objects.size} bytes")

    return Way(name, putter, getter, check)


def _planes(objects: Objects, tensor: torch.Tensor, *, heads_first: bool) -> torch.Tensor:
    """A copy of the objects' bytes as planes: int16 [planes, blocks, tokens, heads, dim], of either order in memory."""
    count = objects.size // math.gcd(objects.size, PLANE_BYTES)
    objects_first = tensor.view(torch.int16).view(objects.count, count, TOKENS, HEADS, -1)
    planes = objects_first.transpose(0, 1)
    return planes.transpose(2, 3).contiguous().transpose(2, 3) if heads_first else planes.contiguous()
