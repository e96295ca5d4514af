"""Removals: by key, by regular expression, of everything, of replicas in one segment."""

from nanokv.integrations.mooncake.codes import Code
from nanokv.integrations.mooncake.sessions import Sessions
from nanokv.integrations.mooncake.values import compiled, key_bytes, listed


class Removal(Sessions):
    """A lease of a reader holds removals off, except by `force`."""

    def remove(self, key: str, force: bool = False) -> int:
        """Remove a value: 0, or a code; -706 while a reader's lease protects it."""
        name = key_bytes(key)
        if self._objects is None:
            return Code.INVALID_PARAMS
        return int(self._objects.remove(name, force=force)) if name else Code.OBJECT_NOT_FOUND

    def batch_remove(self, keys: list[str], force: bool = False) -> list[int]:
        """`remove` for each key."""
        return [int(self.remove(key, force)) for key in listed("keys", keys)]

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Remove the values whose keys contain a match of a (Python) regular expression: how many went, or a code."""
        pattern = compiled(regex_pattern)
        if pattern is None or self._objects is None:
            return Code.INVALID_PARAMS
        return self._remove_each([key for key in self._objects.keys() if pattern.search(key)], force)  # noqa: SIM118

    def remove_all(self, force: bool = False) -> int:
        """Remove all values, those with a hard pin too: how many went."""
        if self._objects is None:
            return Code.INVALID_PARAMS
        return self._remove_each(list(self._objects.keys()), force)

    def _remove_each(self, keys: list[bytes], force: bool) -> int:
        objects = self._objects
        return 0 if objects is None else sum(not objects.remove(key, force=force) for key in keys)

    def batch_replica_clear(self, keys: list[str], segment_name: str = "") -> list[str]:
        """Remove the replicas in a segment, or all: the keys of which something was removed. Leases hold it off."""
        objects = self._objects
        if objects is None:
            return []
        rank = objects.segments.rank_of(segment_name) if segment_name else None
        if segment_name and rank is None:
            return []
        cleared = []
        for key in listed("keys", keys):
            name = key_bytes(key)
            if not name or objects.leased(name):
                continue
            gone = objects.remove(name) if rank is None else objects.remove_at(name, rank)
            if not gone:
                cleared.append(key)
        return cleared
