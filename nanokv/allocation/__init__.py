"""Who gives an object its place and its terms: the producer itself (v2), or a master (v1, `compat_v1.host_allocation`).

base            the contract of both
routing         which segment a new object goes to
writers         who writes an object that is not READY yet
producer        v2: by device functions, in the owner's segment
room            puts that wait until there is room
host_eviction   a host evicts from its segment until at most a share of it is in use
terms           leases, priorities, times to live and groups of objects, at a put
groups          objects that go together
quotas          what an identity may hold in a segment
stored_layouts  the layouts of the objects of a segment
generations     what an identity had stored, declared void
status_errors   from a status to an error
"""
