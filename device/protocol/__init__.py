"""The protocol: the operations of a rank on a segment, written once, in Triton. Read in this order:

status       the answers of operations
structs      keys, descriptors, begun puts and found objects: each is one argument
freelist     lock-free stacks of extents and of header slots
shards       many such lists side by side, and the order in which a producer asks them
splitting    the count of producers that split a free extent
extent       payload pages: size classes, splitting, the bump pointer
header       one record per object; its STATE word decides everything
directory    from a key to a header
claim        a producer inserts its key into the directory
ring         hints for the owner's host: an object became READY, or went away
activity     the operations in flight, so that the host can wait for a grace period
pins         readers that hold an object in place
checksum     over key, descriptor and payload
retire       frees what a DEAD header holds
joining      the mark of a host that joins free extents
joinable     whether free extents, joined, would hold an object: then nothing is evicted
ghosts       keys that were evicted lately
lifetimes    the default eviction policy: which object goes
policy       the eviction policies
lease        the time of the last use, and leases: objects that stay until they are read
label        a group and a time to live, beside the header
quotas       how many pages the objects of an identity may hold
search       looks for an object that may go
evict        one object goes
evict_neighbours  several go, for an extent that is larger than each
take_or_evict  a slot and an extent for a put, by eviction if the segment is full
put          a whole put, in order
get          a whole get, in order
remove       a whole removal
replicate    copies of an object in other segments
put_copied   a put with copies
reclaim      steps of the owner's host: quarantine, audit, taking the free extents
host_alloc   v1: steps of the master and its producers on headers
host_calls   the functions above as a host calls them, of words
layouts      the table of layouts: which identities have put objects into a segment
request      the objects that a launch puts or gets, as a table in device memory
ticket       many CTAs work on one object: which of them begins it, and which ends it
cooperative  one object, put or read in parts by many CTAs
runs         objects that are alike, which one CTA puts one after another
generations  the table of generations: which one of an identity is valid

Beside each ordering stands its reason, with the scenario in which `nanokv check mutants` sees a weaker one fail.
"(kept)" means that no execution of the simulated memory shows the need: `KEPT` in `check/protocol/model/orderings.py`.
"""
