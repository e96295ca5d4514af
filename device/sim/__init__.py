"""The simulated machine: device functions under every interleaving, weak memory and kills.

simulation   tasks, scheduling points, and how a device function runs as one
limits       ends code that makes no access any more
memory       sequentially consistent, or weak with release/acquire views
transfers    torn copies between hosts
world        segments in simulated memory, and the machine that a host has there
schedule     an execution by name
schedulers   which executions are tried: random ones, ones by priorities, given ones
exhaustive   all executions that differ
shrink       a failing schedule, made small
mutants      device functions, broken on purpose
"""
