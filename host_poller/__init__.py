"""The owner's host: it turns hints into an index, and takes back what the dead left.

events    what listeners are told
index     which objects lie in this rank's segment, as arrays
grace     by when has every operation ended that was under way?
coalesce  joins neighbouring free extents
sweeper   looks at every header: the ring is only a hint, the headers are the truth
dead_pins takes away the pins of dead readers
audit     finds pages and slots that are in no place
poller    the thread: drains the ring, sweeps, sleeps
"""

if __name__ != "nanokv.host_poller":
    raise ImportError("import nanokv.host_poller: the bare name `host_poller` would be a second copy of it")
