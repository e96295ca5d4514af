"""v1: one rank, the master, allocates in every segment; the others ask it by messages.

Same headers, same ring, same API as v2; no directory and no free lists in the segments: the master has them, in plain
Python. As strong as its master: while that is dead, nothing can be put or found. Its successor starts from the headers.

    allocator   pages and header slots of one segment
    table       what the master knows: objects by key and by slot, and what is in quarantine
    headers     looks at the STATE words of objects, and makes them DEAD
    eviction    makes room in a segment
    reclaim     what became of unfinished objects, and of what the dead left; starting over from the headers
    master      the endpoints: OPEN_FOR_WRITE, COMMIT, ABORT, GET_LOCATION, EXISTS, REMOVE, REMOVE_SLOT, EVICT
    messages    requests and replies as arrays of int64
    desk        where a rank asks the master, and which endpoint answers what
    transport   one private gloo group between the master and each client
    server      the master's threads: they accept clients, answer, and look after what is unfinished
    client      a rank that asks, with a deadline
    host_allocation   the Allocation of alloc="host": what the cache calls
"""

if __name__ != "nanokv.compat_v1":
    raise ImportError("import nanokv.compat_v1: the bare name `compat_v1` would be a second copy of it")
