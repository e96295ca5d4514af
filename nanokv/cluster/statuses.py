"""Arrays of statuses."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.records import Words


def is_one_of(statuses: Words, few: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Which of many statuses are among a few. np.isin sorts, and takes much longer."""
    found = np.zeros(len(statuses), np.bool_)
    for one in few:
        found |= statuses == int(one)
    return found
