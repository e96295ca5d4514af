"""A world on another host, as a reader here knows it: its geometry, and where each segment lies for the link."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nanokv.cluster.card import WorldId
from nanokv.device.fabric.records import LOOK_LINE
from nanokv.device.segment.geometry import Geometry
from nanokv.device.segment.layout import WORD


class RemoteWorld:
    """What the rounds of a get need.

    Args:
        name: of the node, for messages.
        peer: its number on the link.
        geometry: of every segment.
        bases: the address of each rank's segment, as the link takes it.
        controls: the first line of each rank's control block, 64 bytes each: whose segment it is.
        checksum: whether a read insists on checksums.

    Attributes:
        id: which world of the node it is.
        table: the address of the world table (`world_table.WORLD`) with these bases.
        controls: the address of the lines.
    """

    def __init__(
        self,
        name: str,
        peer: int,
        geometry: Geometry,
        bases: Sequence[int],
        controls: Sequence[bytes],
        *,
        checksum: bool,
    ) -> None:
        self.name, self.peer, self.geometry, self.bases = name, peer, geometry, list(bases)
        self._table = geometry.world_table(0, 0, self.bases, checksum=checksum)
        self.id = WorldId(name, b"".join(controls))
        self._controls: npt.NDArray[np.int64] = np.frombuffer(b"".join(controls), np.int64).copy()
        assert len(self._controls) == len(bases) * LOOK_LINE // WORD
        self.table, self.controls = int(self._table.ctypes.data), int(self._controls.ctypes.data)
