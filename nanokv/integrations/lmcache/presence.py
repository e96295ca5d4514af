"""Which keys have objects, and their removal, in one call; key by key where a node of a cluster is lost.

A call about many keys fails as a whole with the node of one. Others have their objects, and a lost node costs its time
once, not per key.
"""

from collections.abc import Callable, Sequence

from nanokv.errors import KeyNotFound, NotReady, ObjectPinned, PeerLost
from nanokv.integrations.joining import Store


def exist(store: Store, names: Sequence[str]) -> list[bool]:
    """Per key, whether it has an object that can be read; one on a lost node cannot."""
    try:
        return store.exists_many(names)
    except PeerLost:
        return [_or_false(store.exists, name) for name in names]


def prefix(store: Store, names: Sequence[str]) -> int:
    """How many of the first keys have objects that can be read."""
    try:
        return store.prefix_length(names)
    except PeerLost:
        return [*exist(store, names), False].index(False)


def remove(store: Store, names: Sequence[str]) -> list[bool]:
    """Remove objects; per key False if there was none, or it is pinned, being written, or on a lost node."""
    try:
        return store.remove_many(names)
    except PeerLost:
        return [_or_false(lambda key: store.remove(key) is None, name) for name in names]


def _or_false(ask: Callable[[str], bool], name: str) -> bool:
    try:
        return ask(name)
    except (PeerLost, KeyNotFound, NotReady, ObjectPinned):
        return False
