"""Tensors in host memory: what one native call says of a tensor is what its properties say, and nothing is believed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanokv.device.machines.native_code import compiled
from nanokv.dtypes import DTYPE_NAMES
from nanokv.transfer import host_tensors
from nanokv.transfer.descriptors import describe, is_plain
from nanokv.transfer.dlpack import describing_function
from nanokv.transfer.host_tensors import all_in_host_memory, in_host_memory

DTYPES = [getattr(torch, name) for name in DTYPE_NAMES if hasattr(torch, name)]
SHAPES = [(), (0,), (1,), (6,), (2, 3), (3, 2), (6, 1), (1, 6), (2, 0, 3), (1, 2, 3), (2, 3, 1, 1, 1, 1, 1)]


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    """The native code, as a cache in host memory has it, and no memory of other tests' tensors."""
    compiled()
    host_tensors._kinds.clear()
    yield
    host_tensors._kinds.clear()


def check(tensor: torch.Tensor) -> None:
    """Twice: the second time it is of the last kind. Raises AssertionError."""
    for _ in range(2):
        found = in_host_memory(tensor)
        if not is_plain(tensor):
            assert found is None
            continue
        assert found is not None
        what, address = found
        assert what[:2] == describe(tensor)
        assert tensor.numel() == 0 or address == tensor.data_ptr()


def test_this_torch_describes_tensors() -> None:
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10):
        assert describing_function()
    check(torch.ones(4))
    assert bool(host_tensors._kinds) == (describing_function() is not None)


def test_each_dtype_and_shape_is_told_from_each_other() -> None:
    tensors = [torch.empty(shape, dtype=dtype) for dtype, shape in product(DTYPES, SHAPES)]
    for tensor in tensors:
        check(tensor)
    last = tensors[-1]
    for tensor in tensors:
        check(tensor)
        check(last)  # so that each is looked at with the kind of another


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
        assert in_host_memory(other) is None, name
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


def test_without_the_function_of_torch_it_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_tensors, "describing_function", lambda: None)
    monkeypatch.setattr(host_tensors, "last_kind", [host_tensors.last_kind[0]._replace(look=host_tensors._never)])
    test_each_dtype_and_shape_is_told_from_each_other()
    test_what_has_no_bytes_in_order_has_no_place()
    assert not host_tensors._kinds


def test_a_look_leaves_no_error_behind() -> None:
    check(torch.eye(3))
    kind = host_tensors.last_kind[0]
    for other in (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()):
        assert kind.look(other, kind.record) == -1
        assert max(1, 2) == 2  # a call into C with an error set would raise SystemError
    for wrong in ((), (torch.eye(3),), (torch.eye(3), "record")):
        with pytest.raises(TypeError):
            kind.look(*wrong)


def test_threads_that_look_at_different_tensors() -> None:
    def look(shape: tuple[int, ...]) -> None:
        tensor = torch.zeros(shape)
        for _ in range(5_000):
            found = in_host_memory(tensor)
            assert found is not None and found[0].nbytes == tensor.nbytes and found[1] == tensor.data_ptr()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(look, [(4,), (2, 2), (5,), (4,)]))


def test_many_that_are_not_alike_have_nothing_in_common() -> None:
    alike = [torch.full((4,), i) for i in range(3)]
    found = all_in_host_memory(alike)
    assert found is not None and found[0].nbytes == alike[0].nbytes
    assert found[1].tolist() == [each.data_ptr() for each in alike]
    for odd in (torch.zeros(5, dtype=torch.int64), torch.zeros(4), torch.zeros(8, dtype=torch.int64)[::2]):
        for at in range(4):
            assert all_in_host_memory([*alike[:at], odd, *alike[at:]]) is None
    assert all_in_host_memory([]) is None
