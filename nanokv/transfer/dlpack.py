"""torch's C function that describes a tensor: DLPack's exchange interface (dmlc's dlpack.h, version 1.3)."""

import ctypes
from functools import cache

from torch import Tensor

_CAPSULE = b"dlpack_exchange_api"
_MAJOR = 1  #: another one may have other structures


class _ExchangeAPI(ctypes.Structure):
    """DLPackExchangeAPI."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("prev_api", ctypes.c_void_p),
        ("managed_tensor_allocator", ctypes.c_void_p),
        ("managed_tensor_from_py_object_no_sync", ctypes.c_void_p),
        ("managed_tensor_to_py_object_no_sync", ctypes.c_void_p),
        ("dltensor_from_py_object_no_sync", ctypes.c_void_p),
        ("current_work_stream", ctypes.c_void_p),
    )


@cache
def describing_function() -> int | None:
    """The address of `int (*)(PyObject *tensor, DLTensor *out)`; None: this torch has none (before 2.10)."""
    capsule = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    pointer, is_valid = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_IsValid
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    is_valid.restype, is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
    if capsule is None or not is_valid(capsule, _CAPSULE):
        return None
    api = _ExchangeAPI.from_address(pointer(capsule, _CAPSULE))
    return api.dltensor_from_py_object_no_sync if api.major == _MAJOR else None
