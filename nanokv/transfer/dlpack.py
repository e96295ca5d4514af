"""torch's C function that describes a tensor: DLPack's exchange interface (dmlc's dlpack.h, version 1.3)."""

import contextlib
import ctypes
from functools import cache

import numpy as np
import torch
from torch import Tensor

from nanokv.device.machines.own_memory import plainly
from nanokv.device.machines.records import Words
from nanokv.device.segment.host_records import (
    DTYPE_BYTES_SHIFT,
    DTYPE_CONJUGATED,
    DTYPE_NEGATED,
    DTYPE_WORDS,
    TENSOR,
)
from nanokv.device.segment.layout import WORD
from nanokv.transfer.descriptors import DTYPE_CODES, MAY_BE_LAZY
from nanokv.transfer.lazy_tensors import lazy_functions

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


@cache
def dtype_words() -> Words:
    """What native code knows of a dtype by DLPack's code and bits: TENSOR.dtypes; 0: it is not stored, or not known.

    torch is asked for each dtype that it has, once.
    """
    words, record = np.zeros(DTYPE_WORDS, np.int64), np.zeros(TENSOR.size // WORD, np.int64)
    address = describing_function()
    if address is None:
        return words
    fill = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(address)
    known = [dtype for dtype in DTYPE_CODES if dtype not in MAY_BE_LAZY or lazy_functions() is not None]
    for dtype in known:
        with contextlib.suppress(Exception), plainly():  # DLPack has no such dtype, as this torch knows it
            if fill(torch.empty(0, dtype=dtype, device="cpu"), record.ctypes.data) == 0:
                kind = int(record[TENSOR.offsets["kind"] // WORD]) >> 32
                word = DTYPE_CODES[dtype] | dtype.itemsize << DTYPE_BYTES_SHIFT.value
                word |= DTYPE_NEGATED.value if dtype in MAY_BE_LAZY else 0
                word |= DTYPE_CONJUGATED.value if dtype.is_complex else 0
                if kind >> 16 & 0xFFFF == 1:  # lanes
                    words[(kind & 0xFF) << 5 | (kind >> 8 & 0xFF) >> 3] = word
    return words
