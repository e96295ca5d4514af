"""A segment in host memory as numpy arrays: one structured array per region, over the segment's own bytes.

For the host's tools (fsck, stats, the sweeper's looks) and for tests. The bytes may change while they are read: a host
that acts on them calls a protocol function, which looks again.
"""

import numpy as np
import numpy.typing as npt

from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import HEAP_CTL, OBJ_HEADER, REGIONS, WORD


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
        self.ctl = raw[: HEAP_CTL.size].view(HEAP_CTL.dtype)
        (
            self.activity,
            links,
            self.headers,
            self.descriptors,
            self.directory,
            _,
            self.ring,
            self.pins,
            self.layouts,
            self.ghosts,
            self.labels,
            self.quotas,
        ) = (
            raw[at[region.base] :][: region.dtype.itemsize * geometry.records_in(region)].view(region.dtype)
            for region in REGIONS
        )
        self.page_links, self.header_links = links[: geometry.n_pages], links[geometry.n_pages :]
        self.states = self.headers.view(np.uint64).reshape(geometry.hdr_count, -1)[
            :, OBJ_HEADER.offsets["state"] // WORD
        ]
        self.payload = raw[at["heap_base"] : at["heap_limit"]]
