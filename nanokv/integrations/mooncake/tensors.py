"""The tensors of a store, as one client stores and reads them: whole, in shards, in layouts, and in files.

| what is asked for | the tensor is | what is stored |
|---|---|---|
| nothing | whole | it, under the key |
| a split | the whole | the shards of all ranks |
| axes without a tensor axis | this rank's | it, under the key of the layout |
| a tensor axis alone | this rank's shard | it, and a manifest |
| a tensor axis and others | the whole | this rank's shard of it, and a manifest |
| a writer's part | the whole | this writer's shard of it, and a manifest |
| a tensor axis, from memory | the whole | the shards of all ranks |

A manifest is stored after its shard. A reader goes by it only if all shards are there and agree with it.

A tensor is found in a layout as an object that lies there, or it is joined from its shards. A join reads from each
shard what the target needs, straight from the segment to its place. First it looks at the headers of all shards: each
has to be the shard that its key says, of the same whole, or nothing is read. While it copies from a shard, it checks
that the header is still that one; if another shard has replaced it, the join fails. Shards that a writer replaces by
some of the same form, while a reader joins them, may be mixed, as in the real store: a program that overwrites shards
has to tell its readers.
"""

import ctypes
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from nanokv.integrations.mooncake.arguments import PLAIN, config_of_each, segments_fit, text
from nanokv.integrations.mooncake.client import StoreClient
from nanokv.integrations.mooncake.codes import ErrorCode
from nanokv.integrations.mooncake.config import ReplicateConfig
from nanokv.integrations.mooncake.memory import Part, part_of
from nanokv.integrations.mooncake.parallelism import (
    MANIFEST_BYTES,
    Axis,
    Kind,
    Layout,
    Manifest,
    Placement,
    divides,
    in_order,
    key_of,
    layout_in,
    manifest_key,
    parsed_manifest,
    shard_header,
    shard_key,
    shard_of,
    shard_shape,
    target_given,
    tp_axis,
    with_tp,
    writer_key,
    writer_manifest_key,
)
from nanokv.integrations.mooncake.tensor_bytes import (
    HEADER_BYTES,
    Header,
    copied,
    copied_into,
    header_at,
    integers,
    over,
    storable,
    tensor_at,
    whole_header,
)

logger = logging.getLogger(__name__)

_INVALID = ErrorCode.INVALID_PARAMS


@dataclass(frozen=True, slots=True)
class Join:
    """A tensor, or a shard of it, that shards have.

    Attributes:
        header: what the result is.
        dim: along which dimension it is joined.
        start: where in the whole it begins.
        shards: key and header of each, in order.
    """

    header: Header
    dim: int
    start: int
    shards: tuple[tuple[bytes, Header], ...]


class Tensors:
    """The tensors of a store. Names and keys are bytes in here; the shards of a name have keys of their own.

    Storing is answered with 0 or a code, reading with a tensor, or None for what is not there.
    """

    def __init__(self, client: StoreClient) -> None:
        self._client = client

    # --- storing ---
    def put(self, name: bytes, given: object, wanted: Placement | None, *, replace: bool) -> int:
        """Store a tensor. `wanted`: None is refused."""
        tensor = storable(given)
        if tensor is None or wanted is None:
            return _INVALID
        config = wanted.config
        if wanted.layout is not None:
            return self._put_shard(name, tensor, wanted.layout, config, replace=replace)
        if wanted.part is not None:
            return self._put_part(name, tensor, wanted.part, config, replace=replace)
        if not segments_fit(config):
            return _INVALID
        if wanted.split is not None:
            return self._put_split(name, tensor, wanted.split, config, replace=replace)
        return self._put_data(name, whole_header(tensor), tensor, config, replace=replace)

    def put_from(self, name: bytes, memory: Part, wanted: Placement | None, *, replace: bool) -> int:
        """Store a tensor that lies in memory, header and data."""
        header = header_at(*memory)
        if header is None or wanted is None or (wanted.is_whole and not segments_fit(wanted.config)):
            return _INVALID
        if wanted.is_whole:
            return self._client.store(name, [memory], wanted.config, replace=replace)
        if wanted.split is not None:
            return self.put(name, tensor_at(*memory), wanted, replace=replace)
        data = over(memory.address + header.offset, header.shape, header.dtype).view(header.shape)
        return self._put_laid_out(name, header, data, wanted, replace=replace)

    def _put_laid_out(
        self, name: bytes, header: Header, data: torch.Tensor, wanted: Placement, *, replace: bool
    ) -> int:
        config, layout, axis = wanted.config, wanted.layout or (), wanted.part or tp_axis(wanted.layout or ())
        if axis is None:
            again = shard_header(header.whole, data, layout)
            return self._put_data(key_of(name, layout), again, data, config, replace=replace)
        if header.shape != header.whole:  # it is a shard itself, so the other shards are not in this memory
            return _INVALID
        if wanted.part is not None:
            return self._put_part(name, data, wanted.part, config, replace=replace)
        return _first_failure(self._put_all(name, data, layout, axis, config, replace=replace))

    def _put_data(
        self, key: bytes, header: Header, data: torch.Tensor, config: ReplicateConfig, *, replace: bool
    ) -> int:
        """Store a header and contiguous data, which may lie on a GPU."""
        head, alive = part_of(header.packed())
        host = data.cpu()
        parts = [head, Part(host.data_ptr(), host.nbytes)] if host.nbytes else [head]
        done = self._client.store(key, parts, config, replace=replace)
        del alive
        return done

    def _put_split(
        self, name: bytes, tensor: torch.Tensor, split: tuple[int, int], config: ReplicateConfig, *, replace: bool
    ) -> int:
        """Store the shards of all ranks; a shard that cannot be stored does not keep the others away."""
        count, dim = split
        single, axis = config_of_each(config, count), Axis(Kind.TP, 0, count, dim)
        if single is None:
            return _INVALID
        return _first_failure(list(self._put_all(name, tensor, (axis,), axis, single, replace=replace)))

    def _put_all(
        self, name: bytes, data: torch.Tensor, layout: Layout, axis: Axis, config: ReplicateConfig, *, replace: bool
    ) -> Iterable[int]:
        """Store the shards of all ranks of a tensor axis, one with each code that is taken."""
        whole = tuple(data.shape)
        for rank in range(axis.size):
            own = with_tp(layout, axis._replace(rank=rank))
            shard = shard_of(data, axis._replace(rank=rank))
            if shard is None:  # of the first rank: it is the same for all
                yield _INVALID
                return
            header = shard_header(whole, shard, own)
            yield self._put_data(key_of(name, own), header, shard, config, replace=replace)

    def _put_shard(
        self, name: bytes, tensor: torch.Tensor, layout: Layout, config: ReplicateConfig, *, replace: bool
    ) -> int:
        axis, whole = tp_axis(layout), tuple(tensor.shape)
        shard: torch.Tensor | None = tensor
        if axis is not None and len(layout) > 1:
            shard = shard_of(tensor, axis)
        elif axis is not None:
            whole = tuple(size * axis.size if dim == axis.split_dim else size for dim, size in enumerate(whole))
        if shard is None or (axis is not None and not divides(whole, axis)):
            return _INVALID
        header = shard_header(whole, shard, layout)
        done = self._put_data(key_of(name, layout), header, shard, config, replace=replace)
        if done or axis is None:
            return done
        return self._put_manifest(manifest_key(name), header, axis, config, replace=replace)

    def _put_part(
        self, name: bytes, tensor: torch.Tensor, part: Axis, config: ReplicateConfig, *, replace: bool
    ) -> int:
        shard = shard_of(tensor, part)
        if shard is None:
            return _INVALID
        header = shard_header(tuple(tensor.shape), shard, (part,))
        done = self._put_data(writer_key(name, part), header, shard, config, replace=replace)
        return done or self._put_manifest(writer_manifest_key(name), header, part, config, replace=replace)

    def _put_manifest(self, key: bytes, shard: Header, axis: Axis, config: ReplicateConfig, *, replace: bool) -> int:
        manifest = Manifest(shard.dtype, shard.whole, axis.split_dim or 0, axis.size)
        part, alive = part_of(manifest.packed())
        done = self._client.store(key, [part], config, replace=replace)
        del alive
        return done

    # --- reading ---
    def get(self, key: bytes) -> torch.Tensor | None:
        """A copy of a tensor as it was stored."""
        found = self._client.read(key, copied)
        return found if isinstance(found, torch.Tensor) else None

    def get_into(self, key: bytes, memory: Part) -> torch.Tensor | None:
        """Copy header and data to memory: a tensor over the data there. None also if there is no room."""
        nbytes = self._client.read(key, copied_into(*memory)) if memory.address else 0
        return tensor_at(memory.address, nbytes) if nbytes > 0 else None

    def get_target(self, name: bytes, target: object) -> torch.Tensor | None:
        """A copy of a tensor in a layout."""
        found = self.find(name, target)
        if not isinstance(found, Join):
            return None if found is None else self.get(found)
        made = torch.empty(found.header.shape, dtype=found.header.dtype, device="cpu")
        return made if self.copy(found, made) else None

    def get_target_into(self, name: bytes, memory: Part, target: object) -> torch.Tensor | None:
        """Lay header and data of a tensor in a layout into memory that is registered: a tensor over the data there."""
        found = self.find(name, target)
        if found is None or memory.nbytes > self._client.registered.room(memory.address):
            return None
        if not isinstance(found, Join):
            return self.get_into(found, memory)
        header = found.header
        if HEADER_BYTES + header.data_bytes > memory.nbytes:
            return None
        made = over(memory.address + HEADER_BYTES, header.shape, header.dtype)
        if not self.copy(found, made):
            return None
        ctypes.memmove(memory.address, header.packed(), HEADER_BYTES)
        return made

    def find(self, name: bytes, target: object) -> bytes | Join | None:
        """What has a target: the key of an object, or shards to join; None if there is no such thing."""
        wanted = target_given(target)
        if wanted is None:
            return None
        mode, layout = wanted
        if mode == "as_stored":
            return name if layout is None else None
        if layout is not None:
            return self._found_shard(name, layout) if mode == "shard" else self._found_whole(name, layout)
        if mode == "shard":
            return None
        return self._written_whole(name) or name

    def _found_shard(self, name: bytes, layout: Layout) -> bytes | Join | None:
        axis = tp_axis(layout)
        keys = [key_of(name, layout)]
        if axis is not None and len(layout) == 1:
            keys.append(writer_key(name, axis))
        for key in keys:
            header = self._header(key)
            if header is not None and layout_in(header) == in_order(layout):
                return key
        if axis is None:
            return None
        return self._joined_shard(name, layout, axis) or self._unlabelled_shard(name, layout, axis)

    def _joined_shard(self, name: bytes, layout: Layout, axis: Axis) -> Join | None:
        whole = self._found_whole(name, layout)
        if whole is None:
            return None
        shape = shard_shape(whole.header.whole, axis)
        axes = tuple(each.stored(shape) for each in layout)
        header = Header(whole.header.dtype, shape, whole.header.whole, axes, is_shard=True)
        return Join(header, whole.dim, axis.rank * shape[whole.dim], whole.shards)

    def _unlabelled_shard(self, name: bytes, layout: Layout, axis: Axis) -> bytes | None:
        """The key of a rank's shard that a program divided, and stored as a tensor: nothing tells which shard it is.

        The only shard of all is the tensor itself.
        """
        key = shard_key(name, axis.rank, axis.size)
        header = self._header(key) if len(layout) == 1 else None
        return key if header is not None and not header.is_shard else None

    def _found_whole(self, name: bytes, layout: Layout) -> Join | None:
        """The shards of the whole of which a layout names one; they may be of another number."""
        axis = tp_axis(layout)
        if axis is None:
            return None
        return self._joined_as(self._read_manifest(manifest_key(name)), name, layout, axis) or self._joined_as(
            self._first_shard(name, layout), name, layout, axis
        )

    def _joined_as(self, read: Manifest | None, name: bytes, layout: Layout, axis: Axis) -> Join | None:
        if read is None or read.split_dim != axis.split_dim or not divides(read.shape, axis):
            return None
        return self._joined(read, lambda own: key_of(name, with_tp(layout, own)), layout)

    def _written_whole(self, name: bytes) -> Join | None:
        """The shards of writers; None if there is none, or not all."""
        manifest = self._read_manifest(writer_manifest_key(name))
        if manifest is None:
            return None
        return self._joined(manifest, lambda own: writer_key(name, own), (manifest.axis(0),))

    def _joined(self, manifest: Manifest, key_for: Callable[[Axis], bytes], layout: Layout) -> Join | None:
        """All shards that a manifest tells of; None if one is missing, or is not what it should be."""
        if not divides(manifest.shape, manifest.axis(0)):
            return None
        shape = shard_shape(manifest.shape, manifest.axis(0))
        shards = []
        for rank in range(manifest.shards):
            axis = manifest.axis(rank)
            key = key_for(axis)
            header = self._header(key)
            if header is None or layout_in(header) != in_order(with_tp(layout, axis)):
                return None
            if (header.dtype, header.whole, header.shape) != (manifest.dtype, manifest.shape, shape):
                return None
            shards.append((key, header))
        header = Header(manifest.dtype, manifest.shape, manifest.shape)
        return Join(header, manifest.split_dim, 0, tuple(shards))

    def _first_shard(self, name: bytes, layout: Layout) -> Manifest | None:
        """What a manifest would say, from the first shard's header."""
        axis = tp_axis(layout)
        if axis is None:
            return None
        header = self._header(key_of(name, with_tp(layout, axis._replace(rank=0))))
        stored = tp_axis(layout_in(header) or ()) if header is not None else None
        if header is None or stored is None or stored.split_dim is None:
            return None
        return Manifest(header.dtype, header.whole, stored.split_dim, stored.size)

    def _read_manifest(self, key: bytes) -> Manifest | None:
        found = self._client.read(key, lambda address, nbytes: ctypes.string_at(address, min(nbytes, MANIFEST_BYTES)))
        return parsed_manifest(found) if isinstance(found, bytes) else None

    def _header(self, key: bytes) -> Header | None:
        """The header of the tensor under a key; None if there is none."""
        found = self._client.read(key, header_at)
        return found if isinstance(found, Header) else None

    def copy(self, join: Join, out: torch.Tensor) -> bool:
        """Fill a tensor with what a join has; False if a shard is not there any more, or is another."""
        target = integers(out)
        end = join.start + join.header.shape[join.dim]
        at = 0
        for key, header in join.shards:
            first, last = max(at, join.start), min(at + header.shape[join.dim], end)
            if first < last:
                into = target.narrow(join.dim, first - join.start, last - first)
                copy = _copy_from(header, join.dim, first - at, into)
                if self._client.read(key, copy) is not True:
                    return False
            at += header.shape[join.dim]
        return True

    # --- files of safetensors: a file has one tensor, named by its key ---
    def save(self, key: bytes, path: str) -> int:
        """Write a tensor to a file."""
        if not self._client.is_set_up:
            return _INVALID
        tensor = self.get(key)
        if tensor is None:
            return ErrorCode.FILE_NOT_FOUND
        try:
            from safetensors.torch import save_file

            save_file({text(key): tensor}, path)
        except Exception as error:  # safetensors has errors of its own, and the system's
            logger.error("NanoKV: tensor %r cannot be written to %r: %s", text(key), path, error)
            return _INVALID
        return ErrorCode.OK

    def load(self, name: str, path: str) -> torch.Tensor | None:
        """Store the tensor of a name in a file, or the first one of the file; a key that exists keeps its value."""
        tensor = _loaded(path, name) if self._client.is_set_up else None
        if tensor is None:
            return None
        code = self.put(name.encode(), tensor, Placement(PLAIN), replace=False)
        if code:
            logger.error("NanoKV: the tensor of file %r is not stored as %r: code %d", path, name, code)
        return None if code else tensor


def _first_failure(codes: Iterable[int]) -> int:
    return next((code for code in codes if code), ErrorCode.OK)


def _copy_from(header: Header, dim: int, start: int, into: torch.Tensor) -> Callable[[int, int], bool]:
    """What copies a part of a shard, if the shard is still the one of a header, and tells whether it did."""

    def take(address: int, nbytes: int) -> bool:
        if header_at(address, nbytes) != header:
            return False
        stored = integers(over(address + header.offset, header.shape, header.dtype))
        into.copy_(stored.narrow(dim, start, into.shape[dim]))
        return True

    return take


def _loaded(path: str, name: str) -> torch.Tensor | None:
    """The tensor of a name in a file, or the first one of the file."""
    try:
        from safetensors.torch import load_file

        tensors: dict[str, torch.Tensor] = load_file(path)
    except Exception as error:  # safetensors has errors of its own, and the system's
        logger.error("NanoKV: file %r cannot be read: %s", path, error)
        return None
    if not tensors:
        logger.error("NanoKV: file %r has no tensors", path)
        return None
    if name not in tensors and name != path:
        logger.warning("NanoKV: file %r has no tensor %r: its first one is taken", path, name)
    return tensors.get(name, next(iter(tensors.values())))
