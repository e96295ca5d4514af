"""The generic calls: values of any dtype and shape, tensors and memory, and what is a miss."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("sglang", reason="needs SGLang: see docs/sglang.md")

from tests.integrations.sglang.parts import INTERFACE

Start = Callable[..., Any]


@pytest.mark.surface(INTERFACE, "set")
@pytest.mark.surface(INTERFACE, "get")
@pytest.mark.surface(INTERFACE, "exists")
def test_a_value_comes_back_as_it_was_put(start: Start) -> None:
    backend = start()
    for i, value in enumerate([torch.randn(3, 5), torch.arange(7, dtype=torch.int16), torch.ones(2, 2).bfloat16().t()]):
        assert backend.get(f"{i}") is None and not backend.exists(f"{i}")
        assert backend.set(f"{i}", value) is True
        found = backend.get(f"{i}")
        assert found.dtype == value.dtype and torch.equal(found, value) and backend.exists(f"{i}")


@pytest.mark.surface(INTERFACE, "get")
def test_a_value_is_read_into_a_tensor_of_its_size(start: Start) -> None:
    backend = start()
    value = torch.randn(4, 8)
    assert backend.set("a", value)
    target = torch.zeros(16, dtype=torch.float64)
    assert backend.get("a", target) is target and torch.equal(target.view(torch.float32).view(4, 8), value)
    assert backend.get("a", torch.zeros(31)) is None
    assert backend.get("a", torch.zeros(8, 4).t()) is None  # not contiguous: it would have to be copied once more
    assert backend.get("a", "nothing") is None
    assert backend.get("b", target) is None


@pytest.mark.surface(INTERFACE, "set")
@pytest.mark.surface(INTERFACE, "get")
def test_memory_can_be_named_by_its_address(start: Start) -> None:
    backend = start()
    value, target = torch.randn(32), torch.zeros(32)
    assert backend.set("a", None, value.data_ptr(), value.nbytes)
    assert backend.get("a", target.data_ptr(), target.nbytes) is not None
    assert torch.equal(target, value)
    assert not backend.set("b", None, value.data_ptr()) and not backend.set("b", None, 0, 16)
    assert not backend.set("b") and not backend.exists("b")


@pytest.mark.surface(INTERFACE, "batch_set")
@pytest.mark.surface(INTERFACE, "batch_get")
def test_many_values(start: Start) -> None:
    backend = start()
    keys, values = ["a", "b", "c"], [torch.full((2,), float(i)) for i in range(3)]
    assert backend.batch_set(keys, values) is True
    targets = [torch.zeros(2) for _ in range(4)]
    found = backend.batch_get(["a", "x", "b", "c"], targets)
    assert found[1] is None and [found[0], found[2], found[3]] == [targets[0], targets[2], targets[3]]
    assert [float(each[0]) for each in (targets[0], targets[2], targets[3])] == [0.0, 1.0, 2.0]
    new = backend.batch_get(["b", "x"])
    assert torch.equal(new[0], values[1]) and new[1] is None
    assert backend.batch_set(["d"], None, [values[0].data_ptr()], [8]) and torch.equal(
        backend.get("d").view(torch.float32), values[0]
    )


@pytest.mark.surface(INTERFACE, "batch_set")
@pytest.mark.surface(INTERFACE, "batch_get")
def test_calls_that_do_not_fit_together_store_and_read_nothing(start: Start) -> None:
    backend = start()
    assert not backend.batch_set(["a", "b"], [torch.zeros(2)])
    assert not backend.batch_set(["a"])
    assert not backend.batch_set(["a"], [b"bytes"])
    assert not backend.exists("a")
    assert backend.batch_get(["a", "b"], [torch.zeros(2)]) == [None, None]
    assert backend.batch_set([], []) and backend.batch_get([], []) == [] and backend.batch_exists([]) == 0


@pytest.mark.surface(INTERFACE, "set", differs="a key keeps its first value; one of another size takes its place")
def test_a_key_keeps_its_first_value(start: Start) -> None:
    backend = start()
    assert backend.set("a", torch.zeros(4)) and backend.set("a", torch.ones(4))
    assert torch.equal(backend.get("a"), torch.zeros(4))
    assert backend.set("a", torch.ones(5)) and torch.equal(backend.get("a"), torch.ones(5))


@pytest.mark.surface(INTERFACE, "batch_exists")
def test_the_leading_run_counts(start: Start) -> None:
    backend = start()
    keys = [str(i) for i in range(300)]
    assert backend.batch_exists(keys) == 0
    assert backend.batch_set(keys[:200] + keys[201:], [torch.zeros(1)] * 299)
    assert backend.batch_exists(keys) == 200 and backend.batch_exists(keys[201:]) == 99
