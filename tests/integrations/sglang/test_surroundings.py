"""A backend in a child of a fork: its calls are not misses there, but errors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("sglang", reason="needs SGLang: see docs/sglang.md")

from tests.integrations.sglang.parts import INTERFACE  # noqa: F401  # warnings of SGLang's modules come before the tests
from tests.support.forks import answers_of_a_child, check_refused


def test_a_child_of_a_fork_cannot_use_the_backend_and_takes_nothing_away(start: Callable[..., Any]) -> None:
    backend = start()
    assert backend.set("k", torch.ones(8))
    target = torch.empty(8)
    check_refused(
        {
            "set": lambda: backend.set("x", torch.ones(8)),
            "batch_set": lambda: backend.batch_set(["x"], [torch.ones(8)]),
            "get": lambda: backend.get("k", target),
            "batch_get": lambda: backend.batch_get(["k"], [target]),
            "exists": lambda: backend.exists("k"),
            "batch_exists": lambda: backend.batch_exists(["k"]),
            "clear": backend.clear,
        }
    )
    assert answers_of_a_child({"close": backend.close}) == {"close": "returned None"}
    assert backend.get("k", target) is target and bool((target == 1).all()) and not backend.exists("x")


def test_another_default_device_changes_nothing(start: Callable[..., Any]) -> None:
    backend = start()
    value = torch.arange(8.0)
    target = torch.empty(8)
    with torch.device("meta"):
        assert backend.set("k", value) and backend.batch_set(["a", "b"], [value, value])
        assert torch.equal(backend.get("k"), value) and backend.get("k", target) is target
        assert [torch.equal(each, value) for each in backend.batch_get(["a", "b"])] == [True, True]
        assert backend.batch_exists(["a", "b", "none"]) == 2
    assert torch.equal(target, value) and backend.calls.failures() == {}
