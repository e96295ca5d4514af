"""v1: one rank, the master, allocates in every segment; the other ranks ask it by messages.

Headers, ring and API are those of v2. Directory and free lists are not in the segments: the master keeps them, in plain
Python. While the master is dead, nothing can be put or found. Its successor starts from the headers.

    allocator   pages and header slots of one segment
    table       the master's knowledge: objects by key and by slot, and those in quarantine
    headers     looks at the STATE words of objects, and makes them DEAD
    eviction    makes room in a segment
    reclaim     gives up unfinished objects, empties the quarantine, rebuilds the table from the headers
    master      the endpoints: OPEN_FOR_WRITE, COMMIT, ABORT, GET_LOCATION, EXISTS, REMOVE, REMOVE_SLOT, EVICT
    messages    requests and replies as arrays of int64
    dispatch    brings a request to its endpoint; the contract of all that take requests
    transport   one private gloo group between the master and each client
    server      the master's threads: they accept clients, answer requests, and reclaim
    host_allocation  the Allocation of alloc="host": what the cache calls
"""

if __name__ != "nanokv.compat_v1":
    raise ImportError("import nanokv.compat_v1: the bare name `compat_v1` would be a second copy of it")
