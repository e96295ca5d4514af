"""Operations on the words that others share: the only seam between the protocol and what runs it.

    triton    the vocabulary, with the rules that the compiler's own behaviour makes necessary
    native    the same names for a CPU, compiled by numba
    retarget  rebuilds a device function over another vocabulary

The simulated machine has a third vocabulary (`sim.simulation`).
"""
