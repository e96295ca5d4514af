"""The objects of a segment as a save reads them: their headers at one time, then each one's bytes, then a verdict.

Nobody is stopped meanwhile. An object was there while it was copied if its STATE word is the same afterwards, pins
aside: then its header, its descriptor and its bytes belong together. A save is no use of an object: it ends no lease.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


class Ready(NamedTuple):
    """Objects that were READY: parallel arrays."""

    slots: npt.NDArray[np.int64]
    headers: npt.NDArray[Any]  #: OBJ_HEADER records, whole


class Source(Protocol):
    """A segment to be saved."""

    rank: int  #: whose segment it is
    clock: int  #: the time by the clock of its times: ns

    def ready(self) -> Ready:
        """The objects that are READY now."""
        ...

    def descriptor(self, slot: int) -> Any:
        """The OBJ_DESC record of a slot, copied."""
        ...

    def label(self, slot: int) -> Any:
        """The LABEL record of a slot, copied."""
        ...

    def read(self, offset: int, to: npt.NDArray[np.uint8]) -> None:
        """Copy bytes of the segment from an offset on, which lies inside of it."""
        ...

    def verdict(self, slot: int, header: Any) -> int:
        """After the copy of an object: OK; TORN, if it went away; CORRUPT, if its checksum is wrong."""
        ...

    def layouts(self) -> npt.NDArray[Any]:
        """The table of layouts: LAYOUT records."""
        ...
