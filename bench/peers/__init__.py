"""NanoKV beside its peers: `python -m bench peers`. How each is run, and what the figures say: docs/peers.md.

base            what a system is to its client; what it guarantees
turns           the timed part: a ring of objects, put and read in turns
child           one system in a process of its own, which is told to take a turn
lane            that process, as the benchmark sees it: a crash or a hang loses its rows alone
isolation       a network of its own for each of these processes, with loopback alone
server          the processes that a system starts and ends
mapped          shared memory without a name
systems         all of them
nanokv_cluster  NanoKV between two nodes of a cluster: over the wire, and over NIXL

copy, shared_memory, nanokv, nanokv_mooncake, gloo, lmcache, mooncake, nixl, redis: the systems, one a file.
"""
