"""Follows the links of free lists that a host has detached."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.machines.records import Words
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import FREE, unpack


def free_chains(geometry: Geometry, links: npt.NDArray[Any], firsts: Mapping[int, Words]) -> tuple[Words, Words]:
    """All extents of detached free lists: (first pages, classes), int64 [extents] each.

    A list that leads out of the arena, to a page that was seen before or to one that is not marked free in its class is
    corrupt: it ends there.

    Args:
        links: the LINK words of all pages, u64 or i64 [n_pages].
        firsts: size class -> the first page of each of its lists, or -1 for an empty one, int64.
    """
    words = links.tolist()
    pages: dict[int, int] = {}
    for size_class, heads in firsts.items():
        size = geometry.class_pages[size_class]
        last = geometry.n_pages - size if size else -1
        for first in heads.tolist():
            page = first
            while 0 <= page <= last and page not in pages:
                if unpack("LINK", "mark", words[page]) != FREE.value + size_class:
                    break
                pages[page] = size_class
                page = unpack("LINK", "next", words[page]) - 1
    return np.array(list(pages), np.int64), np.array(list(pages.values()), np.int64)
