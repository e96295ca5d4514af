"""A bug of a kernel that is found without a GPU: a wrong mask.

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


def wrong_mask() -> None:
    x, out = torch.arange(1000.0), torch.zeros(1000)
    try:
        ptx.run(scale_kernel, (4,), x, out, 1000, 1024, BLOCK=256, num_warps=4)
    except ptx.MemoryFault as fault:
        print(f"wrong mask: {fault}")
    ptx.run(scale_kernel, (4,), x, out, 1000, 1000, BLOCK=256, num_warps=4)
    assert torch.equal(out, 2 * x)
    print("right mask: the results are those of torch")


if __name__ == "__main__":
    wrong_mask()
