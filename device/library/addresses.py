"""Addresses of segments, and copies between addresses. Any number of warps may call these."""

from typing import Any

import triton
import triton.language as tl

from nanokv.device.kernels.shares import ONE_WARP
from nanokv.device.kernels.shares import copy_tile as copy_aligned_tile
from nanokv.device.library.arguments import is_segment
from nanokv.device.memory.triton import copy_bytes, word
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.device.segment.world_table import open_world
from nanokv.device.segment.world_table import segment as segment_of


@triton.jit
def segment(world: tl.int64, rank: tl.int64) -> Any:
    """The address of a rank's segment; 0 if there is no such rank."""
    address = word(0)
    if is_segment(world, rank):
        address = segment_of(open_world(world), rank)
    return address


@triton.jit
def copy_tile(dst: tl.int64, src: tl.int64, words: tl.constexpr = 1024) -> None:
    """Copy `words` words, a power of two; slower unless both addresses are multiples of 16."""
    if ((dst | src) & 15) == 0:
        copy_aligned_tile(dst, src, words)
    else:
        copy_bytes(dst, src, word(words * WORD_BYTES), ONE_WARP)
