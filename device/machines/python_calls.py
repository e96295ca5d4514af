"""Python's calls of native functions, as LLVM code: words in, words out, and no interpreter's lock in between.

A function of objects gets their addresses, and has the lock until it releases it (`nanokv.device.native.objects`).

numba makes such calls too, but only a process that has imported numba can load them. These need nothing but Python.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.types.containers import BaseTuple

from nanokv.device.machines.native_library import EXCEPTIONS

_OBJECT = ir.IntType(8).as_pointer()  # PyObject*
_FAST_CALL = ir.FunctionType(_OBJECT, [_OBJECT, _OBJECT.as_pointer(), ir.IntType(64)])  # PyCFunctionFast
_NAMED_CALL = ir.FunctionType(_OBJECT, [*_FAST_CALL.args, _OBJECT])  # PyCFunctionFastWithKeywords


def add_python_call(context: Any, module: Any, symbol: str, compiled: Any, *, objects: int = 0) -> None:
    """Add the function `symbol`, of METH_FASTCALL, to a module: it calls a compiled function of int64 arguments.

    Args:
        context: numba's target context.
        module: of LLVM, that is linked with the code of `compiled`.
        compiled: numba's result of a compilation: the function takes words, and named tuples of words, which are as
            many arguments. It answers with a word, a bool, several, or nothing.
        objects: so many arguments come first that are any objects, of which the function gets the addresses. It has the
            interpreter's lock, and says by its answer whether it failed: an error of Python that it left is dropped.
    """
    kinds = compiled.signature.args
    function = ir.Function(module, _FAST_CALL, symbol)
    builder = ir.IRBuilder(function.append_basic_block())
    python = context.get_python_api(builder)
    _, arguments, count = function.args
    wanted = sum(_words(kind) for kind in kinds)
    with builder.if_then(builder.icmp_signed("!=", count, count.type(wanted)), likely=False):
        python.err_set_string(_exception(module, TypeError), f"{symbol} takes {wanted} arguments")
        builder.ret(_OBJECT(None))
    given = [builder.load(cgutils.gep(builder, arguments, i)) for i in range(wanted)]
    words = [builder.ptrtoint(each, ir.IntType(64)) for each in given[:objects]]
    words += [python.long_as_longlong(each) for each in given[objects:]]
    with cgutils.if_unlikely(builder, cgutils.is_not_null(builder, python.err_occurred())):
        builder.ret(_OBJECT(None))
    native = context.declare_function(module, compiled.fndesc)
    lock = None if objects else python.save_thread()
    result = compiled.signature.return_type
    left = iter(words)
    values = [_value(context, builder, kind, left) for kind in kinds]
    status, value = context.call_conv.call_function(builder, native, result, kinds, values)
    if objects:
        python.err_clear()
    else:
        python.restore_thread(lock)
    with cgutils.if_unlikely(builder, status.is_error):
        python.err_set_string(_exception(module, ArithmeticError), f"{symbol} has failed")
        builder.ret(_OBJECT(None))
    builder.ret(_answer(builder, python, result, value))


def add_whole_call(context: Any, module: Any, symbol: str, compiled: Any) -> None:
    """Add the function `symbol`, of METH_FASTCALL | METH_KEYWORDS: the compiled function gets as words what that gives.

    That is self; the address of the arguments; the number of those without a name; and the tuple of the names of those
    that come after them, or 0. It answers with a new reference to an object as a word; or with 0, and has left an error
    of Python.
    """
    function = ir.Function(module, _NAMED_CALL, symbol)
    builder = ir.IRBuilder(function.append_basic_block())
    me, arguments, count, names = function.args
    me, arguments, names = (builder.ptrtoint(each, ir.IntType(64)) for each in (me, arguments, names))
    words = [me, arguments, count, names]
    native, kinds = context.declare_function(module, compiled.fndesc), compiled.signature.args
    status, answer = context.call_conv.call_function(builder, native, compiled.signature.return_type, kinds, words)
    with cgutils.if_unlikely(builder, status.is_error):
        python = context.get_python_api(builder)
        python.err_set_string(_exception(module, ArithmeticError), f"{symbol} has failed")
        builder.ret(_OBJECT(None))
    builder.ret(builder.inttoptr(answer, _OBJECT))


def _words(kind: Any) -> int:
    """How many words an argument is."""
    return len(kind) if isinstance(kind, BaseTuple) else 1


def _value(context: Any, builder: Any, kind: Any, words: Iterator[Any]) -> Any:
    """The next argument, made of words."""
    if not isinstance(kind, BaseTuple):
        return next(words)
    return context.make_tuple(builder, kind, list(islice(words, len(kind))))


def _exception(module: Any, kind: type[Exception]) -> Any:
    name = f"nanokv_{kind.__name__}"
    assert name in EXCEPTIONS
    return module.globals.get(name) or cgutils.add_global_variable(module, _OBJECT.pointee, name)


def _answer(builder: Any, python: Any, kind: Any, value: Any) -> Any:
    if kind == types.none:
        return python.make_none()
    if not isinstance(kind, BaseTuple):
        return _word(python, kind, value)
    flat = list(_flat(builder, kind, value))
    answer = python.tuple_new(len(flat))
    for i, (each, its) in enumerate(flat):
        python.tuple_setitem(answer, i, _word(python, each, its))
    return answer


def _flat(builder: Any, kind: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """The words of a tuple, and of the tuples in it: their kinds and values."""
    for i, each in enumerate(kind):
        its = builder.extract_value(value, i)
        if isinstance(each, BaseTuple):
            yield from _flat(builder, each, its)
        else:
            yield each, its


def _word(python: Any, kind: Any, value: Any) -> Any:
    if kind == types.boolean:
        return python.bool_from_bool(value)
    if kind == types.int64:
        return python.long_from_longlong(value)
    raise TypeError(f"a native function answers with words, not with {kind}")
