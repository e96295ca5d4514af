"""Keys and payloads of the checks of a running world: every word of a payload holds its key and version."""

import numpy as np
import torch

from nanokv.check.report import CheckFailure

VERSION_BITS = 32
VERSION_MASK = (1 << VERSION_BITS) - 1


def name(key: int) -> str:
    """The key as the cache takes it."""
    return f"key-{key}"


def payload(key: int, version: int, words: int) -> torch.Tensor:
    """int64 [words], each of which holds the key and the version (below 2**32)."""
    return torch.full((words,), key << VERSION_BITS | version, dtype=torch.int64)


def check_payload(key: int, tensor: torch.Tensor) -> int:
    """The version, if every word of the tensor is of one version of this key. The payload of a plan comes as bytes.

    Raises:
        CheckFailure: it is torn, or another key's, or no payload.
    """
    if tensor.dtype == torch.uint8 and tensor.numel() % tensor.new_empty(0, dtype=torch.int64).element_size() == 0:
        tensor = tensor.view(torch.int64)
    if tensor.dtype != torch.int64 or tensor.dim() != 1 or not tensor.numel():
        raise CheckFailure(f"key {key} came back as {tensor.dtype} {list(tensor.shape)}")
    values = np.unique(tensor.numpy()).tolist()
    if len(values) != 1:
        raise CheckFailure(f"key {key} is torn: {[hex(value) for value in values]}")
    if values[0] >> VERSION_BITS != key:
        raise CheckFailure(f"key {key} holds the bytes of key {values[0] >> VERSION_BITS}")
    return int(values[0] & VERSION_MASK)
