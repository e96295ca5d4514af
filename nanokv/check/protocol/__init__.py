"""What proves the protocol's source: each access to memory is a point at which another may go on.

model     scenarios under the simulated machine, in many orders and under weak memory; mutants, and who notices them
compiled  compiled code, as the GPU would run it, under the same memory
"""
