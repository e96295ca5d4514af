"""Hashes of token blocks, chained as Dynamo's, and the NanoKV keys of registered blocks.

    block hash     XXH3-64 of the block's tokens, each a u32 in little endian, with the salt hash as the seed
    value          of the first block: its block hash; else XXH3-64, seed 0, of the parent's value and the block hash,
                   two u64 in little endian. Source: `BlockHash` and `SequenceHash` of Dynamo's crate `dynamo-tokens`
    sequence hash  value, position in the sequence (20 bits), and 12 bits of the block hash: 96 bits

The 96 bits are those of a NanoKV key beside the tag of its identity (`nanokv.keys.identity`). So a header in the
segment, an event of the owner, or a file of saved objects names the sequence hash itself, and no table of names is
needed. Two different sequences meet only if 64 chained bits, 12 bits of the last block and its position agree.

Identities are told apart by their tag alone, 32 bits: what matters beside it belongs into the salt, as in Dynamo.
The last position, all ones, is never a sequence's: it marks keys of blocks without a sequence hash (`Keys.private`).
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xxhash

from nanokv.arguments import integer, listed
from nanokv.errors import InvalidArgument
from nanokv.types import KeyDigest

MAX_U64 = (1 << 64) - 1
MAX_TOKEN = (1 << 32) - 1
CHECK_BITS = 12
POSITION_BITS = 20
PRIVATE = (1 << POSITION_BITS) - 1  #: the position that stands for: no sequence
_CHECK = (1 << CHECK_BITS) - 1


class SequenceHash(NamedTuple):
    """What a block and all blocks before it contain. Equal for equal tokens and salt, in every process."""

    value: int  #: u64, Dynamo's sequence hash
    position: int  #: of the block in its sequence, from 0
    check: int  #: the lower 12 bits of the block hash

    def __repr__(self) -> str:
        return f"SequenceHash({self.value:#018x}, position={self.position}, check={self.check:#05x})"


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """The tokens of a full block, and their hashes."""

    tokens: tuple[int, ...]
    salt_hash: int
    parent: SequenceHash | None  #: of the block before; None: this is the first one
    block_hash: int
    sequence_hash: SequenceHash


def salt_hash_of(salt: bytes) -> int:
    """The salt hash of what a block depends on beside its tokens: XXH3-64, seed 0."""
    if not isinstance(salt, bytes):
        raise InvalidArgument(f"a salt is bytes, not {salt!r}")
    return xxhash.xxh3_64_intdigest(salt)


def checked_tokens(tokens: Iterable[int]) -> list[int]:
    """Raises InvalidArgument for what is no u32."""
    return [integer("a token", token, 0, MAX_TOKEN) for token in listed("tokens", tokens)]


def checked_salt(salt_hash: int) -> int:
    """Raises InvalidArgument for what is no u64."""
    return integer("salt_hash", salt_hash, 0, MAX_U64)


def checked_parent(parent: SequenceHash | None) -> SequenceHash | None:
    """Raises InvalidArgument for what is no sequence hash, or leaves no position for a block after it."""
    if parent is not None and (not isinstance(parent, SequenceHash) or parent.position + 1 >= PRIVATE):
        raise InvalidArgument(f"parent must be a SequenceHash at a position below {PRIVATE - 1}, or None: {parent!r}")
    return parent


def token_block(tokens: Sequence[int], salt_hash: int, parent: SequenceHash | None = None) -> TokenBlock:
    """A block of tokens that were checked, after `parent`."""
    block_hash = xxhash.xxh3_64_intdigest(np.asarray(tokens, "<u4").tobytes(), salt_hash)
    value, position = block_hash, 0
    if parent is not None:
        value = xxhash.xxh3_64_intdigest(np.array([parent.value, block_hash], "<u8").tobytes(), 0)
        position = parent.position + 1
    found = SequenceHash(value, position, block_hash & _CHECK)
    return TokenBlock(tuple(tokens), salt_hash, parent, block_hash, found)


def token_blocks(tokens: Iterable[int], block_size: int, salt_hash: int) -> list[TokenBlock]:
    """The full blocks of a sequence; tokens after them are left out.

    Args:
        tokens: u32 each.
        block_size: tokens per block. salt_hash: u64, of the request.

    Raises:
        InvalidArgument: a value is none of these.
    """
    checked, block_size = checked_tokens(tokens), integer("block_size", block_size, 1)
    salt_hash, blocks = checked_salt(salt_hash), list[TokenBlock]()
    for first in range(0, len(checked) - block_size + 1, block_size):
        parent = checked_parent(blocks[-1].sequence_hash if blocks else None)
        blocks.append(token_block(checked[first : first + block_size], salt_hash, parent))
    return blocks


class Keys:
    """The NanoKV keys of blocks in the identity and namespace of a cache.

    Args:
        tag: the signed upper half of every `key_check` of that cache.
    """

    def __init__(self, tag: int) -> None:
        self._upper = tag << 32

    def of(self, found: SequenceHash) -> KeyDigest:
        """The key of a registered block.

        Raises:
            InvalidArgument: it is no SequenceHash, or a part of it is out of range.
        """
        if not isinstance(found, SequenceHash):
            raise InvalidArgument(f"a block is matched by its SequenceHash, not {found!r}")
        value = integer("value", found.value, 0, MAX_U64)
        position = integer("position", found.position, 0, PRIVATE - 1)
        return self._key(value, position, integer("check", found.check, 0, _CHECK))

    def private(self) -> KeyDigest:
        """A key that no other block has, and no sequence: random."""
        return self._key(secrets.randbits(64), PRIVATE, secrets.randbits(CHECK_BITS))

    def _key(self, value: int, position: int, check: int) -> KeyDigest:
        signed = value - (1 << 64) if value >> 63 else value
        return KeyDigest(signed, self._upper | position << CHECK_BITS | check)


def sequence_of(key: KeyDigest) -> SequenceHash | None:
    """The sequence hash that a key of `Keys` states; None for a private one."""
    position = key.key_check >> CHECK_BITS & PRIVATE
    return None if position == PRIVATE else SequenceHash(key.key_hash & MAX_U64, position, key.key_check & _CHECK)
