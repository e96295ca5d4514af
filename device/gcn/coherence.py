"""Memory as waves see it: here each access reaches all other waves and the host at once.

`caches.CachedMemory` has the same methods, and lets waves see what caches may show them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nanokv.device.gcn.memory import Addresses, Dwords, HostMemory
from nanokv.device.gcn.outstanding import Operation

if TYPE_CHECKING:
    from nanokv.device.gcn.wave import Wave


class CoherentMemory:
    """No caches: what is stored is visible.

    Args:
        host: where the bytes are.
    """

    def __init__(self, host: HostMemory) -> None:
        self.host = host

    def load(self, wave: "Wave", addresses: Addresses, width: int, system: bool) -> Dwords:
        """What a wave's load finds. `system`: the load is coherent with all agents (sc0 sc1)."""
        return self.host.read(addresses, width)

    def store(self, wave: "Wave", addresses: Addresses, width: int, values: Dwords, system: bool) -> Operation:
        """The operation that stores."""
        span = int(addresses.min()), int(addresses.max()) + width
        return Operation(lambda: self.host.write(addresses, width, values), span=span)

    def atomic(
        self, wave: "Wave", address: int, size: int, operation: str, operands: Sequence[int], system: bool
    ) -> int:
        """One read-modify-write of one lane; returns what was there."""
        return self.host.atomic(address, size, operation, operands)

    def write_back(self, wave: "Wave", system: bool) -> None:
        """buffer_wbl2."""

    def invalidate(self, wave: "Wave", system: bool) -> None:
        """buffer_inv."""

    def stir(self) -> None:
        """Time passes: caches may write back."""

    def end(self) -> None:
        """A launch is over: what was stored is visible."""
