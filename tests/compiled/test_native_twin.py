"""Random host calls, compiled and native: the same answers, and segments that are equal byte for byte."""

import pytest

from tests.gpu.on_ptx import machine_for
from tests.support.twins import Kind, Twins

pytestmark = pytest.mark.proved

KINDS = (
    Kind(pages=24, slots=20, shards=4, may_evict=False, checksum=False),
    Kind(pages=8, slots=6, shards=1, may_evict=True, checksum=True),
    Kind(pages=64, slots=64, shards=None, may_evict=False, checksum=True),
    Kind(pages=16, slots=6, shards=2, may_evict=True, checksum=False),
)


def test_the_twin_has_the_same_bytes() -> None:
    with machine_for("sm_90", 0):
        Twins(KINDS[0], 0).run(80)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1, 3))
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_configuration_has_the_same_bytes(kind: Kind, seed: int) -> None:
    with machine_for("sm_90", seed):
        Twins(kind, seed).run(150)
