"""The owner's host: it turns hints into an index, and takes back what the dead left.

poller      the thread: drains the ring, sweeps, sleeps
intake      from hints to rows of the index, and to events
index       which objects lie in this rank's segment, as arrays
events      what listeners are told
members     which ranks live, and the events when one comes or goes
sweeper     looks at every header: the ring is only a hint, the headers are the truth
header_pass one look at every header, slice by slice
quarantine  holds DEAD objects until nobody can write to their pages
grace       tells when every operation has ended that was under way
audit       finds pages and slots that are in no place
orphans     what the dead left in segments that nobody sweeps
dead_pins   takes away the pins of dead readers
labels      removes the objects whose time is over: `until` of their labels (`device/protocol/label.py`)
removal     how an owner's poller takes objects away whose time is over, or whose identity holds too much
"""

if __name__ != "nanokv.host_poller":
    raise ImportError("import nanokv.host_poller: the bare name `host_poller` would be a second copy of it")
