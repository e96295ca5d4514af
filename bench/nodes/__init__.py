"""Two nodes of a cluster on this machine, each a process, over the transport that is asked for.

echo        the bytes alone, over a socket
owner       the node that has the objects, in a process that does nothing else until it is ended
pair        the owner and the reader as the benchmark sees them: two processes, which are ended with it
reader      the process that measures
transports  what moves bytes between two processes of this machine
wire_owner  a world behind two ends of the wire, one of each seal
"""
