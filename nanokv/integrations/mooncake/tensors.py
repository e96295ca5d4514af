"""All calls about tensors, and functions that turn tensors into what is stored, and back."""

from typing import Any

import torch

from nanokv.integrations.mooncake.memory import part_of
from nanokv.integrations.mooncake.parallelism_gets import ParallelismGets
from nanokv.integrations.mooncake.parallelism_puts import ParallelismPuts
from nanokv.integrations.mooncake.safetensor import SafeTensors
from nanokv.integrations.mooncake.tensor_header import HEADER_BYTES
from nanokv.integrations.mooncake.tensor_memory import copied, storable, whole_header
from nanokv.integrations.mooncake.tensor_shards import TensorShards


class Tensors(ParallelismPuts, ParallelismGets, TensorShards, SafeTensors):
    """The calls of a client about tensors."""


def _serialize_tensor(tensor: object, /) -> tuple[bytes, int, int, torch.Tensor]:
    """What a tensor is stored as: its header, the address and bytes of its data, and the tensor that owns them.

    Raises:
        ValueError: it cannot be stored.
    """
    owner = storable(tensor)
    if owner is None:
        raise ValueError("unsupported tensor for Mooncake tensor serialization")
    return whole_header(owner).packed(), owner.data_ptr(), owner.nbytes, owner


def _deserialize_tensor(payload: bytes, /) -> torch.Tensor:
    """A copy of the tensor in what is stored: a header, and the data behind it.

    Raises:
        TypeError: it is no bytes.
        ValueError: it is no tensor.
    """
    if not isinstance(payload, bytes):
        raise TypeError(f"incompatible function arguments: bytes are needed, not {type(payload)}")
    part, alive = part_of(payload)
    tensor = copied(*part)
    del alive
    if tensor is None:
        raise ValueError("invalid serialized Mooncake tensor payload")
    return tensor


def _tensor_metadata_size() -> int:
    """Bytes of the header."""
    return HEADER_BYTES


__all__: list[Any] = ["Tensors", "_deserialize_tensor", "_serialize_tensor", "_tensor_metadata_size"]
