"""`remote` has Iris' functions, so that a kernel runs with either. tests/gpu/bodies.py calls them all."""

import inspect
import json
from pathlib import Path

import pytest
from triton.runtime.jit import JITFunction

from nanokv.device import remote

IRIS: dict[str, str] = json.loads(Path(__file__).with_name("iris_signatures.json").read_text())["signatures"]
OURS = {"translate", "kv_commit_ready"}  #: iris' own translate is private


def signature(name: str) -> str:
    """Names, order and defaults, as in the file."""
    parameters = inspect.signature(getattr(remote, name).fn).parameters.values()
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return ", ".join(str(parameter) for parameter in plain)


@pytest.mark.parametrize("name", IRIS)
def test_the_signature_is_that_of_iris(name: str) -> None:
    assert signature(name) == IRIS[name]


def test_there_are_no_other_functions() -> None:
    functions = {name: value for name, value in vars(remote).items() if isinstance(value, JITFunction)}
    found = {name for name, value in functions.items() if value.fn.__module__ == remote.__name__}
    assert found == IRIS.keys() | OURS
