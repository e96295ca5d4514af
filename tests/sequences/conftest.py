"""Threads that are switched often."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def switches() -> Iterator[None]:
    """Python changes threads every few microseconds, so that any two steps of a call may be apart."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-6)
    yield
    sys.setswitchinterval(before)
