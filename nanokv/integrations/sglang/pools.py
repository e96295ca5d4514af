"""SGLang's host pools, by name, and the way of their pages to objects and back."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName

from nanokv.device.segment.geometry import DEFAULT_CLASSES
from nanokv.errors import InvalidArgument
from nanokv.integrations.joining import Settings
from nanokv.integrations.sglang.host_pages import HostPages, Parts
from nanokv.integrations.sglang.objects import Objects
from nanokv.integrations.sglang.scopes import objects_per_page, scopes_of

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.pool_host import HostKVCache

KV = str(PoolName.KV.value)


class Pool(NamedTuple):
    """A pool that was registered."""

    pages: HostPages
    scopes: tuple[str, ...]  #: of the objects that a page has
    flat: str  #: of its flat page, if that is another object


class Pools:
    """The pools of a backend."""

    def __init__(self, config: "HiCacheStorageConfig", settings: Settings, objects: Objects) -> None:
        self._config, self._settings, self._objects = config, settings, objects
        self._pools: dict[str, Pool] = {}

    def register(self, name: str, host_pool: "HostKVCache") -> None:
        """Take a pool.

        Raises:
            InvalidArgument: it hands out no pages, or its pages are larger than objects of this store can be.
        """
        cut = name_of(name) == KV and not self._config.is_mla_model and host_pool.layout == "page_head"
        pages = HostPages(host_pool, objects_per_page(self._config) if cut else 0)
        most = self._settings.max_object or DEFAULT_CLASSES[-1] * self._settings.page_bytes
        if pages.object_bytes > min(most, self._settings.size):
            raise InvalidArgument(
                f"a page of pool {name!r} has {pages.object_bytes} bytes; this store has size={self._settings.size} "
                f"and objects of at most {most} bytes: raise max_object, or page_bytes"
            )
        scopes, flat = (scopes_of(self._config, name_of(name), pages, form) for form in ("", "flat"))
        self._pools[name_of(name)] = Pool(pages, scopes, flat[0])

    def find(self, name: str) -> Pool | None:
        """A pool; None: there is none of that name."""
        return self._pools.get(name_of(name))

    def get(self, name: str) -> Pool:
        """A pool.

        Raises:
            InvalidArgument: there is none of that name.
        """
        pool = self.find(name)
        if pool is None:
            raise InvalidArgument(f"no pool {name_of(name)!r} was registered")
        return pool

    def scopes(self) -> set[str]:
        """The scopes of all pools."""
        return {scope for pool in self._pools.values() for scope in (*pool.scopes, pool.flat)}

    # --- pages ---
    def load(self, name: str, keys: Sequence[str], host_indices: torch.Tensor | None) -> tuple[list[bool], int]:
        """Read pages into a pool: per key whether its page was read, and the bytes of a page.

        Raises:
            InvalidArgument: there is no such pool, or the indices are not those of its pages.
        """
        pool, host_indices = self._asked(name, keys, host_indices)
        pages = pool.pages
        done = [True] * len(keys)
        if pages.form == "logical":
            return done, 0
        if pages.direct:
            for scope, parts in self._objects_of(pool, keys, host_indices):
                done = _both(done, self._objects.get(scope, keys, parts))
            return done, pages.page_bytes
        made = [pages.empty() for _ in keys]
        done = self._objects.get_tensors(pool.scopes[0], keys, made)
        for i, (flat, there) in enumerate(zip(made, done, strict=True)):
            if there:
                pages.fill(host_indices, i, flat)
        return done, pages.page_bytes

    def store(self, name: str, keys: Sequence[str], host_indices: torch.Tensor | None) -> tuple[list[bool], int]:
        """Store pages of a pool: per key whether its page is there now, and the bytes of a page. Raises as `load`."""
        pool, host_indices = self._asked(name, keys, host_indices)
        pages = pool.pages
        done = [True] * len(keys)
        if pages.form == "logical":
            return done, 0
        if pages.direct:
            for scope, parts in self._objects_of(pool, keys, host_indices):
                done = _both(done, self._objects.put(scope, keys, parts))
            return done, pages.page_bytes
        flat = [pages.flat(host_indices, i) for i in range(len(keys))]
        return self._objects.put_tensors(pool.scopes[0], keys, flat), pages.page_bytes

    def _asked(self, name: str, keys: Sequence[str], host_indices: torch.Tensor | None) -> tuple[Pool, torch.Tensor]:
        pool = self.get(name)
        return pool, pool.pages.checked(host_indices, len(keys))

    def _objects_of(self, pool: Pool, keys: Sequence[str], host_indices: torch.Tensor) -> list[tuple[str, Parts]]:
        """The memory of the pages, by the objects that each has."""
        parts = pool.pages.parts(host_indices, len(keys))
        return list(zip(pool.scopes, parts.split(len(pool.scopes)), strict=True))


def name_of(pool: str) -> str:
    """The name of a pool, which may be one of SGLang's enumeration."""
    return str(getattr(pool, "value", pool))


def _both(first: Sequence[bool], second: Sequence[bool]) -> list[bool]:
    return [a and b for a, b in zip(first, second, strict=True)]
