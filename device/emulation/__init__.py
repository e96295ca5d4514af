"""What the machines for PTX (`ptx`) and for AMD's machine code (`gcn`) have in common.

errors         what a kernel did wrong
floats         arithmetic that NumPy lacks
arguments      the arguments of a launch, as numbers and as bytes
host_memory    the memory of this process: bounds, and atomics
triton_driver  Triton's driver for a GPU that is not there
"""
