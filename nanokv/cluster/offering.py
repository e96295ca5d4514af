"""Where the bytes of a put to another node come from: the question itself, or registered memory that the node reads."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nanokv.cluster.links.base import Link
from nanokv.cluster.pull_message import MOST_BROUGHT, MOST_PULLS, Records
from nanokv.cluster.staging import Staging
from nanokv.device.machines.own_memory import plain_tensor
from nanokv.device.machines.records import Words
from nanokv.transfer.batched import Tensors
from nanokv.transfer.descriptors import descriptor_of, flat_bytes, is_plain, what_of

_ALIGN = 64  #: bytes between sources


def storable(tensors: Tensors) -> tuple[Tensors, Words]:
    """The tensors as plain ones, and the bytes of each: int64 [n].

    Raises:
        InvalidArgument: one cannot be stored.
    """
    if isinstance(tensors, torch.Tensor):
        return tensors, np.full(len(tensors), what_of(tensors.dtype, tensors.shape[1:]).nbytes, np.int64)
    plain = [plain_tensor(tensor) for tensor in tensors]
    return plain, np.array([what_of(tensor.dtype, tensor.shape).nbytes for tensor in plain], np.int64)


def are_few(tensors: Tensors) -> bool:
    """Whether plain tensors are few, and have few bytes: they travel in the question."""
    nbytes = tensors.nbytes if isinstance(tensors, torch.Tensor) else sum(tensor.nbytes for tensor in tensors)
    return len(tensors) <= MOST_PULLS and nbytes <= MOST_BROUGHT


class RegisteredMemory:
    """Memory of the caller that other nodes may read: an engine's cache. Its objects are not copied before a put."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._known: dict[int, torch.Tensor] = {}

    def add(self, tensor: torch.Tensor) -> None:
        """Register the memory of a contiguous, plain tensor."""
        if tensor.data_ptr() not in self._known:
            self._link.register(tensor.data_ptr(), tensor.nbytes)
            self._known[tensor.data_ptr()] = tensor

    def has(self, address: int, nbytes: int) -> bool:
        """Whether memory is part of a tensor that was added."""
        return any(
            start <= address and address + nbytes <= start + tensor.nbytes for start, tensor in self._known.items()
        )


class Offers:
    """Fills in size, descriptor and source of PULLs."""

    def __init__(self, registered: RegisteredMemory, staging: Staging) -> None:
        self._registered, self._staging = registered, staging

    @staticmethod
    def bring(pulls: Records, tensors: Sequence[torch.Tensor]) -> bytes:
        """The bytes of plain tensors for the question, if they are few; else b"", and the PULLs stay as they were."""
        if not are_few(tensors):
            return b""
        if isinstance(tensors, torch.Tensor):
            sizes = np.full(len(tensors), tensors.nbytes // max(len(tensors), 1), np.int64)
        else:
            sizes = np.array([tensor.nbytes for tensor in tensors], np.int64)
        pulls["nbytes"], pulls["source"] = sizes, np.cumsum(sizes) - sizes
        if isinstance(tensors, torch.Tensor):
            pulls["what"] = descriptor_of(tensors.dtype, tensors.shape[1:])[1]
            return _bytes_of(tensors)
        for pull, tensor in zip(pulls, tensors, strict=True):
            pull["what"] = descriptor_of(tensor.dtype, tensor.shape)[1]
        return b"".join(map(_bytes_of, tensors))

    def offer(self, pulls: Records, tensors: Sequence[torch.Tensor]) -> Any:
        """Make the bytes of plain tensors readable for other nodes. Returns what keeps them."""
        if isinstance(tensors, torch.Tensor) and len(tensors) and is_plain(tensors):
            nbytes, descriptor = descriptor_of(tensors.dtype, tensors.shape[1:])
            pulls["nbytes"], pulls["what"] = nbytes, descriptor
            if tensors.device.type == "cpu":
                return self._offer_rows(pulls, tensors, nbytes)
        for pull, tensor in zip(pulls, tensors, strict=True):
            pull["nbytes"], pull["what"] = descriptor_of(tensor.dtype, tensor.shape)
        return self._offer_each(pulls, tensors)

    def _offer_rows(self, pulls: Records, rows: torch.Tensor, nbytes: int) -> Any:
        start = rows.data_ptr()
        kept: Any = rows
        if not self._registered.has(start, rows.nbytes):
            kept = self._staging.room(rows.nbytes)
            torch.from_numpy(kept.view(rows.nbytes)).copy_(flat_bytes(rows.detach()))
            start = kept.address
        pulls["source"] = start + nbytes * np.arange(len(pulls))
        return kept

    def _offer_each(self, pulls: Records, tensors: Sequence[torch.Tensor]) -> Any:
        ready = [
            tensor.device.type == "cpu" and is_plain(tensor) and self._registered.has(tensor.data_ptr(), tensor.nbytes)
            for tensor in tensors
        ]
        places, total = [], 0
        for tensor, is_ready in zip(tensors, ready, strict=True):
            places.append(total)
            total += 0 if is_ready else -(-tensor.nbytes // _ALIGN) * _ALIGN
        room = self._staging.room(max(total, 1))
        memory = torch.from_numpy(room.view(max(total, 1)))
        for pull, tensor, is_ready, place in zip(pulls, tensors, ready, places, strict=True):
            pull["source"] = tensor.data_ptr() if is_ready else room.address + place
            if not is_ready and tensor.nbytes:
                into = memory[place : place + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                into.copy_(tensor.detach())
        return room, tensors


def _bytes_of(tensor: torch.Tensor) -> bytes:
    if not (tensor.device.type == "cpu" and is_plain(tensor)):
        tensor = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b""
