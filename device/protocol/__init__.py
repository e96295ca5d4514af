"""What a rank may do to a segment, written once, in Triton. Read in this order:

status       what an operation answers
freelist     lock-free stacks of pages and of header slots; shards: where they stand, and which is asked when
extent       payload pages: size classes, splitting, the bump pointer
header       one record per object; its STATE word decides everything
directory    from a key to a header
ring         hints for the host: something became READY, something went away
activity     which rank is at work in a segment, so that the host can wait for a grace period
pins         readers that hold an object in place
checksum     of key, descriptor and payload
retire       frees what a DEAD header holds
evict        what a producer does that finds a segment full
put          all of the above, in order; get; remove
request      what a launch is asked to put or get, in device memory
ticket       many CTAs work on one object: which of them begins it, which ends it
cooperative  one object, put or read in parts by many CTAs
reclaim      what the owner's host does about what the dead left
"""
