"""Two processes with the same model: what one has computed of a prompt, the other one reads.

python examples/generate.py
"""

import multiprocessing
import os
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import nanokv
from nanokv.integrations.transformers import PrefixCache

SYSTEM = torch.arange(200)[None]  # in place of a tokenizer: a system prompt, and two questions
QUESTIONS = (torch.tensor([[7, 8, 9]]), torch.tensor([[10, 11, 12, 13]]))


def load_model() -> Any:
    """A Llama with random weights; yours comes from `from_pretrained`."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, eos_token_id=None)).eval()


def answer(name: str, rank: int) -> None:
    """Rank 1 asks second: it computes its question, and nothing of the system prompt."""
    model = load_model()
    prompt = torch.cat((SYSTEM, QUESTIONS[rank]), dim=1)
    with nanokv.NanoKVCache(64 << 20, name=name, rank=rank, world_size=2) as cache:
        prefixes = PrefixCache(model, cache)
        if rank == 1:
            cache.wait(prefixes.keys(SYSTEM[0].tolist()), timeout=60)
        kv = prefixes.load(prompt)
        output = model.generate(prompt, past_key_values=kv, max_new_tokens=20, do_sample=False)
        print(f"rank {rank}: {kv.tokens_reused} of {prompt.shape[1]} prompt tokens were read", flush=True)
        assert torch.equal(output, model.generate(prompt, max_new_tokens=20, do_sample=False))
        cache.put(f"done:{rank}", torch.ones(1))
        cache.wait(["done:0", "done:1"], timeout=60)  # until then stay: each rank holds a part of the blocks


def main() -> None:
    """Start both, and wait for them."""
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=answer, args=(f"generate-{os.getpid()}", rank)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0]


if __name__ == "__main__":
    main()
