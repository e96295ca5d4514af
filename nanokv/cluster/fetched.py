"""Objects that were read from another node, as tensors of the memory into which they were read."""

import ctypes
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from nanokv.device.machines.own_memory import plainly
from nanokv.device.machines.records import Descriptor, Words
from nanokv.transfer.descriptors import flat_bytes, shape_of

Bytes = npt.NDArray[np.uint8]
_MOST_KINDS = 64


class Got(NamedTuple):
    """An object that was read."""

    nbytes: int
    descriptor: Descriptor
    #: its bytes, in memory that is nobody else's, or a plain tensor of it; None: they are where they were wanted
    data: Bytes | bytes | torch.Tensor | None

    def copy_to(self, dst: torch.Tensor) -> None:
        """Copy the bytes to a contiguous, plain tensor."""
        assert self.data is not None
        if isinstance(self.data, bytes) and dst.device.type == "cpu":
            ctypes.memmove(dst.data_ptr(), self.data, self.nbytes)
            return
        with torch.inference_mode(), plainly():
            if isinstance(self.data, torch.Tensor):
                source = flat_bytes(self.data)
            elif isinstance(self.data, bytes):
                source = torch.from_numpy(np.frombuffer(self.data, np.uint8).copy())
            else:
                source = torch.from_numpy(self.data)
            flat_bytes(dst).copy_(source)

    def tensor(self, device: torch.device) -> torch.Tensor | None:
        """A new tensor of it; None: its descriptor contradicts its size."""
        if isinstance(self.data, torch.Tensor):
            return self.data if device.type == "cpu" else self.data.to(device)
        known = shape_of(self.descriptor, self.nbytes)
        assert self.data is not None
        if known is None:
            return None
        dtype, shape = known
        if isinstance(self.data, bytes) or not self.nbytes:
            made = torch.empty(shape, dtype=dtype, device=device)
            address = _address_of(made)
            if not address and self.nbytes:  # in a mode or a transform of torch
                with plainly():
                    made = torch.empty(shape, dtype=dtype, device=device)
                address = made.data_ptr()
            if self.nbytes and device.type == "cpu":
                ctypes.memmove(address, self.data, self.nbytes)  # type: ignore[arg-type]  # bytes
            elif self.nbytes:
                self.copy_to(made)
            return made
        with plainly():
            return torch.from_numpy(self.data).view(dtype).view(shape).to(device)  # its memory becomes the tensor's


def _address_of(tensor: torch.Tensor) -> int:
    """Where its bytes are; 0: nowhere, as in a mode of torch."""
    if type(tensor) is not torch.Tensor:
        return 0
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


class Kinds:
    """The dtype and shape that objects of a size had when they were last read. From any thread.

    Most caches hold blocks of one kind. So who knows how many bytes an object has makes a tensor of that kind, into
    which it is read; if it is of another kind after all, it is read once more.
    """

    def __init__(self) -> None:
        self._likes: dict[int, torch.Tensor] = {}

    def read(
        self,
        nbytes: int,
        into: Callable[[torch.Tensor], torch.Tensor | int | None],
        whole: Callable[[], Got | int],
    ) -> torch.Tensor | int | None:
        """Read an object as a new tensor of the host; or why there is none; None: its descriptor contradicts its size.

        Args:
            nbytes: that it has, as far as is known.
            into: reads it into a tensor, which it returns; None: it is of another kind.
            whole: reads it whatever its kind.
        """
        like = self._likes.get(nbytes)
        if like is not None:
            found = into(torch.empty_like(like))
            if found is not None:
                return found
            self._likes.pop(nbytes, None)
        got = whole()
        if not isinstance(got, Got):
            return got
        made = got.tensor(torch.device("cpu"))
        self._see(made)
        return made

    def _see(self, made: torch.Tensor | None) -> None:
        if made is None or type(made) is not torch.Tensor or not made.nbytes or made.nbytes in self._likes:
            return
        if len(self._likes) >= _MOST_KINDS:
            self._likes.clear()
        with torch.inference_mode(False), plainly():
            self._likes[made.nbytes] = torch.empty((), dtype=made.dtype).expand(made.shape)


class Memory(Protocol):
    """Memory that objects were read into."""

    def view(self, nbytes: int) -> Bytes:
        """The first bytes: an array that keeps the memory."""
        ...


class FetchedObjects:
    """The objects of one pass, in one room, at least one.

    Args:
        sizes, starts: bytes of each, and where they begin in the room: int64 [n].
        descriptors: int64 [n, 8].
    """

    def __init__(self, room: Memory, sizes: Words, starts: Words, descriptors: Words) -> None:
        starts = np.where(sizes, starts, 0)  # an empty object was given no place
        self._sizes, self._starts, self._descriptors = sizes, starts, descriptors
        self._bytes: Bytes = room.view(int((starts + sizes).max()))

    def each(self) -> Iterator[Got]:
        """One after the other."""
        rows = zip(self._sizes.tolist(), self._starts.tolist(), self._descriptors.tolist(), strict=True)
        for nbytes, start, descriptor in rows:
            yield Got(nbytes, tuple(descriptor), self._bytes[start : start + nbytes])

    def tensors(self, device: torch.device) -> list[torch.Tensor | None]:
        """Each as a tensor; None: its descriptor contradicts its size. On a host they share the room's memory."""
        with plainly():
            flat = torch.from_numpy(self._bytes).to(device)
            found: list[torch.Tensor | None] | None = self._rows(flat)
            if found is None:
                found = [_tensor_of(*each, flat) for each in zip(self.each(), self._starts.tolist(), strict=True)]
            return found

    def _rows(self, flat: torch.Tensor) -> list[Any] | None:
        """All at once, if they are alike and lie equally far apart, as what was put together does; else None."""
        nbytes, order = int(self._sizes[0]), np.argsort(self._starts)
        starts = self._starts[order]
        steps = np.diff(starts)
        step = int(steps[0]) if len(steps) else nbytes
        if not nbytes or (self._sizes != nbytes).any() or (steps != step).any() or step < nbytes:
            return None
        if (self._descriptors != self._descriptors[0]).any():
            return None
        known = shape_of(tuple(self._descriptors[0].tolist()), nbytes)
        if known is None or step % known[0].itemsize:
            return None
        rows = flat.as_strided((len(order), nbytes), (step, 1), int(starts[0])).view(known[0])
        tensors = rows.view(len(order), *known[1]).unbind(0)
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        return [tensors[place] for place in places.tolist()]


class FetchedTensor:
    """An object that was read as a tensor of its own, in the place of several (`FetchedObjects`)."""

    def __init__(self, got: Got) -> None:
        self._got = got

    def each(self) -> Iterator[Got]:
        """The object."""
        yield self._got

    def tensors(self, device: torch.device) -> list[torch.Tensor | None]:
        """The object as a tensor of a device."""
        return [self._got.tensor(device)]


def _tensor_of(got: Got, start: int, flat: torch.Tensor) -> torch.Tensor | None:
    known = shape_of(got.descriptor, got.nbytes)
    if known is None:
        return None
    return flat[start : start + got.nbytes].view(known[0]).view(known[1])
