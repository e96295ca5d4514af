"""Who is in the cluster, as this process knows it: what the registry says, the process itself, and those in doubt."""

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType

from nanokv.cluster.membership.base import MemberEntry
from nanokv.cluster.membership.pulse import Pulse


class View:
    """Fed by a registry, from any thread.

    A member that vanishes while the pulse is not settled is in doubt: it stays a member until `settle` finds that it
    did not come back.

    Args:
        changed: called with each new mapping, under the lock of the view: it must not block.
    """

    def __init__(self, pulse: Pulse, changed: Callable[[Mapping[str, bytes]], None]) -> None:
        self._pulse = pulse
        self._changed = changed
        self._lock = threading.Lock()
        self._entries: dict[str, MemberEntry] = {}
        self._doubtful: set[str] = set()
        self._mine: set[str] = set()  # incarnations of this process
        self._own: dict[str, bytes] = {}
        self._members: Mapping[str, bytes] = MappingProxyType({})
        self.lapses = 0  #: how often the others may have seen this process leave and come back

    def members(self) -> Mapping[str, bytes]:
        """All members with their cards; a mapping that does not change."""
        return self._members

    def own(self, member: str, card: bytes, incarnation: str) -> None:
        """This process is a member, whatever the registry says of it meanwhile."""
        with self._lock:
            again = bool(self._mine) and incarnation not in self._mine
            self._mine.add(incarnation)
            self._own = {member: card}
            self._tell()
            if again:
                self._lapsed()

    def lapsed(self) -> None:
        """The lease of this process had ended for the others, though it goes on as the same member."""
        with self._lock:
            self._lapsed()

    def disown(self) -> None:
        """This process is no member any more, though the registry may still have it."""
        with self._lock:
            self._own = {}
            self._tell()

    def has(self, member: str, incarnation: str) -> bool:
        """Whether the registry has this incarnation of a member, as far as the view knows."""
        with self._lock:
            entry = self._entries.get(member)
            return entry is not None and entry.incarnation == incarnation and member not in self._doubtful

    def put(self, member: str, entry: MemberEntry) -> None:
        """The registry has a member, or a new card of it."""
        with self._lock:
            self._put(member, entry)
            self._tell()

    def drop(self, member: str, *, surely: bool = False) -> None:
        """The registry has lost a member. `surely`: that has told so itself."""
        settled = surely or self._pulse.settled()
        with self._lock:
            self._drop(member, settled)
            self._tell()

    def replace(self, entries: Mapping[str, MemberEntry]) -> None:
        """The registry has these members and no others."""
        settled = self._pulse.settled()
        with self._lock:
            for member in self._entries.keys() - entries.keys():
                self._drop(member, settled)
            for member, entry in entries.items():
                self._put(member, entry)
            self._tell()

    def settle(self) -> None:
        """Drop those in doubt, if they had their time to come back. Call it now and then."""
        if self._doubtful and self._pulse.settled():
            with self._lock:
                for member in list(self._doubtful):
                    self._drop(member, settled=True)
                self._tell()

    def _put(self, member: str, entry: MemberEntry) -> None:
        self._doubtful.discard(member)
        self._entries[member] = entry

    def _drop(self, member: str, settled: bool) -> None:
        if settled:
            self._doubtful.discard(member)
            self._entries.pop(member, None)
        elif member in self._entries:
            self._doubtful.add(member)

    def _lapsed(self) -> None:
        self.lapses += 1
        self._members = MappingProxyType(dict(self._members))  # told anew, though it is the same
        self._changed(self._members)

    def _tell(self) -> None:
        members = {name: entry.card for name, entry in self._entries.items() if entry.incarnation not in self._mine}
        members.update(self._own)
        if members != self._members:
            self._members = MappingProxyType(members)
            self._changed(self._members)
