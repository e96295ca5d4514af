"""Questions to the GPU's driver that torch does not ask, and fine-grained memory of AMD. By ctypes.

The numbers are those of the vendors' headers: cuda.h (CUdevice_P2PAttribute, CUDA 8 to 13) and hip/hip_runtime_api.h
(hipMemRangeAttribute, hipMemRangeCoherencyMode, hipDeviceMallocFinegrained, ROCm 5 to 7).
"""

import ctypes

import torch

from nanokv.device.machines.gpu_threads import gpu_library
from nanokv.errors import HeapUnavailable

_CUDA = "libcuda.so.1"
_HIP = "libamdhip64.so"
_NATIVE_ATOMIC_SUPPORTED = 3  # CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, as cudaDevP2PAttrNativeAtomicSupported
_COHERENCY_MODE = 100  # hipMemRangeAttributeCoherencyMode
_FINE_GRAIN = 0  # hipMemRangeCoherencyModeFineGrain; 1 is CoarseGrain, 2 Indeterminate
_MALLOC_FINE_GRAINED = 1  # hipDeviceMallocFinegrained


def is_amd() -> bool:
    """Whether this torch is built for AMD's GPUs."""
    return torch.version.hip is not None


def has_native_atomics(one: torch.device, other: torch.device) -> bool:
    """NVIDIA: whether atomics of the first GPU on memory of the second are atomic for all others too.

    Raises:
        RuntimeError: the driver did not answer.
    """
    driver = gpu_library(_CUDA)
    value, ends = ctypes.c_int(), []
    _succeed("cuInit", driver.cuInit(ctypes.c_uint(0)))
    for device in (one, other):
        ends.append(ctypes.c_int())
        _succeed("cuDeviceGet", driver.cuDeviceGet(ctypes.byref(ends[-1]), ctypes.c_int(device.index)))
    asked = driver.cuDeviceGetP2PAttribute(ctypes.byref(value), ctypes.c_int(_NATIVE_ATOMIC_SUPPORTED), *ends)
    _succeed("cuDeviceGetP2PAttribute", asked)
    return value.value != 0


def is_fine_grained(address: int, nbytes: int) -> bool:
    """AMD: whether memory keeps atomics of system scope as they are; on coarse-grained memory they order one GPU only.

    Raises:
        RuntimeError: the driver did not answer.
    """
    mode = ctypes.c_int(-1)
    asked = gpu_library(_HIP).hipMemRangeGetAttribute(
        ctypes.byref(mode),
        ctypes.c_size_t(ctypes.sizeof(mode)),
        ctypes.c_int(_COHERENCY_MODE),
        ctypes.c_void_p(address),
        ctypes.c_size_t(nbytes),
    )
    _succeed("hipMemRangeGetAttribute", asked)
    return mode.value == _FINE_GRAIN


class FineGrainedMemory:
    """Fine-grained memory of the current AMD GPU, freed with this object.

    Attributes:
        address, nbytes: where it lies.

    Raises:
        HeapUnavailable: the driver gives none, or gives memory of another kind.
    """

    def __init__(self, nbytes: int) -> None:
        self._driver = gpu_library(_HIP)
        self.nbytes = nbytes
        self.address = 0
        place = ctypes.c_void_p()
        asked = self._driver.hipExtMallocWithFlags(
            ctypes.byref(place), ctypes.c_size_t(nbytes), ctypes.c_uint(_MALLOC_FINE_GRAINED)
        )
        if asked != 0 or not place.value:
            raise HeapUnavailable(f"no {nbytes} bytes of fine-grained memory: hipExtMallocWithFlags gave error {asked}")
        self.address = place.value
        try:
            fine = is_fine_grained(self.address, nbytes)
        except RuntimeError:
            return  # this driver tells of no device memory: the flag was taken, and that is all that can be known
        if not fine:
            raise HeapUnavailable("hipExtMallocWithFlags gave coarse-grained memory: this GPU has no other")

    def __del__(self) -> None:
        if self.address:
            self._driver.hipFree(ctypes.c_void_p(self.address))


def _succeed(call: str, result: int) -> None:
    if result != 0:
        raise RuntimeError(f"{call} gave error {result}")
