"""The layout of a `PagedKV`'s objects, and those of other layouts that it can read.

The tensors say what an object looks like; the identity of the cache says which heads of the model these are, and whose
objects may be read at all: those of the same identity but for the layout.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from nanokv.errors import InvalidArgument
from nanokv.identity import Identity
from nanokv.keys import Hasher
from nanokv.kv_layout import KVLayout
from nanokv.transfer.reshard import Plan, check_readable, misfit, plan, sources_of
from nanokv.types import Key, KeyDigest

Digest = Callable[[Key], KeyDigest]


class Layouts:
    """Of one PagedKV.

    Args:
        own: the layout of its objects, of all layers, as the tensors have it.
        digest: of a key of this cache.
        whose: namespace and identity of the cache.
    """

    def __init__(self, own: KVLayout, digest: Digest, whose: tuple[str, Identity | None]) -> None:
        self._own, self._digest = own, digest
        self._namespace, self._identity = whose
        stated = None if self._identity is None else self._identity.layout
        self._misfit = None if stated is None or stated.form else misfit(own, stated, of_objects=True)

    def check(self) -> None:
        """Refuse to move whole objects if they are not as the cache's identity says: InvalidArgument."""
        if self._misfit:
            raise InvalidArgument(self._misfit)

    def of_own(
        self, keys: Sequence[Key], blocks: Sequence[int], held: range, layers: range
    ) -> tuple[Plan, list[list[KeyDigest]]]:
        """What to take for some layers out of own objects that hold more, and the digest of each key."""
        whole = replace(self._own, first_layer=held.start, layers=len(held))
        return plan(self._own, whole, layers, len(keys), blocks), [[self._digest(key) for key in keys]]

    def of_other(
        self, source: object, keys: Sequence[Key], blocks: Sequence[int], held: range | None, layers: range
    ) -> tuple[Plan, list[list[KeyDigest]]]:
        """What to take from the objects of a writer with another layout, and per writer the digest of each key.

        Args:
            held: the layers of each object, of an engine that puts some layers under a key of their own; None: all.

        Raises:
            InvalidArgument: such objects cannot be read.
        """
        wants, writer = self._wanted(source)
        objects = writer
        if held is not None:
            objects = replace(writer, first_layer=wants.first_layer + held.start, layers=len(held))
        wanted = plan(wants, objects, layers, len(keys), blocks)
        digests = self._digests([replace(writer, tp_rank=each.tp_rank) for each in wanted.sources])
        return wanted, [[digest(key) for key in keys] for digest in digests]

    def of_prefix(self, source: object) -> list[Digest]:
        """The digests of all objects that a key stands for: of own ones, or of those of a writer with another layout.

        Raises:
            InvalidArgument: such objects cannot be read.
        """
        if source is None:
            return [self._digest]
        wants, writer = self._wanted(source)
        check_readable(wants, writer)
        return self._digests(sources_of(wants, writer)[0])

    def _wanted(self, source: object) -> tuple[KVLayout, KVLayout]:
        """The layout in the cache's identity, which says which heads are wanted; and the writer's."""
        if not isinstance(source, KVLayout):
            raise InvalidArgument(f"source must be a KVLayout, not {source!r}")
        if self._identity is None or self._identity.layout is None:
            raise InvalidArgument("source needs a cache whose identity has a layout: it says which heads are wanted")
        why = misfit(self._own, self._identity.layout, of_objects=False)
        if why:
            raise InvalidArgument(why)
        return self._identity.layout, source

    def _digests(self, layouts: Sequence[KVLayout]) -> list[Digest]:
        assert self._identity is not None
        return [Hasher(self._namespace, self._identity.with_layout(layout)) for layout in layouts]
