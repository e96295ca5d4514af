"""Loads the machine code of `native_compiler` as functions that Python calls, by LLVM's linker: numba is not needed."""

import ctypes
import json
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import llvmlite.binding as llvm

#: Symbols of the exceptions that compiled code raises. numba lets its names of them (PyExc_TypeError) stand for the
#: objects; in any other process they are C's variables, which hold pointers to the objects.
EXCEPTIONS = {f"nanokv_{kind.__name__}": kind for kind in (TypeError, ArithmeticError)}
_METH_FASTCALL = 0x80
_loading = threading.Lock()
#: code lasts as long as the process: nobody knows who still has one of its functions. The list is never freed: Python
#: clears a module before it frees functions that others still have, and frees these by way of their definitions
_alive: list[Any] = []
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_alive))


class ObjectCode(NamedTuple):
    """An object file of this machine."""

    names: list[str]  #: the functions that Python calls
    needs: list[str]  #: symbols of the process that it uses
    code: bytes

    def packed(self) -> bytes:
        """As bytes, for a file."""
        return json.dumps([self.names, self.needs]).encode() + b"\n" + self.code

    @staticmethod
    def unpacked(raw: bytes) -> "ObjectCode":
        """Of `packed`."""
        head, _, code = raw.partition(b"\n")
        names, needs = json.loads(head)
        return ObjectCode(names, needs, code)

    def can_load(self) -> bool:
        """Whether this process has all symbols that it uses: LLVM ends the process for one that is missing."""
        set_up()
        return all(llvm.address_of_symbol(name) is not None for name in self.needs)

    def load(self) -> dict[str, Callable[..., Any]]:
        """Its functions. Each takes words, some after objects, and gives words; see `python_calls`."""
        set_up()
        with _loading:
            engine = _engine()
            engine.add_object_file(llvm.ObjectFileRef.from_data(self.code))
            engine.finalize_object()
            _alive.append(engine)
            return {name: _python_function(name, engine.get_function_address(name)) for name in self.names}


@cache
def set_up() -> None:
    """Make LLVM ready, and the symbols known that code may use."""
    for name, kind in EXCEPTIONS.items():
        llvm.add_symbol(name, id(kind))
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    _engine()  # the first one makes the symbols of the process known


def _engine() -> Any:
    machine = llvm.Target.from_default_triple().create_target_machine(codemodel="jitdefault", jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


class _MethodDef(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def _python_function(name: str, address: int) -> Callable[..., Any]:
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p,) * 3
    definition = _MethodDef(name.encode(), address, _METH_FASTCALL, None)
    _alive.append(definition)
    made: Callable[..., Any] = new(ctypes.addressof(definition), None, None)
    return made
