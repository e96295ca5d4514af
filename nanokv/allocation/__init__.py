"""The allocators: the producer itself (v2), or a master (v1, `compat_v1.host_allocation`).

base           the contract of both
routing        which segment a new object goes to
writers        who writes an object that is not READY yet
producer       v2: by device functions, in the owner's segment
host_eviction  a host evicts from its segment until at most a share of it is in use
"""
