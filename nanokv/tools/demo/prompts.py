"""The demo's prompts, and how many blocks they fill."""

import random

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


def whole_blocks(prompt: list[int]) -> int:
    """How many blocks a prompt fills: those that are stored."""
    return len(prompt) // BLOCK_TOKENS
