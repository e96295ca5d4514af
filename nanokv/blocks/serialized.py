"""Layouts as bytes, for workers that read and write each other's blocks.

What it guarantees: `deserialize` gives the layout that `serialize` was called with, or raises LayoutRefused. A message
is a header (magic, version, length, XXH3-64 of what follows) and JSON. The hash finds damage, the version a foreign
build; then every value is computed again from the config, so a message that contradicts itself is refused as well: a
reader never uses a stride that another worker has claimed but its own arithmetic does not give.

The hash is no signature: whoever can send a message can describe any memory. Take them from trusted workers.
"""

import json
import struct
from dataclasses import asdict, dataclass
from typing import Any

import xxhash

from nanokv.arguments import integer
from nanokv.blocks.errors import LayoutRefused
from nanokv.blocks.layout import FullyContiguous, LayerSeparate, Layout, LayoutConfig, MemoryDescriptor
from nanokv.errors import InvalidArgument

MAGIC = b"NKVBlock"
VERSION = 1
_HEADER = struct.Struct("<8sIIQ")  #: magic, version, bytes of JSON, XXH3-64 of these
_FIELDS = {"kind", "block_set_id", "worker_id", "config", "outer_contiguous", "base_offsets", "strides", "regions"}
_MOST_ID = (1 << 64) - 1


@dataclass(frozen=True)
class RemoteLayout:
    """A layout of a worker, as its peers know it."""

    layout: Layout
    block_set_id: int  #: of the worker's sets of blocks
    worker_id: int


def serialize(layout: Layout, *, block_set_id: int = 0, worker_id: int = 0) -> bytes:
    """A layout, where its memory is, and whose it is.

    Raises:
        InvalidArgument: an id is no u64.
    """
    ids = {"block_set_id": block_set_id, "worker_id": worker_id}
    content = _content(layout) | {name: integer(name, value, 0, _MOST_ID) for name, value in ids.items()}
    body = json.dumps(content, sort_keys=True).encode()
    return _HEADER.pack(MAGIC, VERSION, len(body), xxhash.xxh3_64_intdigest(body)) + body


def deserialize(message: bytes) -> RemoteLayout:
    """The layout that a worker has serialised.

    Raises:
        LayoutRefused: these are no such bytes, or they were changed or cut, or contradict themselves.
    """
    content = _checked(message)
    try:
        layout = _layout(content)
        ids = [integer(name, content[name], 0, _MOST_ID) for name in ("block_set_id", "worker_id")]
    except (InvalidArgument, TypeError, KeyError) as error:
        raise LayoutRefused(f"a serialised layout cannot be: {error}") from None
    again = _content(layout)
    wrong = [name for name in again if again[name] != content[name]]
    if wrong:
        raise LayoutRefused(f"a serialised layout contradicts itself: {', '.join(wrong)}")
    return RemoteLayout(layout, *ids)


def _content(layout: Layout) -> dict[str, Any]:
    config = asdict(layout.config) | {"dtype": str(layout.config.dtype).removeprefix("torch.")}
    names = ("block_stride_in_bytes", "layer_stride_in_bytes", "outer_stride_in_bytes", "layout_data_bytes")
    return {
        "kind": layout.kind,
        "config": config,
        "outer_contiguous": layout.outer_contiguous if isinstance(layout, LayerSeparate) else None,
        "base_offsets": list(layout.base_offsets),
        "strides": {name: getattr(layout, name) for name in names},
        "regions": [region._asdict() for region in layout.regions],
    }


def _checked(message: bytes) -> dict[str, Any]:
    """The JSON of a message that is whole."""
    if not isinstance(message, bytes | bytearray | memoryview) or len(message) < _HEADER.size:
        raise LayoutRefused("this is no serialised layout: it is shorter than its header")
    magic, version, length, digest = _HEADER.unpack_from(message)
    if magic != MAGIC:
        raise LayoutRefused(f"this is no serialised layout: it begins with {bytes(magic)!r}")
    if version != VERSION:
        raise LayoutRefused(f"a serialised layout of version {version}; this build has {VERSION}")
    body = bytes(message[_HEADER.size :])
    if len(body) != length or xxhash.xxh3_64_intdigest(body) != digest:
        raise LayoutRefused("a serialised layout was cut or changed")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.keys() != _FIELDS:
        raise LayoutRefused("a serialised layout has other fields than this version's")
    return content


def _layout(content: dict[str, Any]) -> Layout:
    config = LayoutConfig(**content["config"])
    regions = [MemoryDescriptor(**region) for region in content["regions"]]
    if content["kind"] == FullyContiguous.kind:
        return FullyContiguous(config, regions)
    if content["kind"] == LayerSeparate.kind:
        return LayerSeparate(config, regions, outer_contiguous=content["outer_contiguous"])
    raise InvalidArgument(f"there is no layout {content['kind']!r}")
