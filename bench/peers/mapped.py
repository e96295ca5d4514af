"""Shared memory without a name: whoever has its file descriptor may map it, and it is gone with the last of them."""

import mmap
import os
from contextlib import ExitStack

import torch


def memory_file(nbytes: int, stack: ExitStack) -> int:
    """The descriptor of new memory; closed with the stack, which leaves mappings as they are."""
    file = os.memfd_create("nanokv-peer")
    stack.callback(os.close, file)
    os.ftruncate(file, nbytes)
    return file


def places(memory: torch.Tensor, size: int) -> list[torch.Tensor]:
    """The memory in parts of `size` bytes, without what is left at its end."""
    return [memory[at : at + size] for at in range(0, len(memory) - size + 1, size)]


def mapped(file: int, nbytes: int) -> torch.Tensor:
    """The memory as uint8, for as long as the tensor or a view of it lives."""
    return torch.frombuffer(mmap.mmap(file, nbytes), dtype=torch.uint8)
