"""The GPUs that tests compile for: all of them, but in `make test` only one of each make."""

from collections.abc import Iterable

import pytest

from tests.support.compiling import NVIDIA, ONE_OF_EACH_MAKE, TARGETS


def _every(names: Iterable[str]) -> pytest.MarkDecorator:
    marked = [pytest.param(name, marks=() if name in ONE_OF_EACH_MAKE else pytest.mark.exhaustive) for name in names]
    return pytest.mark.parametrize("target", marked)


every_target = _every(TARGETS)
every_nvidia_target = _every(NVIDIA)
