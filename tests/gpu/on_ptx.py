"""Bodies compiled for a GPU, on the PTX machine: in this process, which must not be TRITON_INTERPRET's."""

from collections.abc import Iterator
from contextlib import contextmanager

from nanokv.device import ptx

CAPABILITIES = {"sm_80": 80, "sm_90": 90, "sm_100": 100}


@contextmanager
def machine_for(target: str, seed: int, *, split: float = 0.0) -> Iterator[ptx.Machine]:
    """Kernels are compiled for `target`, and run on the machine; atomics must be by one lane, and of system scope.

    Args:
        target: "sm_80", "sm_90", "sm_100".
        seed: of the order in which warps go on.
        split: the chance that a load by 32 lanes is cut in two, with other warps in between.

    Raises:
        AssertionError: at the end: the machine has findings.
    """
    checks = {"one_lane_atomics": True, "system_scope": True}
    memory = ptx.HostMemory()  # kernels read the addresses of segments from memory
    options = {"memory": memory, "seed": seed, "split_lanes": split} | checks
    with ptx.machine(capability=CAPABILITIES[target], **options) as made:
        yield made
    assert not made.report().findings, str(made.report())
