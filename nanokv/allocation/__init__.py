"""Who allocates: the producer itself (v2), or rank 0 (v1, `compat_v1.host_allocation`).

base           the contract of both
producer       v2: by device functions, in the owner's segment
host_eviction  a host that evicts down to a share of its segment
"""
