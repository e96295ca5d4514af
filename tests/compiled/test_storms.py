"""Hundreds of CTAs at once in heaps that are too small, or just large enough, compiled, on the PTX machine."""

import pytest
import torch

from nanokv.device.ptx import Divergence
from tests.gpu.batch_bodies import an_exact_heap_refuses_nothing
from tests.gpu.on_ptx import machine_for
from tests.support.storms import Kind, storm

pytestmark = pytest.mark.proved


def test_a_storm() -> None:
    """Two hundred CTAs, of which each operation has successes."""
    with machine_for("sm_90", 6):
        said = storm(Kind.drawn(6), 6, ctas=200, count=3)
    assert all(said[f"{what} OK"] for what in ("put", "get", "remove", "hold")), said


@pytest.mark.exhaustive
def test_nobody_is_refused_in_a_heap_with_room() -> None:
    """So many CTAs that the heap has many free lists."""
    with machine_for("sm_90", 1):
        an_exact_heap_refuses_nothing(torch.device("cpu"), ctas=264)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2, 12))
def test_storms(seed: int) -> None:
    with machine_for("sm_90", seed):
        storm(Kind.drawn(seed), seed, ctas=200, count=4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_storms_of_four_warps(seed: int) -> None:
    with machine_for("sm_90", seed):
        storm(Kind.drawn(seed), seed, ctas=40, count=3, warps=4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(8))
def test_lanes_that_read_different_words(seed: int) -> None:
    """PTX does not promise one value for 32 lanes. Without it nothing is wrong, or it is a divergence."""
    with machine_for("sm_90", seed, split=0.02):
        try:
            storm(Kind.drawn(seed), seed, ctas=60, count=4)
        except Divergence as error:
            assert "storm_kernel" in str(error)
