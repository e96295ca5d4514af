"""Compiled code under the simulated memory: what the GPU would run, in every scenario of the check.

Device functions are compiled by Triton up to PTX, and run on the PTX machine (`device/ptx`) as tasks of a simulation
(`device/sim`). Each access to a shared word is a scheduling point, and each lane of a warp has a view of its own. So a
fence that is missing in the assembly, a barrier, or a mask fails where the source is right.

calls    device functions as kernels, compiled
lanes    what lanes see of simulated memory
tasks    compiled code as what tasks call
run      litmus shapes and all scenarios, in rows
mutants  PTX, broken on purpose
known    for each of these an execution that notices it, or the reason why none does
follow   takes compiled code through an execution of the source
"""
