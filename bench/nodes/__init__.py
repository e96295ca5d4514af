"""Two nodes of a cluster on this machine, each a process, over the transport that is asked for."""
