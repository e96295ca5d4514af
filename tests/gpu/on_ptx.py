"""Bodies compiled for a GPU, on the PTX machine: in this process, which must not be TRITON_INTERPRET's."""

from collections.abc import Iterator
from contextlib import contextmanager

from nanokv.device import ptx

CAPABILITIES = {"sm_80": 80, "sm_90": 90, "sm_100": 100}
#: kernels with other atomics than the protocol's, and why these are right
EXPECTED = {
    "each_remote_bit_kernel": "it tries an atomic on a block of words",
    "prefill_kernel": "the CTAs of one GPU count themselves, before one of them commits at system scope",
}


@contextmanager
def machine_for(target: str, seed: int, *, split: float = 0.0, in_turns: bool = False) -> Iterator[ptx.Machine]:
    """Kernels are compiled for `target`, and run on the machine, on all memory of this process.

    Every atomic must be by one lane, and of system scope, except in EXPECTED.

    Args:
        target: "sm_80", "sm_90", "sm_100".
        seed: of the order in which warps go on.
        split: the chance that a load by 32 lanes is cut in two, with other warps in between.
        in_turns: warps go on one after the other, a step each, instead of by the seed.

    Raises:
        AssertionError: at the end: the machine has findings.
    """
    made = ptx.Machine(
        memory=ptx.HostMemory(),
        seed=seed,
        split_lanes=split,
        in_turns=in_turns,
        one_lane_atomics=True,
        system_scope=True,
    )
    with ptx.installed(made, CAPABILITIES[target]):
        yield made
    assert {finding.kernel for finding in made.report().findings} <= EXPECTED.keys(), str(made.report())
