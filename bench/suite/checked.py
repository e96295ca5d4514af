"""Bytes that were moved are compared, outside of what is timed."""

import torch

from nanokv import NanoKVCache
from nanokv.bench.suite.owner import Owner, digest
from nanokv.bench.suite.ring import Mismatch


def random_bytes(size: int, seed: int = 0) -> torch.Tensor:
    """uint8 [size], the same in every process for one seed."""
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def check_same(what: str, got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Raises Mismatch, naming `what`, if two tensors differ in a byte."""
    if digest(got) != digest(wanted):
        raise Mismatch(f"{what} is not what was put, at {wanted.nbytes} bytes")


def check_object(cache: NanoKVCache, owner: Owner, key: str, wanted: torch.Tensor) -> None:
    """Read an object in every way, also as the owner. Raises Mismatch if a byte differs."""
    check_same(f"get of {key!r} into a tensor", cache.get(key, dst=torch.zeros_like(wanted)), wanted)
    check_same(f"get of {key!r}", cache.get(key), wanted)
    if owner.digest(key) != digest(wanted):
        raise Mismatch(f"get of {key!r} by the owner is not what was put, at {wanted.nbytes} bytes")
