"""Where the pages of one of SGLang's host pools lie in memory: the parts of each page, as addresses and sizes.

A page of a host pool is one part of memory or several: K and V, or these per layer, or the states of a Mamba layer.
`get_page_buffer_meta` of the pool names them. An object of NanoKV holds the parts of a page one after another.

Where all parts lie in the pool's one tensor, they are taken in the order of their addresses. That is the order of the
flat page that SGLang's generic calls hand out, so both kinds of calls find the same objects, and none reads K of one
layer as V of another. Where they do not, the objects of the two kinds get keys of their own (`HostPages.form`).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool

from nanokv.errors import InvalidArgument

#: what pools raise that cannot name the memory of their pages, or have none
_CANNOT = (NotImplementedError, ValueError, AssertionError, AttributeError, TypeError)

Addresses = npt.NDArray[np.int64]  #: [pages, parts]


class Parts(NamedTuple):
    """The memory of some pages."""

    addresses: Addresses
    sizes: tuple[int, ...]  #: bytes of each part, the same for all pages

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return sum(self.sizes)

    def split(self, count: int) -> "list[Parts]":
        """The same memory as `count` objects per page, each of as many parts."""
        each = len(self.sizes) // count
        return [
            Parts(self.addresses[:, i : i + each], self.sizes[i : i + each]) for i in range(0, len(self.sizes), each)
        ]


class HostPages:
    """The pages of a pool.

    Args:
        pool: a `HostKVCache` of SGLang.
        heads: objects that a page is cut into along its heads, so that ranks of other degrees of parallelism can use
            them; 0: a page is one object.

    Attributes:
        form: "flat": an object has the bytes of the pool's flat page. "parts": those of its parts in their own order.
            "heads": those of some heads. "logical": the pool has no memory, and its pages no bytes.
        direct: whether parts can be named; else pages are copied through a flat page of the pool.
        page_bytes: of a page.

    Raises:
        InvalidArgument: the pool hands out its pages in neither way.
    """

    def __init__(self, pool: Any, heads: int = 0) -> None:
        self.pool, self._heads, self._split = pool, heads, max(heads, 1)
        self.tokens = int(getattr(pool, "logical_page_size", 0) or getattr(pool, "page_size", 0) or 1)
        self._order: npt.NDArray[np.int64] | None = None
        self.direct, self.form, self.page_bytes, self.sizes = False, "flat", 0, tuple[int, ...]()
        if isinstance(pool, LogicalHostPool):
            self.form = "logical"
            return
        first = self._probed()
        if first is None:
            self.page_bytes = self._flat_bytes()
            self.sizes = (self.page_bytes,)
            return
        self.direct, self.form = True, "heads" if heads else self._form(first.addresses[0], first.sizes)
        if self.form == "flat":
            self._order = np.argsort(first.addresses[0], kind="stable")
        self.page_bytes, self.sizes = first.page_bytes, self._sorted(first).sizes

    @property
    def object_bytes(self) -> int:
        """Bytes of an object."""
        return self.page_bytes // self._split

    def checked(self, host_indices: torch.Tensor | None, pages: int) -> torch.Tensor:
        """The indices.

        Raises:
            InvalidArgument: they are not those of so many pages.
        """
        if host_indices is None or host_indices.numel() != pages * self.tokens:
            have = 0 if host_indices is None else host_indices.numel()
            raise InvalidArgument(f"{pages} pages of {self.tokens} tokens, and {have} host indices")
        return host_indices

    def parts(self, host_indices: torch.Tensor, pages: int) -> Parts:
        """The memory of pages that are named by the indices of their tokens.

        Raises:
            InvalidArgument: the pool answers with other parts than for its first page.
        """
        found = self._sorted(self._asked(host_indices, pages))
        if found.sizes != self.sizes:
            raise InvalidArgument(f"parts of {found.sizes} bytes, those of the first page have {self.sizes}")
        return found

    def _probed(self) -> Parts | None:
        try:
            return self._asked(torch.arange(self.tokens, dtype=torch.int64, device="cpu"), 1)
        except _CANNOT:
            if self._heads:
                raise InvalidArgument("tp_lcm_size needs a pool that names the memory of its heads") from None
            return None

    def _asked(self, host_indices: torch.Tensor, pages: int) -> Parts:
        if self._split > 1:
            addresses, sizes = self.pool.get_split_heads_page_buffer_meta(host_indices, self._split)
        else:
            addresses, sizes = self.pool.get_page_buffer_meta(host_indices)
        table = np.asarray(addresses, np.int64).reshape(pages, -1)
        each = np.broadcast_to(np.asarray(sizes, np.int64), table.size).reshape(table.shape)
        if not table.shape[1] or (each != each[0]).any() or (each <= 0).any():
            raise InvalidArgument(f"pages must have the same parts, not {table.shape[1]} of {np.unique(each)} bytes")
        return Parts(table, tuple(each[0].tolist()))

    def _form(self, addresses: npt.NDArray[np.int64], sizes: Sequence[int]) -> str:
        buffer = getattr(self.pool, "kv_buffer", None)
        if not isinstance(buffer, torch.Tensor) or not buffer.is_contiguous():
            return "parts"
        start = buffer.data_ptr()
        inside = (addresses >= start) & (addresses + np.asarray(sizes) <= start + buffer.nbytes)
        return "flat" if inside.all() and len(set(sizes)) == 1 else "parts"

    def _sorted(self, parts: Parts) -> Parts:
        if self._order is None:
            return parts
        return Parts(parts.addresses[:, self._order], parts.sizes)

    # --- through a flat page ---
    def _flat_bytes(self) -> int:
        try:
            return self.flat(torch.zeros(1, dtype=torch.int64, device="cpu"), 0).nbytes
        except _CANNOT as error:
            raise InvalidArgument(f"{type(self.pool).__name__} hands out no pages for storage: {error}") from None

    def empty(self) -> torch.Tensor:
        """A flat page, to be filled."""
        page: torch.Tensor = self.pool.get_dummy_flat_data_page()
        return page

    def flat(self, host_indices: torch.Tensor, page: int) -> torch.Tensor:
        """The flat page of a page of these indices; it may be a copy."""
        flat: torch.Tensor = self.pool.get_data_page(int(host_indices[page * self.tokens]), flat=True)
        return flat

    def fill(self, host_indices: torch.Tensor, page: int, flat: torch.Tensor) -> None:
        """Write a flat page into the pool."""
        self.pool.set_from_flat_data_page(int(host_indices[page * self.tokens]), flat)
