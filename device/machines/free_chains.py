"""Follows the links of free lists that a host has detached."""

from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.records import Words
from nanokv.device.protocol.extent import FREE
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import unpack


def free_chains(geometry: Geometry, links: npt.NDArray[Any], firsts: Words, size_class: int) -> Words:
    """The first pages of all extents of detached free lists.

    A list that leads out of the arena, to a page that was seen before or to one that is not marked free is corrupt: it
    ends there.

    Args:
        links: the LINK words of all pages, u64 or i64 [n_pages].
        firsts: the first page of each list, or -1 for an empty one, int64.

    Returns:
        int64 [extents].
    """
    following = unpack("LINK", "next", links).tolist()
    marks = unpack("LINK", "mark", links).tolist()
    size = geometry.class_pages[size_class]
    last = geometry.n_pages - size if size else -1
    pages: dict[int, None] = {}
    for first in firsts.tolist():
        page = first
        while 0 <= page <= last and page not in pages and marks[page] == FREE.value + size_class:
            pages[page] = None
            page = following[page] - 1
    return np.array(list(pages), np.int64)
