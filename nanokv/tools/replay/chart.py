"""Hit rate over capacity, drawn in characters."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from nanokv.tools.replay.run import CapacityRow

LRU, POSSIBLE, MINE = "·", "^", "o"  #: the later ones are drawn over the earlier ones
_HEIGHT = 12
_MARGIN = 7  #: characters before the first column
_WIDEST = 100


def draw(rows: Sequence[CapacityRow], lru: npt.NDArray[np.float64], width: int) -> Iterator[str]:
    """Lines of at most `width` characters. Capacities are on a logarithmic scale.

    Args:
        lru: the hit rate of LRU per capacity, from 0 on.
    """
    columns = max(min(width, _WIDEST) - _MARGIN, 20)
    most = max(row.capacity for row in rows)
    largest = max(most, len(lru) - 1, 2)
    top = max(float(lru[-1]), *(max(row.rate, row.possible) for row in rows)) or 1.0
    grid = [[" "] * columns for _ in range(_HEIGHT)]

    def mark(column: int, rate: float, sign: str) -> None:
        grid[_HEIGHT - 1 - min(int(rate / top * (_HEIGHT - 1) + 0.5), _HEIGHT - 1)][column] = sign

    for column in range(columns):
        capacity = round(largest ** (column / (columns - 1)))
        mark(column, float(lru[min(capacity, len(lru) - 1)]), LRU)
    for row in rows:
        column = round(math.log(row.capacity) / math.log(largest) * (columns - 1))
        mark(column, row.possible, POSSIBLE)
        mark(column, row.rate, MINE)
    for number, line in enumerate(grid):
        rate = top * (_HEIGHT - 1 - number) / (_HEIGHT - 1)
        yield f"{rate:6.3f} {''.join(line)}".rstrip()
    end = f"{largest:,} blocks"
    yield f"{'':{_MARGIN}}{'1':{columns - len(end)}}{end}"
    yield f"{'':{_MARGIN}}{MINE} NanoKV   {LRU} LRU   {POSSIBLE} the most that is possible"
