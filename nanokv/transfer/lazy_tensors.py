"""Whether a tensor is lazily negated or conjugated, as native code asks: by torch's C++ functions `at::native::is_neg`.

DLPack does not tell that. Python's `Tensor.is_neg` does, but gives the interpreter's lock away meanwhile and takes it
back where the end of the interpreter must not find it: a daemon thread that is in there then ends the process by
std::terminate. The functions take a reference to the at::Tensor in the object of Python. Neither their names nor its
place is promised, so both are tried with tensors of which the answers are known, and not used unless they are right.
"""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from nanokv.device.machines.own_memory import plainly

_NAMES = ("_ZN2at6native6is_negERKNS_6TensorE", "_ZN2at6native7is_conjERKNS_6TensorE")
#: Bytes of an object's head in CPython. Further behind, a flag before it may say that something else stands there.
_PLACE = 16


class LazyFunctions(NamedTuple):
    """How native code asks."""

    is_neg: int  #: the address of a `bool (*)(const at::Tensor &)`
    is_conj: int
    reference: int  #: bytes from the address of a tensor in Python to its at::Tensor


@cache
def lazy_functions() -> LazyFunctions | None:
    """The functions of this torch; None: it has none that can be relied on."""
    with plainly(), torch.inference_mode(False):
        return _found()


def _found() -> LazyFunctions | None:
    numbers = torch.ones(2, dtype=torch.complex64, device="cpu")
    probes = [(numbers, False, False), (numbers.conj(), False, True)]
    probes += [(each, True, False) for each in (torch._neg_view(numbers), torch._neg_view(numbers.real))]
    probes += [(torch._neg_view(numbers.conj()), True, True), (torch.ones(2, device="cpu"), False, False)]
    try:
        library = ctypes.CDLL(
            str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"), mode=os.RTLD_NOLOAD | os.RTLD_LAZY
        )
        functions = [getattr(library, name) for name in _NAMES]
    except (OSError, AttributeError):
        return None
    for function in functions:
        function.restype, function.argtypes = ctypes.c_bool, (ctypes.c_void_p,)
    if any(ctypes.c_size_t.from_address(id(each) + _PLACE).value != each._cdata for each, _, _ in probes):
        return None
    answers = [tuple(function(id(each) + _PLACE) for function in functions) for each, _, _ in probes]
    if answers != [(is_neg, is_conj) for _, is_neg, is_conj in probes]:
        return None
    is_neg, is_conj = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
    return LazyFunctions(is_neg, is_conj, _PLACE)
