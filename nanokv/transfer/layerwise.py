"""Blocks of an engine's cache that are stored layer by layer while a forward pass computes them.

`begin` claims the keys and allocates the pages of all layers; `write` copies some layers, as soon as the engine has
computed them; `commit` makes the objects READY. A reader sees nothing before that. If the producer ends in between, the
owner's sweeper gives the objects up, as those of `NanoKVCache.open_for_write`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from nanokv.allocation.base import Allocation
from nanokv.device.machines.base import Machine
from nanokv.device.machines.own_memory import plainly
from nanokv.device.machines.records import Begun, Descriptor, Terms
from nanokv.device.protocol.status import Status
from nanokv.errors import InvalidArgument, NanoKVError
from nanokv.transfer.single import SingleTransfer
from nanokv.types import Key, KeyDigest


@dataclass(frozen=True, slots=True)
class LayerTarget:
    """Where objects of blocks go.

    Attributes:
        preferred: the rank in whose segment; None: the key's home rank.
        terms: of each object.
        nbytes, descriptor: of each object.
    """

    preferred: int | None
    terms: Terms
    nbytes: int
    descriptor: Descriptor


class LayerwisePut:
    """Objects that are being written. Made by `PagedKV.begin_put`; used by one thread at a time.

    End it by `commit` or `abort`: until then, or until the process ends, the pages stay reserved.
    """

    def __init__(
        self,
        transfer: tuple[SingleTransfer, Allocation, Machine],
        keys: Sequence[tuple[Key, KeyDigest]],
        blocks: Sequence[int],
        planes: Sequence[Sequence[torch.Tensor]],
        target: LayerTarget,
        parts: Callable[[torch.Tensor], Sequence[torch.Tensor]],
        judge: Callable[[int, Key], NanoKVError | None],
    ) -> None:
        """`planes`: per layer its planes, each [blocks, ...], in the order in which an object holds them; `parts`: from
        the bytes of an object to a tensor for each of them."""
        self._single, self._allocation, self._machine = transfer
        self._split = parts
        self._keys, self._blocks, self._planes, self._target = keys, blocks, planes, target
        self._judge = judge
        self._left = set(range(len(planes)))
        self._over = False
        self._begun: list[Begun] = []
        self._open: list[int] = []
        try:
            for i, (_, digest) in enumerate(keys):
                self._begun.append(self._begin(digest))
                if self._begun[i].status == Status.OK:
                    self._open.append(i)
        except BaseException:
            self.abort()  # nobody else knows of those that were begun
            raise
        self._parts = [self._parts_of(self._begun[i]) for i in self._open]

    @property
    def opened(self) -> int:
        """How many objects are being written: those whose keys were not refused."""
        return len(self._open)

    @property
    def keys(self) -> list[Key]:
        """The keys of all blocks, refused or not."""
        return [key for key, _ in self._keys]

    def _begin(self, digest: KeyDigest) -> Begun:
        target = self._target
        begun = self._allocation.begin(digest, target.nbytes, target.preferred, target.descriptor, plan=True)
        if begun.status == Status.OK:
            self._machine.set_terms(begun.place, target.terms)
        return begun

    def _parts_of(self, begun: Begun) -> list[Sequence[torch.Tensor]]:
        parts, each = self._split(self._single.payload(begun.place)), len(self._planes[0])
        return [parts[first : first + each] for first in range(0, len(parts), each)]

    def write(self, layers: range) -> None:
        """Copy these layers, numbered from the first one of the object, of every block.

        Raises:
            InvalidArgument: there are no such layers; or `commit` or `abort` was called.
        """
        if self._over:
            raise InvalidArgument("these blocks were committed or aborted already")
        if not set(layers) <= set(range(len(self._planes))):
            raise InvalidArgument(f"layers must be a part of range({len(self._planes)}), not {layers!r}")
        with (
            torch.inference_mode(),
            plainly(),
        ):  # the engine's tensors may be inference tensors, and this another thread
            for i, parts in zip(self._open, self._parts, strict=True):
                for layer in layers:
                    for part, plane in zip(parts[layer], self._planes[layer], strict=True):
                        part.copy_(plane[self._blocks[i]])
        self._left -= set(layers)

    def commit(self) -> list[NanoKVError | None]:
        """Make the objects READY, after copying the layers that `write` has not; returns per key an error or None.

        Raises:
            InvalidArgument: `commit` or `abort` was called before.
        """
        for layer in sorted(self._left):
            self.write(range(layer, layer + 1))
        if self._over:
            raise InvalidArgument("these blocks were committed or aborted already")
        self._over = True
        return [self._outcome(key, digest, begun) for (key, digest), begun in zip(self._keys, self._begun, strict=True)]

    def _outcome(self, key: Key, digest: KeyDigest, begun: Begun) -> NanoKVError | None:
        """Make one object READY. What it raises is its own error: the others are committed all the same."""
        try:
            return self._judge(self._finish(digest, begun), key)
        except NanoKVError as error:
            return error

    def _finish(self, digest: KeyDigest, begun: Begun) -> int:
        if begun.status != Status.OK:
            return begun.status
        self._single.seal(digest, begun.place, self._target.descriptor)
        return self._allocation.finish(digest, begun)

    def abort(self) -> None:
        """Give the objects up. Nothing after `commit` or `abort`."""
        if self._over:
            return
        self._over = True
        for i in self._open:
            self._allocation.abort(self._keys[i][1], self._begun[i])
