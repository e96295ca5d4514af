"""What an adapter has stored and is still there: for usage, listings, and LMCache's eviction.

NanoKV keeps hashes of keys, and evicts by itself, so the keys are kept here, and taken out when an object has gone.

At rest the catalogue has what the store has. Whoever has noted an object, removed one, or heard that one has gone asks
the store afterwards whether it is there. A note goes only if its object was missing when the store was asked after the
note was made: so one that is made in between, of an object that was stored anew, stays, and is asked for by its maker.
"""

import threading
from collections.abc import Callable, Iterable, Sequence

from lmcache.v1.distributed.api import KeyEntry, KeyListPage, ObjectKey

from nanokv.types import KeyDigest


class _Note:
    """One storing of an object. The next one of the same key is another note."""

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


Sizes = tuple[list[ObjectKey], list[int]]  #: keys, and bytes of their objects


def name_of(key: ObjectKey) -> str:
    """The key of NanoKV. LMCache keeps "@" out of models and salts."""
    return f"lmcache-l2/{key.model_name}@{key.kv_rank:x}@{key.object_group_id}@{key.chunk_hash.hex()}@{key.cache_salt}"


class Catalogue:
    """Keys of objects that were stored, with their sizes. Any thread may call.

    Args:
        digest: of a key of NanoKV.
        exist: per key of NanoKV, whether its object is there.
    """

    def __init__(self, digest: Callable[[str], KeyDigest], exist: Callable[[Sequence[str]], list[bool]]) -> None:
        self._digest, self._exist = digest, exist
        self._lock = threading.Lock()
        self._notes: dict[ObjectKey, _Note] = {}
        self._keys: dict[KeyDigest, ObjectKey] = {}

    def __len__(self) -> int:
        return len(self._notes)

    def add(self, keys: Sequence[ObjectKey], sizes: Sequence[int]) -> Sizes:
        """Note objects; returns those that had been noted under the same keys, and so have gone."""
        digests = [self._digest(name_of(key)) for key in keys]
        with self._lock:
            before = self._pop(key for key in dict.fromkeys(keys) if key in self._notes)
            self._notes.update(zip(keys, map(_Note, sizes), strict=True))
            self._keys.update(zip(digests, keys, strict=True))
        return before

    def gone(self, digests: Iterable[KeyDigest] | None = None) -> Sizes:
        """Forget objects that may have gone, if they have; returns those. None: all may have."""
        with self._lock:
            keys = self._notes if digests is None else [self._keys[each] for each in digests if each in self._keys]
            noted = {key: self._notes[key] for key in keys}
        found = self._exist([name_of(key) for key in noted]) if noted else []
        missing = [key for key, there in zip(noted, found, strict=True) if not there]
        with self._lock:
            return self._pop(key for key in missing if self._notes.get(key) is noted[key])

    def page(self, model_name: str | None, page_size: int, cursor: str | None) -> KeyListPage:
        """Some of the keys, in the order of their names.

        Args:
            cursor: of the page before.

        Raises:
            ValueError: `page_size` is not positive, or no page has that cursor.
        """
        if isinstance(page_size, bool) or not isinstance(page_size, int) or page_size <= 0:
            raise ValueError(f"page_size must be a positive integer, not {page_size!r}")
        if cursor is not None and not (isinstance(cursor, str) and cursor.startswith("lmcache-l2/")):
            raise ValueError(f"no page has the cursor {cursor!r}")
        with self._lock:
            named = sorted((name_of(key), key, note.nbytes) for key, note in self._notes.items())
        left = [
            each for each in named if (cursor is None or each[0] > cursor) and model_name in (None, each[1].model_name)
        ]
        shown = left[:page_size]
        entries = tuple(KeyEntry(key=key.to_encoded_object_key(), size_bytes=size) for _, key, size in shown)
        return KeyListPage(entries=entries, next_page_token=shown[-1][0] if len(left) > len(shown) else None)

    def _pop(self, keys: Iterable[ObjectKey]) -> Sizes:
        known = list(keys)
        for key in known:
            self._keys.pop(self._digest(name_of(key)), None)
        return known, [self._notes.pop(key).nbytes for key in known]
