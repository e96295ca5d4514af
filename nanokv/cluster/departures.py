"""Members that have left: what was kept for them here is let go of, as the registry tells."""

from collections.abc import Callable

from nanokv.cluster.card import Card
from nanokv.cluster.nodes import Nodes


class Departures:
    """Notices who has left.

    Args:
        nodes: the members that there are.
        gone: called with the card of each process that is no member any more.
    """

    def __init__(self, nodes: Nodes, gone: Callable[[Card], None]) -> None:
        self._nodes, self._gone = nodes, gone
        self._known: dict[int, Card] = {}

    def look(self) -> None:
        """Tell of all that have left since the last look. From one thread."""
        known = self._known
        self._known = {card.incarnation: card for node in self._nodes.others() for card in node.cards}
        for incarnation in known.keys() - self._known.keys():
            self._gone(known[incarnation])
