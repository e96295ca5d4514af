"""Chunks of an engine in a store, many in one call. Its calls block: in a cluster, for as long as other nodes take.

A chunk is published whole, and read from a place where it cannot change (a pin), straight into the memory object that
is returned; so a reader gets the bytes that were put, or nothing. Memory objects that were allocated for a read that
then fails are given back before the call ends, whatever ends it.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from lmcache.v1.memory_management import MemoryObj

from nanokv.cache.cache import NanoKVCache
from nanokv.errors import DuplicateKey, InvalidArgument, KeyNotFound, NanoKVError, NotReady, SegmentCorrupt
from nanokv.integrations.joining import JoinedStore
from nanokv.integrations.lmcache.forms import ChunkLayout, Form
from nanokv.integrations.lmcache.putting import ChunkWriter
from nanokv.integrations.lmcache.values import flat, tensor_of
from nanokv.integrations.refusals import Refusals

Allocate = Callable[..., MemoryObj | None]  #: of (shapes, dtypes, fmt)
_AFAR = 16  #: chunks of other hosts that are read at a time; they are copied once more when they are here
_PATIENCE, _REST = 1.0, 0.01  #: seconds for memory, in one call, and between two tries


class Chunks:
    """The chunks of one engine.

    Args:
        segment: the rank in whose segment chunks are stored; None: that of a key's home.
        allocate: makes the memory objects of chunks that are read; None: there is no memory.
        refusals: counts chunks that are not stored or not read.
    """

    def __init__(
        self, joined: JoinedStore, layout: ChunkLayout, segment: int | None, allocate: Allocate, refusals: Refusals
    ) -> None:
        self._refusals = refusals
        self._world, self._store, self._layout = joined.world, joined.cache, layout
        self._allocate, self._putting = allocate, ChunkWriter(joined, segment)
        self._others = layout.forms[1:]
        self._in_place = isinstance(joined.cache, NanoKVCache)

    # --- which are there ---
    def prefix(self, keys: Sequence[str]) -> int:
        """How many of the first keys have chunks."""
        names = [self._layout.forms[0].name(key) for key in keys]
        length = self._store.prefix_length(names)
        while length < len(keys) and any(self._store.exists_many(self._other_names(keys[length]))):
            length += 1
            length += self._store.prefix_length(names[length:])
        return length

    def exist(self, keys: Sequence[str]) -> list[bool]:
        """Per key, whether it has a chunk."""
        return [form is not None for form in self._forms_of(keys)]

    def lease(self, keys: Sequence[str], seconds: float) -> None:
        """Keep chunks of this host from being evicted, until they are read or so many seconds are over."""
        for key, form in zip(keys, self._forms_of(keys), strict=True):
            if form is not None:
                self._world.hold([form.name(key)], seconds)

    def remove(self, key: str) -> bool:
        """Remove a chunk; False if there is none, or if it is being read."""
        return any(self._store.remove_many([form.name(key) for form in self._layout.forms]))

    def _forms_of(self, keys: Sequence[str]) -> list[Form | None]:
        """How each chunk is stored; None: it is not."""
        first = self._layout.forms[0]
        found = self._store.exists_many([first.name(key) for key in keys])
        forms: list[Form | None] = [first if there else None for there in found]
        missing = [i for i, there in enumerate(found) if not there]
        if missing:
            others = self._store.exists_many([name for i in missing for name in self._other_names(keys[i])])
            step = len(self._others)
            for at, i in enumerate(missing):
                there = others[at * step : (at + 1) * step]
                forms[i] = next((form for form, yes in zip(self._others, there, strict=True) if yes), None)
        return forms

    def _other_names(self, key: str) -> list[str]:
        return [form.name(key) for form in self._others]

    # --- store ---
    def put(self, keys: Sequence[str], memory_objs: Sequence[MemoryObj]) -> list[NanoKVError | None]:
        """Store chunks; per key an error, or None if it is there now, or is being written. See `ChunkWriter`."""
        outcomes: list[NanoKVError | None] = [None] * len(keys)
        names, tensors, places = [], [], []
        for i, (key, memory_obj) in enumerate(zip(keys, memory_objs, strict=True)):
            try:
                tensors.append(tensor_of(memory_obj))
            except InvalidArgument as error:
                outcomes[i] = error
                continue
            names.append(self._layout.form_of(memory_obj).name(key))
            places.append(i)
        for i, outcome in zip(places, self._putting.put(names, tensors), strict=True):
            outcomes[i] = None if isinstance(outcome, DuplicateKey) else outcome
        for refused in filter(None, outcomes):
            self._refusals.note("put", refused, "a chunk is not stored")
        return outcomes

    # --- read ---
    def get(self, keys: Sequence[str], *, only_prefix: bool = False) -> list[MemoryObj | None]:
        """Read chunks into new memory objects, of which the caller has the only reference; None: a miss.

        Args:
            only_prefix: all that comes after the first miss is None too.
        """
        read: list[MemoryObj | None] = [None] * len(keys)
        deadline = time.monotonic() + _PATIENCE
        try:
            wanted = self._named(keys, only_prefix)
            afar = [i for i, (form, name) in wanted.items() if not self._get_here(read, i, form, name, deadline)]
            for start in range(0, len(afar), _AFAR):
                self._get_from_afar(read, {i: wanted[i] for i in afar[start : start + _AFAR]}, deadline)
            if only_prefix and None in read:
                first = read.index(None)
                give_back(read[first:])
                read[first:] = [None] * (len(read) - first)
        except BaseException:
            give_back(read)
            raise
        return read

    def _named(self, keys: Sequence[str], only_prefix: bool) -> dict[int, tuple[Form, str]]:
        """How the chunks that are there are stored, and under which name, by their places."""
        named: dict[int, tuple[Form, str]] = {}
        for i, (key, form) in enumerate(zip(keys, self._forms_of(keys), strict=True)):
            if form is not None:
                named[i] = form, form.name(key)
            elif only_prefix:
                break
        return named

    def _get_here(self, read: list[MemoryObj | None], i: int, form: Form, name: str, deadline: float) -> bool:
        """Read a chunk of this host into its place; False if it may lie on another host."""
        try:
            with self._world.pin(name) as stored:
                read[i] = self._copied(form, stored, deadline)
        except SegmentCorrupt as error:
            self._damaged(name, error)
        except KeyNotFound:
            return self._in_place
        except NotReady:
            pass
        except NanoKVError as error:
            self._refusals.note("get", error, "a chunk is not read")
        return True

    def _damaged(self, name: str, error: SegmentCorrupt) -> None:
        self._refusals.note("get", error, "a damaged chunk is dropped")
        with suppress(NanoKVError):
            self._store.remove_many([name])  # else every look-up would find it again

    def _get_from_afar(
        self, read: list[MemoryObj | None], chunks: dict[int, tuple[Form, str]], deadline: float
    ) -> None:
        """Chunks of other hosts, by way of buffers: how large they are shows when they are here."""
        for (i, (form, _)), stored in zip(
            chunks.items(), self._stored([name for _, name in chunks.values()]), strict=True
        ):
            if stored is not None:
                read[i] = self._copied(form, stored, deadline)

    def _stored(self, names: Sequence[str]) -> list[torch.Tensor | None]:
        try:
            return self._store.get_many(names)
        except NanoKVError:  # of one of them
            return [self._one_stored(name) for name in names]

    def _one_stored(self, name: str) -> torch.Tensor | None:
        try:
            found: torch.Tensor | None = self._store.get(name, None)
            return found
        except SegmentCorrupt as error:
            self._damaged(name, error)
        except NanoKVError as error:
            self._refusals.note("get", error, "a chunk of another host is not read")
        return None

    def _copied(self, form: Form, stored: torch.Tensor, deadline: float) -> MemoryObj | None:
        allocation = self._layout.allocation(form, stored)
        if allocation is None:
            line = f"a chunk of {stored.dtype}, {tuple(stored.shape)} is a miss: not of this engine"
            self._refusals.note("get", "OtherShape", line)
            return None
        memory_obj = self._allocated(form, *allocation, deadline)
        if memory_obj is None:
            line = f"a chunk of {stored.nbytes} bytes is not read: LMCache has no memory left"
            self._refusals.note("get", "NoMemory", line)
            return None
        try:
            flat(tensor_of(memory_obj)).copy_(flat(stored))
        except BaseException:
            memory_obj.ref_count_down()
            raise
        return memory_obj

    def _allocated(
        self, form: Form, shapes: Sequence[torch.Size], dtypes: Sequence[torch.dtype], deadline: float
    ) -> MemoryObj | None:
        """New memory. LMCache itself would wait for it without end."""
        while True:
            memory_obj = self._allocate(shapes, dtypes, form.fmt, busy_loop=False)
            if memory_obj is not None or time.monotonic() >= deadline:
                return memory_obj
            time.sleep(_REST)


def give_back(memory_objs: Sequence[MemoryObj | None]) -> None:
    """Nobody needs these."""
    for each in memory_objs:
        if each is not None:
            each.ref_count_down()
