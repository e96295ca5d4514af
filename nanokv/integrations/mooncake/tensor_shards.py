"""Calls that divide a tensor among the ranks of tensor parallelism: each shard lies under a key of its own.

The shard of rank r is stored under "<key>_tp_<r>", with the shape of the whole and its place in it. All shards are of
the same size, so the dimension is divided evenly or the call is refused.
"""

import torch

from nanokv.integrations.mooncake.codes import Code
from nanokv.integrations.mooncake.config import ReplicateConfig, checked
from nanokv.integrations.mooncake.parallelism_layout import Axis, Kind, key_of, shard_header, shard_of
from nanokv.integrations.mooncake.tensor_gets import TensorGets
from nanokv.integrations.mooncake.tensor_memory import storable, tensor_at
from nanokv.integrations.mooncake.tensor_puts import TensorPuts, memory_of
from nanokv.integrations.mooncake.tensor_values import exact_list, int32, names, of_each, segments_fit
from nanokv.integrations.mooncake.values import PLAIN, key_bytes, number

_INVALID = Code.INVALID_PARAMS


def shard_key(name: bytes, rank: int) -> bytes:
    """The key of a rank's shard."""
    return name + b"_tp_%d" % rank


class TensorShards(TensorPuts, TensorGets):
    """`tp_rank` counts only for reading: a put stores the shards of all ranks. A `tp_size` below 2 divides nothing."""

    def put_tensor_with_tp(
        self, key: str, tensor: object, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """Divide a tensor along a dimension, and store its shards: 0, or the code of the first that was not stored."""
        return self.pub_tensor_with_tp(key, tensor, PLAIN, tp_rank, tp_size, split_dim)

    def pub_tensor_with_tp(
        self,
        key: str,
        tensor: object,
        config: ReplicateConfig = PLAIN,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        """`put_tensor_with_tp` as a config says."""
        name, (_, count, dim) = key_bytes(key), _checked_split(tp_rank, tp_size, split_dim)
        if not segments_fit(checked(config)):
            return _INVALID
        if count <= 1:
            return self._put_tensor(name, tensor, config, replace=False)
        single = of_each(config, count)
        return _INVALID if single is None else self._put_shards(name, tensor, single, count, dim)

    def _put_shards(self, name: bytes, given: object, config: ReplicateConfig, count: int, dim: int) -> int:
        tensor = storable(given)
        if tensor is None or not self._ready():
            return _INVALID
        codes = []
        for rank in range(count):
            axis = Axis(Kind.TP, rank, count, dim)
            shard = shard_of(tensor, axis)
            if shard is None:
                return _INVALID  # of the first rank: it is the same for all
            header = shard_header(tuple(tensor.shape), shard, (axis,))
            codes.append(self._store_data(key_of(name, (axis,)), header, shard, config, replace=False))
        return next((code for code in codes if code), 0)

    def batch_put_tensor_with_tp(
        self, base_keys: list[str], tensors_list: list[object], tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> list[int]:
        """`put_tensor_with_tp` for each key."""
        return self.batch_pub_tensor_with_tp(base_keys, tensors_list, PLAIN, tp_rank, tp_size, split_dim)

    def batch_pub_tensor_with_tp(
        self,
        base_keys: list[str],
        tensors_list: list[object],
        config: ReplicateConfig = PLAIN,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """`pub_tensor_with_tp` for each key."""
        each, given = names(base_keys), exact_list("tensors_list", tensors_list)
        _, count, dim = _checked_split(tp_rank, tp_size, split_dim)
        single = of_each(checked(config), len(each))
        if single is None or len(each) != len(given) or not segments_fit(config):
            return [_INVALID] * len(each)
        if count <= 1:
            return self._put_tensors(each, given, single, replace=False)
        return [self._put_shards(name, tensor, single, count, dim) for name, tensor in zip(each, given, strict=True)]

    # --- from memory ---
    def put_tensor_with_tp_from(
        self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """Divide a tensor that lies at an address, header and data, and store its shards: 0 or a code."""
        name, ptr, nbytes = key_bytes(key), number("buffer_ptr", buffer_ptr), number("size", size)
        _, count, dim = _checked_split(tp_rank, tp_size, split_dim)
        if count <= 1:
            return self._put_tensor_from(name, ptr, nbytes, replace=False)
        return self._put_shards(name, tensor_at(ptr, nbytes), PLAIN, count, dim)

    def batch_put_tensor_with_tp_from(
        self,
        base_keys: list[str],
        buffer_ptrs: list[int],
        sizes: list[int],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """`put_tensor_with_tp_from` for each key."""
        each, memory = names(base_keys), memory_of(buffer_ptrs, sizes)
        _, count, dim = _checked_split(tp_rank, tp_size, split_dim)
        if count <= 1:
            return self._put_objects(each, buffer_ptrs, sizes, PLAIN, replace=False)
        if memory is None or len(memory) != len(each):
            return [_INVALID] * len(each)
        return [
            self._put_shards(name, tensor_at(*part), PLAIN, count, dim) for name, part in zip(each, memory, strict=True)
        ]

    # --- reading ---
    def get_tensor_with_tp(
        self, key: str, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> torch.Tensor | None:
        """A copy of a rank's shard. `split_dim` is not needed: the shard is read as it was stored."""
        name, (rank, count, _) = key_bytes(key), _checked_split(tp_rank, tp_size, split_dim)
        return self._tensor(shard_key(name, rank) if count > 1 else name)

    def batch_get_tensor_with_tp(
        self, base_keys: list[str], tp_rank: int = 0, tp_size: int = 1
    ) -> list[torch.Tensor | None]:
        """`get_tensor_with_tp` for each key."""
        each, (rank, count, _) = names(base_keys), _checked_split(tp_rank, tp_size, 0)
        return [self._tensor(shard_key(name, rank) if count > 1 else name) for name in each]

    def get_tensor_with_tp_into(
        self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> torch.Tensor | None:
        """`get_tensor_into` of a rank's shard."""
        name, (rank, count, _) = key_bytes(key), _checked_split(tp_rank, tp_size, split_dim)
        ptr, room = number("buffer_ptr", buffer_ptr), number("size", size)
        return self._tensor_into(shard_key(name, rank) if count > 1 else name, ptr, room) if ptr else None

    def batch_get_tensor_with_tp_into(
        self, base_keys: list[str], buffer_ptrs: list[int], sizes: list[int], tp_rank: int = 0, tp_size: int = 1
    ) -> list[torch.Tensor | int | None]:
        """`batch_get_tensor_into` of a rank's shards. None for each key if the client is not set up."""
        each, (rank, count, _) = names(base_keys), _checked_split(tp_rank, tp_size, 0)
        memory = memory_of(buffer_ptrs, sizes)
        if not self._ready():
            return [None] * len(each)
        return self._tensors_into([shard_key(name, rank) if count > 1 else name for name in each], memory)


def _checked_split(tp_rank: object, tp_size: object, split_dim: object) -> tuple[int, int, int]:
    return int32("tp_rank", tp_rank), int32("tp_size", tp_size), int32("split_dim", split_dim)
