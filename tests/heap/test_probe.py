"""doctor tries a provider by a world of one rank."""

from pathlib import Path

import pytest

from nanokv.errors import HeapUnavailable
from nanokv.heap import available, probe
from nanokv.heap.probe import probe_elsewhere
from tests.support.faults import Calls


def test_a_provider_that_works_leaves_nothing(folder: Path) -> None:
    assert probe.probe("shm") is None
    assert probe_elsewhere("shm") is None
    assert list(folder.iterdir()) == []


def test_a_provider_that_is_found_and_does_not_work_says_why(calls: Calls) -> None:
    calls.fail(probe, "open_heap", HeapUnavailable("no memory today"))
    assert probe.probe("shm") == "no memory today"


@pytest.mark.skipif(available()["iris"] is None, reason="there is iris")
def test_the_reason_comes_from_the_other_process() -> None:
    assert "iris" in str(probe_elsewhere("iris"))
