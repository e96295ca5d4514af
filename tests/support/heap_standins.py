"""Stand-ins for the libraries that the heap providers `torch_symm` and `iris` take memory from.

They replace only the code that needs GPUs: the host interface has the names, arguments, collective calls and refusals
of the library, and processes really share the memory (memfds, which peers open and map). Ranks exchange values in a
real process group of torch.distributed. Written from the libraries' documented interfaces:
torch 2.13's `torch.distributed._symmetric_memory`; iris of 2025 (`zeros`, `get_heap_bases`) and of 2026
(`allocate_symmetric`).
"""

import itertools
import math
import mmap
import os
import pickle
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from nanokv.heap.mapped_tensor import tensor_at

_c10d: Any = dist.distributed_c10d  # its stubs miss private names

NO_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
OVERLAPPING = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"


class Pool:
    """Shared memory of this process, page-aligned, which other processes of this user can map too."""

    living: ClassVar["weakref.WeakSet[Pool]"] = weakref.WeakSet()  #: the pools that nothing has let go of yet

    def __init__(self, nbytes: int) -> None:
        Pool.living.add(self)
        self._fd = os.memfd_create("stand-in")
        os.ftruncate(self._fd, nbytes)
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
        self.bytes = map_pool(self.path)

    def __del__(self) -> None:
        os.close(self._fd)


def map_pool(path: str) -> torch.Tensor:
    """The memory of the pool at a path: a new mapping, uint8."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return torch.from_numpy(np.frombuffer(mmap.mmap(fd, 0), np.uint8))
    finally:
        os.close(fd)


def exchanged(mine: Any, group: Any) -> list[Any]:
    """The value of every rank, by rank. Collective."""
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, mine, group)
    return values


# --- torch.distributed._symmetric_memory ---
class Offer(NamedTuple):
    """The values that a rank sends the others in a rendezvous."""

    path: str
    nbytes: int
    offset: int
    device: int


class Handle:
    """The result of `rendezvous`: the addresses of every rank's buffer, and tensors over them."""

    def __init__(self, rank: int, mapped: list[torch.Tensor], mine: Pool) -> None:
        self.rank = rank
        self.mine = mine
        self.world_size = len(mapped)
        self.buffer_ptrs = [buffer.data_ptr() for buffer in mapped]
        self.buffer_size = mapped[0].numel()
        self._mapped = mapped

    def get_buffer(self, rank: int, sizes: Any, dtype: torch.dtype, storage_offset: int = 0) -> torch.Tensor:
        count = math.prod(sizes)
        return self._mapped[rank].view(dtype)[storage_offset : storage_offset + count].view(sizes)

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        raise AssertionError("signal pads collide between groups: a provider must not use them")

    get_signal_pad = put_signal = wait_signal = barrier


class Block:
    """One allocation: its memory, and the handle of each group that has met over it, by the group's name."""

    def __init__(self, nbytes: int, offset: int) -> None:
        self.nbytes = nbytes
        self.offset = offset
        self.pool = Pool(offset + nbytes)
        self.pool.bytes.fill_(0xA5)  # it is not zeroed
        self.met: dict[str, Handle] = {}


_exchanges = itertools.count()  #: of this process, over all groups, as `StoreExchange::seq_id_`
_blocks: dict[int, Block] = {}  #: by address; a block goes when its tensor does
_pool: dict[int, torch.Tensor] = {}  #: of the process, by size: it gives no memory back


class Lease:
    """Lives as long as a tensor of an allocation does."""


def through_store(mine: Any, group: Any) -> list[Any]:
    """The value of every rank, by rank, as `StoreExchange.all_gather`: each wait lasts as long as the store says."""
    store, count = group.get_group_store(), next(_exchanges)
    keys = [f"CUDASymmetricMemory/{count}/{rank}" for rank in range(group.size())]
    store.set(keys[group.rank()], pickle.dumps(mine))
    values = []
    for rank, key in enumerate(keys):
        if rank != group.rank():
            store.wait([key])
        values.append(mine if rank == group.rank() else pickle.loads(store.get(key)))
    return values


class TorchSymmetricMemory:
    """`torch.distributed._symmetric_memory`, and the `_SymmetricMemory` in it, with its CUDA backend, over host memory.

    Args:
        gpu: the number of the GPU that this rank would have.
        capacity: bytes that an allocation can have.
        offset: where tensors begin in their buffers, as in a pool of the caching allocator.
        told: changes the table of addresses that this rank is told.
        backend: that was chosen.
    """

    def __init__(
        self,
        gpu: int,
        *,
        capacity: int = 1 << 30,
        offset: int = 0,
        told: Callable[[list[int]], list[int]] = lambda pointers: pointers,
        backend: str = "CUDA",
    ) -> None:
        self._gpu, self._capacity, self._offset, self._told = gpu, capacity, offset, told
        self._backend = backend
        self._SymmetricMemory = self

    def get_backend(self, device: torch.device) -> str | None:
        return self._backend

    def empty(self, *size: int, dtype: torch.dtype, device: Any) -> torch.Tensor:
        """From the pool: the block of that size that was let go of, with the peers that it had, or a new one."""
        nbytes = math.prod(size) * dtype.itemsize
        if nbytes not in _pool:
            _pool[nbytes] = self.empty_strided_p2p((nbytes,), (1,), torch.uint8, torch.device(device))
        return _pool[nbytes].view(dtype).view(size)

    def empty_strided_p2p(
        self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """A new block, which goes with the tensor."""
        if device.type != "cpu":
            raise RuntimeError(f"no symmetric memory allocator for {device} in this stand-in")
        nbytes = math.prod(size) * dtype.itemsize
        if nbytes > self._capacity:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {nbytes} bytes.")
        block = Block(nbytes, self._offset)
        address, lease = block.pool.bytes.data_ptr() + self._offset, Lease()
        _blocks[address] = block
        weakref.finalize(lease, _blocks.pop, address, None)
        return tensor_at(address, nbytes, device, lease).view(dtype).as_strided(size, stride)

    def rendezvous(self, tensor: torch.Tensor, group_name: str) -> Handle | None:
        block = _blocks.get(tensor.data_ptr())
        if block is None:
            return None  # with a warning of torch's
        if group_name not in block.met:
            block.met[group_name] = self._meet(block, _c10d._resolve_process_group(group_name))
        return block.met[group_name]

    def _meet(self, block: Block, group: Any) -> Handle:
        rank = group.rank()
        offers = through_store(Offer(block.pool.path, block.nbytes, block.offset, self._gpu), group)
        if len({offer.device for offer in offers}) < len(offers) and os.environ.get(OVERLAPPING) != "1":
            raise RuntimeError("rendezvous: detected allocations from overlapping devices from different ranks.")
        if os.environ.get(NO_MULTICAST) != "1":  # as on a GPU that was passed through without its NVSwitch
            raise RuntimeError("CUDA driver error: invalid argument")
        if len({offer.nbytes for offer in offers}) > 1:
            raise RuntimeError("rendezvous: the sizes of the allocations do not match")
        mapped = [block.pool.bytes if r == rank else map_pool(offer.path) for r, offer in enumerate(offers)]
        through_store(0, group)  # every rank has mapped every pool
        handle = Handle(rank, mapped, block.pool)
        handle.buffer_ptrs = self._told(handle.buffer_ptrs)
        return handle


# --- iris ---
ALIGNMENT = 1024  #: bytes; of all that iris allocates on its heap


class Part(NamedTuple):
    """A part of a context that refers to it, as `ccl` and `tracing` do: only a collection of garbage frees the heap."""

    of: "OldContext"


class OldContext:
    """The `Iris` of 2025: one pool, allocated upwards, mapped by all ranks when the context is made."""

    def __init__(self, heap_size: int, taken: int = 0) -> None:
        if not dist.is_initialized():
            raise RuntimeError("PyTorch distributed is not initialized")
        self.heap_size = heap_size
        self._pool = Pool(heap_size)
        self._pool.bytes.fill_(0xA5)
        self._next = taken
        self._map()
        self.ccl = Part(self)

    def _map(self) -> None:
        me = self.get_rank()
        paths = exchanged(self._pool.path, None)
        self._mapped = [self._pool.bytes if rank == me else map_pool(path) for rank, path in enumerate(paths)]
        dist.barrier()

    def _take(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        nbytes = count * dtype.itemsize
        aligned = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if self._next + aligned > self.heap_size:
            raise MemoryError("Heap out of memory")
        start, self._next = self._next, self._next + aligned
        return self._pool.bytes[start : start + nbytes].view(dtype)

    def zeros(self, *size: int, dtype: torch.dtype = torch.int32, device: Any = None) -> torch.Tensor:
        return self._take(math.prod(size), dtype).zero_().view(size)

    def get_heap_bases(self) -> torch.Tensor:
        return torch.tensor([pool.data_ptr() for pool in self._mapped], dtype=torch.uint64)

    def barrier(self) -> None:
        dist.barrier()

    def get_rank(self) -> int:
        return dist.get_rank()

    def get_num_ranks(self) -> int:
        return dist.get_world_size()

    def get_device(self) -> torch.device:
        return self._pool.bytes.device


class PeerMap(NamedTuple):
    """The address map that some versions give beside a tensor."""

    peer_bases: torch.Tensor


class NewContext(OldContext):
    """The `Iris` of 2026: an allocation is collective, maps the peers anew, and has a table of its own.

    `as_map`: the table comes in an address map, and is that of the whole heap; else it is of the tensor.
    """

    as_map = False

    def allocate_symmetric(self, *size: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, Any]:
        made = self._take(math.prod(size), dtype).view(size)
        self._map()
        bases = self.get_heap_bases().to(torch.int64)
        if self.as_map:
            return made, PeerMap(bases)
        return made, bases + (made.data_ptr() - self._pool.bytes.data_ptr())


class MapContext(NewContext):
    """With an address map."""

    as_map = True


class Uint64Context(NewContext):
    """Some versions gather addresses as uint64, which gloo refuses."""

    def _map(self) -> None:
        mine = torch.tensor([self._pool.bytes.data_ptr()], dtype=torch.uint64)
        dist.all_gather([torch.empty_like(mine) for _ in range(self.get_num_ranks())], mine)


class StrictContext(NewContext):
    """A version whose allocation refuses the request, as `SymmetricAddressMap` does a table that contradicts itself."""

    def allocate_symmetric(self, *size: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, Any]:
        raise ValueError("peer_bases[0]=0x0 does not match allocation_base=0x1000")


class OtherContext(NewContext):
    """A version whose allocation fails inside, for want of something."""

    def allocate_symmetric(self, *size: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, Any]:
        raise AttributeError("'SymmetricHeap' object has no attribute 'heap_bases'")


class IrisModule:
    """The module `iris`.

    Args:
        context: which version of the class it has.
        taken: bytes of the heap that are in use already when a context has been made.
        limit: the largest heap.
    """

    def __init__(self, context: type[OldContext], *, taken: int = 0, limit: int = 1 << 30) -> None:
        self._context, self._taken, self._limit = context, taken, limit

    def iris(self, heap_size: int = 1 << 30) -> OldContext:
        if heap_size > self._limit:
            raise torch.OutOfMemoryError(f"HIP out of memory. Tried to allocate {heap_size} bytes.")
        return self._context(heap_size, self._taken)
