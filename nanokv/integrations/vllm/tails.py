"""The last block of a prompt, which its tokens do not fill: vLLM has no hash for it, so it gets one here, made alike.

A prefill engine hands it over like the full ones, so that decode computes one token of a prompt instead of up to a
block. The rest of the block is whatever the engine's memory holds; the reader writes its own tokens there.
"""

from typing import TYPE_CHECKING

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, hash_block_tokens

if TYPE_CHECKING:
    from vllm.v1.request import Request


class Tails:
    """The hashes of tails.

    Args:
        block_size: tokens per block.
        algorithm: vLLM's `prefix_caching_hash_algo`.
    """

    def __init__(self, block_size: int, algorithm: str) -> None:
        self._block_size = block_size
        self._hash = get_hash_fn_by_name(algorithm)

    def hash(self, request: "Request") -> bytes | None:
        """Hash a tail: the tokens before it, its own, and what vLLM's hashes depend on (adapter, salt, images).

        None if the prompt ends with a full block, or with one token more, which the reader computes anyway.
        """
        end = request.num_prompt_tokens
        blocks, rest = divmod(end, self._block_size)
        if rest <= 1 or len(request.block_hashes) < blocks:
            return None
        extra, _ = generate_block_hash_extra_keys(request, end - rest, end, 0)
        parent = request.block_hashes[blocks - 1] if blocks else None
        found: bytes = hash_block_tokens(self._hash, parent, request.all_token_ids[end - rest : end], extra)
        return found
