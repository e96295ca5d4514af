"""Which object of NanoKV holds a chunk.

An object of NanoKV has a dtype and a shape, and a memory object of LMCache beside them a memory format, which says what
the dimensions mean. So the format is part of the key. A connector expects one format, that of its engine, and asks for
the others only where that has nothing; what was put is read as it was put.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from lmcache.v1.memory_management import MemoryFormat, MemoryObj

from nanokv.integrations.lmcache.values import has_groups

_WHOLE = (MemoryFormat.KV_2LTD, MemoryFormat.KV_MLA_FMT)  #: all layers: [K and V, layers, tokens, hidden]
_OF_A_LAYER = (MemoryFormat.KV_T2D, MemoryFormat.KV_2TD)  #: [.., hidden]; that of latents is also KV_MLA_FMT
_TOKENS = 2  #: the dimension of tokens in _WHOLE


class Form(NamedTuple):
    """How a chunk is stored."""

    fmt: MemoryFormat
    groups: str = ""  #: names the dtypes and shapes of several tensors

    def name(self, key: str) -> str:
        """The key of NanoKV."""
        return f"lmcache/{self.fmt.name}{self.groups and ':' + self.groups}/{key}"


class ChunkLayout:
    """The chunks of one engine.

    Args:
        shapes, dtypes, fmt: of a full chunk, one per group of layers.
        layers: the format of a layer, if LMCache stores each by itself.
        serialized: LMCache stores what a serializer has made of chunks.
    """

    def __init__(
        self,
        shapes: list[torch.Size],
        dtypes: list[torch.dtype],
        fmt: MemoryFormat,
        *,
        layers: MemoryFormat | None = None,
        serialized: bool = False,
    ) -> None:
        self._shapes, self._dtypes, self._layers = shapes, dtypes, layers
        self._token_bytes = sum(
            shape.numel() // shape[_TOKENS] * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)
        )
        whole = Form(fmt, _named(shapes, dtypes) if len(shapes) > 1 else "")
        expected = whole if layers is None else Form(layers)
        if serialized:
            expected = Form(MemoryFormat.BINARY_BUFFER)
        self.forms = tuple(dict.fromkeys([expected, whole, *map(Form, MemoryFormat)]))  #: the expected one first

    def form_of(self, memory_obj: MemoryObj) -> Form:
        """How a memory object is stored."""
        fmt = memory_obj.meta.fmt
        if not has_groups(memory_obj):
            return Form(fmt)
        return Form(fmt, _named(memory_obj.meta.shapes, memory_obj.meta.dtypes))

    def allocation(self, form: Form, stored: torch.Tensor) -> tuple[list[torch.Size], list[Any]] | None:
        """Shapes and dtypes of the memory object for what is stored; None: no chunk of this engine looks like that."""
        if form.fmt == MemoryFormat.BINARY_BUFFER:
            return [torch.Size([stored.nbytes, 0, 0, 0])], [None]
        if form.groups:
            tokens, rest = divmod(stored.nbytes, self._token_bytes)
            if form not in self.forms or rest or not tokens:
                return None
            return [_with_tokens(shape, tokens) for shape in self._shapes], list(self._dtypes)
        return ([stored.shape], [stored.dtype]) if self._fits(form.fmt, stored) else None

    def _fits(self, fmt: MemoryFormat, stored: torch.Tensor) -> bool:
        full, shape = self._shapes[0], stored.shape
        if fmt not in (*_WHOLE, *_OF_A_LAYER):
            return True
        if stored.dtype != self._dtypes[0] or not shape:
            return False
        if fmt in _OF_A_LAYER or (fmt == self._layers and len(shape) < len(full)):
            return shape[-1] == full[-1]
        return (
            len(shape) == len(full)
            and _with_tokens(shape, full[_TOKENS]) == full
            and 0 < shape[_TOKENS] <= full[_TOKENS]
        )


def _with_tokens(shape: torch.Size, tokens: int) -> torch.Size:
    return torch.Size([*shape[:_TOKENS], tokens, *shape[_TOKENS + 1 :]])


def _named(shapes: Sequence[torch.Size], dtypes: Sequence[torch.dtype]) -> str:
    """A name of the groups of a chunk, of any number of tokens."""
    groups = [(tuple(_with_tokens(shape, 0)), str(dtype)) for shape, dtype in zip(shapes, dtypes, strict=True)]
    return hashlib.blake2b(repr(groups).encode(), digest_size=8).hexdigest()


def format_of_layers(fmt: MemoryFormat, *, blending: bool) -> MemoryFormat:
    """The format in which LMCache stores a layer, where it stores whole chunks in `fmt`."""
    if fmt == MemoryFormat.KV_MLA_FMT:
        return fmt
    return MemoryFormat.KV_2TD if blending else MemoryFormat.KV_T2D
