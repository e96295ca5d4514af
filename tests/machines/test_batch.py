"""A batch's launches: with how many CTAs. What they do is tested by tests/gpu/batch_bodies.py."""

from collections.abc import Callable

import torch

from nanokv.device.machines.batch import Batch
from nanokv.device.machines.records import Request


class Grids:
    """In the place of a kernel: notes the grid of each launch."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        self.seen.append(grid)
        return lambda *args, **named: None


def test_who_fills_no_table_gets_all_ctas() -> None:
    """A kernel writes it then, on the device: nobody on the host knows how much there is to do."""
    made, kernel = Batch(0, 4, torch.device("cpu"), ctas=7), Grids()
    made.launch(kernel)
    made.fill([Request((1, 1), 0, 0)])
    made.launch(kernel)
    made.fill([])
    made.launch(kernel)
    assert kernel.seen == [(7,), (1,), (1,)]
