"""Lets SGLang be imported without torchvision, whose published builds need CUDA: it is for images, which no test has.

`transformers` asks first whether there is a torchvision, and remembers that there is none. Then a module takes the name
of each that SGLang imports; every name in it is `Nothing`, and so is every name in that.

As a program it runs a module: `python -m tests.integrations.without_torchvision MODULE`.
"""

import runpy
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_MODULES = ("", ".transforms", ".transforms.functional", ".transforms.v2", ".transforms.v2.functional", ".io")


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class Nothing(metaclass=_Anything):
    """Stands for a class, a function or a value that nobody uses."""


class _StandIn(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing


def stand_in() -> None:
    """Do that, unless torchvision is installed."""
    if "torchvision" in sys.modules or find_spec("torchvision") is not None:
        return
    from transformers.utils import is_torchvision_available

    assert not is_torchvision_available()
    for name in _MODULES:
        sys.modules[f"torchvision{name}"] = _StandIn(f"torchvision{name}")


if __name__ == "__main__":
    stand_in()
    runpy.run_module(sys.argv[1], run_name="__main__")
