"""How tensors are stored in a layout: whole, a rank's shard, or a writer's.

| what is asked for | the tensor is | what is stored |
|---|---|---|
| nothing | whole | it, under the key |
| axes without a tensor axis | this rank's | it, under the key of the layout |
| a tensor axis alone | this rank's shard | it, and a manifest |
| a tensor axis and others | the whole | this rank's shard of it, and a manifest |
| a writer's part | the whole | this writer's shard of it, and a manifest |
| a tensor axis, from memory | the whole | the shards of all ranks |

A manifest is stored after its shard. A reader goes by it only if all shards are there and agree with it.
"""

from collections.abc import Callable
from typing import Any

import torch

from nanokv.integrations.mooncake.codes import Code
from nanokv.integrations.mooncake.config import ReplicateConfig, checked
from nanokv.integrations.mooncake.memory import part_of
from nanokv.integrations.mooncake.parallelism_layout import (
    Axis,
    Layout,
    divides,
    key_of,
    layout_given,
    partition_given,
    shard_header,
    shard_of,
    tp_axis,
    with_tp,
)
from nanokv.integrations.mooncake.parallelism_manifest import Manifest, manifest_key, writer_key, writer_manifest_key
from nanokv.integrations.mooncake.tensor_header import Header, Shape
from nanokv.integrations.mooncake.tensor_memory import header_at, over, storable
from nanokv.integrations.mooncake.tensor_values import TensorValues, of_each, segments_fit

_INVALID = Code.INVALID_PARAMS


class Asked:
    """How a call wants a tensor stored: in a layout, as a writer's part, or neither.

    Raises:
        AttributeError, RuntimeError, TypeError: a field is missing, or of another type.
    """

    def __init__(self, parallelism: object, writer_partition: object, config: ReplicateConfig) -> None:
        self.config = checked(config)
        self.layout: Layout | None = None if parallelism is None else layout_given(parallelism)
        self.part: Axis | None = None if writer_partition is None else partition_given(writer_partition)
        self.whole = parallelism is None and writer_partition is None
        both = parallelism is not None and writer_partition is not None
        #: whether one thing was asked for, and it can be
        self.possible = not both and (self.whole or self.layout is not None or self.part is not None)


class LaidOut(TensorValues):
    """What `ParallelismPuts` is made of."""

    def _put_laid_out(self, name: bytes, given: object, asked: Asked, *, replace: bool) -> int:
        tensor = storable(given)
        if tensor is None or not asked.possible or (asked.whole and not segments_fit(asked.config)):
            return _INVALID
        if asked.part is not None:
            return self._put_part(name, tensor, asked.part, asked.config, replace=replace)
        if asked.layout is not None:
            return self._put_shard(name, tensor, asked.layout, asked.config, replace=replace)
        return self._put_tensor(name, tensor, asked.config, replace=replace)

    def _put_shard(
        self, name: bytes, tensor: torch.Tensor, layout: Layout, config: ReplicateConfig, *, replace: bool
    ) -> int:
        axis, whole = tp_axis(layout), tuple(tensor.shape)
        shard: torch.Tensor | None = tensor
        if axis is not None and len(layout) > 1:
            shard = shard_of(tensor, axis)
        elif axis is not None:
            whole = tuple(size * axis.size if dim == axis.split_dim else size for dim, size in enumerate(whole))
        if shard is None or (axis is not None and not divides(whole, axis)):
            return _INVALID
        header = shard_header(whole, shard, layout)
        done = self._store_data(key_of(name, layout), header, shard, config, replace=replace)
        if done or axis is None:
            return done
        return self._put_manifest(manifest_key(name), header, axis, config, replace=replace)

    def _put_part(
        self, name: bytes, tensor: torch.Tensor, part: Axis, config: ReplicateConfig, *, replace: bool
    ) -> int:
        shard = shard_of(tensor, part)
        if shard is None:
            return _INVALID
        header = shard_header(tuple(tensor.shape), shard, (part,))
        done = self._store_data(writer_key(name, part), header, shard, config, replace=replace)
        return done or self._put_manifest(writer_manifest_key(name), header, part, config, replace=replace)

    def _put_manifest(self, key: bytes, shard: Header, axis: Axis, config: ReplicateConfig, *, replace: bool) -> int:
        manifest = Manifest(shard.dtype, shard.whole, axis.split_dim or 0, axis.size)
        part, alive = part_of(manifest.packed())
        done = self._store(key, [part], config, replace=replace)
        del alive
        return done

    # --- from memory ---
    def _put_laid_out_from(self, name: bytes, ptr: int, nbytes: int, asked: Asked, *, replace: bool) -> int:
        header = header_at(ptr, nbytes)
        if header is None or not asked.possible:
            return _INVALID
        if asked.whole:
            fits = segments_fit(asked.config)
            return self._put_object(name, ptr, nbytes, asked.config, replace=replace) if fits else _INVALID
        data = over(ptr + header.offset, header.shape, header.dtype).view(header.shape)
        layout, axis = asked.layout or (), asked.part or tp_axis(asked.layout or ())
        if axis is None:
            again = shard_header(header.whole, data, layout)
            return self._store_data(key_of(name, layout), again, data, asked.config, replace=replace)
        if header.shape != header.whole:  # it is a shard itself, so the other shards are not in this memory
            return _INVALID
        if asked.part is not None:
            return self._put_part(name, data, asked.part, asked.config, replace=replace)
        return self._put_all(name, data, header.whole, layout, axis, asked.config, replace=replace)

    def _put_all(
        self,
        name: bytes,
        data: torch.Tensor,
        whole: Shape,
        layout: Layout,
        axis: Axis,
        config: ReplicateConfig,
        *,
        replace: bool,
    ) -> int:
        """Store the shards of all ranks of a tensor axis; it stops at the first that cannot be stored."""
        for rank in range(axis.size):
            own = with_tp(layout, axis._replace(rank=rank))
            shard = shard_of(data, axis._replace(rank=rank))
            if shard is None:
                return _INVALID
            done = self._store_data(key_of(name, own), shard_header(whole, shard, own), shard, config, replace=replace)
            if done:
                return done
        return 0


def each_asked(
    keys: list[bytes],
    parallelisms: Any,
    config: ReplicateConfig,
    writer_partitions: Any,
    put: Callable[[int, Asked], int],
) -> list[int]:
    """`put(i, asked)` for each key that a call names, whose requests are in one of two lists.

    INVALID_PARAMS for each key: both lists were given, or what is no list, or one of another length than the keys.
    """
    single = of_each(checked(config), len(keys))
    given = parallelisms if writer_partitions is None else writer_partitions
    both = parallelisms is not None and writer_partitions is not None
    if single is None or both or not isinstance(given, list) or len(given) != len(keys):
        return [_INVALID] * len(keys)
    if writer_partitions is None:
        return [put(at, Asked(request, None, single)) for at, request in enumerate(given)]
    return [put(at, Asked(None, request, single)) for at, request in enumerate(given)]
