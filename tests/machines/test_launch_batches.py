"""Batches and paged caches on the launching machine, interpreted: the bodies that run on a GPU."""

import pytest

from tests.gpu.every_body import GROUPS
from tests.gpu.interpreted import passed

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]  # the first test pays for all


@pytest.mark.parametrize("name", [body.__name__ for body in GROUPS["batches"]])
def test_interpreted(name: str) -> None:
    assert passed("batches", name)
