"""What gets, and what puts and removes on other nodes: over a link (`reading`, `putting`), over the wire, or in
memory of this host that is mapped (`mapped`).

`Member.gets` and `Member.puts` say which, for a node.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch

from nanokv.cluster.card import WorldId
from nanokv.cluster.fetched import FetchedObjects, FetchedTensor, Got
from nanokv.cluster.nodes import Node
from nanokv.cluster.patience import Patience
from nanokv.cluster.pull_message import Records
from nanokv.device.machines.records import Terms, What, Words
from nanokv.types import Key, KeyDigest

Take = Callable[[Words, FetchedObjects | FetchedTensor], None]


class Gets(Protocol):
    """The gets of one process from other nodes. All raise PeerLost if the node cannot be reached, or gives no answer.

    `known`: only where the object is known to lie, as far as that is less work; MISS for what is not there.
    """

    def get(self, node: Node, key: KeyDigest, patience: Patience, into: torch.Tensor | None = None) -> Got | int:
        """An object: its bytes; or MISS, NOT_READY or CORRUPT.

        into: a plain tensor to which the bytes may go at once, if they suit it. Then they are not in what is returned.
        """
        ...

    def get_at_once(
        self, node: Node, key: Key, patience: Patience, into: torch.Tensor | None = None
    ) -> torch.Tensor | int | None:
        """An object as a tensor of the host, or `into` one of its dtype and shape; or why there is none, as `get`.

        None: the object, or what is asked for, is unusual: it must be looked for with `get`.

        Args:
            key: as the user wrote it: a str, bytes, or a digest.
        """
        ...

    def get_known(self, node: Node, key: KeyDigest, patience: Patience, into: torch.Tensor | None = None) -> Got | None:
        """An object that lies where it is known to; None: it does not (any more)."""
        ...

    def is_known(self, node: Node, key: KeyDigest, patience: Patience) -> bool:
        """Whether an object lies where it is known to."""
        ...

    def find_each(self, node: Node, keys: Words, patience: Patience) -> Words:
        """A status for each key (int64 [n, 2]): OK, MISS, NOT_READY or CORRUPT."""
        ...

    def find_known_each(self, node: Node, keys: Words, patience: Patience) -> Words:
        """OK for each key whose object lies where it is known to; else MISS."""
        ...

    def get_each(self, node: Node, keys: Words, patience: Patience, take: Take, *, known: bool = False) -> Words:
        """A status for each key. `take` gets the numbers of some that were read, and their objects, once or more."""
        ...

    def get_into_each(
        self, node: Node, keys: Words, patience: Patience, targets: Words, what: What, *, known: bool = False
    ) -> Words:
        """A status for each key: the bytes of objects of one size, dtype and shape go to addresses in host memory.

        SIZE: the object is of others. A `what` of format 0 has any dtype and shape.
        """
        ...

    def headers(self, node: Node, rank: int) -> Iterator[tuple[WorldId, int, Words]]:
        """The header arena of a rank as it is now, in parts: whose it is, the first slot, int64 [n, 8].

        A header may be torn: other words may be of another epoch than STATE.
        """
        ...


class Puts(Protocol):
    """The puts and removals of one process on other nodes. All raise PeerLost: what was done is not known."""

    def put(
        self, node: Node, key: KeyDigest, tensor: torch.Tensor, rank: int | None, terms: Terms, patience: Patience
    ) -> int:
        """Put a tensor under a key: a Status. Raises InvalidArgument if it cannot be stored."""
        ...

    def put_each(
        self,
        node: Node,
        keys: Words,
        tensors: Sequence[torch.Tensor],
        rank: int | None,
        terms: Terms,
        patience: Patience,
    ) -> Records:
        """Put each tensor, a plain one, under its key (int64 [n, 2]): PULLED [n]."""
        ...

    def remove_each(self, node: Node, keys: Words, patience: Patience) -> Words:
        """Remove the objects of keys (int64 [n, 2]): a status each."""
        ...
