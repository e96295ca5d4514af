"""A segment in host memory as numpy arrays: one structured array per region, over the segment's own bytes.

For the host's tools (fsck, stats, the sweeper's looks) and for tests. The bytes may change while they are read: a host
that acts on them calls a protocol function, which looks again.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import ACTIVITY, ENTRIES_PER_BUCKET, HEAP_CTL, OBJ_DESC, OBJ_HEADER


class SegmentView:
    """The regions of one segment, as arrays over its bytes.

    `raw`: uint8 [at least `geometry.segment_bytes`].

    Raises:
        ValueError: `raw` is something else.
    """

    def __init__(self, raw: npt.NDArray[np.uint8], geometry: Geometry) -> None:
        if raw.dtype != np.uint8 or raw.ndim != 1 or raw.size < geometry.segment_bytes:
            raise ValueError(f"a segment is {geometry.segment_bytes} bytes, not {raw.dtype}{raw.shape}")
        self.raw = raw
        self.geometry = geometry
        at = geometry.offsets

        def region(offset: int, dtype: Any, count: int) -> npt.NDArray[Any]:
            size = np.dtype(dtype).itemsize * count
            return raw[offset : offset + size].view(dtype)

        self.ctl = region(0, HEAP_CTL.dtype, 1)
        self.activity = region(at["activity_base"], ACTIVITY.dtype, geometry.world_size)
        links = region(at["links_base"], np.uint64, geometry.n_pages + geometry.hdr_count)
        self.page_links, self.header_links = links[: geometry.n_pages], links[geometry.n_pages :]
        self.headers = region(at["hdr_base"], OBJ_HEADER.dtype, geometry.hdr_count)
        self.states = region(at["hdr_base"], np.uint64, geometry.hdr_count * OBJ_HEADER.size // 8).reshape(
            geometry.hdr_count, -1
        )[:, OBJ_HEADER.offsets["state"] // 8]
        self.descriptors = region(at["desc_base"], OBJ_DESC.dtype, geometry.hdr_count)
        self.directory = region(at["dir_base"], np.uint64, geometry.dir_buckets * ENTRIES_PER_BUCKET.value)
        self.ring = region(at["ann_base"], np.uint64, geometry.ann_capacity)
        self.pins = region(at["pin_base"], np.uint64, geometry.pin_slots)
        self.payload = raw[at["heap_base"] : at["heap_limit"]]
