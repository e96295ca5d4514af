"""The GPUs that tests compile for: all of them, but in `make test` only one of each make."""

import pytest

from tests.support.compiling import TARGETS

ONE_OF_EACH_MAKE = ("sm_90", "gfx942")

every_target = pytest.mark.parametrize(
    "target",
    [pytest.param(name, marks=() if name in ONE_OF_EACH_MAKE else pytest.mark.exhaustive) for name in TARGETS],
)
