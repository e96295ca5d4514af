"""The demo's prompts, and the keys of their blocks."""

import hashlib
import random
import struct

BLOCK_TOKENS = 16
VOCABULARY = 2048
SHARED_TOKENS = 256  #: the first two prompts begin with the same tokens
LONGEST_PROMPT = 400


def make_prompts(count: int, seed: int) -> list[list[int]]:
    """`count` prompts of random token ids, the same in every process.

    The first two share a prefix of SHARED_TOKENS. The third ends with a whole block, the others anywhere.
    """
    rng = random.Random(seed)

    def tokens(n: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(n)]

    shared = tokens(SHARED_TOKENS)
    prompts = [shared + tokens(85), shared + tokens(70), tokens(10 * BLOCK_TOKENS)]
    while len(prompts) < count:
        prompts.append(tokens(rng.randint(100, LONGEST_PROMPT)))
    return prompts[:count]


def block_keys(prompt: list[int]) -> list[str]:
    """The keys of a prompt's whole blocks: each is a hash over its parent's key and its own tokens.

    So a key identifies all tokens up to the end of its block, and a shared prefix has the same keys in any prompt.
    """
    keys: list[str] = []
    parent = b""
    for start in range(0, len(prompt) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        block = prompt[start : start + BLOCK_TOKENS]
        parent = hashlib.sha256(parent + struct.pack(f"<{BLOCK_TOKENS}I", *block)).digest()
        keys.append(parent.hex())
    return keys
