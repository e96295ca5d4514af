"""Which node a get asks first: by one native call (`nanokv.device.fabric.first_asked`), for what is usual."""

from typing import Any

from nanokv.cluster.locations import Locations
from nanokv.cluster.nodes import Node, Nodes
from nanokv.device.machines.native_code import fabric_code
from nanokv.transfer.object_calls import ObjectCalls


class FirstAsked:
    """The node that most likely has the object of a key: where it is known to lie, or else the key's home.

    Called with the calls of this node's cache, which must be open, and with a key, and a destination or None, as the
    user wrote them. None: the object is on this node, or neither is known; or key or destination are unusual
    (`device.native.objects`), or wrong.
    """

    def __init__(self, locations: Locations, nodes: Nodes) -> None:
        self._locations, self._nodes = locations, nodes
        self._code = fabric_code()["first_asked"]

    def __call__(self, calls: ObjectCalls, key: Any, dst: Any) -> Node | None:
        if calls.record is None:
            return None
        homes, locations = self._nodes.homes[0], self._locations
        found: int = self._code(key, dst, calls.record[0], *locations.at, *homes.seeds)
        if not found:
            return None
        return self._nodes.find(locations.names[found] if found > 0 else homes.nodes[-1 - found])
