"""One process per GPU, as engines run: each rank puts a block into the next rank's segment, and reads its own.

    torchrun --standalone --nproc-per-node 4 examples/serve.py

On GPUs the segments are torch's symmetric memory, and several ranks share a GPU if there are too few. Without GPUs they
lie in shared memory. Rank, number of ranks and the name of the world come from torchrun.
"""

import os

import torch

import nanokv


def open_cache(heap_bytes: int) -> nanokv.NanoKVCache:
    """This rank's cache."""
    gpus, ranks = torch.cuda.device_count(), int(os.environ["LOCAL_WORLD_SIZE"])
    if not gpus:
        return nanokv.NanoKVCache(heap_bytes, heap="shm")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % gpus)
    torch.cuda.set_device(device)
    options = {"device": device, "allow_overlapping": ranks > gpus}
    return nanokv.NanoKVCache(heap_bytes, heap="torch_symm", heap_options=options)


def main() -> None:
    """Put, wait, read, and leave when all have read."""
    with open_cache(64 << 20) as cache:
        ranks, to = range(cache.world_size), (cache.rank + 1) % cache.world_size
        block = torch.full((2, 8, 16, 64), cache.rank, dtype=torch.bfloat16, device=cache.device)
        cache.put(f"for:{to}", block, preferred_segment=to)
        cache.wait(f"for:{cache.rank}", timeout=60)
        mine = cache.get(f"for:{cache.rank}")
        sender = int(mine[0, 0, 0, 0])
        assert sender == (cache.rank - 1) % cache.world_size and bool((mine == sender).all())
        print(f"rank {cache.rank} of {cache.world_size} on {cache.device}: has the block of rank {sender}", flush=True)
        cache.put(f"read:{cache.rank}", torch.ones(1, device=cache.device))
        cache.wait([f"read:{rank}" for rank in ranks], timeout=60)


if __name__ == "__main__":
    main()
