"""The calls of a GPU's driver that `gpu_driver` makes, for the flow of control only. No GPU has answered them yet."""

import ctypes
from typing import Any


def pointed(reference: Any) -> Any:
    """The object behind a `ctypes.byref`."""
    return reference._obj


class Driver:
    """libcuda.so.1 and libamdhip64.so in one.

    Args:
        atomics: pairs of GPUs (from, to) whose link has native atomics.
        error: every question is answered by this error, if it is not 0.
        mode: of all memory, as hipMemRangeCoherencyMode: 0 is fine-grained, 1 coarse-grained.
    """

    def __init__(self, *, atomics: set[tuple[int, int]] | None = None, error: int = 0, mode: int = 0) -> None:
        self.atomics, self.error, self.mode = atomics or set(), error, mode
        self.memory: dict[int, Any] = {}
        self.flags: list[int] = []

    def cuInit(self, flags: Any) -> int:
        assert flags.value == 0
        return self.error

    def cuDeviceGet(self, device: Any, ordinal: Any) -> int:
        pointed(device).value = 100 + ordinal.value
        return self.error

    def cuDeviceGetP2PAttribute(self, value: Any, attribute: Any, one: Any, other: Any) -> int:
        assert attribute.value == 3
        pointed(value).value = int((one.value - 100, other.value - 100) in self.atomics)
        return self.error

    def hipMemRangeGetAttribute(self, data: Any, size: Any, attribute: Any, address: Any, nbytes: Any) -> int:
        assert (size.value, attribute.value) == (4, 100)
        assert address.value and nbytes.value
        pointed(data).value = self.mode
        return self.error

    def hipExtMallocWithFlags(self, place: Any, nbytes: Any, flags: Any) -> int:
        self.flags.append(flags.value)
        made = ctypes.create_string_buffer(nbytes.value)
        pointed(place).value = ctypes.addressof(made)
        self.memory[ctypes.addressof(made)] = made
        return 0

    def hipFree(self, place: Any) -> int:
        del self.memory[place.value]
        return 0
