"""Python's objects in native code: C functions of Python that take and give objects, as the addresses that they are.

All need the interpreter's lock, except `take_lock`. One that fails gives 0 and leaves an error, which the call from
Python drops (`machines.python_calls`).
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

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
drop: Any = _of_one("Py_DecRef", answers=False)
owned_type: Any = _of_one("PyObject_Type")  #: to be dropped
int_of: Any = _of_one("PyLong_AsLongLong")
item: Any = _of_two("PyTuple_GetItem")  #: (tuple, index): not to be dropped
utf8: Any = _of_two("PyUnicode_AsUTF8AndSize")  #: (str, address of its size): the address of the text
new_bytes: Any = _of_two("PyBytes_FromStringAndSize")  #: (0, size): to be filled, and dropped
bytes_at: Any = _of_one("PyBytes_AsString")  #: the address of what an object of bytes holds
call_with: Any = _of_two("PyObject_CallOneArg")  #: (function, object): an object, to be dropped


@intrinsic
def big_endian(typing: Any, address: Any) -> tuple[Any, _Emit]:
    """The word of 64 bits that stands at an address with its highest byte first."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        return builder.bswap(builder.load(builder.inttoptr(args[0], word.as_pointer()), align=1))

    return types.int64(types.int64), emit
