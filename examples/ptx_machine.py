"""Two bugs of a kernel that are found without a GPU: a wrong mask, and a barrier that is missing.

The kernel is compiled by Triton for an H100, and its PTX runs on the PTX machine: nanokv.device.ptx.

    python examples/ptx_machine.py
"""

import torch
import triton
import triton.language as tl

from nanokv.device import ptx


@triton.jit
def scale_kernel(x_ptr: tl.tensor, out_ptr: tl.tensor, n: tl.tensor, limit: tl.tensor, BLOCK: tl.constexpr) -> None:
    """out = 2 * x; elements from `limit` on are masked off."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, 2 * tl.load(x_ptr + at, mask=at < limit), mask=at < n)


@triton.jit
def reverse_kernel(x_ptr: tl.tensor, out_ptr: tl.tensor, BLOCK: tl.constexpr, WAIT: tl.constexpr) -> None:
    """Reverse the elements of x, by way of memory: each warp stores a part, and reads what another one stored."""
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at))
    if WAIT:
        tl.debug_barrier()  # all warps have stored
    turned = tl.load(out_ptr + BLOCK - 1 - at)
    if WAIT:
        tl.debug_barrier()  # all warps have loaded
    tl.store(out_ptr + at, turned)


def wrong_mask() -> None:
    x, out = torch.arange(1000.0), torch.zeros(1000)
    try:
        ptx.run(scale_kernel, (4,), x, out, 1000, 1024, BLOCK=256, num_warps=4)
    except ptx.MemoryFault as fault:
        print(f"wrong mask: {fault}")
    ptx.run(scale_kernel, (4,), x, out, 1000, 1000, BLOCK=256, num_warps=4)
    assert torch.equal(out, 2 * x)
    print("right mask: the results are those of torch")


def is_reversed(wait: bool, seed: int) -> bool:
    x, out = torch.arange(128), torch.zeros(128, dtype=torch.int64)
    ptx.run(reverse_kernel, (1,), x, out, seed=seed, BLOCK=128, WAIT=wait, num_warps=4)
    return torch.equal(out, x.flip(0))


def missing_barrier() -> None:
    seeds = range(20)
    for wait in (False, True):
        wrong = [seed for seed in seeds if not is_reversed(wait, seed)]
        print(f"{'with' if wait else 'without'} barriers: wrong in {len(wrong)} of {len(seeds)} orders of warps")


if __name__ == "__main__":
    wrong_mask()
    missing_barrier()
