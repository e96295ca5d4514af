"""Runs the code of AMD's gfx942 without a GPU: the text of `asm["amdgcn"]`, on the memory of this process.

What runs is what a GPU would run, after the compiler's last pass: a wrong mask, a missing s_waitcnt or a missing
writeback in the machine code shows here. Clocks, hazards between neighbouring instructions and the assembler are not
simulated. Needs NumPy only; `triton_driver` needs Triton.

    module         reads the text
    registers      scalar and vector registers, and the mask of active lanes
    operands       operands as functions of the registers
    scalar         scalar arithmetic
    floats         the steps of a division of float32
    lanes          what crosses lanes, or takes a part of a register
    vector         vector arithmetic
    float_vectors  division, pairs and matrices of float32
    memory         the memory of this process, by lanes
    outstanding    operations that are not complete, and s_waitcnt
    coherence      memory as waves see it, without caches
    caches         the same with caches, as weak as the memory model allows
    wave           a wave and its workgroup
    access         loads, stores and atomics on global memory
    private        accesses to the private memory of lanes
    lds            accesses to LDS
    control        branches, waits, barriers
    calls          calls of functions, and returns
    program        a kernel, its instructions made functions
    machine        launches: waves take turns at random
    triton_driver  lets unmodified kernel[grid](...) calls run here

`nanokv.device.emulation` has what the machine for PTX needs too.
"""
