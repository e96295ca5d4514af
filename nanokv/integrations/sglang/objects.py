"""Objects of NanoKV, copied from memory of SGLang's host pools and to it.

An object holds one page, whole. It is published when its last byte is written, so no reader ever sees a part of a page;
and it is read from a place where it cannot change (a pin), or validated after the copy. An object of another size than
the page is a miss.

A page of one part is moved by NanoKV's calls about many keys. Of several parts each is copied by itself, between the
pool and the segment, with no buffer between. In a cluster, where the segment may be on another host, there is one.
"""

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import torch

from nanokv.allocation.terms import Hold
from nanokv.cache.cache import NanoKVCache
from nanokv.errors import (
    DuplicateKey,
    InvalidArgument,
    KeyNotFound,
    NanoKVError,
    NotReady,
    PeerLost,
    SegmentCorrupt,
    WaitTimeout,
)
from nanokv.integrations.joining import JoinedStore
from nanokv.integrations.sglang.calls import Calls
from nanokv.integrations.sglang.host_pages import Parts
from nanokv.keys.digests import Digests
from nanokv.types import KeyDigest

_STAGED = 64 << 20  #: bytes of a buffer between pool and cluster
_PATIENCE = 1.0  #: seconds for other writers of pages, per call
_LOOK, _REST = 0.02, 0.001  #: seconds of a wait for one of them, and between two tries to put
_MISSES = (KeyNotFound, NotReady)


class Objects:
    """The objects of a store, by scope and key.

    Args:
        calls: is told of failures that are not misses.
    """

    def __init__(self, joined: JoinedStore, calls: Calls) -> None:
        self._world, self._cache, self._calls = joined.world, joined.cache, calls
        self._in_place = isinstance(joined.cache, NanoKVCache)

    # --- which are there ---
    def prefix(self, scopes: Sequence[str], keys: Sequence[str]) -> int:
        """How many of the first keys have objects in all scopes."""
        return self._cache.prefix_length(self._digests(scopes, keys)) // len(scopes)

    def exist(self, scopes: Sequence[str], keys: Sequence[str]) -> list[bool]:
        """Per key, whether it has objects in all scopes."""
        found = self._cache.exists_many(self._digests(scopes, keys))
        return [all(found[i : i + len(scopes)]) for i in range(0, len(found), len(scopes))]

    def drop(self, scope: str) -> int:
        """Remove the objects of a scope from all segments of this host, whoever has put them: their number."""
        return self._world.drop_group(scope)

    # --- memory ---
    def put(self, scope: str, keys: Sequence[str], parts: Parts) -> list[bool]:
        """Store pages of memory; per key whether its page is there now."""
        digests, deadline = self._digests([scope], keys), time.monotonic() + _PATIENCE
        if len(parts.sizes) == 1 or not self._in_place:
            rows = (self._put_rows(scope, digests[some], _rows(parts, some), deadline) for some in _slices(parts))
            return [done for each in rows for done in each]
        return [
            self._put_parts(scope, digest, addresses, parts.sizes, deadline)
            for digest, addresses in zip(digests, parts.addresses.tolist(), strict=True)
        ]

    def get(self, scope: str, keys: Sequence[str], parts: Parts) -> list[bool]:
        """Fill pages of memory; per key whether its page was filled. The others have undefined contents."""
        digests = self._digests([scope], keys)
        if len(parts.sizes) == 1:
            return self._get_rows(digests, _rows(parts, slice(None)))
        if self._in_place:
            return [
                self._get_parts(digest, addresses, parts.sizes)
                for digest, addresses in zip(digests, parts.addresses.tolist(), strict=True)
            ]
        done: list[bool] = []
        for some in _slices(parts):
            staged = [torch.empty(parts.page_bytes, dtype=torch.uint8, device="cpu") for _ in parts.addresses[some]]
            found = self._get_rows(digests[some], staged)
            for addresses, buffer, there in zip(parts.addresses[some].tolist(), staged, found, strict=True):
                if there:
                    _scatter(buffer.data_ptr(), addresses, parts.sizes)
            done += found
        return done

    # --- tensors ---
    def put_tensors(self, scope: str, keys: Sequence[str], tensors: Sequence[torch.Tensor]) -> list[bool]:
        """Store tensors."""
        return self._put_rows(scope, self._digests([scope], keys), tensors, time.monotonic() + _PATIENCE)

    def get_tensors(self, scope: str, keys: Sequence[str], dsts: Sequence[torch.Tensor]) -> list[bool]:
        """Fill contiguous tensors, of any dtype and shape and of the size of the object."""
        return self._get_rows(self._digests([scope], keys), dsts)

    def get_new(self, scope: str, key: str) -> torch.Tensor | None:
        """A new tensor, as it was put; uint8 if it was put from memory."""
        found: torch.Tensor | None = self._cache.get(self._digests([scope], [key])[0], None)
        return found

    # --- one kind of page each ---
    def _put_rows(self, scope: str, digests: Digests, rows: Sequence[torch.Tensor], deadline: float) -> list[bool]:
        if not rows:
            return []
        outcomes = self._cache.put_many(digests, rows, hold=Hold(group=scope))
        done = []
        for outcome, digest, row in zip(outcomes, digests, rows, strict=True):
            again = partial(self._again, scope, digest, row)
            done.append(outcome is None or self._settled(outcome, digest, row.nbytes, again, deadline))
        return done

    def _again(self, scope: str, digest: KeyDigest, row: torch.Tensor) -> None:
        self._cache.put(digest, row, hold=Hold(group=scope))

    def _put_parts(
        self, scope: str, digest: KeyDigest, addresses: Sequence[int], sizes: Sequence[int], deadline: float
    ) -> bool:
        def write() -> None:
            plan = self._world.open_for_write(digest, sum(sizes), hold=Hold(group=scope))
            try:
                at = self._world.remote_ptr(plan.dst_rank, plan.payload_base)
                for address, nbytes in zip(addresses, sizes, strict=True):
                    ctypes.memmove(at, address, nbytes)
                    at += nbytes
            except BaseException:
                self._world.abort(digest)
                raise
            self._world.commit(digest)

        try:
            write()
        except NanoKVError as error:
            return self._settled(error, digest, sum(sizes), write, deadline)
        return True

    def _settled(
        self, error: NanoKVError, digest: KeyDigest, nbytes: int, again: Callable[[], None], deadline: float
    ) -> bool:
        """Whether a page is there, although its put was refused: somebody has stored it, or puts it now."""
        while isinstance(error, DuplicateKey) and time.monotonic() < deadline:
            try:
                if not self._has(digest, nbytes, deadline):
                    again()
                return True
            except NanoKVError as other:
                error = other
                time.sleep(_REST)
        self._calls.note("put", error)
        return False

    def _has(self, digest: KeyDigest, nbytes: int, deadline: float) -> bool:
        """Whether a key has an object of that size. If it is being written, that is waited for, but only for a moment.

        The writer may abort or die, and then nobody writes the object any more: so the caller tries again to put it.
        An object of another size can be of no use to anybody: it is removed.
        """
        try:
            if self._world.get_location(digest).bytes_total == nbytes:
                return True
            self._world.remove(digest)
        except KeyNotFound:  # it went away; in a cluster it may be on another host
            return not self._in_place and self._cache.exists(digest)
        except NotReady:
            if time.monotonic() >= deadline:
                raise
            with suppress(WaitTimeout, PeerLost):
                self._world.wait(digest, timeout=_LOOK)
        return False

    def _get_rows(self, digests: Digests, rows: Sequence[torch.Tensor]) -> list[bool]:
        if not rows:
            return []
        try:
            return [each is not None for each in self._cache.get_many(digests, dsts=rows, reinterpret=True)]
        except NanoKVError:  # of one of them
            return [self._get_row(digest, row) for digest, row in zip(digests, rows, strict=True)]

    def _get_row(self, digest: KeyDigest, row: torch.Tensor) -> bool:
        try:
            return self._cache.get(digest, None, dst=row, reinterpret=True) is not None
        except NanoKVError as error:
            return self._not_read(digest, error)

    def _not_read(self, digest: KeyDigest, error: NanoKVError) -> bool:
        """False. A damaged object is removed: else the page would be found again and again, and stored by nobody."""
        self._calls.note("get", error)
        if isinstance(error, SegmentCorrupt):
            with suppress(NanoKVError):
                self._cache.remove_many([digest])
        return False

    def _get_parts(self, digest: KeyDigest, addresses: Sequence[int], sizes: Sequence[int]) -> bool:
        try:
            with self._world.pin(digest) as stored:
                if stored.nbytes != sum(sizes):
                    raise InvalidArgument(f"a page has {sum(sizes)} bytes, and its object {stored.nbytes}")
                _scatter(stored.data_ptr(), addresses, sizes)
            return True
        except _MISSES:
            return False
        except NanoKVError as error:
            return self._not_read(digest, error)

    def _digests(self, scopes: Sequence[str], keys: Sequence[str]) -> Digests:
        """The digests of all keys in all scopes; those of the first key come first."""
        return self._world.digests([f"{scope}/{key}" for key in keys for scope in scopes])


def _scatter(at: int, addresses: Sequence[int], sizes: Sequence[int]) -> None:
    for address, nbytes in zip(addresses, sizes, strict=True):
        ctypes.memmove(address, at, nbytes)
        at += nbytes


def _slices(parts: Parts) -> Iterator[slice]:
    """All pages at once, if they are moved as they are; else what fits into a buffer."""
    count = len(parts.addresses)
    each = count if len(parts.sizes) == 1 else max(_STAGED // parts.page_bytes, 1)
    return (slice(start, start + each) for start in range(0, count, max(each, 1)))


def _rows(parts: Parts, some: slice) -> list[torch.Tensor]:
    """The memory of pages as tensors, uint8; copied, if pages have several parts."""
    if len(parts.sizes) == 1:
        return [view(address, parts.sizes[0]) for (address,) in parts.addresses[some].tolist()]
    rows = []
    for addresses in parts.addresses[some].tolist():
        rows.append(torch.cat([view(*part) for part in zip(addresses, parts.sizes, strict=True)]))
    return rows


@lru_cache(64)
def _array_of(nbytes: int) -> Any:
    return ctypes.c_uint8 * nbytes


def view(address: int, nbytes: int) -> torch.Tensor:
    """Memory of this process as a tensor, uint8, that shares it and does not keep it."""
    return torch.frombuffer(_array_of(nbytes).from_address(address), dtype=torch.uint8)
