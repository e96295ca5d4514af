"""Tensors in host memory: what native code says of a tensor is what its properties say, and nothing is believed."""

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanokv.device.machines.native_code import compiled
from nanokv.device.segment.host_records import NOT_ALIKE as NATIVE_NOT_ALIKE
from nanokv.device.segment.host_records import WHAT
from nanokv.device.segment.layout import WORD
from nanokv.dtypes import DTYPE_NAMES
from nanokv.transfer.descriptors import DTYPE_CODES, describe, is_plain
from nanokv.transfer.dlpack import describing_function, dtype_words
from nanokv.transfer.host_tensors import NativeLook, all_in_host_memory, in_host_memory

NOT_ALIKE: int = NATIVE_NOT_ALIKE.value
DTYPES = [getattr(torch, name) for name in DTYPE_NAMES if hasattr(torch, name)]
SHAPES = [(), (0,), (1,), (6,), (2, 3), (3, 2), (6, 1), (1, 6), (2, 0, 3), (1, 2, 3), (2, 3, 1, 1, 1, 1, 1)]


@cache
def looks() -> NativeLook:
    return NativeLook()


def native_look(tensor: object) -> tuple[int, list[int]]:
    """What `native.tensors.look` says: the address or -1, and a WHAT record."""
    words = np.zeros(WHAT.size // WORD, np.int64)
    return compiled()["look"](tensor, looks().record, words.ctypes.data), words.tolist()


def check(tensor: torch.Tensor) -> None:
    """Python's look and the native one. Raises AssertionError."""
    found = in_host_memory(tensor)
    address, words = native_look(tensor)
    if not is_plain(tensor):
        assert found is None and address == NOT_ALIKE
        return
    assert found is not None
    assert found[0][:2] == describe(tensor)
    assert tensor.numel() == 0 or found[1] == tensor.data_ptr()
    if describing_function() and address != NOT_ALIKE:
        assert words == found[0].words.tolist() and (tensor.numel() == 0 or address == tensor.data_ptr())
    assert address != NOT_ALIKE or not tensor.numel() or not describing_function(), "it is of the usual kind"


def test_this_torch_describes_tensors() -> None:
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10):
        assert describing_function()
        assert sorted(word & 0xFF for word in dtype_words().tolist() if word) == sorted(DTYPE_CODES.values())
    check(torch.ones(4))


def test_each_dtype_and_shape_is_told_from_each_other() -> None:
    tensors = [torch.empty(shape, dtype=dtype) for dtype, shape in product(DTYPES, SHAPES)]
    for tensor in tensors:
        check(tensor)
    last = tensors[-1]
    for tensor in tensors:
        check(tensor)
        check(last)  # what was seen of one is not said of another


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A view of some tensor, of any strides and offset."""
    dtype = draw(st.sampled_from([torch.uint8, torch.bfloat16, torch.float32, torch.complex64]))
    tensor = torch.zeros(draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)), dtype=dtype)
    for _ in range(draw(st.integers(0, 3))):
        change = draw(st.sampled_from(["transpose", "narrow", "step", "expand", "squeeze", "conj", "imag"]))
        if change == "transpose":
            tensor = tensor.transpose(0, -1) if tensor.ndim else tensor
        elif change == "narrow" and tensor.ndim and tensor.shape[0]:
            tensor = tensor[draw(st.integers(0, tensor.shape[0] - 1)) :]
        elif change == "step" and tensor.ndim:
            tensor = tensor[..., ::2]
        elif change == "expand":
            tensor = tensor.expand(2, *tensor.shape) if tensor.ndim < 6 else tensor
        elif change == "squeeze":
            tensor = tensor.squeeze()
        elif tensor.is_complex():
            tensor = tensor.conj() if change == "conj" else tensor.conj().imag
    return tensor


@given(st.lists(views(), min_size=1, max_size=4))
def test_views(tensors: list[torch.Tensor]) -> None:
    for tensor in [*tensors, *tensors[::-1]]:
        check(tensor)


@pytest.mark.filterwarnings("ignore")  # torch calls some of these prototypes
def test_what_has_no_bytes_in_order_has_no_place() -> None:
    plain = torch.eye(4)
    check(plain)
    others: dict[str, Any] = {
        "coo": plain.to_sparse(),
        "csr": plain.to_sparse_csr(),
        "mkldnn": plain.to_mkldnn(),
        "meta": plain.to("meta"),
        "neg": torch.view_as_complex(torch.ones(4, 4, 2)).conj().imag,
        "conj": torch.ones(4, 4, dtype=torch.complex64).conj(),
        "parameter": torch.nn.Parameter(plain),
        "array": plain.numpy(),
        "none": None,
    }
    for name, other in others.items():
        in_host_memory(plain)
        assert in_host_memory(other) is None and native_look(other)[0] == NOT_ALIKE, name
        check(plain)


def test_a_tensor_that_changes_is_looked_at_again() -> None:
    tensor = torch.arange(12)
    check(tensor)
    tensor.resize_(3, 4)
    check(tensor)
    tensor.t_()
    check(tensor)
    tensor.set_(torch.arange(40).untyped_storage(), 8, (4, 3), (3, 1))
    check(tensor)
    tensor.resize_(0)
    check(tensor)


def test_a_look_leaves_no_error_behind() -> None:
    for other in (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr(), torch.eye(3).to("meta")):
        assert native_look(other)[0] == NOT_ALIKE
        assert max(1, 2) == 2  # a call into C with an error set would raise SystemError
    for wrong in ((), (torch.eye(3),), (torch.eye(3), "record", 0)):
        with pytest.raises(TypeError):
            compiled()["look"](*wrong)


def test_many_that_are_not_alike_have_nothing_in_common() -> None:
    alike = [torch.full((4,), i) for i in range(3)]
    found = all_in_host_memory(alike)
    assert found is not None and found[0].nbytes == alike[0].nbytes
    assert found[1].tolist() == [each.data_ptr() for each in alike]
    for odd in (torch.zeros(5, dtype=torch.int64), torch.zeros(4), torch.zeros(8, dtype=torch.int64)[::2]):
        for at in range(4):
            assert all_in_host_memory([*alike[:at], odd, *alike[at:]]) is None
    assert all_in_host_memory([]) is None
