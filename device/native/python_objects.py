"""Python's objects in native code: C functions of Python that take and give objects, as the addresses that they are.

All need the interpreter's lock, except `take_lock`. One that fails gives 0 and leaves an error: `clear_error` drops it.

An object's type is read from where CPython has it, 8 bytes behind the object's address, as its own macro Py_TYPE does
in every extension: `machines.native_library` checks that once, and refuses an interpreter that has it elsewhere.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from nanokv.device.segment.host_records import TYPE_OFFSET

_Emit = Callable[..., Any]


def _caller(name: str, arguments: int, *, answers: bool = True) -> _Emit:
    """What emits a call of a C function of words."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(word if answers else ir.VoidType(), [word] * arguments)
        answer = builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)
        return answer if answers else context.get_dummy_value()

    return emit


def _of_none(name: str) -> Any:
    @intrinsic
    def call(typing: Any) -> tuple[Any, _Emit]:
        return types.int64(), _caller(name, 0)

    return call


def _of_one(name: str, *, answers: bool = True) -> Any:
    @intrinsic
    def call(typing: Any, a: Any) -> tuple[Any, _Emit]:
        answer = types.int64 if answers else types.void
        return answer(types.int64), _caller(name, 1, answers=answers)

    return call


def _of_two(name: str) -> Any:
    @intrinsic
    def call(typing: Any, a: Any, b: Any) -> tuple[Any, _Emit]:
        return types.int64(types.int64, types.int64), _caller(name, 2)

    return call


release_lock: Any = _of_none("PyEval_SaveThread")  #: gives what `take_lock` takes
take_lock: Any = _of_one("PyEval_RestoreThread", answers=False)
keep: Any = _of_one("Py_IncRef", answers=False)
drop: Any = _of_one("Py_DecRef", answers=False)
int_of: Any = _of_one("PyLong_AsLongLong")
new_int: Any = _of_one("PyLong_FromLongLong")
item: Any = _of_two("PyTuple_GetItem")  #: (tuple, index): not to be dropped
utf8: Any = _of_two("PyUnicode_AsUTF8AndSize")  #: (str, address of its size): the address of the text
new_bytes: Any = _of_two("PyBytes_FromStringAndSize")  #: (0, size): to be filled, and dropped
bytes_at: Any = _of_one("PyBytes_AsString")  #: the address of what an object of bytes holds
size_of_bytes: Any = _of_one("PyBytes_Size")
size_of_tuple: Any = _of_one("PyTuple_Size")
size_of_list: Any = _of_one("PyList_Size")
list_item: Any = _of_two("PyList_GetItem")  #: (list, index): not to be dropped; 0: there is none
call_with: Any = _of_two("PyObject_CallOneArg")  #: (function, object): an object, to be dropped


@intrinsic
def clear_error(typing: Any) -> tuple[Any, _Emit]:
    """Drop an error that a function of Python has left."""
    return types.void(), _caller("PyErr_Clear", 0, answers=False)


@intrinsic
def call_again(typing: Any, function: Any, arguments: Any, count: Any, names: Any) -> tuple[Any, _Emit]:
    """Call a function with the arguments that a call got, those by name too: a new reference; 0: it has raised."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(word, [word] * 4)
        function = cgutils.get_or_insert_function(builder.module, kind, "PyObject_Vectorcall")
        return builder.call(function, args)

    return types.int64(*[types.int64] * 4), emit


def _call_with_objects(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    word = ir.IntType(64)
    kind = ir.FunctionType(word, [word], var_arg=True)
    function = cgutils.get_or_insert_function(builder.module, kind, "PyObject_CallFunctionObjArgs")
    return builder.call(function, [*args, word(0)])


@intrinsic
def call_with_four(typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any) -> tuple[Any, _Emit]:
    """Call a function with four objects: a new reference; 0: it has raised."""
    return types.int64(*[types.int64] * 5), _call_with_objects


@intrinsic
def call_with_eight(
    typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any
) -> tuple[Any, _Emit]:
    """Call a function with eight objects: a new reference; 0: it has raised."""
    return types.int64(*[types.int64] * 9), _call_with_objects


@intrinsic
def is_float_zero(typing: Any, number: Any) -> tuple[Any, _Emit]:
    """1 if a float of Python is 0.0 or -0.0."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        double = ir.DoubleType()
        kind = ir.FunctionType(double, [ir.IntType(64)])
        value = builder.call(cgutils.get_or_insert_function(builder.module, kind, "PyFloat_AsDouble"), args)
        return builder.zext(builder.fcmp_ordered("==", value, double(0.0)), ir.IntType(64))

    return types.int64(types.int64), emit


@intrinsic
def type_of(typing: Any, thing: Any) -> tuple[Any, _Emit]:
    """The address of an object's type, which lives as long as the object."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        return builder.load(builder.inttoptr(builder.add(args[0], word(TYPE_OFFSET)), word.as_pointer()))

    return types.int64(types.int64), emit


@intrinsic
def load32(typing: Any, address: Any) -> tuple[Any, _Emit]:
    """The word of 32 bits at an address, with its sign, which another thread or process may change."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        half = ir.IntType(32)
        at = builder.inttoptr(args[0], half.as_pointer())
        return builder.sext(builder.load_atomic(at, "monotonic", 4), ir.IntType(64))

    return types.int64(types.int64), emit


@intrinsic
def big_endian(typing: Any, address: Any) -> tuple[Any, _Emit]:
    """The word of 64 bits that stands at an address with its highest byte first."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        return builder.bswap(builder.load(builder.inttoptr(args[0], word.as_pointer()), align=1))

    return types.int64(types.int64), emit
