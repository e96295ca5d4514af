"""Tensors with memory of their own: what lies at their address, read by dtype, shape and strides, is their values.

torch has many that have not. Their address is 0, or that of something else: classes that wrap other tensors (DTensor,
quantised weights, FakeTensor, jagged tensors), tensors within `torch.vmap`, `grad` and `functionalize`, nested, sparse
and meta tensors, and those whose storage was given back, as FSDP does. Whoever reads at such an address ends the
process, or takes other bytes of it for values. So every call that uses an address of a tensor comes by here; native
code has a look of its own (`native.tensors.look`), which leaves all that is unusual to this one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import Parameter

from nanokv.errors import InvalidArgument

_STRIDED = torch.strided
_NO_DISPATCH = Tensor.__torch_dispatch__  # of all classes that have no operations of their own


@contextmanager
def plainly() -> Iterator[None]:
    """Lets torch do with plain tensors what is asked: modes and transforms of the caller change nothing.

    Such as FakeTensorMode, in which copies move no bytes, and torch.func.grad, in which new tensors have no memory.
    """
    with torch._C._DisableTorchDispatch(), torch._C._DisableFuncTorch():
        yield


def plain_tensor(tensor: object) -> Tensor:
    """A tensor as a torch.Tensor of the same memory: itself, unless it is of a subclass.

    Raises:
        InvalidArgument: it is no tensor, or has no memory of its own that holds its values.
    """
    kind = type(tensor)
    plain: Tensor = tensor if kind is Tensor or kind is Parameter else _of_subclass(tensor)  # type: ignore[assignment]
    try:
        storage, count = plain.untyped_storage(), plain.numel()  # some have no storage
        if plain.is_contiguous() or not count:
            end = plain.storage_offset() + count
        else:
            steps = zip(plain.shape, plain.stride(), strict=True)
            end = plain.storage_offset() + 1 + sum((items - 1) * stride for items, stride in steps)
        if storage.data_ptr():
            has_memory = end * plain.itemsize <= storage.nbytes() or not count
        else:
            has_memory = not count and not plain.is_meta
        if has_memory and plain.layout is _STRIDED and not plain.is_nested:
            return plain
    except RuntimeError:
        pass
    raise InvalidArgument(_why_not(plain))


def _of_subclass(tensor: object) -> Tensor:
    kind = type(tensor)
    if not issubclass(kind, Tensor):
        raise InvalidArgument(f"a torch.Tensor is needed, not {kind.__name__}")
    if kind.__torch_dispatch__ is not _NO_DISPATCH:
        raise InvalidArgument(
            f"a plain torch.Tensor is needed: the values of {kind.__name__} are what its operations say "
            "(__torch_dispatch__), not what lies in its memory; pass the tensors that it is made of"
        )
    try:
        with torch._C.DisableTorchFunctionSubclass():
            plain = Tensor.as_subclass(tensor, Tensor)  # type: ignore[arg-type]
        is_alike = _looks_as_it_is(kind) or _face(tensor) == _face(plain)
    except Exception as error:  # what a class of the caller does may raise anything
        raise InvalidArgument(f"a tensor with data is needed, not {kind.__name__}: {error}") from error
    if not is_alike:
        raise InvalidArgument(f"a plain torch.Tensor is needed: {kind.__name__} looks other than its memory")
    return plain


_FACE = ("shape", "dtype", "device", "layout")


def _face(tensor: object) -> tuple[object, ...]:
    """What a tensor looks like from outside."""
    return tuple(getattr(tensor, name) for name in _FACE)


@lru_cache(256)
def _looks_as_it_is(kind: type[Tensor]) -> bool:
    """Whether a class says nothing of its own about what its tensors look like."""
    asked = getattr(kind.__torch_function__, "__func__", None)
    own = asked not in (None, Tensor.__torch_function__.__func__)  # type: ignore[attr-defined]
    return not own and all(getattr(kind, name) is getattr(Tensor, name) for name in _FACE)


def _why_not(tensor: Tensor) -> str:
    if tensor.is_nested:
        return "a dense tensor is needed, not a nested one: pass the tensors that it is made of"
    if tensor.layout is not _STRIDED or tensor.is_meta:
        return f"a dense tensor with data is needed, not layout {tensor.layout} on {tensor.device}"
    try:
        held = f"its storage has {tensor.untyped_storage().nbytes()} bytes, {tensor.nbytes} are needed"
    except RuntimeError:
        held = "it has no storage, as within torch.vmap and torch.func.grad"
    return f"a tensor with memory of its own is needed, not {tensor.dtype} {list(tensor.shape)} without: {held}"
