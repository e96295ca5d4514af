"""The memory of this process as that of the machine: all of it that is mapped, or only some tensors."""

import ctypes
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nanokv.device.ptx.access import Access, Memory, modified
from nanokv.device.ptx.errors import Malformed, MemoryFault
from nanokv.device.ptx.kinds import UNSIGNED, Array
from nanokv.device.ptx.numbers import numbers, words

if TYPE_CHECKING:
    from nanokv.device.ptx.program import Program
    from nanokv.device.ptx.warp import Warp

_FIRST = 8  #: NumPy takes no array at address 0
_SEQ_CST = 5
_SHIFTS = {1: np.uint64(0), 2: np.uint64(1), 4: np.uint64(2), 8: np.uint64(3)}


class _AllMemory:
    """What NumPy takes for all memory from an address on, as words."""

    def __init__(self, size: int) -> None:
        self.__array_interface__ = {
            "data": (_FIRST, False),
            "shape": ((1 << 47) // size - 1,),
            "typestr": f"<u{size}",
            "version": 3,
        }


class Range(NamedTuple):
    """Addresses [first, end) that a kernel may access."""

    first: int
    end: int
    name: str = "memory"
    real: int = 0  #: what is added to an address of the kernel for one of this process


def _library() -> dict[tuple[str, int], Callable[..., Any]]:
    """(operation, bytes) -> a function of C that is atomic against this process' threads; empty without libatomic."""
    try:
        library = ctypes.CDLL("libatomic.so.1")
    except OSError:
        return {}
    found: dict[tuple[str, int], Callable[..., Any]] = {}
    for size, word in ((4, ctypes.c_uint32), (8, ctypes.c_uint64)):
        names = (
            ("add", "fetch_add"),
            ("or", "fetch_or"),
            ("and", "fetch_and"),
            ("xor", "fetch_xor"),
            ("exch", "exchange"),
        )
        for name, symbol in names:
            function = getattr(library, f"__atomic_{symbol}_{size}")
            function.argtypes, function.restype = (ctypes.c_void_p, word, ctypes.c_int), word
            found[name, size] = function
        compare = getattr(library, f"__atomic_compare_exchange_{size}")
        compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, word, ctypes.c_int, ctypes.c_int)
        compare.restype = ctypes.c_bool
        found["cas", size] = compare
    return found


def mapped() -> list[Range]:
    """What is mapped and writable in this process."""
    found: list[Range] = []
    for line in Path("/proc/self/maps").read_text(encoding="ascii").splitlines():
        span, rights = line.split()[:2]
        if rights.startswith("rw"):
            first, end = (int(each, 16) for each in span.split("-"))
            if found and found[-1].end == first:
                first = found.pop().first
            found.append(Range(first, end))
    return found


class HostMemory(Memory):
    """All memory of this process that is mapped and writable, at its real addresses.

    For kernels that find their memory by addresses in memory. A wild access is an error only where nothing is mapped.
    """

    def __init__(self) -> None:
        self._views = {size: np.asarray(_AllMemory(size)) for size in UNSIGNED}
        self._library = _library()
        self._ranges: list[Range] = []
        self._last = Range(0, 0)

    def ranges(self) -> list[Range]:
        """What may be accessed, in the order of addresses."""
        return mapped()

    def load(self, warp: "Warp", access: Access, lanes: Array | None, addresses: Array) -> Array:
        return self._views[access.size][self._places(addresses, access)]

    def store(self, warp: "Warp", access: Access, lanes: Array | None, addresses: Array, values: Array) -> None:
        self._views[access.size][self._places(addresses, access)] = values

    def atomic(self, warp: "Warp", access: Access, lane: int, address: int, operands: Sequence[int]) -> int:
        size, (what, _, kind) = access.size, access.operation.partition(".")
        if not self._last.first <= address <= self._last.end - size:
            self._looked_up(np.array([address], np.uint64), access)
        real = address + self._last.real
        function = self._library.get((what, size)) if is_integer(kind) else None
        if function is None:
            return self._plain(access, (real - _FIRST) // size, operands)
        if what != "cas":
            return int(function(real, operands[0], _SEQ_CST))
        expected = (ctypes.c_uint32 if size == 4 else ctypes.c_uint64)(operands[0])
        function(real, ctypes.byref(expected), operands[1], _SEQ_CST, _SEQ_CST)
        return int(expected.value)

    def _plain(self, access: Access, place: int, operands: Sequence[int]) -> int:
        """Exchange a word; no other thread comes in between only because no other one writes there."""
        view = self._views[access.size]
        old = int(view[place])
        view[place] = atomically(access, old, operands)
        return old

    def _places(self, addresses: Array, access: Access) -> Array:
        """Indices into the view of words of a size."""
        first, end, _, real = self._last
        places = addresses.tolist()  # of so few elements Python's minimum is the faster one
        if min(places) < first or max(places) + access.size > end:
            return self._looked_up(addresses, access)
        return (addresses + np.uint64((real - _FIRST) % (1 << 64))) >> _SHIFTS[access.size]

    def _looked_up(self, addresses: Array, access: Access) -> Array:
        size, made = access.size, np.zeros_like(addresses)
        for again in (False, True):
            if again:
                self._ranges = sorted(self.ranges())
            starts = [each.first for each in self._ranges]
            bad = None
            for n, address in enumerate(addresses.tolist()):
                at = bisect_right(starts, address) - 1
                if at < 0 or address + size > self._ranges[at].end:
                    bad = address
                    break
                self._last = self._ranges[at]
                made[n] = (address + self._last.real - _FIRST) // size
            if bad is None:
                return made
        raise MemoryFault(f"{size} bytes at {self.described(bad)}")

    def described(self, address: int | None) -> str:
        """An address that may not be accessed, in words."""
        return f"{address:#x}, which is not mapped"


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
        self._bound, self._last = [*by_storage.values(), *variables], Range(0, 0)
        self._ranges = sorted(self.ranges())
        return addresses

    def described(self, address: int | None) -> str:
        assert address is not None
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


def is_integer(kind: str) -> bool:
    """Whether an atomic computes with integers."""
    return kind[0] in "bus" and kind[1:].isdigit()


def atomically(access: Access, old: int, operands: Sequence[int]) -> int:
    """What a read-modify-write leaves: integers, or numbers of a floating-point kind."""
    what, _, kind = access.operation.partition(".")
    if is_integer(kind):
        return modified(access.operation, old, operands, access.size)
    word = UNSIGNED[access.size]
    if kind in ("f32", "f64"):
        a, b = (np.array([each], word).view(f"f{access.size}") for each in (old, operands[0]))
    else:
        a, b = (numbers(np.array([each], word), kind) for each in (old, operands[0]))
    made = {"add": np.add, "min": np.fmin, "max": np.fmax}[what](a, b)
    done = made if kind in ("f32", "f64") else np.asarray(words(made, kind))
    return int(done.view(word)[0])
