"""For kernels of the caller, and of engines: plans, and access to paged caches."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from nanokv.api.many import Many
from nanokv.arguments import integer, seconds
from nanokv.device.machines.records import NO_TERMS
from nanokv.errors import InvalidArgument
from nanokv.host_poller.make_room import make_room
from nanokv.room import NO_ROOM, NO_WAIT
from nanokv.terms import Hold
from nanokv.transfer.descriptors import RAW
from nanokv.types import Key, WritePlan

if TYPE_CHECKING:
    from nanokv.transfer.cache_writer import CacheWriter
    from nanokv.transfer.paged import Hooks, PagedKV


class Kernels(Many):
    """Calls for kernels."""

    # --- plans: the caller's kernel writes ---
    def open_for_write(
        self,
        key: Key,
        bytes_total: int,
        *,
        preferred_segment: int | None = None,
        hold: float | Hold | None = None,
        timeout: float = NO_WAIT,
    ) -> WritePlan:
        """Claim a key and allocate; the caller's kernel writes the bytes. The kernel or `commit` makes it READY.

        The object reads back as flat uint8. If it is not READY after `write_timeout`, it is given up; its pages stay
        reserved until this rank calls `commit` or `abort` (which then raise WriteLost), or its process ends. `hold`: as
        for `put`, from this call on. `timeout`: as for `put`.

        Raises:
            DuplicateKey, OutOfMemory, InvalidArgument, PeerLost: nothing was allocated.
        """
        preferred_segment = self._checked_segment(preferred_segment)
        bytes_total = integer("bytes_total", bytes_total, 0, sys.maxsize)
        timeout = seconds("timeout", timeout)
        digest = self._hash(key)
        terms = NO_TERMS if hold is None else self._terms(hold)
        plan = self._plans.begin(digest, bytes_total, preferred_segment, terms)
        if timeout and plan in NO_ROOM:
            again = partial(self._plans.begin, digest, bytes_total, preferred_segment)
            plan = self._room(timeout, lambda: again(self._terms(hold)))
        if isinstance(plan, WritePlan):
            return plan
        raise self._error(plan, key, bytes_total, preferred_segment)

    def commit(self, key: Key) -> None:
        """Make an object READY that this rank opened. Succeeds also if its kernel has done so already.

        Raises:
            KeyNotFound: this rank has not opened it. WriteLost: it took longer than `write_timeout`.
        """
        self._check_open()
        digest = self._hash(key)
        begun = self._plans.take(digest, key)
        self._single.seal(digest, begun.place, RAW)
        status = self._allocation.finish(digest, begun)
        if status:
            raise self._error(status, key)
        self._traffic.planned(begun.place.nbytes)

    def abort(self, key: Key) -> None:
        """Give up an object that this rank opened. To be called only after its kernel has ended.

        Raises:
            KeyNotFound: this rank has not opened it. WriteLost: it was given up already.
        """
        self._check_open()
        digest = self._hash(key)
        status = self._allocation.abort(digest, self._plans.take(digest, key))
        if status:
            raise self._error(status, key)

    def make_room(self, rank: int, nbytes: int) -> bool:
        """Make room for an object of `nbytes` in the segment of a rank, as a refused put from the host does by itself.

        For kernels of yours, whose puts are answered FULL where a host could still join free extents, or evict around
        them. Returns True if a put is worth another try: others may take the room before it comes.

        Raises:
            InvalidArgument: no such rank; no object can be that large; or the master allocates (`alloc="host"`), and
                makes room by itself.
            PeerLost: the rank has ended.
        """
        rank, nbytes = integer("rank", rank, 0, self.world_size - 1), integer("nbytes", nbytes, 0, sys.maxsize)
        self._checked_segment(rank)
        if self.alloc != "device":
            raise InvalidArgument("with alloc='host' the master makes room by itself")
        if nbytes > self._geometry.max_object_bytes:
            raise InvalidArgument(f"an object has at most {self._geometry.max_object_bytes} bytes, not {nbytes}")
        return make_room(self._machine, rank, nbytes)

    # --- an engine's paged cache ---
    def paged_kv(self, layers: Sequence[torch.Tensor], *, kv_dim: int | None) -> PagedKV:
        """Access to an engine's paged KV cache, whose blocks are put and got in place: see `PagedKV`.

        Args:
            layers: the KV tensor of each layer, on the heap's device, all of one shape, dtype and strides:
                [blocks, 2, tokens, heads, dim] or [2, blocks, tokens, heads, dim]; or, if `kv_dim` is None,
                [blocks, tokens, heads, dim] or [blocks, tokens, dim]. Any strides: a cache that stores heads before
                tokens is passed permuted.
            kv_dim: the dimension that separates K and V, 0 or 1; None if there is none.

        Raises:
            InvalidArgument: the tensors, or `kv_dim`, are not as above.
        """
        self._check_open()
        from nanokv.transfer.paged import PagedKV  # brings the kernels

        return PagedKV(self._single, self._allocation, self._hooks(), layers, kv_dim)

    def cache_writer(
        self,
        layers: Sequence[tuple[torch.Tensor, torch.Tensor]],
        *,
        kv_cache_dtype: str = "auto",
        capacity: int = 1024,
    ) -> CacheWriter:
        """An engine's step that writes tokens into its paged cache, and publishes full blocks: see `CacheWriter`.

        Needs a GPU, or Triton's interpreter.

        Args:
            layers: key_cache and value_cache of each layer, on the heap's device, in one of vLLM's two layouts: see
                `nanokv.device.machines.reshape_and_cache`.
            kv_cache_dtype: "auto", "fp8" (e4m3) or "fp8_e5m2".
            capacity: the most blocks that a step fills.

        Raises:
            InvalidArgument: the tensors or `kv_cache_dtype` are not as above, or this cache has `alloc="host"`.
        """
        self._check_open()
        if self.alloc != "device":
            raise InvalidArgument('a kernel that publishes needs alloc="device"')
        from nanokv.transfer.cache_writer import CacheWriter  # brings the kernels

        hooks = self._hooks()
        return CacheWriter(self.world_table, self._allocation, hooks, layers, kv_cache_dtype, capacity, self.device)

    def _hooks(self) -> Hooks:
        from nanokv.transfer.paged import Hooks

        whose = self.options.namespace, self.options.identity
        judges = self._judge_put, self._judge_get
        return Hooks(self.digest, self._terms, self._checked_segment, *judges, self._worker, self._machine, whose)
