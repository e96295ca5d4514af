"""A tensor over memory that a library has mapped into this process: how a peer's segment becomes a tensor.

`torch.as_tensor` over `__cuda_array_interface__` asks the driver for the device of an address. For a peer's memory the
driver names the peer's GPU, which makes silent copies, or, for some imported memory of ROCm, none, which is an error.
A DLPack capsule names the device itself, and torch believes it. The same works for host memory.
"""

import ctypes
import itertools
from typing import Any, ClassVar

import torch

_CPU, _CUDA, _ROCM = 1, 2, 10  # DLDeviceType
_UNSIGNED = 1  # DLDataTypeCode
_NAME = b"dltensor"  # of a capsule that has not been consumed yet


class _Device(ctypes.Structure):
    _fields_: ClassVar[Any] = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_: ClassVar[Any] = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_: ClassVar[Any] = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _ManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_ManagedTensor))
_ManagedTensor._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

_held: dict[int, tuple[Any, ...]] = {}  #: keeps alive what each living tensor needs, by the number in its `context`
_numbers = itertools.count(1)


def _let_go(managed: Any) -> None:
    _held.pop(int(managed.contents.context), None)


_deleter = _Deleter(_let_go)


def tensor_at(address: int, nbytes: int, device: torch.device, owner: object) -> torch.Tensor:
    """A uint8 tensor [nbytes] over memory at `address`, which `device` can reach. Nothing is copied.

    Args:
        owner: keeps the memory mapped; referenced as long as the tensor or a view of it lives.
    """
    number = next(_numbers)
    shape, strides = (ctypes.c_int64 * 1)(nbytes), (ctypes.c_int64 * 1)(1)
    kind = _CPU if device.type == "cpu" else _CUDA if torch.version.hip is None else _ROCM
    tensor = _Tensor(address, _Device(kind, device.index or 0), 1, _DataType(_UNSIGNED, 8, 1), shape, strides, 0)
    managed = _ManagedTensor(tensor, number, _deleter)
    _held[number] = (managed, shape, strides, owner)
    made: torch.Tensor = torch.utils.dlpack.from_dlpack(_new_capsule(ctypes.addressof(managed), _NAME, None))
    return made
