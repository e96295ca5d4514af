"""The memory of this process as that of the machine: all of it that is mapped, or only some tensors."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nanokv.device.emulation.errors import Malformed
from nanokv.device.emulation.host_memory import FIRST, ProcessMemory, Range, modified
from nanokv.device.ptx.access import Access, Memory
from nanokv.device.ptx.kinds import UNSIGNED, Array
from nanokv.device.ptx.numbers import numbers, words

if TYPE_CHECKING:
    from nanokv.device.ptx.program import Program
    from nanokv.device.ptx.warp import Warp

_SHIFTS = {1: np.uint64(0), 2: np.uint64(1), 4: np.uint64(2), 8: np.uint64(3)}


class HostMemory(ProcessMemory, Memory):
    """All memory of this process that is mapped and writable, at its real addresses.

    For kernels that find their memory by addresses in memory. A wild access is an error only where nothing is mapped.
    """

    def load(self, warp: "Warp", access: Access, lanes: Array | None, addresses: Array) -> Array:
        return self.words[access.size][self._places(addresses, access.size)]

    def store(self, warp: "Warp", access: Access, lanes: Array | None, addresses: Array, values: Array) -> None:
        self.words[access.size][self._places(addresses, access.size)] = values

    def atomic(self, warp: "Warp", access: Access, lane: int, address: int, operands: Sequence[int]) -> int:
        size = access.size
        if not self.last.first <= address <= self.last.end - size:
            self.find([address], size)
        real = address + self.last.real
        if is_integer(access.operation):
            return self.modify(access.operation, real, size, operands)
        return self.replace(real, size, lambda old: atomically(access, old, operands))

    def _places(self, addresses: Array, size: int) -> Array:
        """Indices into the words of a size."""
        first, end, _, real = self.last
        places = addresses.tolist()  # of so few elements Python's minimum is the faster one
        if min(places) < first or max(places) + size > end:
            found = zip(places, self.find(places, size), strict=True)
            return np.array([(address + each.real - FIRST) // size for address, each in found], np.uint64)
        return (addresses + np.uint64((real - FIRST) % (1 << 64))) >> _SHIFTS[size]


class TensorMemory(HostMemory):
    """Only the storage of the tensors of a launch, and ranges that are allowed beside them.

    The kernel sees each storage at an address of its own, far from all others, so that a pointer that leaves its tensor
    never gets into another one. The lowest bits of addresses are the real ones: alignment is as it is.

    Args:
        allowed: tensors whose storage may be accessed at its real addresses, or (first, end) of such addresses: for
            kernels that read pointers from memory.
    """

    def __init__(self, allowed: Sequence[Any] = ()) -> None:
        super().__init__()
        self._allowed = [_allowed(each) for each in allowed]
        self._bound: list[Range] = []
        self._kept: list[Any] = [*allowed]

    def ranges(self) -> list[Range]:
        return [*self._allowed, *self._bound]

    def bind(self, program: "Program", arguments: Sequence[tuple[str, Any]]) -> list[int]:
        by_storage: dict[int, Range] = {}
        addresses = []
        for name, tensor in arguments:
            real = _storage(tensor, name)
            if real.first not in by_storage:
                first = (len(by_storage) + 1 << 44 | 1 << 50) + real.first % (1 << 21)
                by_storage[real.first] = Range(first, first + real.end - real.first, name, real.first - first)
            here = by_storage[real.first]
            addresses.append(int(tensor.data_ptr()) - here.real)
        variables = [
            Range(memory.ctypes.data, memory.ctypes.data + memory.nbytes, name)
            for name, memory in program.variables.items()
        ]
        self._bound = [*by_storage.values(), *variables]
        self.forget()
        return addresses

    def described(self, address: int) -> str:
        near = [each for each in self._bound if abs(address - each.first) < 1 << 43]
        if not near:
            return f"{address:#x}, which is in no tensor of this launch"
        one = min(near, key=lambda each: min(abs(address - each.first), abs(address - each.end)))
        size = one.end - one.first
        if address < one.first:
            return f"{one.first - address} bytes before the storage of `{one.name}`, which has {size}"
        return f"offset {address - one.first} from the start of the storage of `{one.name}`, which has {size} bytes"


def _allowed(what: Any) -> Range:
    if isinstance(what, tuple):
        first, end = what
        return Range(first, end, "an allowed range")
    return _storage(what, "an allowed tensor")


def _storage(tensor: Any, name: str) -> Range:
    """All bytes that a tensor's storage has."""
    device = getattr(tensor, "device", None)
    if device is not None and device.type != "cpu":
        raise Malformed(f"`{name}` lies on {device}: the machine works on tensors of the CPU")
    storage = tensor.untyped_storage()
    return Range(storage.data_ptr(), storage.data_ptr() + storage.nbytes(), name)


def is_integer(operation: str) -> bool:
    """Whether an atomic computes with integers."""
    kind = operation.partition(".")[2]
    return kind[0] in "bus" and kind[1:].isdigit()


def atomically(access: Access, old: int, operands: Sequence[int]) -> int:
    """What a read-modify-write leaves: integers, or numbers of a floating-point kind."""
    what, _, kind = access.operation.partition(".")
    if is_integer(access.operation):
        return modified(access.operation, old, operands, access.size)
    word = UNSIGNED[access.size]
    if kind in ("f32", "f64"):
        a, b = (np.array([each], word).view(f"f{access.size}") for each in (old, operands[0]))
    else:
        a, b = (numbers(np.array([each], word), kind) for each in (old, operands[0]))
    made = {"add": np.add, "min": np.fmin, "max": np.fmax}[what](a, b)
    done = made if kind in ("f32", "f64") else np.asarray(words(made, kind))
    return int(done.view(word)[0])
