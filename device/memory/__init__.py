"""Operations on shared words: the only seam between the protocol and the machine that runs it.

    triton       the vocabulary, and the rules that follow from how compilers behave
    native       the same names for a CPU, compiled by numba
    native_copy  its copies of payloads, in and out of a segment, and how streaming stores are ordered
    warps        what a device function knows of its CTA: constants
    retarget     rebuilds a device function over another vocabulary

The simulated machine has a third vocabulary (`sim.simulation`).
"""
