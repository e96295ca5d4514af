"""A fixture for pytest: `from nanokv.device.ptx.fixtures import ptx_machine` in a conftest.py or a test file.

Only this module imports pytest.
"""

from collections.abc import Iterator

import pytest

from nanokv.device.ptx.scheduler import Machine
from nanokv.device.ptx.triton_driver import machine


@pytest.fixture
def ptx_machine() -> Iterator[Machine]:
    """A machine that runs the test's launches, for sm_90. The test fails if something was found."""
    with machine() as made:
        yield made
    findings = made.report().findings
    if findings:
        pytest.fail(str(made.report()))
