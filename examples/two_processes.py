"""Two processes of one host: one prefills, the other decodes. The KV goes straight into the decoder's memory.

    python examples/two_processes.py

Engines start such processes by themselves; they need the same name, and each its own rank.
"""

import multiprocessing
import os

import torch

import nanokv

BLOCKS = 8
SHAPE = (4, 2, 8, 16, 64)  # layers, K and V, heads, tokens, head_dim


def kv_of(block: int) -> torch.Tensor:
    """Make up the KV of a block of tokens: a model would compute it."""
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(block)).bfloat16()


def prefill(name: str) -> None:
    """Rank 0 computes blocks, and puts each into the segment of rank 1."""
    with nanokv.NanoKVCache(64 << 20, name=name, rank=0, world_size=2) as cache:
        for block in range(BLOCKS):
            cache.put(f"block:{block}", kv_of(block), preferred_segment=1)
        cache.wait("read", timeout=60)  # until then stay: every rank holds a part of the directory
        cache.remove("read")


def decode(name: str) -> None:
    """Rank 1 takes each block as soon as it is there; `pin` gives its bytes in place."""
    with nanokv.NanoKVCache(64 << 20, name=name, rank=1, world_size=2) as cache:
        for block in range(BLOCKS):
            with cache.pin(f"block:{block}", timeout=60) as kv:
                assert torch.equal(kv, kv_of(block))
            cache.remove(f"block:{block}")
        cache.put("read", torch.ones(1))
        print(f"rank 1 of {name} read {BLOCKS} blocks of {tuple(SHAPE)}, each as it was put by rank 0")


def main() -> None:
    """Start both, and wait for them."""
    name = f"two-processes-{os.getpid()}"
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=rank, args=(name,)) for rank in (prefill, decode)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0]


if __name__ == "__main__":
    main()
