"""Prompts of random tokens that share prefixes, as conversations and system prompts do."""

import random

from nanokv.bench.vllm.model import VOCABULARY


def make_prompts(count: int, seed: int, *, shortest: int = 40, longest: int = 400, shared: int = 96) -> list[list[int]]:
    """`count` prompts: of each four, one is new, one begins with a common system prompt of `shared` tokens, one
    continues an earlier prompt, and one repeats an earlier prompt up to a random token."""
    dice = random.Random(seed)

    def tokens(least: int, most: int) -> list[int]:
        return [dice.randrange(VOCABULARY) for _ in range(dice.randint(least, most))]

    system = tokens(shared, shared)
    prompts: list[list[int]] = []
    for number in range(count):
        kind = number % 4 if prompts else 0
        if kind == 0:
            prompt = tokens(shortest, longest)
        elif kind == 1:
            prompt = system + tokens(shortest, longest)
        else:
            earlier = dice.choice(prompts)
            prompt = earlier + tokens(1, 60) if kind == 2 else earlier[: dice.randint(1, len(earlier))] + tokens(1, 60)
        prompts.append(prompt[: longest + shared])
    return prompts
