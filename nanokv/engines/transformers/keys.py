"""The keys of blocks of tokens: each is a hash over its parent's key and its own token ids.

So a key stands for every token up to the end of its block, and prompts that begin alike have the same keys up to the
block in which they part, as in vLLM's prefix caching. SHA-256: nobody can make two prompts with the same key.
"""

import hashlib
import struct
from collections.abc import Sequence


class KeyChain:
    """The keys of one model's blocks.

    Args:
        root: what the first block is chained to. Chains with other roots share no key.
        block_tokens: tokens in a block.
    """

    def __init__(self, root: bytes, block_tokens: int) -> None:
        self._root = root
        self._tokens = struct.Struct(f"<{block_tokens}q")
        self.block_tokens = block_tokens

    def keys(self, tokens: Sequence[int], parent: bytes | None = None) -> list[bytes]:
        """The key of each whole block, 32 bytes each. `parent`: the key of the block before; None: there is none."""
        found: list[bytes] = []
        parent = self._root if parent is None else parent
        for end in range(self.block_tokens, len(tokens) + 1, self.block_tokens):
            parent = hashlib.sha256(parent + self._tokens.pack(*tokens[end - self.block_tokens : end])).digest()
            found.append(parent)
        return found
