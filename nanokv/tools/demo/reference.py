"""The reference: the same model in one process, without NanoKV."""

from nanokv.tools.demo.job import Job
from nanokv.tools.demo.model import Model, digest, last_block
from nanokv.tools.demo.prefill import Tell
from nanokv.tools.demo.prompts import BLOCK_TOKENS, make_prompts, whole_blocks


def reference(job: Job, model: Model, tell: Tell) -> None:
    """Report for each prompt the tokens of transformers' `generate`, and digests of the KV of each block."""
    for number, prompt in enumerate(make_prompts(job.prompts, job.seed)):
        tell("reference", prompt=number, tokens=model.generate(prompt, job.tokens), digests=_digests(model, prompt))


def _digests(model: Model, prompt: list[int]) -> list[str]:
    kv = model.new_cache()
    digests: list[str] = []
    for i in range(whole_blocks(prompt)):
        model.forward(prompt[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS], kv)
        digests.append(digest(last_block(kv)))
    return digests
