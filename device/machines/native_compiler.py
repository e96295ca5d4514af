"""Compiles device functions for this CPU: one object file of machine code for all that are compiled together.

Functions that several of them call are in it once, and nothing of numba: `native_library` loads it in 2 ms.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numba
from numba import int64
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.types.containers import NamedUniTuple

import nanokv.device.segment.native_world  # noqa: F401 - what protocol functions read of a world
from nanokv.device.machines.native_library import ObjectCode, set_up
from nanokv.device.machines.python_calls import add_python_call, add_whole_call
from nanokv.device.memory import native as memory_native
from nanokv.device.memory.native_copy import copy_out
from nanokv.device.memory.retarget import retarget
from nanokv.device.memory.triton import VOCABULARY
from nanokv.device.protocol.get import read
from nanokv.device.segment.world_table import World

CPU_VOCABULARY: dict[str, Any] = {name: getattr(memory_native, name) for name in VOCABULARY}

# Protocol functions hold only words: nothing counts references, and Python calls them through `python_calls`. Without
# these options compiling takes twice as long (33 and 17 s).
_OPTIONS = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False, "no_rewrites": True}


class Callee(NamedTuple):
    """A device function that Python calls."""

    function: Any
    objects: int = 0  #: see `add_python_call`
    whole: bool = False  #: see `add_whole_call`


Functions = Mapping[str, Callee]  #: by name


def compile_functions(
    functions: Functions, done: dict[Any, Any], vocabulary: Mapping[str, Any] = CPU_VOCABULARY
) -> ObjectCode:
    """The machine code of device functions, and of all that they call. `done`: see `retarget`."""
    results = {name: _compiled(each, vocabulary, done) for name, each in functions.items()}
    set_up()  # the code is linked here too
    context = cpu_target.target_context
    library = context.codegen().create_library("nanokv")
    library.enable_object_caching()
    module = library.create_ir_module("nanokv")
    for name, result in results.items():
        library.add_linking_library(result.library)
        if functions[name].whole:
            add_whole_call(context, module, name, result)
        else:
            add_python_call(context, module, name, result, objects=functions[name].objects)
    with global_compiler_lock:
        library.add_ir_module(module)
        library.finalize()
        library.get_pointer_to_function(next(iter(results)))  # makes the machine code
        _, _, (code, _) = library.serialize_using_object_code()
    return ObjectCode(list(results), _undefined(library.get_llvm_str()), code)


def _compiled(callee: Callee, vocabulary: Mapping[str, Any], done: dict[Any, Any]) -> Any:
    dispatcher, signature = retargeted(callee.function, vocabulary, done), argument_types(callee.function)
    dispatcher.compile(signature)
    return dispatcher.overloads[signature]


def argument_types(function: Any) -> tuple[Any, ...]:
    """What a device function takes on a CPU: words, a world's address among them, and named tuples of words."""
    kinds = function.fn.__annotations__
    return tuple(_argument_type(kinds.get(name)) for name in inspect.signature(function.fn).parameters)


def _argument_type(kind: Any) -> Any:
    if kind is World or not hasattr(kind, "_fields"):
        return int64
    return NamedUniTuple(int64, len(kind._fields), kind)


def retargeted(function: Any, vocabulary: Mapping[str, Any], done: dict[Any, Any]) -> Any:
    """`function` for this CPU. Only `read` copies out of a segment; what others copy goes into one."""

    def wrap(plain: Callable[..., Any]) -> Any:
        return numba.njit(plain, **_OPTIONS)

    retarget(read, {**vocabulary, "copy_bytes": copy_out}, wrap, done)
    return retarget(function, vocabulary, wrap, done)


def _undefined(assembly: str) -> list[str]:
    """The names of other libraries that the code uses: Python's and the C library's."""
    module = llvm.parse_assembly(assembly)
    named = (*module.functions, *module.global_variables)
    return sorted(each.name for each in named if each.is_declaration and not each.name.startswith("llvm."))
