"""Loads the machine code of `native_compiler` as functions that Python calls, by LLVM's linker: numba is not needed."""

import ctypes
import json
import sys
import threading
from collections.abc import Callable
from functools import cache
from inspect import Parameter, signature
from typing import Any, NamedTuple

import llvmlite.binding as llvm

from nanokv.device.segment.host_records import TYPE_OFFSET

#: Symbols of the exceptions that compiled code raises. numba lets its names of them (PyExc_TypeError) stand for the
#: objects; in any other process they are C's variables, which hold pointers to the objects.
EXCEPTIONS = {f"nanokv_{kind.__name__}": kind for kind in (TypeError, ArithmeticError)}
_METH_FASTCALL, _METH_KEYWORDS = 0x80, 0x02
_loading = threading.Lock()
#: Machine code, and the definitions of its functions: they last as long as the process, for nobody knows who still has
#: one. This is never freed: Python clears a module before it frees functions that others still have, and frees these by
#: way of their definitions.
_alive: dict[Any, Any] = {}
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_alive))


class ObjectCode(NamedTuple):
    """An object file of this machine."""

    names: list[str]  #: the functions that Python calls
    needs: list[str]  #: symbols of the process that it uses
    code: bytes

    def packed(self) -> bytes:
        """The library as bytes, for a file."""
        return json.dumps([self.names, self.needs]).encode() + b"\n" + self.code

    @staticmethod
    def unpacked(raw: bytes) -> "ObjectCode":
        """The library that `packed` made bytes of."""
        head, _, code = raw.partition(b"\n")
        names, needs = json.loads(head)
        return ObjectCode(names, needs, code)

    def can_load(self) -> bool:
        """Whether this process has all symbols that it uses: LLVM ends the process for one that is missing."""
        set_up()
        return all(llvm.address_of_symbol(name) is not None for name in self.needs)

    def load(self) -> dict[str, Callable[..., Any]]:
        """Load the functions. Each takes words, some after objects, and gives words; see `python_calls`."""
        set_up()
        with _loading:
            engine = _engine()
            engine.add_object_file(llvm.ObjectFileRef.from_data(self.code))
            engine.finalize_object()
            _alive[engine] = None
            return {name: _python_function(name, engine.get_function_address(name)) for name in self.names}


@cache
def set_up() -> None:
    """Make LLVM ready, and the symbols known that code may use.

    Raises:
        RuntimeError: this interpreter has no lock that keeps threads apart, or has the type of an object elsewhere.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise RuntimeError(
            "this Python runs without its global lock, which NanoKV's native code relies on: run it with PYTHON_GIL=1, "
            "or take a build that has the lock"
        )
    probe = object()
    if ctypes.c_ssize_t.from_address(id(probe) + TYPE_OFFSET).value != id(object):
        raise RuntimeError(f"{sys.implementation.name} {sys.version} keeps an object's type elsewhere than CPython")
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


_new_function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_new_bound = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)


def _python_function(name: str, address: int) -> Callable[..., Any]:
    new = _new_function(("PyCFunction_NewEx", ctypes.pythonapi))
    definition = _MethodDef(name.encode(), address, _METH_FASTCALL, None)
    made: Callable[..., Any] = new(ctypes.addressof(definition), None, None)
    _alive[made] = definition
    return made


def bound(function: Callable[..., Any], me: object, like: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `add_whole_call` whose self is `me`, which lives as long as the result.

    Args:
        like: a method of the same arguments, whose name, signature and docstring the function shows.
    """
    kind = function, like
    definition = _alive.get(kind)
    if definition is None:
        doc = f"{like.__name__}{_text_signature(like)}\n--\n\n{like.__doc__}"
        flags = _METH_FASTCALL | _METH_KEYWORDS
        definition = _MethodDef(like.__name__.encode(), _alive[function].function, flags, doc.encode())
        definition = _alive.setdefault(kind, definition)
    new = _new_bound(("PyCFunction_NewEx", ctypes.pythonapi))
    made: Callable[..., Any] = new(ctypes.addressof(definition), me, None)
    return made


def _text_signature(like: Callable[..., Any]) -> str:
    """The signature of a method as Python's own C functions have it: without annotations, `...` for objects."""
    parts = []
    for name, parameter in signature(like).parameters.items():
        if parameter.kind is Parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        default = parameter.default
        plain = default is None or isinstance(default, bool | int | float)
        shown = "" if default is Parameter.empty else f"={default!r}" if plain else "=..."
        parts.append(f"{'$' if not parts else ''}{name}{shown}")
    return f"({', '.join(parts)})"
