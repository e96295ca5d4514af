"""A race in a kernel, found without a GPU on the PTX machine: with the barrier that ends it, and without.

python examples/find_a_race.py
"""

import torch
import triton
import triton.language as tl

from nanokv.device import ptx


@triton.jit
def reverse_kernel(x_ptr: tl.tensor, BLOCK: tl.constexpr, WAIT: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    turned = tl.load(x_ptr + BLOCK - 1 - at)
    if WAIT:
        tl.debug_barrier()  # each warp loads what another one will store
    tl.store(x_ptr + at, turned)


for wait in (False, True):
    wrong = 0
    for seed in range(20):  # of the order in which warps go on
        x = torch.arange(128)
        ptx.run(reverse_kernel, (1,), x, seed=seed, BLOCK=128, WAIT=wait, num_warps=4)
        wrong += not torch.equal(x, torch.arange(128).flip(0))
    print(f"{'with' if wait else 'without'} a barrier: wrong in {wrong} of 20 orders of warps")
