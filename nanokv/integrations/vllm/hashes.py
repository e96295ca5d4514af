"""The hash of a prefix: vLLM's own where one of its blocks ends, else one that is made alike.

A prefill engine hands a prompt over less its last token, which decode computes anyway, for the first logits. Where that
ends no block, vLLM has no hash for it.
"""

from typing import TYPE_CHECKING

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, hash_block_tokens

if TYPE_CHECKING:
    from vllm.v1.request import Request


class PrefixHashes:
    """The hashes of prefixes of requests.

    Args:
        unit: tokens that each of vLLM's hashes is about, after those of the hash before it.
        algorithm: vLLM's `prefix_caching_hash_algo`.
    """

    def __init__(self, unit: int, algorithm: str) -> None:
        self.unit = unit
        self._hash = get_hash_fn_by_name(algorithm)

    def of_blocks(self, request: "Request", tokens: int) -> bytes | None:
        """vLLM's hash of the first tokens of a request; None if it has none there."""
        count, rest = divmod(tokens, self.unit)
        return None if rest or not 0 < count <= len(request.block_hashes) else bytes(request.block_hashes[count - 1])

    def known(self, request: "Request") -> int:
        """How many of the first tokens of a request vLLM has hashes of."""
        return min(int(request.num_tokens) // self.unit, len(request.block_hashes)) * self.unit

    def of_all(self, request: "Request", tokens: int) -> bytes | None:
        """A hash of the first tokens of a prompt, wherever they end; None if there are none.

        It depends on what vLLM's hashes depend on: the hash before, tokens, adapter, salt, images.
        """
        if tokens <= 0:
            return None
        count, rest = divmod(tokens, self.unit)
        if not rest:
            return self.of_blocks(request, tokens)
        if len(request.block_hashes) < count:
            return None
        extra, _ = generate_block_hash_extra_keys(request, tokens - rest, tokens, 0)
        parent = request.block_hashes[count - 1] if count else None
        return bytes(hash_block_tokens(self._hash, parent, request.all_token_ids[tokens - rest : tokens], extra))
