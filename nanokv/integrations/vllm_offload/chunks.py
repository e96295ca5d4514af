"""Which bytes of the engine's cache are which bytes of an object.

vLLM gives the cache as tensors, int8 [blocks, bytes of a page], and for each group of layers the tensors that hold its
layers. It offloads chunks: so many consecutive blocks of one group. An object holds the pages of one chunk, on one
worker, without gaps: block after block, and in each the pages in the order of the group's references.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec, LoadStoreSpec

from nanokv.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class ChunkSpec(LoadStoreSpec):
    """Where the chunks of a job lie: what the manager tells the workers.

    Attributes:
        names: of the chunks. A worker's object has the name of the chunk and the number of the worker.
        segment: the rank in whose segment new objects go.
        tag: of the manager's identity (`keys.hashing.tag_of`): a worker with another one would see other objects.
    """

    names: tuple[bytes, ...]
    segment: int
    tag: int


def object_name(chunk: bytes, worker: int) -> bytes:
    """The name of the object with one worker's part of a chunk."""
    return chunk + worker.to_bytes(4, "big")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a job.

    Attributes:
        group: the number of its group of layers.
        first: the place in the chunk of the first block that is copied.
        blocks: of the engine's cache, those that are copied.
    """

    group: int
    first: int
    blocks: Sequence[int]


class Pages:
    """The engine's cache, by chunks.

    Args:
        blocks_per_chunk: consecutive blocks that are offloaded together.
    """

    def __init__(self, kv_caches: CanonicalKVCaches, blocks_per_chunk: int) -> None:
        self._blocks_per_chunk = blocks_per_chunk
        self._groups = [
            [kv_caches.tensors[ref.tensor_idx].tensor[:, : ref.page_size_bytes] for ref in refs]
            for refs in kv_caches.group_data_refs
        ]
        self._offsets = [
            list(accumulate((layer.shape[1] for layer in layers), initial=0)) for layers in self._groups
        ]  # of each layer in a block, and the bytes of the block
        self.device = kv_caches.tensors[0].tensor.device

    def nbytes(self, group: int) -> int:
        """Bytes of an object of a group."""
        block: int = self._offsets[group][-1]
        return block * self._blocks_per_chunk

    def chunks(self, spec: GPULoadStoreSpec, count: int) -> Iterator[Chunk]:
        """The chunks that a job copies, in order.

        Raises:
            InvalidArgument: they are not `count`.
        """
        per_chunk, blocks, at, found = self._blocks_per_chunk, spec.block_ids.tolist(), 0, 0
        for group, (size, index) in enumerate(zip(spec.group_sizes, spec.block_indices, strict=True)):
            end, first = at + size, index % per_chunk
            while at < end:
                taken = min(per_chunk - first, end - at)
                yield Chunk(group, first, blocks[at : at + taken])
                at, first, found = at + taken, 0, found + 1
        if found != count:
            raise InvalidArgument(f"{count} chunks were named, and the blocks make {found}")

    def is_whole(self, chunk: Chunk) -> bool:
        """Whether all blocks of a chunk are copied."""
        return len(chunk.blocks) == self._blocks_per_chunk

    def store(self, chunk: Chunk, payload: torch.Tensor) -> None:
        """Copy a chunk to an object's bytes, int8 [nbytes]."""
        pages, parts = self._pairs(chunk, payload)
        torch._foreach_copy_(parts, pages)

    def load(self, chunk: Chunk, payload: torch.Tensor) -> None:
        """Copy an object's bytes, int8 [nbytes], to a chunk."""
        pages, parts = self._pairs(chunk, payload)
        torch._foreach_copy_(pages, parts)

    def _pairs(self, chunk: Chunk, payload: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Pages of the engine's cache, and the parts of an object that belong to them."""
        layers, offsets = self._groups[chunk.group], self._offsets[chunk.group]
        pages, parts = [], []
        for place, block in enumerate(chunk.blocks, chunk.first):
            base = place * offsets[-1]
            for layer, start in zip(layers, offsets, strict=False):  # the last offset is the end
                pages.append(layer[block])
                parts.append(payload[base + start : base + start + layer.shape[1]])
        return pages, parts
