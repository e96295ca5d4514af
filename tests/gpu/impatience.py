"""The kernels with less patience, for a run in which each second counts: a broken ticket or spin says so at once.

A CTA waits for an answer that takes microseconds, or repeats a compare-and-swap that others won, up to a bound that is
never reached. The product's bounds are seconds for each object: a broken protocol would look like a hang.
"""

import sys

import triton.language as tl
from triton.runtime.jit import JITFunction

from nanokv.device.protocol import freelist, ticket

LOOKS = 1 << 17  #: about 0.1 s for an answer; the product's are some 4 s
TRIES = 1 << 16  #: of a compare-and-swap; the product's are a second and more


def make_impatient(looks: int = LOOKS, tries: int = TRIES) -> None:
    """Replace the bounds in every module that has them; before the first launch, and for this process."""
    shorter = {
        "PATIENCE": (ticket.PATIENCE, tl.constexpr(looks)),
        "SPIN_LIMIT": (freelist.SPIN_LIMIT, tl.constexpr(tries)),
    }
    for module in [module for name, module in sys.modules.items() if name.startswith("nanokv.device.")]:
        for name, (usual, small) in shorter.items():
            if vars(module).get(name) is usual:
                setattr(module, name, small)
        for function in vars(module).values():
            if isinstance(function, JITFunction):  # Triton has noted the bounds of before: it shall look again
                function.hash = None
