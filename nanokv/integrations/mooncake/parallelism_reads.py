"""How a tensor is found in a layout: as an object that lies there, or joined from its shards.

A join reads from each shard what the target needs, straight from the segment to its place. First it looks at the
headers of all shards: each has to be the shard that its key says, of the same whole, or nothing is read. While it
copies from a shard, it checks that the header is still that one; if another shard has replaced it, the join fails.
Shards that a writer replaces by some of the same form, while a reader joins them, may be mixed, as in the real store: a
program that overwrites shards has to tell its readers.
"""

from collections.abc import Callable
from ctypes import string_at as bytes_at
from dataclasses import dataclass
from typing import Any

import torch

from nanokv.integrations.mooncake.parallelism_layout import (
    Axis,
    Layout,
    divides,
    in_order,
    key_of,
    layout_given,
    layout_in,
    shard_shape,
    text_given,
    tp_axis,
    with_tp,
)
from nanokv.integrations.mooncake.parallelism_manifest import (
    MANIFEST_BYTES,
    Manifest,
    manifest_key,
    parsed_manifest,
    writer_key,
    writer_manifest_key,
)
from nanokv.integrations.mooncake.tensor_header import Header
from nanokv.integrations.mooncake.tensor_memory import header_at, integers, over
from nanokv.integrations.mooncake.tensor_shards import shard_key
from nanokv.integrations.mooncake.tensor_values import TensorValues

_MODES = ("as_stored", "shard", "full")


@dataclass(frozen=True, slots=True)
class Join:
    """A tensor, or a shard of it, that shards have.

    Attributes:
        header: what the result is.
        dim: along which dimension it is joined.
        start: where in the whole it begins.
        shards: key and header of each, in order.
    """

    header: Header
    dim: int
    start: int
    shards: tuple[tuple[bytes, Header], ...]


def target_given(given: Any) -> tuple[str, Layout | None] | None:
    """Mode and layout of what a call wants to read; None if that cannot be.

    Raises:
        AttributeError, RuntimeError: a field is missing, or of another type.
    """
    if given is None:
        return _MODES[0], None
    if not hasattr(given, "mode") or not hasattr(given, "parallelism"):
        return None
    mode = text_given(given.mode).lower()
    if mode not in _MODES:
        return None
    if given.parallelism is None:
        return mode, None
    layout = layout_given(given.parallelism)
    return None if layout is None else (mode, layout)


class LaidOutReads(TensorValues):
    """What `ParallelismGets` is made of."""

    def _found(self, name: bytes, target: object) -> bytes | Join | None:
        """What has a target: the key of an object, or shards to join; None if there is no such thing."""
        wanted = target_given(target)
        if wanted is None:
            return None
        mode, layout = wanted
        if mode == "as_stored":
            return name if layout is None else None
        if layout is not None:
            return self._found_shard(name, layout) if mode == "shard" else self._found_whole(name, layout)
        if mode == "shard":
            return None
        return self._written_whole(name) or name

    def _found_shard(self, name: bytes, layout: Layout) -> bytes | Join | None:
        axis = tp_axis(layout)
        keys = [key_of(name, layout)]
        if axis is not None and len(layout) == 1:
            keys.append(writer_key(name, axis))
        for key in keys:
            header = self._header(key)
            if header is not None and layout_in(header) == in_order(layout):
                return key
        if axis is None:
            return None
        return self._joined_shard(name, layout, axis) or self._unlabelled_shard(name, layout, axis)

    def _joined_shard(self, name: bytes, layout: Layout, axis: Axis) -> Join | None:
        whole = self._found_whole(name, layout)
        if whole is None:
            return None
        shape = shard_shape(whole.header.whole, axis)
        axes = tuple(each.stored(shape) for each in layout)
        header = Header(whole.header.dtype, shape, whole.header.whole, axes, is_shard=True)
        return Join(header, whole.dim, axis.rank * shape[whole.dim], whole.shards)

    def _unlabelled_shard(self, name: bytes, layout: Layout, axis: Axis) -> bytes | None:
        """The key of a rank's shard that a program divided, and stored as a tensor: nothing tells which shard it is.

        The only shard of all is the tensor itself.
        """
        key = shard_key(name, axis.rank) if axis.size > 1 else name
        header = self._header(key) if len(layout) == 1 else None
        return key if header is not None and not header.is_shard else None

    def _found_whole(self, name: bytes, layout: Layout) -> Join | None:
        """The shards of the whole of which a layout names one; they may be of another number."""
        axis = tp_axis(layout)
        if axis is None:
            return None
        return self._joined_as(self._read_manifest(manifest_key(name)), name, layout, axis) or self._joined_as(
            self._first_shard(name, layout), name, layout, axis
        )

    def _joined_as(self, read: Manifest | None, name: bytes, layout: Layout, axis: Axis) -> Join | None:
        if read is None or read.split_dim != axis.split_dim or not divides(read.shape, axis):
            return None
        return self._joined(read, lambda own: key_of(name, with_tp(layout, own)), layout)

    def _written_whole(self, name: bytes) -> Join | None:
        """The shards of writers; None if there is none, or not all."""
        manifest = self._read_manifest(writer_manifest_key(name))
        if manifest is None:
            return None
        return self._joined(manifest, lambda own: writer_key(name, own), (manifest.axis(0),))

    def _joined(self, manifest: Manifest, key_for: Callable[[Axis], bytes], layout: Layout) -> Join | None:
        """All shards that a manifest tells of; None if one is missing, or is not what it should be."""
        if not divides(manifest.shape, manifest.axis(0)):
            return None
        shape = shard_shape(manifest.shape, manifest.axis(0))
        shards = []
        for rank in range(manifest.shards):
            axis = manifest.axis(rank)
            key = key_for(axis)
            header = self._header(key)
            if header is None or layout_in(header) != in_order(with_tp(layout, axis)):
                return None
            if (header.dtype, header.whole, header.shape) != (manifest.dtype, manifest.shape, shape):
                return None
            shards.append((key, header))
        header = Header(manifest.dtype, manifest.shape, manifest.shape)
        return Join(header, manifest.split_dim, 0, tuple(shards))

    def _first_shard(self, name: bytes, layout: Layout) -> Manifest | None:
        """What a manifest would say, from the first shard's header."""
        axis = tp_axis(layout)
        if axis is None:
            return None
        header = self._header(key_of(name, with_tp(layout, axis._replace(rank=0))))
        stored = tp_axis(layout_in(header) or ()) if header is not None else None
        if header is None or stored is None or stored.split_dim is None:
            return None
        return Manifest(header.dtype, header.whole, stored.split_dim, stored.size)

    def _read_manifest(self, key: bytes) -> Manifest | None:
        found = self._reading(key, lambda address, nbytes: bytes_at(address, min(nbytes, MANIFEST_BYTES)))
        return parsed_manifest(found) if isinstance(found, bytes) else None

    def _header(self, key: bytes) -> Header | None:
        """The header of the tensor under a key; None if there is none."""
        found = self._reading(key, header_at)
        return found if isinstance(found, Header) else None

    def _copy(self, join: Join, out: torch.Tensor) -> bool:
        """Fill a tensor with what a join has; False if a shard is not there any more, or is another."""
        target = integers(out)
        end = join.start + join.header.shape[join.dim]
        at = 0
        for key, header in join.shards:
            first, last = max(at, join.start), min(at + header.shape[join.dim], end)
            if first < last:
                into = target.narrow(join.dim, first - join.start, last - first)
                take = _copy_from(header, join.dim, first - at, into)
                if self._reading(key, take) is not True:
                    return False
            at += header.shape[join.dim]
        return True


def _copy_from(header: Header, dim: int, start: int, into: torch.Tensor) -> Callable[[int, int], bool]:
    """What copies a part of a shard, if the shard is still the one of a header, and tells whether it did."""

    def take(address: int, nbytes: int) -> bool:
        if header_at(address, nbytes) != header:
            return False
        stored = integers(over(address + header.offset, header.shape, header.dtype))
        into.copy_(stored.narrow(dim, start, into.shape[dim]))
        return True

    return take
